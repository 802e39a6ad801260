//! Lists, gets, retries, cancels and counts jobs, for operators.
use crate::claim::{bands, interval};
use crate::enqueue::stored_key;
use crate::queue::{lock_groups_shared, notify_workers};
use crate::settle::finish;
use crate::{JobRow, JobState, Queue, QueueError};
use sqlx::{PgConnection, Postgres, QueryBuilder};
use std::collections::{BTreeMap, HashSet};
use std::time::Duration;
use uuid::Uuid;

/// Job counts for `/metrics` and the system page.
#[derive(Clone, Debug, Default)]
pub struct QueueStats {
    /// Number of jobs per kind and state.
    pub counts: Vec<(String, JobState, i64)>,
    /// Age in seconds of the oldest due job.
    pub oldest_due_seconds: f64,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct KindReport {
    /// Number of live jobs per state, and of discarded jobs.
    pub counts: BTreeMap<JobState, i64>,
    /// Number of jobs completed within the window.
    pub completed: i64,
    /// Number of jobs discarded within the window.
    pub discarded: i64,
    /// Age in seconds of the oldest job that is due and not running; `None` if none is due.
    pub oldest_due_seconds: Option<f64>,
}

/// The report of every kind that has live or discarded jobs, or a job that ended within the window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueueReport {
    /// The window of `completed` and `discarded`.
    pub window: Duration,
    pub kinds: BTreeMap<String, KindReport>,
}

/// The operations on single jobs, for operators and for the records of ended jobs.
#[derive(Clone, Copy, Debug)]
pub struct Jobs<'a>(pub(crate) &'a Queue);

impl Queue {
    pub fn jobs(&self) -> Jobs<'_> {
        Jobs(self)
    }
}

impl Jobs<'_> {
    /// Lists at most `limit` jobs by state, newest first. `before` is the cursor: the id of the
    /// last row of the previous page.
    pub async fn list(
        self,
        state: Option<JobState>,
        kind: Option<&str>,
        group: Option<Uuid>,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<JobRow>, QueueError> {
        let limit = limit.max(0);
        // The statement contains only the requested conditions, so that each can use its index.
        let mut query = QueryBuilder::<Postgres>::new("select * from (");
        // Jobs that have ended are read per state: each state has its own indexes, and there can be
        // very many completed jobs.
        let parts: &[(Table, Option<JobState>)] = match state {
            Some(state) if state.is_live() => &[(Table::Live, Some(state))],
            Some(state) => &[(Table::Finished, Some(state))],
            None => &[
                (Table::Live, None),
                (Table::Finished, Some(JobState::Completed)),
                (Table::Finished, Some(JobState::Discarded)),
                (Table::Finished, Some(JobState::Cancelled)),
            ],
        };
        for (index, (table, state)) in parts.iter().enumerate() {
            query.push(if index > 0 { " union all (" } else { "(" });
            query.push(table.select());
            query.push(" where true");
            if let Some(state) = state {
                // This is a constant, not a parameter, because the planner matches partial indexes
                // by the constants in their conditions.
                query.push(" and state = '").push(state.as_str()).push("'");
            }
            // This is a range of pairs (see `push_range`), not `group_id =` and `id <`. Otherwise
            // the planner, which cannot estimate the number of jobs newer than the group's last
            // job, would scan all of them in the order of the ids.
            let completed_kind = kind.filter(|_| group.is_none() && *state == Some(JobState::Completed));
            if let Some(kind) = kind.filter(|_| completed_kind.is_none()) {
                query.push(" and kind = ").push_bind(kind);
            }
            let order = if let Some(group) = group {
                query.push(" and group_id is not null");
                push_range(&mut query, "group_id", group, before)
            } else if let Some(kind) = completed_kind {
                push_range(&mut query, "kind", kind, before)
            } else {
                query.push(" and id < ").push_bind(before.unwrap_or(Uuid::max()));
                "id desc".to_owned()
            };
            query.push(" order by ").push(order).push(" limit ").push_bind(limit).push(")");
        }
        query.push(") as listed order by id desc limit ").push_bind(limit);
        Ok(query.build_query_as().persistent(false).fetch_all(&self.0.pool).await?)
    }

    /// Returns one job, live or ended.
    pub async fn get(self, id: Uuid) -> Result<JobRow, QueueError> {
        let mut query = QueryBuilder::<Postgres>::new(Table::Live.select());
        query.push(" where id = ").push_bind(id).push(" union all ");
        query.push(Table::Finished.select()).push(" where id = ").push_bind(id);
        query.build_query_as().fetch_optional(&self.0.pool).await?.ok_or(QueueError::NotFound(id))
    }

    /// Returns those of `keys` that are the unique key of a live job of `kind`, in input order.
    /// Callers use it to find the records for which a live job exists.
    pub async fn live_keys(
        self,
        conn: &mut PgConnection,
        kind: &str,
        keys: &[String],
    ) -> Result<Vec<String>, QueueError> {
        let stored: Vec<String> = keys.iter().map(|key| stored_key(key)).collect();
        let live: Vec<String> =
            sqlx::query_scalar("select unique_key from jobs where kind = $1 and unique_key = any($2)")
                .bind(kind)
                .bind(&stored)
                .fetch_all(conn)
                .await?;
        let live: HashSet<String> = live.into_iter().collect();
        let live_keys = keys.iter().zip(&stored).filter(|(_, stored)| live.contains(*stored));
        Ok(live_keys.map(|(key, _)| key.clone()).collect())
    }

    /// Returns a discarded or cancelled job to the queue inside the caller's transaction, due now
    /// and with all attempts available. The job is held if its group is held.
    ///
    /// # Errors
    /// Fails with `NotFound` if the job is neither discarded nor cancelled. Fails with `Duplicate`
    /// if a live job has the same kind and unique key.
    pub async fn retry(self, conn: &mut PgConnection, id: Uuid) -> Result<JobRow, QueueError> {
        let group: Option<Option<Uuid>> = sqlx::query_scalar(
            "select group_id from finished_jobs where id = $1 and state in ('discarded', 'cancelled') for update",
        )
        .bind(id)
        .fetch_optional(&mut *conn)
        .await?;
        if let Some(group) = group.ok_or(QueueError::NotFound(id))? {
            lock_groups_shared(conn, &[group]).await?;
        }
        let row: Option<JobRow> = sqlx::query_as(RETRY).bind(id).fetch_optional(&mut *conn).await?;
        let row = row.ok_or(QueueError::Duplicate(id))?;
        notify_workers(conn).await?;
        Ok(row)
    }

    /// Sets the tenant of a live job, for example after a retry. Records contain no tenant.
    pub async fn set_tenant(self, conn: &mut PgConnection, id: Uuid, tenant: Uuid) -> Result<(), QueueError> {
        sqlx::query("update jobs set tenant = $2 where id = $1").bind(id).bind(tenant).execute(conn).await?;
        Ok(())
    }

    /// Cancels a live job inside the caller's transaction. A worker that runs it loses its claim.
    ///
    /// # Errors
    /// Fails with `NotFound` if the job is not live.
    pub async fn cancel(self, conn: &mut PgConnection, id: Uuid) -> Result<JobRow, QueueError> {
        let group: Option<Option<Uuid>> = sqlx::query_scalar("select group_id from jobs where id = $1")
            .bind(id)
            .fetch_optional(&mut *conn)
            .await?;
        if let Some(group) = group.ok_or(QueueError::NotFound(id))? {
            lock_groups_shared(conn, &[group]).await?;
        }
        sqlx::query_as(CANCEL).bind(id).fetch_optional(&mut *conn).await?.ok_or(QueueError::NotFound(id))
    }

    /// Counts all jobs, including those that have ended, and returns the age of the oldest due job.
    /// Reads the index entries of all rows, which is too slow for every metrics scrape. Use it for
    /// web pages that a person opens.
    pub async fn stats(self) -> Result<QueueStats, QueueError> {
        self.count(STATS).await
    }

    /// Works like [`stats`](Self::stats), but does not count completed and cancelled jobs. There
    /// can be many of them, and they do not affect the depth of the queue.
    pub async fn depth(self) -> Result<QueueStats, QueueError> {
        self.count(DEPTH).await
    }

    /// Returns a report per kind, with the jobs that ended within the last `window`. The cost
    /// depends only on the live jobs and on those that ended within the window.
    pub async fn report(self, window: Duration) -> Result<QueueReport, QueueError> {
        let mut kinds: BTreeMap<String, KindReport> = BTreeMap::new();
        for (kind, state, count) in self.depth().await?.counts {
            kinds.entry(kind).or_default().counts.insert(state, count);
        }
        let ended: Vec<(String, String, i64)> =
            sqlx::query_as(ENDED).bind(interval(window)).fetch_all(&self.0.pool).await?;
        for (kind, state, count) in ended {
            let report = kinds.entry(kind).or_default();
            match state.parse()? {
                JobState::Completed => report.completed = count,
                _ => report.discarded = count,
            }
        }
        let ages: Vec<(String, f64)> = sqlx::query_as(OLDEST).fetch_all(&self.0.pool).await?;
        for (kind, age) in ages {
            kinds.entry(kind).or_default().oldest_due_seconds = (age >= 0.0).then_some(age);
        }
        Ok(QueueReport { window, kinds })
    }

    async fn count(self, counts: &'static str) -> Result<QueueStats, QueueError> {
        let rows: Vec<(String, String, i64)> = sqlx::query_as(counts).fetch_all(&self.0.pool).await?;
        let counts = rows
            .into_iter()
            .map(|(kind, state, count)| Ok((kind, state.parse()?, count)))
            .collect::<Result<_, QueueError>>()?;
        let oldest: Option<f64> = sqlx::query_scalar(OLDEST_DUE).fetch_one(&self.0.pool).await?;
        Ok(QueueStats { counts, oldest_due_seconds: oldest.unwrap_or(0.0).max(0.0) })
    }
}

/// Selects the rows whose `column` is `value` and whose id is below `before`, as one range of an
/// index on both. Returns the matching order clause.
fn push_range<'a, T>(
    query: &mut QueryBuilder<Postgres>,
    column: &str,
    value: T,
    before: Option<Uuid>,
) -> String
where
    T: Copy + sqlx::Encode<'a, Postgres> + sqlx::Type<Postgres>,
{
    query
        .push(format!(" and ({column}, id) >= ("))
        .push_bind(value)
        .push(", ")
        .push_bind(Uuid::nil())
        .push(")");
    let end = before.unwrap_or(Uuid::max());
    query.push(format!(" and ({column}, id) < (")).push_bind(value).push(", ").push_bind(end).push(")");
    format!("{column} desc, id desc")
}

#[derive(Clone, Copy)]
enum Table {
    Live,
    Finished,
}

impl Table {
    fn select(self) -> &'static str {
        match self {
            Self::Live => {
                "select id, kind, state::text as state, payload, attempt, max_attempts, priority, scheduled_at,
                    created_at, null::timestamptz as finished_at, last_error, group_id, held, locked_by from jobs"
            }
            Self::Finished => {
                "select id, kind, state::text as state, payload, attempt, max_attempts, priority, scheduled_at,
                    created_at, finished_at, last_error, group_id, false as held, locked_by from finished_jobs"
            }
        }
    }
}

/// Works like [`bands`], for all kinds with at least one job. A skip scan finds these kinds too.
macro_rules! every_band {
    () => {
        concat!(
            "with recursive kinds as (
    select (select j.kind from jobs j where j.state <> 'running' and not j.held order by j.kind limit 1) as kind
    union all
    select (select j.kind from jobs j where j.kind > k.kind and j.state <> 'running' and not j.held order by j.kind limit 1)
    from kinds k where k.kind is not null
), wanted as (
    select kind, 1::bigint as slots from kinds where kind is not null
), ",
            bands!()
        )
    };
}
/// Counts live jobs. Each table is counted separately, so that each count uses its smallest index.
macro_rules! live_counts {
    () => {
        "select kind, state::text, count(*) from jobs group by 1, 2"
    };
}

const STATS: &str =
    concat!(live_counts!(), " union all select kind, state::text, count(*) from finished_jobs group by 1, 2");

const DEPTH: &str = concat!(
    live_counts!(),
    " union all select kind, 'discarded', count(*) from finished_jobs where state = 'discarded' group by 1"
);

/// The delete reads the ids that the insert returned, so it deletes only the inserted row.
const RETRY: &str = "
with inserted as (
    insert into jobs (id, group_id, fence, scheduled_at, created_at, priority, max_attempts, held, kind, unique_key,
                      locked_by, last_error, payload)
    select id, group_id, fence + 1, clock_timestamp(), created_at, priority, max_attempts,
           group_id is not null and group_id in (select id from job_groups), kind, unique_key, locked_by, last_error, payload
    from finished_jobs where id = $1
    on conflict (kind, unique_key) where unique_key is not null do nothing
    returning *
), deleted as (
    delete from finished_jobs where id in (select id from inserted)
)
select id, kind, state::text as state, payload, attempt, max_attempts, priority, scheduled_at, created_at,
       null::timestamptz as finished_at, last_error, group_id, held, locked_by from inserted";

const CANCEL: &str = concat!(
    "with deleted as (
    delete from jobs where id = $1
    returning id, group_id, fence + 1 as fence, scheduled_at, created_at, priority, attempt, max_attempts,
              kind, unique_key, locked_by, last_error, payload
) ",
    finish!("deleted", "cancelled", "last_error"),
    " returning id, kind, state::text as state, payload, attempt, max_attempts, priority, scheduled_at, created_at,
       finished_at, last_error, group_id, false as held, locked_by"
);

const OLDEST_DUE: &str = concat!(
    every_band!(),
    " select extract(epoch from clock_timestamp() - min(first_at))::float8 from bands"
);

/// Each half uses its own partial index: completed jobs by time, the few discarded jobs by state.
const ENDED: &str = "
select kind, state::text, count(*) from finished_jobs
where state <> 'discarded' and state = 'completed' and finished_at > now() - $1::interval group by 1, 2
union all
select kind, state::text, count(*) from finished_jobs where state = 'discarded' and finished_at > now() - $1::interval group by 1, 2";

const OLDEST: &str = concat!(
    every_band!(),
    " select kind, extract(epoch from clock_timestamp() - min(first_at))::float8 from bands group by kind"
);

//! Defines the queue handle, its configuration, its errors, and how jobs are enqueued.
//!
//! Other operations are in sibling modules: `claim` (claim jobs, extend leases), `settle` (end a
//! run), `groups` (hold, release, cancel), `inspect` (list, retry, stats) and `purge`.
use crate::NewJob;
use crate::partitions::{FEW_PLACES, PartitionPositions};
use sha2::{Digest, Sha256};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uuid::Uuid;

/// The `NOTIFY` channel that wakes waiting workers. The payload is empty.
pub const CHANNEL: &str = "facecrawl_jobs";

/// Maximum length, in bytes, of a unique key that is stored unchanged. Longer keys are stored as
/// their SHA-256, because a Postgres index entry is limited to 2.7 kB and a URL can be longer.
const LONGEST_PLAIN_KEY: usize = 512;

/// How long a call waits for one of the queue's own connections before it fails.
const ACQUIRE: Duration = Duration::from_secs(5);

/// Maximum value, in milliseconds, of a Postgres timeout setting.
const MOST_MILLISECONDS: u128 = i32::MAX as u128;

/// Times and limits of the queue.
#[derive(Clone, Debug)]
pub struct Config {
    /// How long a claim is valid without a heartbeat.
    pub lease: Duration,
    /// First retry delay. It doubles with every attempt and has jitter.
    pub retry_base: Duration,
    /// Maximum retry delay.
    pub retry_max: Duration,
    /// How long completed and cancelled jobs are kept.
    pub keep_finished: Duration,
    /// Maximum number of unparked jobs with the same kind, group and partition key. Further jobs
    /// are parked.
    pub partition_window: i64,
    /// Maximum number of unparked jobs with the same kind and group, over all partition keys. Once
    /// half of this number is reached, each partition key gets only a few places. So in a group
    /// with very many keys, the keys share the remaining places.
    pub group_window: i64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            retry_base: Duration::from_secs(2),
            retry_max: Duration::from_secs(600),
            keep_finished: Duration::from_secs(24 * 3600),
            partition_window: 256,
            group_window: 8_192,
        }
    }
}

/// The result of enqueueing one `NewJob`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// A job was added with this id.
    New(Uuid),
    /// A live job with the same kind and unique key exists already.
    Duplicate,
}

/// Why the queue rejected a call.
#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The claim is no longer held: the job was rescued after its lease expired, or it was
    /// cancelled.
    #[error("the claim on job {0} is no longer held")]
    Stale(Uuid),
    /// The job does not exist, or its state does not allow the operation.
    #[error("there is no job {0}, or its state does not allow this")]
    NotFound(Uuid),
    /// The job cannot be retried: a live job has the same kind and unique key.
    #[error("job {0} cannot be retried: a live job has the same kind and unique key")]
    Duplicate(Uuid),
    /// The input cannot be stored. The text states what is allowed.
    #[error("{0}")]
    Invalid(String),
    /// The database failed.
    #[error("the queue's database failed: {0}")]
    Database(#[from] sqlx::Error),
}

impl QueueError {
    /// Returns the database error, if this is one.
    pub fn database(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Database(error) => Some(error),
            _ => None,
        }
    }
}

/// A handle to the queue. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) pool: PgPool,
    pub(crate) config: Config,
    /// The position at which the next call of `unpark` starts.
    pub(crate) partitions_from: Arc<Mutex<PartitionPositions>>,
}

impl Queue {
    /// Creates a queue on a migrated database.
    pub fn new(pool: PgPool, config: Config) -> Self {
        Self { pool, config, partitions_from: Arc::default() }
    }

    /// Returns the pool, for callers that open their own transaction.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// Returns the same queue on a separate pool of at most `connections` connections, which are
    /// opened on first use.
    ///
    /// Other users of the original pool then cannot starve the queue. Each connection plans each
    /// statement once, because planning a claim takes longer than running it, and the plan never
    /// depends on the parameter values.
    pub fn on_own_connections(&self, connections: u32) -> Self {
        // If a process stops inside a transaction, its row locks are released after at most the
        // duration of a lease. The timeouts also stop a statement whose caller gave up (`within`).
        let patience = self.config.lease.as_millis().clamp(1, MOST_MILLISECONDS);
        let settings = format!(
            "set plan_cache_mode = force_generic_plan; set jit = off; set statement_timeout = {patience};
             set idle_in_transaction_session_timeout = {patience}"
        );
        let pool = PgPoolOptions::new()
            .max_connections(connections)
            .acquire_timeout(ACQUIRE)
            .after_connect(move |conn, _| {
                let settings = settings.clone();
                Box::pin(async move {
                    sqlx::raw_sql(AssertSqlSafe(settings)).execute(conn).await?;
                    Ok(())
                })
            })
            .connect_lazy_with(self.pool.connect_options().as_ref().clone());
        Self { pool, config: self.config.clone(), partitions_from: self.partitions_from.clone() }
    }

    /// Returns the configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Adds jobs inside the caller's transaction. Returns one result per job, in input order.
    ///
    /// Jobs of a held group are held. Waiting workers wake up when the transaction commits.
    ///
    /// # Errors
    /// Fails with `Invalid` if a job cannot be stored. The text identifies the first such job, and
    /// no job is added.
    pub async fn enqueue(
        &self,
        conn: &mut PgConnection,
        jobs: &[NewJob],
    ) -> Result<Vec<Enqueued>, QueueError> {
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        for (index, job) in jobs.iter().enumerate() {
            check(job).map_err(|reason| QueueError::Invalid(format!("job {index}: {reason}")))?;
        }
        // The lock and the insert must be two statements. The insert takes its snapshot after the
        // lock is held, so it sees whether the group was held in the meantime.
        let groups: Vec<Uuid> =
            jobs.iter().filter_map(|job| job.group_id).collect::<BTreeSet<_>>().into_iter().collect();
        if !groups.is_empty() {
            lock_groups_shared(conn, &groups).await?;
        }

        let ids: Vec<Uuid> = jobs.iter().map(|_| Uuid::now_v7()).collect();
        let keys: Vec<Option<String>> =
            jobs.iter().map(|job| job.unique_key.as_deref().map(stored_key)).collect();
        // All callers insert unique keys in the same order, so two of them never deadlock.
        let mut order: Vec<usize> = (0..jobs.len()).collect();
        order.sort_by(|&a, &b| (&jobs[a].kind, &keys[a]).cmp(&(&jobs[b].kind, &keys[b])));
        fn column<'a, T>(order: &'a [usize], value: impl Fn(usize) -> T + 'a) -> Vec<T> {
            order.iter().map(|&index| value(index)).collect()
        }
        let added: Vec<(Uuid, bool)> = sqlx::query_as(ENQUEUE)
            .bind(column(&order, |i| ids[i]))
            .bind(column(&order, |i| jobs[i].kind.as_str()))
            .bind(column(&order, |i| &jobs[i].payload))
            .bind(column(&order, |i| jobs[i].priority))
            .bind(column(&order, |i| jobs[i].max_attempts))
            .bind(column(&order, |i| jobs[i].scheduled_at))
            .bind(column(&order, |i| keys[i].as_deref()))
            .bind(column(&order, |i| jobs[i].group_id))
            .bind(column(&order, |i| jobs[i].partition_key.as_deref()))
            .bind(self.config.partition_window)
            .bind(self.config.group_window)
            .bind(FEW_PLACES)
            .bind(column(&order, |i| jobs[i].tenant))
            .fetch_all(&mut *conn)
            .await?;
        if added.iter().any(|&(_, due)| due) {
            wake(conn).await?;
        }
        let added: BTreeSet<Uuid> = added.into_iter().map(|(id, _)| id).collect();
        Ok(ids
            .into_iter()
            .map(|id| if added.contains(&id) { Enqueued::New(id) } else { Enqueued::Duplicate })
            .collect())
    }
}

/// Inserts jobs in input order. A job is parked if its partition key has `partition_window`
/// unparked jobs, or if its group has `group_window` unparked jobs over all keys. Jobs earlier in
/// the same call count too.
const ENQUEUE: &str = "
with n as materialized (
    select *, row_number() over (partition by kind, group_id, partition_key order by priority, position) as place
    from unnest($1::uuid[], $2::text[], $3::jsonb[], $4::smallint[], $5::smallint[], $6::timestamptz[], $7::text[],
                $8::uuid[], $9::text[], $13::uuid[])
         with ordinality
         as n(id, kind, payload, priority, max_attempts, scheduled_at, unique_key, group_id, partition_key, tenant, position)
), lines as materialized (
    select l.kind, l.group_id, l.partition_key, line.length
    from (select distinct kind, group_id, partition_key from n where partition_key is not null) l cross join lateral (
        select count(*) as length from (
            select 1 from jobs j
            where j.group_id = l.group_id and j.kind = l.kind and j.partition_key = l.partition_key and not j.parked
            limit $10
        ) standing
    ) line
), crowds as materialized (
    select g.kind, g.group_id, crowd.size
    from (select distinct kind, group_id from n where partition_key is not null) g cross join lateral (
        select count(*) as size from (
            select 1 from jobs j
            where j.group_id = g.group_id and j.kind = g.kind and j.partition_key is not null and not j.parked
            limit $11
        ) standing
    ) crowd
), in_partition as (
    select n.*, c.size,
           coalesce(l.length + n.place > case when c.size >= $11 / 2 then least($10, $12) else $10 end, false) as partition_full
    from n left join lines l on l.kind = n.kind and l.group_id = n.group_id and l.partition_key = n.partition_key
           left join crowds c on c.kind = n.kind and c.group_id = n.group_id
), placed as (
    select i.*, partition_full or (partition_key is not null and size + count(*) filter (where partition_key is not null and not partition_full)
               over (partition by kind, group_id order by priority, position) > $11) as parked,
           group_id is not null and group_id in (select id from job_groups) as group_held
    from in_partition i
)
insert into jobs (id, kind, payload, priority, max_attempts, scheduled_at, unique_key, group_id, tenant, created_at, partition_key, parked, held)
select id, kind, payload, priority, max_attempts, coalesce(scheduled_at, statement_timestamp()),
       unique_key, group_id, tenant, statement_timestamp(), partition_key, parked, parked or group_held
from placed order by position
on conflict (kind, unique_key) where unique_key is not null do nothing
returning id, not held and scheduled_at <= clock_timestamp()";

/// Waits until no transaction holds, releases or cancels one of the groups, and blocks such changes
/// until the transaction ends.
///
/// Sorting the groups prevents deadlocks between two transactions.
pub(crate) async fn lock_groups_shared(conn: &mut PgConnection, groups: &[Uuid]) -> Result<(), QueueError> {
    sqlx::query("select pg_advisory_xact_lock_shared(job_group_lock(g)) from unnest($1::uuid[]) as g")
        .bind(groups)
        .execute(conn)
        .await?;
    Ok(())
}

/// Wakes waiting workers when the transaction commits. Postgres sends equal notifications of one
/// transaction only once.
pub(crate) async fn wake(conn: &mut PgConnection) -> Result<(), QueueError> {
    sqlx::query("select pg_notify($1, '')").bind(CHANNEL).execute(conn).await?;
    Ok(())
}

/// Rejects, with a readable reason, a job that Postgres would reject.
fn check(job: &NewJob) -> Result<(), String> {
    if job.kind.is_empty() || job.kind.contains('\0') {
        return Err(format!("the kind is {:?}; it must be a non-empty string without NUL", job.kind));
    }
    if job.max_attempts < 1 {
        return Err(format!("max_attempts is {}; it must be at least 1", job.max_attempts));
    }
    if let Some(partition_key) = &job.partition_key
        && (job.group_id.is_none()
            || partition_key.is_empty()
            || partition_key.contains('\0')
            || partition_key.len() > LONGEST_PLAIN_KEY)
    {
        return Err(format!(
            "a partition key requires a group and must have 1 to {LONGEST_PLAIN_KEY} bytes without NUL"
        ));
    }
    if has_nul(&job.payload) {
        return Err(format!(
            "the payload of kind {:?} contains a NUL character, which jsonb cannot store",
            job.kind
        ));
    }
    Ok(())
}

fn has_nul(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(items) => items.iter().any(has_nul),
        Value::Object(fields) => fields.iter().any(|(key, value)| key.contains('\0') || has_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

/// Returns the key, or its digest if the key cannot be stored in an index entry or a text column.
pub(crate) fn stored_key(key: &str) -> String {
    if key.len() <= LONGEST_PLAIN_KEY && !key.contains('\0') {
        key.to_owned()
    } else {
        format!("sha256:{}", hex::encode(Sha256::digest(key)))
    }
}

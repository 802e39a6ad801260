//! Ends runs (complete, fail, snooze, release) and rescues expired leases.
//!
//! Each statement matches the id, the fence and the state `running`. If nothing matches, the claim
//! is stale and nothing changes.
//!
//! `complete` and `fail` run in the caller's transaction, which may then enqueue into the job's
//! group. They therefore acquire the group's shared lock before they lock the row (see
//! `group_lock`). A transaction that holds, releases or cancels the group waits only for this lock,
//! before it locks any row. The other statements never wait for a row, like those of `claim`.
use crate::claim::{ensure_changed, ids_and_fences, interval};
use crate::queue::notify_workers;
use crate::{Claim, JobState, Queue, QueueError};
use sqlx::PgConnection;
use std::collections::HashSet;
use std::time::Duration;
use uuid::Uuid;

/// Rows per statement of a rescue.
const RESCUE_BATCH: i64 = 1000;
/// Pause before a retry for rows that another transaction had locked.
pub(crate) const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// The claims that a batch did not settle.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unsettled {
    /// Claims that are no longer held.
    pub(crate) stale: Vec<Claim>,
    /// Claims whose rows another transaction has locked. The caller must retry them.
    pub(crate) busy: Vec<Claim>,
}

impl Queue {
    /// Completes a job inside the caller's transaction.
    ///
    /// # Errors
    /// Fails with `Stale` if the claim is no longer held. The caller must then roll back.
    pub async fn complete(&self, conn: &mut PgConnection, claim: Claim) -> Result<(), QueueError> {
        let result = sqlx::query(COMPLETE).bind(claim.id).bind(claim.fence).execute(conn).await?;
        ensure_changed(&result, claim)
    }

    /// Checks inside the caller's transaction that the claim is held, and keeps it held until the
    /// transaction ends. For long jobs that store parts of their result.
    ///
    /// # Errors
    /// Fails with `Stale` if the claim is no longer held. The caller must then roll back.
    pub async fn hold(&self, conn: &mut PgConnection, claim: Claim) -> Result<(), QueueError> {
        let held: Option<i32> =
            sqlx::query_scalar(HOLD_CLAIM).bind(claim.id).bind(claim.fence).fetch_optional(conn).await?;
        held.map(|_| ()).ok_or(QueueError::Stale(claim.id))
    }

    /// Records inside the caller's transaction that the job stores a part of its result. Checks the
    /// claim like [`hold`](Self::hold).
    ///
    /// The current run becomes the first attempt, and earlier crashes no longer count, because the
    /// limit on attempts is for jobs that do not advance. The job no longer has to run alone.
    ///
    /// # Errors
    /// Fails with `Stale` if the claim is no longer held. The caller must then roll back.
    pub async fn record_progress(&self, conn: &mut PgConnection, claim: Claim) -> Result<(), QueueError> {
        let result = sqlx::query(RECORD_PROGRESS).bind(claim.id).bind(claim.fence).execute(conn).await?;
        ensure_changed(&result, claim)
    }

    /// Returns the number of the current attempt, from 1.
    /// [`record_progress`](Self::record_progress) changes it during a run.
    ///
    /// # Errors
    /// Fails with `Stale` if the claim is no longer held.
    pub async fn attempt(&self, claim: Claim) -> Result<i16, QueueError> {
        let sql = "select attempt from jobs where id = $1 and fence = $2 and state = 'running'";
        let attempt =
            sqlx::query_scalar(sql).bind(claim.id).bind(claim.fence).fetch_optional(&self.pool).await?;
        attempt.ok_or(QueueError::Stale(claim.id))
    }

    /// Locks the jobs of many claims inside the caller's transaction, so that the claims are held
    /// until it ends. Returns the claims whose jobs it locked. The others are lost, or another
    /// transaction has locked their jobs.
    pub async fn lock_claims(
        &self,
        conn: &mut PgConnection,
        claims: &[Claim],
    ) -> Result<HashSet<Claim>, QueueError> {
        let (ids, fences) = ids_and_fences(claims);
        let locked: Vec<Claim> = sqlx::query_as(LOCK_CLAIMS).bind(ids).bind(fences).fetch_all(conn).await?;
        Ok(locked.into_iter().collect())
    }

    /// Completes many jobs inside the caller's transaction, which locked them with
    /// [`lock_claims`](Self::lock_claims).
    ///
    /// # Errors
    /// Fails with `Stale` if a claim is not held. The caller must then roll back.
    pub async fn complete_locked(&self, conn: &mut PgConnection, claims: &[Claim]) -> Result<(), QueueError> {
        let (ids, fences) = ids_and_fences(claims);
        let settled: Vec<Uuid> =
            sqlx::query_scalar(COMPLETE_MANY).bind(ids).bind(fences).fetch_all(conn).await?;
        let lost = claims.iter().find(|claim| !settled.contains(&claim.id));
        lost.map_or(Ok(()), |claim| Err(QueueError::Stale(claim.id)))
    }

    /// Completes many jobs in a separate transaction. Returns the stale claims.
    pub async fn complete_many(&self, claims: &[Claim]) -> Result<Vec<Claim>, QueueError> {
        let mut batch = self.try_complete_many(claims).await?;
        let mut stale = std::mem::take(&mut batch.stale);
        while !batch.busy.is_empty() {
            tokio::time::sleep(BUSY_PAUSE).await;
            batch = self.try_complete_many(&batch.busy).await?;
            stale.append(&mut batch.stale);
        }
        Ok(stale)
    }

    /// Runs one round of [`complete_many`](Self::complete_many).
    pub(crate) async fn try_complete_many(&self, claims: &[Claim]) -> Result<Unsettled, QueueError> {
        if claims.is_empty() {
            return Ok(Unsettled::default());
        }
        let (ids, fences) = ids_and_fences(claims);
        let settled = sqlx::query_scalar(COMPLETE_MANY).bind(ids).bind(fences).fetch_all(&self.pool).await?;
        self.divide_unsettled(claims, settled).await
    }

    /// Records a failed attempt. The job becomes retryable, with backoff or after `wait`. It is
    /// discarded if no attempts are left or if `is_permanent` is set. Returns the new state.
    ///
    /// The backoff of attempt n is `min(retry_max, retry_base * 2^(n-1))`, times a random factor
    /// from 0.5 to 1, so that jobs that failed together are not retried together.
    pub async fn fail(
        &self,
        conn: &mut PgConnection,
        claim: Claim,
        error: &str,
        is_permanent: bool,
        wait: Option<Duration>,
    ) -> Result<JobState, QueueError> {
        let state: Option<String> = sqlx::query_scalar(FAIL)
            .bind(claim.id)
            .bind(claim.fence)
            .bind(to_storable(error))
            .bind(is_permanent)
            .bind(wait.map(interval))
            .bind(self.config.retry_base.as_secs_f64())
            .bind(self.config.retry_max.as_secs_f64())
            .fetch_optional(conn)
            .await?;
        state.ok_or(QueueError::Stale(claim.id))?.parse()
    }

    /// Schedules the job again after `wait`. The run is not counted as an attempt.
    pub async fn snooze(&self, claim: Claim, wait: Duration) -> Result<(), QueueError> {
        let result = sqlx::query(SNOOZE)
            .bind(claim.id)
            .bind(claim.fence)
            .bind(interval(wait))
            .execute(&self.pool)
            .await?;
        ensure_changed(&result, claim)
    }

    /// Returns jobs to the queue (at shutdown). The runs are not counted as attempts. Returns the
    /// number of released jobs. The other claims are stale.
    pub async fn release(&self, claims: &[Claim]) -> Result<u64, QueueError> {
        let mut unsettled = claims.to_vec();
        let mut released = 0;
        loop {
            let batch = self.try_release(&unsettled).await?;
            released += (unsettled.len() - batch.stale.len() - batch.busy.len()) as u64;
            if batch.busy.is_empty() {
                return Ok(released);
            }
            unsettled = batch.busy;
            tokio::time::sleep(BUSY_PAUSE).await;
        }
    }

    /// Runs one round of [`release`](Self::release).
    async fn try_release(&self, claims: &[Claim]) -> Result<Unsettled, QueueError> {
        if claims.is_empty() {
            return Ok(Unsettled::default());
        }
        let (ids, fences) = ids_and_fences(claims);
        let mut tx = self.pool.begin().await?;
        let settled: Vec<Uuid> =
            sqlx::query_scalar(RELEASE).bind(ids).bind(fences).fetch_all(&mut *tx).await?;
        if !settled.is_empty() {
            notify_workers(&mut tx).await?;
        }
        tx.commit().await?;
        self.divide_unsettled(claims, settled).await
    }

    /// Returns jobs whose lease expired to the queue. Returns the number of rescued jobs.
    ///
    /// When a process crashes, all its jobs are lost, and at most one of them is the cause. They
    /// are rescheduled at random times within the backoff for their crashes, so that they do not
    /// run together again. From the second crash on, each job runs alone. A rescue discards a job
    /// if it ran alone and has no attempts left, or if it crashed four times as often as it has
    /// attempts, without progress. Other jobs keep at least one attempt.
    pub async fn rescue(&self) -> Result<u64, QueueError> {
        let mut rescued = 0;
        loop {
            let mut tx = self.pool.begin().await?;
            let (returned, discarded): (i64, i64) = sqlx::query_as(RESCUE)
                .bind(RESCUE_BATCH)
                .bind(self.config.retry_base.as_secs_f64())
                .bind(self.config.retry_max.as_secs_f64())
                .fetch_one(&mut *tx)
                .await?;
            if returned > 0 {
                notify_workers(&mut tx).await?;
            }
            tx.commit().await?;
            rescued += (returned + discarded).unsigned_abs();
            if returned + discarded < RESCUE_BATCH {
                return Ok(rescued);
            }
        }
    }

    /// Divides the claims that are not in `settled` into stale ones and ones with a locked row.
    async fn divide_unsettled(&self, claims: &[Claim], settled: Vec<Uuid>) -> Result<Unsettled, QueueError> {
        if settled.len() == claims.len() {
            return Ok(Unsettled::default());
        }
        let settled: HashSet<Uuid> = settled.into_iter().collect();
        let unsettled: Vec<Claim> =
            claims.iter().filter(|claim| !settled.contains(&claim.id)).copied().collect();
        let (ids, fences) = ids_and_fences(&unsettled);
        let valid: Vec<Claim> =
            sqlx::query_as(STILL_HELD).bind(ids).bind(fences).fetch_all(&self.pool).await?;
        let valid: HashSet<Claim> = valid.into_iter().collect();
        let (busy, stale) = unsettled.into_iter().partition(|claim| valid.contains(claim));
        Ok(Unsettled { stale, busy })
    }
}

/// Converts an error to a string that a `text` column can store: at most 8 KiB, with NUL replaced.
fn to_storable(error: &str) -> String {
    let end = error.floor_char_boundary(8192);
    error[..end].replace('\0', "\u{fffd}")
}

/// Acquires the shared lock of the group of job `$1` once, before any part of the statement that
/// refers to `group_lock` runs.
macro_rules! group_lock {
    () => {
        "group_lock as materialized (
    select pg_advisory_xact_lock_shared(job_group_lock(group_id)) from jobs
    where id = $1 and group_id is not null
)"
    };
}

/// Inserts the rows of a CTE into `finished_jobs`. The arguments are the CTE, the terminal state
/// and the value of `last_error`. A completed job has none, because the error of an earlier attempt
/// may name a host that was erased later.
macro_rules! finish {
    ($source:literal, $state:literal, $error:literal) => {
        concat!(
            "insert into finished_jobs (id, group_id, fence, scheduled_at, created_at, finished_at, priority, attempt,
                           max_attempts, state, kind, unique_key, locked_by, last_error, payload)
    select id, group_id, fence, scheduled_at, created_at, clock_timestamp(), priority, attempt,
           max_attempts, '",
            $state,
            "', kind, unique_key, locked_by, ",
            $error,
            ", payload from ",
            $source
        )
    };
}
pub(crate) use finish;

const COMPLETE: &str = concat!(
    "with ",
    group_lock!(),
    ", deleted as (
    delete from jobs where id = $1 and fence = $2 and state = 'running' and (select count(*) from group_lock) >= 0
    returning *
) ",
    finish!("deleted", "completed", "null")
);

/// `for key share` would let a rescue change the row; `for share` does not.
const HOLD_CLAIM: &str = concat!(
    "with ",
    group_lock!(),
    " select 1 from jobs
where id = $1 and fence = $2 and state = 'running' and (select count(*) from group_lock) >= 0 for share"
);

const RECORD_PROGRESS: &str = concat!(
    "with ",
    group_lock!(),
    " update jobs set attempt = 1, crashes = 0, alone = false
where id = $1 and fence = $2 and state = 'running' and (select count(*) from group_lock) >= 0"
);

/// Acquires the shared locks of the groups in a fixed order, and then locks the rows.
const LOCK_CLAIMS: &str = "
with group_locks as materialized (
    select pg_advisory_xact_lock_shared(lock) from (
        select distinct job_group_lock(group_id) as lock from jobs
        where id = any($1) and group_id is not null order by lock
    ) locks
)
select j.id, j.fence from unnest($1::uuid[], $2::bigint[]) as m(id, fence) cross join lateral (
    select id, fence from jobs
    where id = m.id and fence = m.fence and state = 'running' and (select count(*) from group_locks) >= 0
    limit 1 for update skip locked
) j";

const COMPLETE_MANY: &str = concat!(
    "with picked as materialized (
    select j.id from unnest($1::uuid[], $2::bigint[]) as m(id, fence) cross join lateral (
        select id from jobs where id = m.id and fence = m.fence and state = 'running' limit 1 for update skip locked
    ) j
), deleted as (
    delete from jobs where id = any(array(select id from picked)) returning *
) ",
    finish!("deleted", "completed", "null"),
    " returning id"
);

const FAIL: &str = concat!(
    "with ",
    group_lock!(),
    ", deleted as (
    delete from jobs
    where id = $1 and fence = $2 and state = 'running' and (select count(*) from group_lock) >= 0
      and ($4 or attempt >= max_attempts)
    returning *
), discarded_jobs as (",
    finish!("deleted", "discarded", "$3"),
    " returning state
), retried as (
    update jobs
    set state = 'retryable', lease_until = null, last_error = $3, crashes = case when alone then 1 else crashes end,
        scheduled_at = clock_timestamp() + coalesce($5, make_interval(secs =>
            least($7, $6 * power(2, least(attempt - 1, 60))) * (0.5 + random() / 2)))
    where id = $1 and fence = $2 and state = 'running' and (select count(*) from group_lock) >= 0
      and not ($4 or attempt >= max_attempts)
    returning state
)
select state::text from discarded_jobs union all select state::text from retried"
);

/// A job in its first attempt returns to `available`, a later one to `retryable`, as before.
const SNOOZE: &str = "
update jobs
set state = case when attempt > 1 then 'retryable' else 'available' end::job_state, lease_until = null,
    attempt = attempt - 1, scheduled_at = clock_timestamp() + $3, crashes = case when alone then 1 else crashes end
where id = $1 and fence = $2 and state = 'running'";

const RELEASE: &str = "
with picked as materialized (
    select j.id from unnest($1::uuid[], $2::bigint[]) as m(id, fence) cross join lateral (
        select id from jobs where id = m.id and fence = m.fence and state = 'running' limit 1 for update skip locked
    ) j
)
update jobs
set state = case when attempt > 1 then 'retryable' else 'available' end::job_state, lease_until = null,
    attempt = attempt - 1
where id = any(array(select id from picked))
returning id";

/// The time for which a job runs alone is limited. A job that crashes its process after that time
/// is discarded after `4 * max_attempts` crashes.
const RESCUE: &str = concat!(
    "with expired as materialized (
    select id from jobs where state = 'running' and lease_until < now()
    order by lease_until limit $1 for update skip locked
), deleted as (
    delete from jobs
    where id = any(array(select id from expired)) and ((alone and attempt >= max_attempts) or crashes + 1 >= 4 * max_attempts::int)
    returning *
), discarded_jobs as (",
    finish!("deleted", "discarded", "'lease expired'"),
    " returning 1
), retried as (
    update jobs
    set state = 'retryable', lease_until = null, last_error = 'lease expired', alone = false,
        attempt = least(attempt, max_attempts - 1), crashes = least(crashes, 32766) + 1,
        scheduled_at = clock_timestamp() + make_interval(secs =>
            random() * least($3, $2 * power(2, least(crashes + 1, 60))))
    where id = any(array(select id from expired)) and not ((alone and attempt >= max_attempts) or crashes + 1 >= 4 * max_attempts::int)
    returning 1
)
select (select count(*) from retried), (select count(*) from discarded_jobs)"
);

const STILL_HELD: &str = "
select j.id, j.fence from unnest($1::uuid[], $2::bigint[]) as m(id, fence) cross join lateral (
    select id, fence from jobs where id = m.id and fence = m.fence and state = 'running' limit 1
) j";

//! Holds, releases, cancels and counts groups.
//!
//! A held group has a row in `job_groups`, and all its live jobs have the flag `held` set. The
//! index that claims read does not contain held jobs. A hold therefore costs one update per job of
//! the group, and nothing per claim. Parked jobs (see `partitions`) already have the flag set and
//! need no update.
//!
//! Each change of a whole group acquires the group's exclusive lock, which waits for transactions
//! that add, complete or fail jobs of the group. It then updates the rows in two passes: first all
//! rows that are not locked, then the others. Waiting for row locks in the second pass is safe,
//! because statements that hold such a lock never wait for a row (see `claim`).
use crate::queue::{lock_groups_shared, notify_workers};
use crate::settle::finish;
use crate::{Queue, QueueError};
use sqlx::PgConnection;
use uuid::Uuid;

/// The operations on whole groups of jobs. The statements run on the caller's connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Groups;

impl Queue {
    pub fn groups(&self) -> Groups {
        Groups
    }
}

impl Groups {
    /// Holds a group: none of its jobs is claimed until [`Self::release`] is called. This includes
    /// jobs that are added later. Running jobs continue. Holding a held group has no effect.
    ///
    /// This function and the next two wait for transactions that settle jobs of the group. Call
    /// them before you lock rows that such transactions also write. The opposite order can end in a
    /// deadlock, in which Postgres aborts one of the two transactions.
    pub async fn hold(self, conn: &mut PgConnection, group: Uuid) -> Result<(), QueueError> {
        lock_group(conn, group).await?;
        sqlx::query("insert into job_groups (id) values ($1) on conflict do nothing")
            .bind(group)
            .execute(&mut *conn)
            .await?;
        for pass in HOLD {
            sqlx::query(pass).bind(group).execute(&mut *conn).await?;
        }
        Ok(())
    }

    /// Releases a held group, so that its jobs can be claimed.
    pub async fn release(self, conn: &mut PgConnection, group: Uuid) -> Result<(), QueueError> {
        lock_group(conn, group).await?;
        sqlx::query("delete from job_groups where id = $1").bind(group).execute(&mut *conn).await?;
        let mut released = 0;
        for pass in RELEASE {
            released += sqlx::query(pass).bind(group).execute(&mut *conn).await?.rows_affected();
        }
        if released > 0 {
            notify_workers(conn).await?;
        }
        Ok(())
    }

    /// Makes jobs of the groups due now if they wait for a later time, and returns their number.
    /// Jobs of held groups keep waiting. A job whose row is locked keeps its time.
    pub async fn make_due(self, conn: &mut PgConnection, groups: &[Uuid]) -> Result<u64, QueueError> {
        let count = sqlx::query(
            "with picked as materialized (
                 select id from jobs
                 where group_id = any($1) and state in ('available', 'retryable') and not held and scheduled_at > now()
                 for update skip locked)
             update jobs set scheduled_at = now() from picked where jobs.id = picked.id",
        )
        .bind(groups)
        .execute(&mut *conn)
        .await?
        .rows_affected();
        if count > 0 {
            notify_workers(conn).await?;
        }
        Ok(count)
    }

    /// Removes the hold of a group and cancels at most `limit` of its live jobs, unparked jobs
    /// first. Returns the number cancelled; a number below `limit` means that no live jobs remain.
    ///
    /// Running jobs are cancelled too: their rows are deleted and their fences incremented, so
    /// later calls of their workers are stale. Parked jobs leave no record, because there can be a
    /// million of them.
    pub async fn cancel(self, conn: &mut PgConnection, group: Uuid, limit: i64) -> Result<u64, QueueError> {
        lock_group(conn, group).await?;
        sqlx::query("delete from job_groups where id = $1").bind(group).execute(&mut *conn).await?;
        let mut cancelled = 0;
        for pass in CANCEL {
            let remaining = limit.saturating_sub_unsigned(cancelled).max(0);
            let result = sqlx::query(pass).bind(group).bind(remaining).execute(&mut *conn).await?;
            cancelled += result.rows_affected();
        }
        Ok(cancelled)
    }

    /// Returns the number of live (available, running, retryable) jobs of a group. This counts
    /// rows; use [`Self::is_live`] if you do not need the number.
    pub async fn count_live(self, conn: &mut PgConnection, group: Uuid) -> Result<i64, QueueError> {
        Ok(sqlx::query_scalar("select count(*) from jobs where group_id = $1")
            .bind(group)
            .fetch_one(conn)
            .await?)
    }

    /// Returns `true` if the group has a live job, at a cost independent of the group's size.
    pub async fn is_live(self, conn: &mut PgConnection, group: Uuid) -> Result<bool, QueueError> {
        Ok(sqlx::query_scalar("select exists(select from jobs where group_id = $1)")
            .bind(group)
            .fetch_one(conn)
            .await?)
    }

    /// Returns those of the groups that have no live job, in one statement.
    pub async fn without_jobs(
        self,
        conn: &mut PgConnection,
        groups: &[Uuid],
    ) -> Result<Vec<Uuid>, QueueError> {
        Ok(sqlx::query_scalar(
            "select g.id from unnest($1::uuid[]) as g (id) where not exists (select from jobs where group_id = g.id)",
        )
        .bind(groups)
        .fetch_all(conn)
        .await?)
    }

    /// Returns the held groups with a job of `kind`, in the order of their ids, after `after`.
    pub async fn held(
        self,
        conn: &mut PgConnection,
        kind: &str,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Uuid>, QueueError> {
        Ok(sqlx::query_scalar(
            "select id from job_groups g
             where id > $2 and exists (select from jobs where group_id = g.id and kind = $1)
             order by id limit $3",
        )
        .bind(kind)
        .bind(after)
        .bind(limit)
        .fetch_all(conn)
        .await?)
    }

    /// Returns `true` if the group is held. The result remains valid until the transaction ends.
    pub async fn is_held(self, conn: &mut PgConnection, group: Uuid) -> Result<bool, QueueError> {
        lock_groups_shared(conn, &[group]).await?;
        Ok(sqlx::query_scalar("select exists(select from job_groups where id = $1)")
            .bind(group)
            .fetch_one(conn)
            .await?)
    }
}

async fn lock_group(conn: &mut PgConnection, group: Uuid) -> Result<(), QueueError> {
    sqlx::query("select pg_advisory_xact_lock(job_group_lock($1))").bind(group).execute(conn).await?;
    Ok(())
}

/// Selects the unparked rows of the group that match `$filter`, and locks them with `$lock`. The
/// index `jobs_line` does not contain parked rows.
macro_rules! picked {
    ($filter:literal, $lock:expr) => {
        concat!("with picked as materialized (select id from jobs where group_id = $1", $filter, $lock, ")")
    };
}
/// Locking clause of the first pass, which locks only rows that are not locked.
macro_rules! lock_unlocked {
    () => {
        " for update skip locked"
    };
}
/// Locking clause of the second pass, which locks the remaining rows in a fixed order.
macro_rules! lock_remaining {
    () => {
        " order by id for update"
    };
}
macro_rules! hold {
    ($lock:expr) => {
        concat!(
            picked!(" and not parked and not held", $lock),
            " update jobs set held = true from picked where jobs.id = picked.id"
        )
    };
}
macro_rules! release {
    ($lock:expr) => {
        concat!(
            picked!(" and not parked and held", $lock),
            " update jobs set held = false from picked where jobs.id = picked.id"
        )
    };
}
macro_rules! cancel {
    ($lock:expr) => {
        concat!(
            picked!(" and not parked", concat!($lock, " limit $2")),
            ", deleted as (
    delete from jobs using picked where jobs.id = picked.id
    returning jobs.id, group_id, jobs.fence + 1 as fence, scheduled_at, created_at, priority, attempt, max_attempts,
              kind, unique_key, locked_by, last_error, payload
) ",
            finish!("deleted", "cancelled", "last_error")
        )
    };
}

const HOLD: [&str; 2] = [hold!(lock_unlocked!()), hold!(lock_remaining!())];
const RELEASE: [&str; 2] = [release!(lock_unlocked!()), release!(lock_remaining!())];
/// The third statement deletes parked jobs.
const CANCEL: [&str; 3] = [
    cancel!(lock_unlocked!()),
    cancel!(lock_remaining!()),
    "delete from jobs where id = any(array(select id from jobs where group_id = $1 and parked limit $2))",
];

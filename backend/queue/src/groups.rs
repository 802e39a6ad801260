//! Groups: hold, release, cancel, count.
//!
//! A held group has a row in `job_groups`, and all its live jobs carry `held`, so that the claim's index does not
//! contain them: holding costs one update for each job of the group, once, and nothing at every claim. Parked jobs (see `lanes`) carry it
//! already and cost nothing here.
//!
//! Each change of a whole group takes the group's exclusive lock, which waits for the transactions that are adding,
//! completing or failing jobs of the group, and then walks the rows twice: first all that nobody has locked, then the few
//! that somebody had. The locks of the second walk are safe to wait for: they belong to statements that never wait for a
//! row themselves (see `claim`).
use crate::queue::{lock_groups_shared, wake};
use crate::settle::file;
use crate::{Queue, QueueError};
use sqlx::PgConnection;
use uuid::Uuid;

impl Queue {
    /// Holds a group: none of its jobs is claimed until `release_group`; jobs added meanwhile are held too. What runs
    /// already runs to its end. Holding a held group changes nothing.
    ///
    /// This and the next two wait for transactions that settle jobs of the group. Call them before locking rows that
    /// such transactions also write; the other way round can end in a deadlock, of which Postgres fails one side.
    pub async fn hold_group(&self, conn: &mut PgConnection, group: Uuid) -> Result<(), QueueError> {
        lock_group(conn, group).await?;
        sqlx::query("insert into job_groups (id) values ($1) on conflict do nothing")
            .bind(group)
            .execute(&mut *conn)
            .await?;
        for walk in HOLD {
            sqlx::query(walk).bind(group).execute(&mut *conn).await?;
        }
        Ok(())
    }

    /// Lets a held group run again.
    pub async fn release_group(&self, conn: &mut PgConnection, group: Uuid) -> Result<(), QueueError> {
        lock_group(conn, group).await?;
        sqlx::query("delete from job_groups where id = $1").bind(group).execute(&mut *conn).await?;
        let mut freed = 0;
        for walk in RELEASE {
            freed += sqlx::query(walk).bind(group).execute(&mut *conn).await?.rows_affected();
        }
        if freed > 0 {
            wake(conn).await?;
        }
        Ok(())
    }

    /// Cancels at most `most` live jobs of a group, those in line first, and drops its hold; the number cancelled. Fewer than `most` means that
    /// none is left. Those that run are cancelled too: their row is gone and their fence bumped, so whatever their workers still say is
    /// stale. Parked jobs, which can be a million, leave no record.
    pub async fn cancel_group(
        &self,
        conn: &mut PgConnection,
        group: Uuid,
        most: i64,
    ) -> Result<u64, QueueError> {
        lock_group(conn, group).await?;
        sqlx::query("delete from job_groups where id = $1").bind(group).execute(&mut *conn).await?;
        let mut cancelled = 0;
        for walk in CANCEL {
            let room = most.saturating_sub_unsigned(cancelled).max(0);
            let done = sqlx::query(walk).bind(group).bind(room).execute(&mut *conn).await?;
            cancelled += done.rows_affected();
        }
        Ok(cancelled)
    }

    /// Live (available, running, retryable) jobs of a group. Counts rows: ask `group_is_live` where the number is of no use.
    pub async fn live_in_group(&self, conn: &mut PgConnection, group: Uuid) -> Result<i64, QueueError> {
        Ok(sqlx::query_scalar("select count(*) from jobs where group_id = $1")
            .bind(group)
            .fetch_one(conn)
            .await?)
    }

    /// Whether the group has a live job, at a cost that does not grow with the group.
    pub async fn group_is_live(&self, conn: &mut PgConnection, group: Uuid) -> Result<bool, QueueError> {
        Ok(sqlx::query_scalar("select exists(select from jobs where group_id = $1)")
            .bind(group)
            .fetch_one(conn)
            .await?)
    }

    /// Whether the group is held. Keeps that answer true until the transaction ends.
    pub async fn group_is_held(&self, conn: &mut PgConnection, group: Uuid) -> Result<bool, QueueError> {
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

/// The rows of a walk: those of the group for which `$which` holds, locked in the way of `$lock`. Parked ones are left aside, by the index
/// `jobs_line`.
macro_rules! picked {
    ($which:literal, $lock:expr) => {
        concat!("with picked as materialized (select id from jobs where group_id = $1", $which, $lock, ")")
    };
}
/// The first walk's way to lock: what is free.
macro_rules! free {
    () => {
        " for update skip locked"
    };
}
/// The second walk's way: the rest, one after the other.
macro_rules! rest {
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
            ", gone as (
    delete from jobs using picked where jobs.id = picked.id
    returning jobs.id, group_id, jobs.fence + 1 as fence, scheduled_at, created_at, priority, attempt, max_attempts,
              kind, unique_key, locked_by, last_error, payload
) ",
            file!("gone", "cancelled", "last_error")
        )
    };
}

const HOLD: [&str; 2] = [hold!(free!()), hold!(rest!())];
const RELEASE: [&str; 2] = [release!(free!()), release!(rest!())];
/// The third deletes parked jobs.
const CANCEL: [&str; 3] = [
    cancel!(free!()),
    cancel!(rest!()),
    "delete from jobs where id = any(array(select id from jobs where group_id = $1 and parked limit $2))",
];

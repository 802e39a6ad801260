//! The queue handle, its configuration and its errors, and functions for all operations: the locks
//! of groups, the notification of workers and the time limit of a call. The operations are in
//! sibling modules.
use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uuid::Uuid;

/// The `NOTIFY` channel that wakes waiting workers. The payload is empty.
pub const CHANNEL: &str = "facecrawl_jobs";

/// Time for which a call waits for one of the queue's own connections before it fails.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum value, in milliseconds, of a Postgres timeout setting.
const MAX_MILLISECONDS: u128 = i32::MAX as u128;

#[derive(Clone, Debug)]
pub struct Config {
    /// Time for which a claim is valid without a heartbeat.
    pub lease: Duration,
    /// First retry delay. It doubles with every attempt and has jitter.
    pub retry_base: Duration,
    pub retry_max: Duration,
    /// Time for which completed and cancelled jobs are kept.
    pub keep_finished: Duration,
    /// Maximum number of unparked jobs of one kind, group and partition key. Others are parked.
    pub partition_window: i64,
    /// Maximum number of unparked jobs with the same kind and group, over all partition keys. Once
    /// half of this number is reached, each partition key gets only a few places, so that very many
    /// keys can share the other half.
    pub group_window: i64,
    /// The newest schema version that this program supports. With a newer one, it claims no jobs.
    pub schema_version: i64,
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
            schema_version: i64::MAX,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum QueueError {
    /// The claim is lost: the job was rescued after its lease expired, or was cancelled.
    #[error("the claim on job {0} is no longer held")]
    Stale(Uuid),
    /// The job does not exist, or its state does not allow the operation.
    #[error("there is no job {0}, or its state does not allow this")]
    NotFound(Uuid),
    #[error("job {0} cannot be retried: a live job has the same kind and unique key")]
    Duplicate(Uuid),
    /// The input cannot be stored. The text states what is allowed.
    #[error("{0}")]
    Invalid(String),
    #[error("the queue's database failed: {0}")]
    Database(#[from] sqlx::Error),
}

impl QueueError {
    pub fn database(&self) -> Option<&sqlx::Error> {
        match self {
            Self::Database(error) => Some(error),
            _ => None,
        }
    }
}

/// The positions at which the last passes of `unpark` ended.
#[derive(Debug, Default)]
pub(crate) struct PartitionCursor {
    /// Kind and id of the last group of the last pass. The default sorts before all groups.
    pub(crate) group: (String, Uuid),
    /// The last visited key of each group. Without an entry, a pass starts at the first key.
    pub(crate) partitions: HashMap<(String, Uuid), String>,
}

/// A handle to the queue. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(crate) pool: PgPool,
    pub(crate) config: Config,
    pub(crate) partition_cursor: Arc<Mutex<PartitionCursor>>,
}

impl Queue {
    /// Creates a queue on a migrated database.
    pub fn new(pool: PgPool, config: Config) -> Self {
        Self { pool, config, partition_cursor: Arc::default() }
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
        // duration of a lease. The timeouts also stop a statement whose caller gave up
        // (`with_time_limit`). After a failover, the address may lead to a standby for a while; the
        // pool connects again until the server accepts changes.
        let timeout = self.config.lease.as_millis().clamp(1, MAX_MILLISECONDS);
        let settings = format!(
            "set plan_cache_mode = force_generic_plan; set jit = off; set statement_timeout = {timeout};
             set idle_in_transaction_session_timeout = {timeout};
             do $$ begin
                 if current_setting('transaction_read_only')::bool then
                     raise 'the database server accepts no changes' using errcode = 'read_only_sql_transaction';
                 end if;
             end $$"
        );
        let pool = (self.pool.options().clone())
            .max_connections(connections)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .after_connect(move |conn, _| {
                let settings = settings.clone();
                Box::pin(async move {
                    sqlx::raw_sql(AssertSqlSafe(settings)).execute(conn).await?;
                    Ok(())
                })
            })
            .connect_lazy_with(self.pool.connect_options().as_ref().clone());
        Self { pool, config: self.config.clone(), partition_cursor: self.partition_cursor.clone() }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }
}

/// Waits until no transaction holds, releases or cancels one of the groups, and blocks such changes
/// until the transaction ends. Sorting the groups prevents deadlocks between two transactions.
pub(crate) async fn lock_groups_shared(conn: &mut PgConnection, groups: &[Uuid]) -> Result<(), QueueError> {
    sqlx::query("select pg_advisory_xact_lock_shared(job_group_lock(g)) from unnest($1::uuid[]) as g")
        .bind(groups)
        .execute(conn)
        .await?;
    Ok(())
}

/// Wakes waiting workers when the transaction commits. Postgres sends equal notifications of one
/// transaction only once.
pub(crate) async fn notify_workers(conn: &mut PgConnection) -> Result<(), QueueError> {
    sqlx::query("select pg_notify($1, '')").bind(CHANNEL).execute(conn).await?;
    Ok(())
}

/// Ends a queue call with an error after `limit`. Without the limit, a call could wait for hours if
/// the database server vanished.
pub(crate) async fn with_time_limit<T>(
    limit: Duration,
    call: impl Future<Output = Result<T, QueueError>>,
) -> Result<T, QueueError> {
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| {
        let text = format!("no response within {limit:?}");
        Err(QueueError::Database(sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, text))))
    })
}

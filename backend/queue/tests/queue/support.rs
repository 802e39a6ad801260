use queue::{Claim, ClaimedJob, Config, Enqueued, JobRow, JobState, NewJob, Queue, QueueError};
use serde_json::json;
use sqlx::PgConnection;
use std::collections::HashSet;
use std::time::Duration;
use testing::TestDatabase;
use time::OffsetDateTime;
use uuid::Uuid;

/// Time limit for an event. Reached only when a test fails.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// A queue on its own database.
pub(crate) struct Fixture {
    pub(crate) queue: Queue,
    pub(crate) db: TestDatabase,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(Config::default()).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let db = TestDatabase::create().await;
        Self { queue: Queue::new(db.pool().clone(), config), db }
    }

    pub(crate) async fn clock(&self) -> OffsetDateTime {
        sqlx::query_scalar("select clock_timestamp()").fetch_one(self.db.pool()).await.unwrap()
    }

    /// Runs `work` in a transaction, which is committed if it succeeds.
    pub(crate) async fn commit<T>(
        &self,
        work: impl AsyncFnOnce(&mut PgConnection) -> Result<T, QueueError>,
    ) -> Result<T, QueueError> {
        let mut tx = self.db.pool().begin().await.unwrap();
        let result = work(&mut tx).await?;
        tx.commit().await.unwrap();
        Ok(result)
    }

    pub(crate) async fn enqueue(&self, jobs: &[NewJob]) -> Vec<Enqueued> {
        self.commit(async |conn| self.queue.enqueue(conn, jobs).await).await.unwrap()
    }

    pub(crate) async fn enqueue_one(&self, job: NewJob) -> Uuid {
        match self.enqueue(&[job]).await[0] {
            Enqueued::New(id) => id,
            Enqueued::Duplicate => panic!("a duplicate"),
        }
    }

    pub(crate) async fn claim(&self, limit: i64) -> Vec<ClaimedJob> {
        self.queue.claim(&kinds(), limit, "tester").await.unwrap()
    }

    /// Claims the only job that can be claimed.
    pub(crate) async fn claim_one(&self) -> ClaimedJob {
        let mut jobs = self.claim(10).await;
        assert_eq!(jobs.len(), 1, "{jobs:?}");
        jobs.remove(0)
    }

    pub(crate) async fn get(&self, id: Uuid) -> JobRow {
        self.queue.jobs().get(id).await.unwrap()
    }

    pub(crate) async fn state(&self, id: Uuid) -> JobState {
        self.get(id).await.state
    }

    pub(crate) async fn expire(&self, id: Uuid) {
        self.set("lease_until = now() - interval '1 second'", id).await;
    }

    pub(crate) async fn make_due(&self, id: Uuid) {
        self.set("scheduled_at = now()", id).await;
    }

    async fn set(&self, assignment: &str, id: Uuid) {
        let sql = sqlx::AssertSqlSafe(format!("update jobs set {assignment} where id = $1"));
        let result = sqlx::query(sql).bind(id).execute(self.db.pool()).await.unwrap();
        assert_eq!(result.rows_affected(), 1, "{id} is not live");
    }

    pub(crate) async fn complete(&self, claim: Claim) -> Result<(), QueueError> {
        self.commit(async |conn| self.queue.complete(conn, claim).await).await
    }

    pub(crate) async fn fail(&self, claim: Claim, is_permanent: bool) -> Result<JobState, QueueError> {
        let mut conn = self.db.pool().acquire().await.unwrap();
        self.queue.fail(&mut conn, claim, "failed", is_permanent, None).await
    }

    pub(crate) async fn retry(&self, id: Uuid) -> Result<JobRow, QueueError> {
        self.commit(async |conn| self.queue.jobs().retry(conn, id).await).await
    }

    pub(crate) async fn run_sql(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(self.db.pool()).await.unwrap();
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(self.db.pool()).await.unwrap()
    }

    pub(crate) async fn count_completed(&self) -> i64 {
        self.count("select count(*) from finished_jobs where state = 'completed'").await
    }

    /// Waits until this number of jobs has ended.
    pub(crate) async fn until_ended(&self, count: i64) {
        until("the jobs have ended", || async {
            self.count("select count(*) from finished_jobs").await == count
        })
        .await;
    }
}

/// Returns a configuration with retries that do not delay a test.
pub(crate) fn quick_retries() -> Config {
    Config { retry_base: Duration::from_millis(1), retry_max: Duration::from_millis(2), ..Config::default() }
}

/// Waits until the lease of a job was extended three times, which takes at least as long as a
/// lease.
pub(crate) async fn until_extended_three_times(conn: &mut PgConnection, job: Uuid) {
    let mut leases: HashSet<OffsetDateTime> = HashSet::new();
    while leases.len() < 4 {
        let lease = sqlx::query_scalar("select lease_until from jobs where id = $1").bind(job);
        leases.insert(lease.fetch_one(&mut *conn).await.unwrap());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) fn kinds() -> Vec<String> {
    vec!["page".to_owned(), "image".to_owned()]
}

pub(crate) fn page() -> NewJob {
    NewJob::new("page", json!({"url": "http://127.0.0.1/"}))
}

pub(crate) fn image() -> NewJob {
    NewJob::new("image", json!({"url": "http://127.0.0.1/a.jpg"}))
}

/// Waits until a condition is true.
pub(crate) async fn until<F: Future<Output = bool>>(name: &str, mut condition: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + SOON;
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "timed out: {name}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for an event. Panics if it does not happen in time.
pub(crate) async fn soon<T>(name: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, event).await.unwrap_or_else(|_| panic!("timed out: {name}"))
}

use queue::{Claim, ClaimedJob, Config, Enqueued, JobRow, JobState, NewJob, Queue};
use serde_json::json;
use std::time::Duration;
use testing::TestDatabase;
use time::OffsetDateTime;
use uuid::Uuid;

/// Time limit for an event. Reached only when a test fails.
pub(crate) const SOON: Duration = Duration::from_secs(120);

/// A queue on its own database.
pub(crate) struct Bench {
    pub(crate) queue: Queue,
    pub(crate) db: TestDatabase,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(Config::default()).await
    }

    pub(crate) async fn with(config: Config) -> Self {
        let db = TestDatabase::create().await;
        Self { queue: Queue::new(db.pool().clone(), config), db }
    }

    /// Returns the time of the database's clock.
    pub(crate) async fn clock(&self) -> OffsetDateTime {
        sqlx::query_scalar("select clock_timestamp()").fetch_one(self.db.pool()).await.unwrap()
    }

    /// Enqueues jobs in a separate transaction.
    pub(crate) async fn add(&self, jobs: &[NewJob]) -> Vec<Enqueued> {
        let mut tx = self.db.pool().begin().await.unwrap();
        let added = self.queue.enqueue(&mut tx, jobs).await.unwrap();
        tx.commit().await.unwrap();
        added
    }

    pub(crate) async fn add_one(&self, job: NewJob) -> Uuid {
        match self.add(&[job]).await[0] {
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

    /// Makes a lease expire immediately.
    pub(crate) async fn expire(&self, id: Uuid) {
        self.set("lease_until = now() - interval '1 second'", id).await;
    }

    pub(crate) async fn make_due(&self, id: Uuid) {
        self.set("scheduled_at = now()", id).await;
    }

    async fn set(&self, what: &str, id: Uuid) {
        let sql = sqlx::AssertSqlSafe(format!("update jobs set {what} where id = $1"));
        let done = sqlx::query(sql).bind(id).execute(self.db.pool()).await.unwrap();
        assert_eq!(done.rows_affected(), 1, "{id} is not live");
    }

    pub(crate) async fn complete(&self, claim: Claim) -> Result<(), queue::QueueError> {
        let mut tx = self.db.pool().begin().await.unwrap();
        self.queue.complete(&mut tx, claim).await?;
        tx.commit().await.unwrap();
        Ok(())
    }

    pub(crate) async fn fail(&self, claim: Claim, permanent: bool) -> Result<JobState, queue::QueueError> {
        let mut conn = self.db.pool().acquire().await.unwrap();
        self.queue.fail(&mut conn, claim, "it broke", permanent, None).await
    }

    pub(crate) async fn retry(&self, id: Uuid) -> Result<JobRow, queue::QueueError> {
        let mut tx = self.db.pool().begin().await.unwrap();
        let row = self.queue.jobs().retry(&mut tx, id).await?;
        tx.commit().await.unwrap();
        Ok(row)
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(self.db.pool()).await.unwrap()
    }
}

/// Returns the job kinds that the tests use.
pub(crate) fn kinds() -> Vec<String> {
    vec!["page".to_owned(), "image".to_owned()]
}

pub(crate) fn page() -> NewJob {
    NewJob::new("page", json!({"url": "http://127.0.0.1/"}))
}

pub(crate) fn image() -> NewJob {
    NewJob::new("image", json!({"url": "http://127.0.0.1/a.jpg"}))
}

/// Waits until a condition on the database is true.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + SOON;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits for an event. Panics if it does not happen in time.
pub(crate) async fn soon<T>(what: &str, event: impl Future<Output = T>) -> T {
    tokio::time::timeout(SOON, event).await.unwrap_or_else(|_| panic!("timed out: {what}"))
}

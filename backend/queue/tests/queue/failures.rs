//! Tests killed connections, an unavailable database, a dead process, and the metrics of outcomes.
use crate::runner::{Worker, handler_fn};
use crate::support::{Fixture, SOON, page, quick_retries, soon, until};
use metrics::{Counter, CounterFn, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use queue::{Config, JobState, NewJob, QueueError, RunEnd};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc};

/// A connection to the server that does not use the test's database.
pub(crate) struct Admin {
    conn: PgConnection,
    database: String,
}

impl Admin {
    pub(crate) async fn connect(fixture: &Fixture) -> Self {
        let conn = PgConnection::connect(testing::database::url()).await.unwrap();
        let database = fixture.db.pool().connect_options().get_database().unwrap().to_owned();
        Self { conn, database }
    }

    /// Kills every connection to the database. Returns their number.
    pub(crate) async fn kill_all(&mut self) -> i64 {
        sqlx::query_scalar("select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = $1")
            .bind(&self.database)
            .fetch_one(&mut self.conn)
            .await
            .unwrap()
    }

    async fn allow_connections(&mut self, allow: bool) {
        let sql = format!("alter database {} allow_connections {allow}", self.database);
        sqlx::query(AssertSqlSafe(sql)).execute(&mut self.conn).await.unwrap();
    }
}

/// Handlers write data and complete their job in one transaction, while connections are killed.
#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_neither_lose_nor_repeat_jobs() {
    const JOBS: i64 = 300;
    let fixture = Fixture::with(Config { lease: Duration::from_secs(3), ..quick_retries() }).await;
    fixture.run_sql("create table results (job uuid)").await;
    fixture.enqueue(&vec![NewJob { max_attempts: i16::MAX, ..page() }; JOBS as usize]).await;
    let (run_sender, mut runs) = mpsc::unbounded_channel();
    let pages = handler_fn({
        let queue = fixture.queue.clone();
        move |job, _| {
            let (queue, run_sender) = (queue.clone(), run_sender.clone());
            async move {
                let settle = async {
                    let mut tx = queue.pool().begin().await?;
                    sqlx::query("insert into results values ($1)")
                        .bind(job.claim.id)
                        .execute(&mut *tx)
                        .await?;
                    queue.complete(&mut tx, job.claim).await?;
                    tx.commit().await?;
                    Ok(())
                };
                let result = settle.await;
                run_sender.send(()).ok();
                match result {
                    Ok(()) => RunEnd::Settled,
                    Err(QueueError::Stale(_)) => RunEnd::Stale,
                    Err(error) => RunEnd::Retry(error.to_string(), None),
                }
            }
        }
    });
    let worker = Worker::start(&fixture.queue, &[("page", 4, pages)], SOON);
    let mut admin = Admin::connect(&fixture).await;
    let mut killed = 0;
    for _ in 0..5 {
        for _ in 0..20 {
            soon("jobs continue to run", runs.recv()).await.unwrap();
        }
        killed += admin.kill_all().await;
    }
    assert!(killed > 5, "{killed}");
    // The test's own pool is killed too, so this check uses another connection.
    let url = fixture.db.url();
    until("all jobs have ended", || async {
        let Ok(mut conn) = PgConnection::connect(&url).await else { return false };
        let ended: Result<i64, _> =
            sqlx::query_scalar("select count(*) from finished_jobs").fetch_one(&mut conn).await;
        ended.is_ok_and(|ended| ended == JOBS)
    })
    .await;
    worker.stop().await;
    assert_eq!(fixture.count_completed().await, JOBS);
    assert_eq!(fixture.count("select count(*) from results").await, JOBS);
    assert_eq!(fixture.count("select count(distinct job) from results").await, JOBS);
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_result_is_settled_after_database_outage() {
    let fixture = Fixture::new().await;
    let gate = Arc::new(Semaphore::new(0));
    let (run_sender, mut runs) = mpsc::unbounded_channel();
    let pages = handler_fn({
        let gate = Arc::clone(&gate);
        move |job, _| {
            let (gate, run_sender) = (Arc::clone(&gate), run_sender.clone());
            async move {
                run_sender.send(()).unwrap();
                gate.acquire().await.unwrap().forget();
                match job.payload["end"].as_str().unwrap() {
                    "done" => RunEnd::Done,
                    _ => RunEnd::Discard("permanent".to_owned()),
                }
            }
        }
    });
    let job = |end: &str| NewJob::new("page", serde_json::json!({"end": end}));
    let done = fixture.enqueue_one(job("done")).await;
    let discarded = fixture.enqueue_one(job("discard")).await;
    let worker = Worker::start(&fixture.queue, &[("page", 2, pages)], SOON);
    for _ in 0..2 {
        soon("the job starts", runs.recv()).await.unwrap();
    }
    let mut admin = Admin::connect(&fixture).await;
    admin.allow_connections(false).await;
    admin.kill_all().await;
    let failures = count(&["facecrawl_queue_errors_total", "settle"]);
    gate.add_permits(2);
    until("settling has failed", || async {
        count(&["facecrawl_queue_errors_total", "settle"]) > failures + 1
    })
    .await;
    admin.allow_connections(true).await;
    until("both jobs are settled", || async {
        fixture.queue.jobs().get(done).await.is_ok_and(|row| row.state == JobState::Completed)
            && fixture.queue.jobs().get(discarded).await.is_ok_and(|row| row.state == JobState::Discarded)
    })
    .await;
    assert_eq!(fixture.get(done).await.attempt, 1);

    // The runner continues to claim, and notifications wake it again.
    gate.add_permits(1);
    let next_id = fixture.enqueue_one(job("done")).await;
    soon("the next job starts", runs.recv()).await.unwrap();
    until("the job is completed", || async { fixture.state(next_id).await == JobState::Completed }).await;
    worker.stop().await;
}

#[testing::test]
async fn job_of_dead_process_runs_in_another_process() {
    let config = Config { lease: Duration::from_secs(3), ..Config::default() };
    let fixture = Fixture::with(config).await;
    let id = fixture.enqueue_one(page()).await;
    let (started, mut starts) = mpsc::unbounded_channel();
    // Dropping the runtime ends all tasks immediately, without a clean shutdown.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.spawn({
        let (url, config) = (fixture.db.url(), fixture.queue.config().clone());
        async move {
            let pool = sqlx::PgPool::connect(&url).await.unwrap();
            let pages = handler_fn(move |_, _| {
                started.send(()).unwrap();
                std::future::pending()
            });
            let _worker = Worker::start(&queue::Queue::new(pool, config), &[("page", 1, pages)], SOON);
            std::future::pending::<()>().await
        }
    });
    soon("the job starts", starts.recv()).await.unwrap();
    runtime.shutdown_background();
    // The last heartbeat may still run, so this waits until only this query is active.
    until("the process has ended", || async {
        fixture
            .count("select count(*) from pg_stat_activity where datname = current_database() and state = 'active'")
            .await
            == 1
    })
    .await;
    assert_eq!(fixture.state(id).await, JobState::Running);
    fixture.expire(id).await;
    let worker =
        Worker::start(&fixture.queue, &[("page", 1, handler_fn(|_, _| async { RunEnd::Done }))], SOON);
    until("the job is completed", || async { fixture.state(id).await == JobState::Completed }).await;
    assert_eq!(fixture.get(id).await.attempt, 2);
    worker.stop().await;
}

#[testing::test]
async fn metrics_count_job_outcomes() {
    global_counters();
    let fixture = Fixture::new().await;
    let kind = "metered";
    let job = |outcome: &str| NewJob { max_attempts: 1, ..NewJob::new(kind, serde_json::json!(outcome)) };
    fixture.enqueue(&[job("done"), job("done"), job("fail"), job("panic"), job("stale")]).await;
    let handler = handler_fn(|job, _| async move {
        match job.payload.as_str().unwrap() {
            "done" => RunEnd::Done,
            "panic" => panic!("boom"),
            "stale" => RunEnd::Stale,
            _ => RunEnd::Retry("no".to_owned(), None),
        }
    });
    let worker = Worker::start(&fixture.queue, &[(kind, 2, handler)], SOON);
    until("all jobs have run", || async { count(&["facecrawl_jobs_total", kind]) == 5 }).await;
    worker.stop().await;
    for (outcome, expected) in [("completed", 2), ("discarded", 2), ("stale", 1)] {
        assert_eq!(count(&["facecrawl_jobs_total", kind, outcome]), expected, "{outcome}");
    }
    assert_eq!(count(&["facecrawl_job_panics_total", kind]), 1);
    assert_eq!(count(&["facecrawl_queue_stale_total", kind]), 1);
}

/// The counters of this test process, by name and labels.
#[derive(Default)]
struct Counters(Mutex<HashMap<Key, Arc<AtomicCounter>>>);

#[derive(Default)]
struct AtomicCounter(AtomicU64);

impl CounterFn for AtomicCounter {
    fn increment(&self, value: u64) {
        self.0.fetch_add(value, Ordering::SeqCst);
    }
    fn absolute(&self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }
}

impl Recorder for &'static Counters {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(Arc::clone(self.0.lock().unwrap().entry(key.clone()).or_default()))
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

fn global_counters() -> &'static Counters {
    static COUNTERS: OnceLock<&'static Counters> = OnceLock::new();
    COUNTERS.get_or_init(|| {
        let counters: &'static Counters = Box::leak(Box::default());
        metrics::set_global_recorder(counters).ok().unwrap();
        counters
    })
}

/// Returns the sum of the counters with this name and all these label values.
fn count(name_and_labels: &[&str]) -> u64 {
    let counters = global_counters().0.lock().unwrap();
    let (name, labels) = name_and_labels.split_first().unwrap();
    let matching = counters.iter().filter(|(key, _)| {
        key.name() == *name && labels.iter().all(|value| key.labels().any(|label| label.value() == *value))
    });
    matching.map(|(_, counter)| counter.0.load(Ordering::SeqCst)).sum()
}

//! Tests how a runner executes and settles jobs, wakes up and stops.
use crate::support::{Fixture, SOON, image, page, quick_retries, soon, until, until_extended_three_times};
use queue::{ClaimedJob, Config, Enqueued, Handler, JobState, NewJob, Queue, RunEnd, Runner, RunnerConfig};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::{Barrier, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

struct FunctionHandler<F>(F);

#[async_trait::async_trait]
impl<F, O> Handler for FunctionHandler<F>
where
    F: Fn(ClaimedJob, CancellationToken) -> O + Send + Sync + 'static,
    O: Future<Output = RunEnd> + Send,
{
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
        (self.0)(job, cancel).await
    }
}

pub(crate) fn handler_fn<F, O>(run: F) -> Arc<dyn Handler>
where
    F: Fn(ClaimedJob, CancellationToken) -> O + Send + Sync + 'static,
    O: Future<Output = RunEnd> + Send + 'static,
{
    Arc::new(FunctionHandler(run))
}

pub(crate) struct Worker {
    runner: Runner,
    shutdown: CancellationToken,
}

impl Worker {
    /// Starts a runner that polls once an hour, so that only notifications start jobs.
    pub(crate) fn start(
        queue: &Queue,
        handlers: &[(&str, usize, Arc<dyn Handler>)],
        drain_timeout: Duration,
    ) -> Self {
        Self::start_with(queue, handlers, drain_timeout, SOON)
    }

    /// Works like [`Self::start`], with a time limit for jobs that run alone.
    pub(crate) fn start_with(
        queue: &Queue,
        handlers: &[(&str, usize, Arc<dyn Handler>)],
        drain_timeout: Duration,
        alone_timeout: Duration,
    ) -> Self {
        Self::start_on(queue, handlers, |config| {
            (config.drain_timeout, config.alone_timeout) = (drain_timeout, alone_timeout)
        })
    }

    /// Works like [`Self::start_with`]. `change` changes the configuration.
    pub(crate) fn start_on(
        queue: &Queue,
        handlers: &[(&str, usize, Arc<dyn Handler>)],
        change: impl FnOnce(&mut RunnerConfig),
    ) -> Self {
        let mut config = RunnerConfig {
            concurrency: handlers.iter().map(|(kind, limit, _)| ((*kind).to_owned(), *limit)).collect(),
            poll_interval: Duration::from_secs(3600),
            keep_quarter_free: HashSet::new(),
            never_alone: Vec::new(),
            drain_timeout: SOON,
            alone_timeout: SOON,
            worker_name: "runner".to_owned(),
        };
        change(&mut config);
        let handlers: HashMap<_, _> =
            handlers.iter().map(|(kind, _, handler)| ((*kind).to_owned(), Arc::clone(handler))).collect();
        let shutdown = CancellationToken::new();
        let runner = Runner::start(queue.clone(), handlers, config, shutdown.clone());
        Self { runner, shutdown }
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        soon("the runner stops", self.runner.until_stopped()).await;
    }
}

/// Returns a handler that waits for a permit of the gate, the gate, and the receiver of the id of
/// each job that starts.
pub(crate) fn gated_handler() -> (Arc<dyn Handler>, Arc<Semaphore>, mpsc::UnboundedReceiver<Uuid>) {
    let gate = Arc::new(Semaphore::new(0));
    let (started, starts) = mpsc::unbounded_channel();
    let handler = handler_fn({
        let gate = Arc::clone(&gate);
        move |job, _| {
            started.send(job.claim.id).unwrap();
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                RunEnd::Done
            }
        }
    });
    (handler, gate, starts)
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn runner_completes_jobs_of_all_kinds_once() {
    let fixture = Fixture::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    // Pages return `Done`, so the runner completes them. Images complete in their own transaction.
    let pages = handler_fn({
        let runs = Arc::clone(&runs);
        move |_, _| {
            runs.fetch_add(1, Ordering::Relaxed);
            async { RunEnd::Done }
        }
    });
    let images = handler_fn({
        let (runs, queue) = (Arc::clone(&runs), fixture.queue.clone());
        move |job, _| {
            runs.fetch_add(1, Ordering::Relaxed);
            let queue = queue.clone();
            async move {
                let mut tx = queue.pool().begin().await.unwrap();
                queue.complete(&mut tx, job.claim).await.unwrap();
                tx.commit().await.unwrap();
                RunEnd::Settled
            }
        }
    });
    // Half of the jobs are added before the runner starts, half after.
    fixture.enqueue(&vec![page(); 1000]).await;
    fixture.enqueue(&vec![image(); 100]).await;
    let worker = Worker::start(&fixture.queue, &[("page", 50, pages), ("image", 4, images)], SOON);
    fixture.enqueue(&vec![page(); 1000]).await;
    fixture.enqueue(&vec![image(); 100]).await;
    fixture.until_ended(2200).await;
    assert_eq!(runs.load(Ordering::Relaxed), 2200);
    assert_eq!(
        fixture.count("select count(*) from finished_jobs where state = 'completed' and attempt = 1").await,
        2200
    );
    worker.stop().await;
}

#[testing::test]
async fn runner_limits_concurrency_per_kind() {
    let fixture = Fixture::new().await;
    let barrier = Arc::new(Barrier::new(3));
    let in_flight = Arc::new(AtomicUsize::new(0));
    let max_in_flight = Arc::new(AtomicUsize::new(0));
    let pages = handler_fn({
        let (in_flight, max_in_flight) = (Arc::clone(&in_flight), Arc::clone(&max_in_flight));
        move |_, _| {
            let (barrier, in_flight, max_in_flight) =
                (Arc::clone(&barrier), Arc::clone(&in_flight), Arc::clone(&max_in_flight));
            async move {
                max_in_flight.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                // Three jobs must run at the same time to pass this barrier.
                barrier.wait().await;
                in_flight.fetch_sub(1, Ordering::SeqCst);
                RunEnd::Done
            }
        }
    });
    let (images, gate, mut starts) = gated_handler();
    fixture.enqueue(&vec![page(); 30]).await;
    fixture.enqueue(&vec![image(); 3]).await;
    let worker = Worker::start(&fixture.queue, &[("page", 3, pages), ("image", 1, images)], SOON);
    // A kind whose jobs do not end does not block another kind.
    fixture.until_ended(30).await;
    assert_eq!(max_in_flight.load(Ordering::SeqCst), 3);
    soon("one image starts", starts.recv()).await.unwrap();
    assert!(starts.try_recv().is_err(), "only one image runs");

    worker.runner.concurrency().set("image", 3);
    for _ in 0..2 {
        soon("the other images start", starts.recv()).await.unwrap();
    }
    gate.add_permits(3);
    fixture.until_ended(33).await;
    worker.stop().await;
}

#[testing::test]
async fn idle_runner_wakes_for_new_and_scheduled_jobs() {
    let fixture = Fixture::new().await;
    let (run_sender, mut runs) = mpsc::unbounded_channel();
    let pages = handler_fn(move |job, _| {
        run_sender.send(job.claim.id).unwrap();
        async { RunEnd::Done }
    });
    let worker = Worker::start(&fixture.queue, &[("page", 1, pages)], SOON);
    for _ in 0..3 {
        let id = fixture.enqueue_one(page()).await;
        assert_eq!(soon("the job runs", runs.recv()).await, Some(id));
    }
    // No notification is sent when the job becomes due. The runner reads the time at the next
    // wake-up. The scheduled job has the lower priority (1 instead of 0), so that the other job
    // runs first even if both are due, as on a slow machine.
    let at = Some(OffsetDateTime::now_utc() + Duration::from_millis(300));
    let scheduled = NewJob { scheduled_at: at, priority: 1, ..page() };
    let [Enqueued::New(scheduled), Enqueued::New(due)] = fixture.enqueue(&[scheduled, page()]).await[..]
    else {
        panic!("a duplicate");
    };
    assert_eq!(soon("the due job runs", runs.recv()).await, Some(due));
    assert_eq!(soon("the scheduled job runs", runs.recv()).await, Some(scheduled));
    worker.stop().await;
}

#[testing::test]
async fn handler_outcome_determines_job_state() {
    let fixture = Fixture::with(quick_retries()).await;
    let (run_sender, mut runs) = mpsc::unbounded_channel();
    let pages = handler_fn(move |job, _| {
        run_sender.send((job.payload["do"].as_str().unwrap().to_owned(), job.attempt)).unwrap();
        async move {
            match (job.payload["do"].as_str().unwrap(), job.attempt) {
                ("retry once", 2) | ("panic once", 2) => RunEnd::Done,
                ("retry once" | "retry", _) => RunEnd::Retry("temporary".to_owned(), None),
                ("panic once" | "panic", _) => panic!("boom {}", job.attempt),
                ("discard", _) => RunEnd::Discard("permanent".to_owned()),
                other => unreachable!("{other:?}"),
            }
        }
    });
    let job =
        |action: &str| NewJob { max_attempts: 2, ..NewJob::new("page", serde_json::json!({"do": action})) };
    let mut ids = HashMap::new();
    for action in ["retry once", "retry", "panic once", "panic", "discard"] {
        ids.insert(action, fixture.enqueue_one(job(action)).await);
    }
    let worker = Worker::start(&fixture.queue, &[("page", 2, pages)], SOON);
    fixture.until_ended(5).await;
    for (action, state, attempt, error) in [
        ("retry once", JobState::Completed, 2, None),
        ("retry", JobState::Discarded, 2, Some("temporary")),
        ("panic once", JobState::Completed, 2, None),
        ("panic", JobState::Discarded, 2, Some("panicked: boom 2")),
        ("discard", JobState::Discarded, 1, Some("permanent")),
    ] {
        let row = fixture.get(ids[action]).await;
        assert_eq!((row.state, row.attempt, row.last_error.as_deref()), (state, attempt, error), "{action}");
    }
    worker.stop().await;
    let mut counts: HashMap<String, i16> = HashMap::new();
    while let Ok((action, attempt)) = runs.try_recv() {
        let previous = counts.insert(action, attempt).unwrap_or(0);
        assert_eq!(attempt, previous + 1);
    }
    assert_eq!(counts.values().map(|count| i32::from(*count)).sum::<i32>(), 9);
}

#[testing::test]
async fn snoozed_job_returns_without_using_attempt() {
    let fixture = Fixture::new().await;
    let runs = Arc::new(AtomicUsize::new(0));
    let pages = handler_fn({
        let runs = Arc::clone(&runs);
        move |job, _| {
            let run = runs.fetch_add(1, Ordering::SeqCst);
            assert_eq!(job.attempt, 1);
            async move { if run < 5 { RunEnd::Snooze(Duration::from_millis(20)) } else { RunEnd::Done } }
        }
    });
    fixture.enqueue_one(NewJob { max_attempts: 1, ..page() }).await;
    let worker = Worker::start(&fixture.queue, &[("page", 1, pages)], SOON);
    fixture.until_ended(1).await;
    assert_eq!(runs.load(Ordering::SeqCst), 6);
    worker.stop().await;
}

#[testing::test]
async fn lost_claim_cancels_handler_and_discards_result() {
    let fixture = Fixture::with(Config { lease: Duration::from_secs(6), ..quick_retries() }).await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let (cancel_sender, mut cancellations) = mpsc::unbounded_channel();
    let pages = handler_fn(move |job, cancel| {
        started.send(job.claim).unwrap();
        let cancel_sender = cancel_sender.clone();
        async move {
            if job.attempt == 1 {
                cancel.cancelled().await;
                cancel_sender.send(()).unwrap();
                return RunEnd::Discard("the claim is lost".to_owned());
            }
            RunEnd::Done
        }
    });
    let id = fixture.enqueue_one(page()).await;
    let worker = Worker::start(&fixture.queue, &[("page", 2, pages)], SOON);
    let first = soon("the job starts", starts.recv()).await.unwrap();
    // A heartbeat between two attempts may extend the lease, so this repeats until the claim is
    // lost. The runner itself may find the lost claim first. The job then has no lease.
    let expire = "update jobs set lease_until = now() - interval '1 s' \
                  where id = $1 and fence = $2 and state = 'running'";
    until("the claim is lost", || async {
        sqlx::query(expire).bind(id).bind(first.fence).execute(fixture.db.pool()).await.unwrap();
        fixture.queue.rescue().await.unwrap();
        fixture.get(id).await.attempt != 1 || fixture.state(id).await != JobState::Running
    })
    .await;
    soon("the handler is cancelled", cancellations.recv()).await.unwrap();
    let second = soon("the job starts again", starts.recv()).await.unwrap();
    assert!(second.id == first.id && second.fence > first.fence);
    fixture.until_ended(1).await;
    worker.stop().await;
    let row = fixture.get(id).await;
    assert_eq!((row.state, row.attempt), (JobState::Completed, 2));
}

#[testing::test]
async fn heartbeat_renews_leases_if_handlers_use_all_connections() {
    let config = Config { lease: Duration::from_secs(6), ..Config::default() };
    let fixture = Fixture::with(config.clone()).await;
    let small_pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(2)
        .connect_with(fixture.db.pool().connect_options().as_ref().clone())
        .await
        .unwrap();
    let pages = handler_fn({
        let small_pool = small_pool.clone();
        move |job, _| {
            let small_pool = small_pool.clone();
            async move {
                let mut conn = small_pool.acquire().await.unwrap();
                until_extended_three_times(&mut conn, job.claim.id).await;
                RunEnd::Done
            }
        }
    });
    fixture.enqueue(&[page(), page()]).await;
    let queue = Queue::new(small_pool, config);
    let worker = Worker::start(&queue, &[("page", 2, pages)], SOON);
    fixture.until_ended(2).await;
    assert_eq!(
        fixture.count("select count(*) from finished_jobs where attempt = 1 and state = 'completed'").await,
        2
    );
    worker.stop().await;
}

#[testing::test]
async fn shutdown_waits_for_running_jobs_and_claims_none() {
    let fixture = Fixture::new().await;
    let (pages, gate, mut starts) = gated_handler();
    fixture.enqueue(&vec![page(); 4]).await;
    let worker = Worker::start(&fixture.queue, &[("page", 2, pages)], SOON);
    for _ in 0..2 {
        soon("the job starts", starts.recv()).await.unwrap();
    }
    worker.shutdown.cancel();
    fixture.enqueue(&vec![page(); 4]).await;
    gate.add_permits(10);
    worker.stop().await;
    assert_eq!(fixture.count_completed().await, 2);
    assert_eq!(fixture.count("select count(*) from jobs where state = 'available' and attempt = 0").await, 6);
}

#[testing::test]
async fn shutdown_releases_unfinished_jobs() {
    let fixture = Fixture::new().await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let pages = handler_fn({
        let queue = fixture.queue.clone();
        move |job, cancel| {
            started.send(()).unwrap();
            let queue = queue.clone();
            async move {
                match job.payload["on cancel"].as_str().unwrap() {
                    // Ignores the cancellation and locks its row in an open transaction.
                    "nothing" => {
                        let mut tx = queue.pool().begin().await.unwrap();
                        queue.complete(&mut tx, job.claim).await.unwrap();
                        std::future::pending().await
                    }
                    "fail" => {
                        cancel.cancelled().await;
                        RunEnd::Retry("interrupted".to_owned(), None)
                    }
                    _ => {
                        cancel.cancelled().await;
                        RunEnd::Done
                    }
                }
            }
        }
    });
    let job = |action: &str| NewJob {
        max_attempts: 1,
        ..NewJob::new("page", serde_json::json!({"on cancel": action}))
    };
    let unresponsive = fixture.enqueue_one(job("nothing")).await;
    let failing = fixture.enqueue_one(job("fail")).await;
    let finishing = fixture.enqueue_one(job("finish")).await;
    let worker = Worker::start(&fixture.queue, &[("page", 3, pages)], Duration::ZERO);
    for _ in 0..3 {
        soon("the job starts", starts.recv()).await.unwrap();
    }
    worker.stop().await;
    for id in [unresponsive, failing] {
        let row = fixture.get(id).await;
        assert_eq!((row.state, row.attempt, row.last_error), (JobState::Available, 0, None));
    }
    assert_eq!(fixture.state(finishing).await, JobState::Completed);
    assert_eq!(fixture.claim(10).await.len(), 2, "other workers can claim them immediately");
}

/// Records the events of the level `INFO` and above.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::INFO
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text += &format!("{field}={value:?} ");
        });
        self.0.lock().unwrap().push(text);
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

#[testing::test]
async fn job_error_with_host_name_is_not_logged() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::with(quick_retries()).await;
    let pages = handler_fn(|job, _| async move {
        let error = "host.test cannot be resolved".to_owned();
        if job.attempt == 1 { RunEnd::Retry(error, None) } else { RunEnd::Discard(error) }
    });
    let id = fixture.enqueue_one(NewJob { max_attempts: 3, ..page() }).await;
    let worker = Worker::start(&fixture.queue, &[("page", 1, pages)], SOON);
    fixture.until_ended(1).await;
    worker.stop().await;
    assert_eq!(fixture.get(id).await.last_error.as_deref(), Some("host.test cannot be resolved"));
    let log = log.0.lock().unwrap();
    assert_eq!(log.iter().filter(|line| line.contains("job failed")).count(), 2, "{log:#?}");
    assert!(!log.iter().any(|line| line.contains("host.test")), "{log:#?}");
}

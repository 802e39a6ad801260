//! Tests that a job that crashes its process is identified, and that other jobs are not discarded.
use crate::runner::{Worker, gated_handler, handler_fn};
use crate::support::{Fixture, SOON, image, page, quick_retries, soon, until, until_extended_three_times};
use queue::{ClaimedJob, Config, JobState, NewJob, QueueError, RunEnd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

impl Fixture {
    /// Simulates the end of the process that ran these jobs.
    async fn crash(&self, jobs: &[ClaimedJob]) {
        for job in jobs {
            self.expire(job.claim.id).await;
        }
        assert_eq!(self.queue.rescue().await.unwrap(), jobs.len() as u64);
    }
}

#[testing::test]
async fn rescue_spreads_retries_of_crashed_process() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![page(); 100]).await;
    let jobs = fixture.claim(100).await;
    for job in &jobs {
        fixture.expire(job.claim.id).await;
    }
    fixture.run_sql("create table crash as select clock_timestamp() as at").await;
    assert_eq!(fixture.queue.rescue().await.unwrap(), 100);
    let after_100_ms_sql = "select count(*) from jobs, crash where scheduled_at > at + interval '100 ms'";
    assert!(
        fixture.count(after_100_ms_sql).await >= 50,
        "the jobs are spread over the backoff after a crash"
    );
    let after_4_s_sql = "select count(*) from jobs where scheduled_at > now() + interval '4 s'";
    assert_eq!(fixture.count(after_4_s_sql).await, 0, "the first crash has a backoff of four seconds");
    // Two jobs may be scheduled in the same microsecond.
    assert!(fixture.count("select count(distinct scheduled_at) from jobs").await >= 90);
}

#[testing::test]
async fn only_crashing_job_is_discarded() {
    let fixture = Fixture::with(quick_retries()).await;
    let crashing_job = fixture.enqueue_one(page()).await;
    fixture.enqueue(&vec![page(); 3]).await;
    for _ in 0..20 {
        // All jobs are made due, so that one process can claim all of them.
        fixture.run_sql("update jobs set scheduled_at = now() where state <> 'running'").await;
        let jobs = fixture.claim(4).await;
        for job in jobs.iter().filter(|job| job.must_run_alone()) {
            assert_eq!(jobs.len(), 1, "it is claimed without other jobs");
            fixture.queue.begin_alone(job.claim).await.unwrap();
        }
        if jobs.iter().any(|job| job.claim.id == crashing_job) {
            fixture.crash(&jobs).await;
        } else {
            let claims: Vec<_> = jobs.iter().map(|job| job.claim).collect();
            assert!(fixture.queue.complete_many(&claims).await.unwrap().is_empty());
        }
    }
    let row = fixture.get(crashing_job).await;
    assert_eq!(
        (row.state, row.attempt, row.last_error.as_deref()),
        (JobState::Discarded, 5, Some("lease expired"))
    );
    assert_eq!(fixture.count_completed().await, 3);
    assert_eq!(fixture.count("select count(*) from jobs").await, 0);
}

#[testing::test]
async fn job_not_running_alone_keeps_last_attempt() {
    let fixture = Fixture::with(quick_retries()).await;
    let id = fixture.enqueue_one(NewJob { max_attempts: 1, ..page() }).await;
    for crash in 1..=3 {
        fixture.make_due(id).await;
        let job = fixture.claim_one().await;
        assert_eq!((job.attempt, job.crashes, job.must_run_alone()), (1, crash - 1, crash > 2));
        fixture.crash(&[job]).await;
        assert_eq!((fixture.get(id).await.attempt, fixture.state(id).await), (0, JobState::Retryable));
    }
    fixture.make_due(id).await;
    let job = fixture.claim_one().await;
    fixture.queue.begin_alone(job.claim).await.unwrap();
    fixture.crash(std::slice::from_ref(&job)).await;
    assert_eq!(fixture.state(id).await, JobState::Discarded);
    let result = fixture.queue.begin_alone(job.claim).await;
    assert!(matches!(result, Err(QueueError::Stale(stale)) if stale == id), "{result:?}");
}

#[testing::test]
async fn claim_takes_at_most_one_alone_job() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![page(); 10]).await;
    fixture
        .run_sql("update jobs set crashes = 2 where id in (select id from jobs order by id limit 4)")
        .await;
    let count_alone = |jobs: &[ClaimedJob]| jobs.iter().filter(|job| job.must_run_alone()).count();
    let first = fixture.claim(3).await;
    assert_eq!((first.len(), count_alone(&first)), (3, 1));
    let second = fixture.queue.claim_slots(&[("page", 2)], 10, "w", &[]).await.unwrap();
    assert_eq!((second.len(), count_alone(&second)), (2, 1));
    let third = fixture.claim(1).await;
    assert_eq!((third.len(), count_alone(&third)), (1, 1));
    // Three of the six other jobs and one suspect remain.
    let fourth = fixture.claim(10).await;
    assert_eq!((fourth.len(), count_alone(&fourth)), (4, 1));
}

#[testing::test]
async fn worker_shutdown_counts_no_crash() {
    let fixture = Fixture::new().await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let pages = handler_fn(move |job, cancel| {
        started.send(job.claim.id).unwrap();
        async move {
            cancel.cancelled().await;
            RunEnd::Snooze(Duration::ZERO)
        }
    });
    let id = fixture.enqueue_one(page()).await;
    let worker = Worker::start(&fixture.queue, &[("page", 4, pages)], Duration::from_millis(1));
    assert_eq!(soon("the job starts", starts.recv()).await, Some(id));
    worker.stop().await;
    assert_eq!((fixture.state(id).await, fixture.get(id).await.attempt), (JobState::Available, 0));
    assert_eq!(fixture.count("select crashes::bigint from jobs").await, 0);
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_job_waits_for_others_and_runs_exclusively() {
    let fixture = Fixture::with(Config { lease: Duration::from_secs(6), ..quick_retries() }).await;
    let suspect = fixture.enqueue_one(NewJob { priority: 1, ..page() }).await;
    fixture.run_sql("update jobs set crashes = 2").await;
    fixture.enqueue(&vec![page(); 6]).await;
    let log: Arc<Mutex<Vec<(Uuid, bool)>>> = Arc::default();
    let pool = fixture.db.pool().clone();
    let pages = handler_fn({
        let log = log.clone();
        move |job: ClaimedJob, _| {
            let (log, pool, id) = (log.clone(), pool.clone(), job.claim.id);
            async move {
                log.lock().unwrap().push((id, true));
                if job.must_run_alone() {
                    let alone: bool = sqlx::query_scalar("select alone from jobs where id = $1")
                        .bind(id)
                        .fetch_one(&pool)
                        .await
                        .unwrap();
                    assert!(alone, "the job is marked as alone");
                    // Other jobs are always due.
                    until_extended_three_times(&mut pool.acquire().await.unwrap(), id).await;
                }
                log.lock().unwrap().push((id, false));
                RunEnd::Done
            }
        }
    });
    let worker = Worker::start(&fixture.queue, &[("page", 3, pages)], SOON);
    until("all jobs have ended", || async { fixture.count_completed().await == 7 }).await;
    worker.stop().await;
    let log = log.lock().unwrap().clone();
    let start = log.iter().position(|entry| *entry == (suspect, true)).unwrap();
    assert_eq!(log[start + 1], (suspect, false), "no other job started or ended during it: {log:?}");
    let running = log[..start].iter().map(|(_, is_start)| if *is_start { 1 } else { -1 }).sum::<i32>();
    assert_eq!(running, 0, "it waited for the running jobs: {log:?}");
    assert!(start + 2 < log.len(), "other jobs ran after it: {log:?}");
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_job_beside_long_job_is_not_marked_alone() {
    let fixture = Fixture::new().await;
    let (pages, gate, mut starts) = gated_handler();
    let long_job = fixture.enqueue_one(page()).await;
    let worker = Worker::start(&fixture.queue, &[("page", 4, pages)], Duration::from_millis(20));
    assert_eq!(soon("the long job starts", starts.recv()).await, Some(long_job));
    let scheduled_at = Some(OffsetDateTime::now_utc() + Duration::from_secs(3600));
    let suspect = fixture.enqueue_one(NewJob { scheduled_at, ..page() }).await;
    fixture.run_sql("update jobs set crashes = 2, scheduled_at = now() where state <> 'running'").await;
    fixture.enqueue_one(NewJob::new("other", serde_json::json!({}))).await;
    assert_eq!(soon("the suspect starts", starts.recv()).await, Some(suspect));
    assert_eq!(fixture.count("select count(*) from jobs where alone").await, 0);
    gate.add_permits(2);
    fixture.until_ended(2).await;
    worker.stop().await;
}

#[testing::test]
async fn alone_run_without_crash_lowers_crash_count() {
    let fixture = Fixture::new().await;
    let id = fixture.enqueue_one(page()).await;
    for end in ["snooze", "fail"] {
        fixture.run_sql("update jobs set crashes = 2").await;
        fixture.make_due(id).await;
        let job = fixture.claim_one().await;
        assert!(job.must_run_alone());
        fixture.queue.begin_alone(job.claim).await.unwrap();
        match end {
            "snooze" => fixture.queue.snooze(job.claim, Duration::ZERO).await.unwrap(),
            _ => assert_eq!(fixture.fail(job.claim, false).await.unwrap(), JobState::Retryable),
        }
        assert_eq!(fixture.count("select crashes::bigint from jobs").await, 1, "after {end}");
    }
}

impl Fixture {
    async fn progress(&self, job: &ClaimedJob) -> Result<(), QueueError> {
        self.commit(async |conn| self.queue.record_progress(conn, job.claim).await).await
    }
}

#[testing::test]
async fn job_with_progress_is_not_discarded_after_crashes() {
    let fixture = Fixture::with(quick_retries()).await;
    let id = fixture.enqueue_one(NewJob { max_attempts: 3, ..page() }).await;
    for _ in 0..20 {
        fixture.make_due(id).await;
        let job = fixture.claim_one().await;
        assert!(!job.must_run_alone(), "one crash after progress does not make it a suspect");
        fixture.progress(&job).await.unwrap();
        assert_eq!(fixture.queue.attempt(job.claim).await.unwrap(), 1);
        fixture.crash(std::slice::from_ref(&job)).await;
        assert!(matches!(fixture.progress(&job).await, Err(QueueError::Stale(stale)) if stale == id));
        assert!(matches!(fixture.queue.attempt(job.claim).await, Err(QueueError::Stale(_))));
    }
    assert_eq!(fixture.state(id).await, JobState::Retryable);
    // Without progress the limit applies again.
    for _ in 0..2 {
        fixture.make_due(id).await;
        let job = fixture.claim_one().await;
        if job.must_run_alone() {
            fixture.queue.begin_alone(job.claim).await.unwrap();
        }
        fixture.crash(&[job]).await;
    }
    assert_eq!(fixture.state(id).await, JobState::Discarded);
}

#[testing::test]
async fn job_crashing_outside_alone_run_is_discarded_eventually() {
    let fixture = Fixture::with(quick_retries()).await;
    let id = fixture.enqueue_one(NewJob { max_attempts: 2, ..page() }).await;
    for crash in 1..=8 {
        assert!(fixture.state(id).await.is_live(), "before crash {crash}");
        fixture.make_due(id).await;
        let job = fixture.claim_one().await;
        fixture.crash(&[job]).await;
    }
    assert_eq!(fixture.state(id).await, JobState::Discarded);
}

/// Runs a suspect that ends only after another job has started. It can record progress first.
async fn check_jobs_start_during_suspect(alone_timeout: Duration, has_progress: bool) {
    let fixture = Fixture::new().await;
    let suspect = fixture.enqueue_one(page()).await;
    fixture.run_sql("update jobs set crashes = 2").await;
    let gate = Arc::new(Semaphore::new(0));
    let (sender, mut flags) = mpsc::unbounded_channel();
    let (started, mut starts) = mpsc::unbounded_channel();
    let pages = handler_fn({
        let (queue, pool, gate) = (fixture.queue.clone(), fixture.db.pool().clone(), gate.clone());
        move |job: ClaimedJob, _| {
            let (queue, pool, gate, sender) = (queue.clone(), pool.clone(), gate.clone(), sender.clone());
            started.send(()).unwrap();
            async move {
                if has_progress {
                    let mut tx = pool.begin().await.unwrap();
                    queue.record_progress(&mut tx, job.claim).await.unwrap();
                    tx.commit().await.unwrap();
                }
                let _other = gate.acquire().await.unwrap();
                let sql = "select alone from jobs where id = $1";
                let is_alone: bool =
                    sqlx::query_scalar(sql).bind(job.claim.id).fetch_one(&pool).await.unwrap();
                sender.send(is_alone).unwrap();
                RunEnd::Done
            }
        }
    });
    let images = handler_fn(move |_, _| {
        gate.add_permits(1);
        async { RunEnd::Done }
    });
    let worker =
        Worker::start_with(&fixture.queue, &[("page", 1, pages), ("image", 1, images)], SOON, alone_timeout);
    soon("the suspect starts", starts.recv()).await;
    fixture.enqueue_one(image()).await;
    assert_eq!(soon("the suspect ends", flags.recv()).await, Some(false), "it is not marked as alone");
    fixture.until_ended(2).await;
    assert_eq!(fixture.state(suspect).await, JobState::Completed);
    worker.stop().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_alone_kind_runs_beside_others_after_crashes() {
    let fixture = Fixture::new().await;
    let suspect = fixture.enqueue_one(page()).await;
    fixture.run_sql("update jobs set crashes = 2").await;
    let (pages, gate, mut starts) = gated_handler();
    let images = handler_fn(move |_, _| {
        gate.add_permits(1);
        async { RunEnd::Done }
    });
    let worker = Worker::start_on(&fixture.queue, &[("page", 1, pages), ("image", 1, images)], |config| {
        config.never_alone = vec!["page".to_owned()];
        // The test would fail before an exclusive run ended.
        config.alone_timeout = SOON * 100;
    });
    assert_eq!(soon("the suspect starts", starts.recv()).await, Some(suspect));
    fixture.enqueue_one(image()).await;
    fixture.until_ended(2).await;
    worker.stop().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_jobs_start_when_alone_job_makes_progress() {
    check_jobs_start_during_suspect(SOON, true).await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_jobs_start_after_alone_time_limit() {
    check_jobs_start_during_suspect(Duration::from_millis(100), false).await;
}

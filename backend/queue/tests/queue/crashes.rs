//! Tests jobs that crash their process: they are identified, and other jobs are not discarded.
use crate::runner::{Worker, body, gated};
use crate::support::{Bench, SOON, image, page, quick, soon, three_extensions, until};
use queue::{ClaimedJob, Config, JobState, NewJob, QueueError, RunEnd};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::{Semaphore, mpsc};
use uuid::Uuid;

impl Bench {
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
    let bench = Bench::new().await;
    bench.add(&vec![page(); 100]).await;
    let jobs = bench.claim(100).await;
    for job in &jobs {
        bench.expire(job.claim.id).await;
    }
    bench.run_sql("create table crash as select clock_timestamp() as at").await;
    assert_eq!(bench.queue.rescue().await.unwrap(), 100);
    let later = "select count(*) from jobs, crash where scheduled_at > at + interval '100 ms'";
    assert!(bench.count(later).await >= 50, "the jobs are spread over the backoff of a crash");
    let last = "select count(*) from jobs where scheduled_at > now() + interval '4 s'";
    assert_eq!(bench.count(last).await, 0, "the first crash has a backoff of four seconds");
    // Two jobs may be scheduled in the same microsecond.
    assert!(bench.count("select count(distinct scheduled_at) from jobs").await >= 90);
}

#[testing::test]
async fn only_crashing_job_is_discarded() {
    let bench = Bench::with(quick()).await;
    let culprit = bench.add_one(page()).await;
    bench.add(&vec![page(); 3]).await;
    for _ in 0..20 {
        // All jobs are made due, so that one process can claim all of them.
        bench.run_sql("update jobs set scheduled_at = now() where state <> 'running'").await;
        let jobs = bench.claim(4).await;
        for job in jobs.iter().filter(|job| job.runs_alone()) {
            assert_eq!(jobs.len(), 1, "no other job can be claimed with it");
            bench.queue.begin_alone(job.claim).await.unwrap();
        }
        if jobs.iter().any(|job| job.claim.id == culprit) {
            bench.crash(&jobs).await;
        } else {
            let claims: Vec<_> = jobs.iter().map(|job| job.claim).collect();
            assert!(bench.queue.complete_many(&claims).await.unwrap().is_empty());
        }
    }
    let row = bench.get(culprit).await;
    assert_eq!(
        (row.state, row.attempt, row.last_error.as_deref()),
        (JobState::Discarded, 5, Some("lease expired"))
    );
    assert_eq!(bench.completed().await, 3);
    assert_eq!(bench.count("select count(*) from jobs").await, 0);
}

#[testing::test]
async fn job_not_running_alone_keeps_last_attempt() {
    let bench = Bench::with(quick()).await;
    let id = bench.add_one(NewJob { max_attempts: 1, ..page() }).await;
    for crash in 1..=3 {
        bench.make_due(id).await;
        let job = bench.claim_one().await;
        assert_eq!((job.attempt, job.crashes, job.runs_alone()), (1, crash - 1, crash > 2));
        bench.crash(&[job]).await;
        assert_eq!((bench.get(id).await.attempt, bench.state(id).await), (0, JobState::Retryable));
    }
    bench.make_due(id).await;
    let job = bench.claim_one().await;
    bench.queue.begin_alone(job.claim).await.unwrap();
    bench.crash(std::slice::from_ref(&job)).await;
    assert_eq!(bench.state(id).await, JobState::Discarded);
    let late = bench.queue.begin_alone(job.claim).await;
    assert!(matches!(late, Err(QueueError::Stale(stale)) if stale == id), "{late:?}");
}

#[testing::test]
async fn claim_takes_at_most_one_alone_job() {
    let bench = Bench::new().await;
    bench.add(&vec![page(); 10]).await;
    bench.run_sql("update jobs set crashes = 2 where id in (select id from jobs order by id limit 4)").await;
    let alone = |jobs: &[ClaimedJob]| jobs.iter().filter(|job| job.runs_alone()).count();
    let first = bench.claim(3).await;
    assert_eq!((first.len(), alone(&first)), (3, 1));
    let second = bench.queue.claim_slots(&[("page", 2)], 10, "w", &[]).await.unwrap();
    assert_eq!((second.len(), alone(&second)), (2, 1));
    let third = bench.claim(1).await;
    assert_eq!((third.len(), alone(&third)), (1, 1));
    // Three of the six other jobs and one suspect remain.
    let rest = bench.claim(10).await;
    assert_eq!((rest.len(), alone(&rest)), (4, 1));
}

#[testing::test]
async fn worker_shutdown_counts_no_crash() {
    let bench = Bench::new().await;
    let (started, mut starts) = mpsc::unbounded_channel();
    let pages = body(move |job, cancel| {
        started.send(job.claim.id).unwrap();
        async move {
            cancel.cancelled().await;
            RunEnd::Snooze(Duration::ZERO)
        }
    });
    let id = bench.add_one(page()).await;
    let worker = Worker::start(&bench.queue, &[("page", 4, pages)], Duration::from_millis(1));
    assert_eq!(soon("the job starts", starts.recv()).await, Some(id));
    worker.stop().await;
    assert_eq!((bench.state(id).await, bench.get(id).await.attempt), (JobState::Available, 0));
    assert_eq!(bench.count("select crashes::bigint from jobs").await, 0);
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn alone_job_waits_for_others_and_runs_exclusively() {
    let bench = Bench::with(Config { lease: Duration::from_secs(6), ..quick() }).await;
    let suspect = bench.add_one(NewJob { priority: 1, ..page() }).await;
    bench.run_sql("update jobs set crashes = 2").await;
    bench.add(&vec![page(); 6]).await;
    let log: Arc<Mutex<Vec<(Uuid, bool)>>> = Arc::default();
    let pool = bench.db.pool().clone();
    let pages = body({
        let log = log.clone();
        move |job: ClaimedJob, _| {
            let (log, pool, id) = (log.clone(), pool.clone(), job.claim.id);
            async move {
                log.lock().unwrap().push((id, true));
                if job.runs_alone() {
                    let alone: bool = sqlx::query_scalar("select alone from jobs where id = $1")
                        .bind(id)
                        .fetch_one(&pool)
                        .await
                        .unwrap();
                    assert!(alone, "the job is marked as alone");
                    // Other jobs are always due.
                    three_extensions(&mut pool.acquire().await.unwrap(), id).await;
                }
                log.lock().unwrap().push((id, false));
                RunEnd::Done
            }
        }
    });
    let worker = Worker::start(&bench.queue, &[("page", 3, pages)], SOON);
    until("all are done", || async { bench.completed().await == 7 }).await;
    worker.stop().await;
    let log = log.lock().unwrap().clone();
    let begun = log.iter().position(|entry| *entry == (suspect, true)).unwrap();
    assert_eq!(log[begun + 1], (suspect, false), "no other job began or ended beside it: {log:?}");
    let running = log[..begun].iter().map(|(_, begins)| if *begins { 1 } else { -1 }).sum::<i32>();
    assert_eq!(running, 0, "it waited for the running jobs: {log:?}");
    assert!(begun + 2 < log.len(), "other jobs ran after it: {log:?}");
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn crashed_job_beside_long_job_is_not_marked_alone() {
    let bench = Bench::new().await;
    let (pages, gate, mut starts) = gated();
    let long = bench.add_one(page()).await;
    let worker = Worker::start(&bench.queue, &[("page", 4, pages)], Duration::from_millis(20));
    assert_eq!(soon("the long job starts", starts.recv()).await, Some(long));
    let held = Some(OffsetDateTime::now_utc() + Duration::from_secs(3600));
    let suspect = bench.add_one(NewJob { scheduled_at: held, ..page() }).await;
    bench.run_sql("update jobs set crashes = 2, scheduled_at = now() where state <> 'running'").await;
    bench.add_one(NewJob::new("other", serde_json::json!({}))).await;
    assert_eq!(soon("the suspect starts", starts.recv()).await, Some(suspect));
    assert_eq!(bench.count("select count(*) from jobs where alone").await, 0);
    gate.add_permits(2);
    bench.ended(2).await;
    worker.stop().await;
}

#[testing::test]
async fn alone_run_without_crash_lowers_crash_count() {
    let bench = Bench::new().await;
    let id = bench.add_one(page()).await;
    for end in ["snooze", "fail"] {
        bench.run_sql("update jobs set crashes = 2").await;
        bench.make_due(id).await;
        let job = bench.claim_one().await;
        assert!(job.runs_alone());
        bench.queue.begin_alone(job.claim).await.unwrap();
        match end {
            "snooze" => bench.queue.snooze(job.claim, Duration::ZERO).await.unwrap(),
            _ => assert_eq!(bench.fail(job.claim, false).await.unwrap(), JobState::Retryable),
        }
        assert_eq!(bench.count("select crashes::bigint from jobs").await, 1, "after {end}");
    }
}

impl Bench {
    async fn progress(&self, job: &ClaimedJob) -> Result<(), QueueError> {
        self.commit(async |conn| self.queue.record_progress(conn, job.claim).await).await
    }
}

#[testing::test]
async fn job_with_progress_is_not_discarded_after_crashes() {
    let bench = Bench::with(quick()).await;
    let id = bench.add_one(NewJob { max_attempts: 3, ..page() }).await;
    for _ in 0..20 {
        bench.make_due(id).await;
        let job = bench.claim_one().await;
        assert!(!job.runs_alone(), "one crash after progress makes no suspect");
        bench.progress(&job).await.unwrap();
        assert_eq!(bench.queue.attempt(job.claim).await.unwrap(), 1);
        bench.crash(std::slice::from_ref(&job)).await;
        assert!(matches!(bench.progress(&job).await, Err(QueueError::Stale(stale)) if stale == id));
        assert!(matches!(bench.queue.attempt(job.claim).await, Err(QueueError::Stale(_))));
    }
    assert_eq!(bench.state(id).await, JobState::Retryable);
    // Without progress the limit applies again.
    for _ in 0..2 {
        bench.make_due(id).await;
        let job = bench.claim_one().await;
        if job.runs_alone() {
            bench.queue.begin_alone(job.claim).await.unwrap();
        }
        bench.crash(&[job]).await;
    }
    assert_eq!(bench.state(id).await, JobState::Discarded);
}

#[testing::test]
async fn job_crashing_outside_alone_run_is_discarded_eventually() {
    let bench = Bench::with(quick()).await;
    let id = bench.add_one(NewJob { max_attempts: 2, ..page() }).await;
    for crash in 1..=8 {
        assert!(bench.state(id).await.is_live(), "before crash {crash}");
        bench.make_due(id).await;
        let job = bench.claim_one().await;
        bench.crash(&[job]).await;
    }
    assert_eq!(bench.state(id).await, JobState::Discarded);
}

/// Runs a suspect that ends only after another job began. `progress` is whether it records
/// progress.
async fn other_jobs_begin_during_the_suspect(alone: Duration, progress: bool) {
    let bench = Bench::new().await;
    let suspect = bench.add_one(page()).await;
    bench.run_sql("update jobs set crashes = 2").await;
    let began = Arc::new(Semaphore::new(0));
    let (marks, mut marked) = mpsc::unbounded_channel();
    let (started, mut starts) = mpsc::unbounded_channel();
    let pages = body({
        let (queue, pool, began) = (bench.queue.clone(), bench.db.pool().clone(), began.clone());
        move |job: ClaimedJob, _| {
            let (queue, pool, began, marks) = (queue.clone(), pool.clone(), began.clone(), marks.clone());
            started.send(()).unwrap();
            async move {
                if progress {
                    let mut tx = pool.begin().await.unwrap();
                    queue.record_progress(&mut tx, job.claim).await.unwrap();
                    tx.commit().await.unwrap();
                }
                let _other = began.acquire().await.unwrap();
                let sql = "select alone from jobs where id = $1";
                let mark: bool = sqlx::query_scalar(sql).bind(job.claim.id).fetch_one(&pool).await.unwrap();
                marks.send(mark).unwrap();
                RunEnd::Done
            }
        }
    });
    let images = body(move |_, _| {
        began.add_permits(1);
        async { RunEnd::Done }
    });
    let worker = Worker::start_with(&bench.queue, &[("page", 1, pages), ("image", 1, images)], SOON, alone);
    soon("the suspect starts", starts.recv()).await;
    bench.add_one(image()).await;
    assert_eq!(soon("the suspect ends", marked.recv()).await, Some(false), "it is not marked as alone");
    bench.ended(2).await;
    assert_eq!(bench.state(suspect).await, JobState::Completed);
    worker.stop().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn never_alone_kind_runs_beside_others_after_crashes() {
    let bench = Bench::new().await;
    let suspect = bench.add_one(page()).await;
    bench.run_sql("update jobs set crashes = 2").await;
    let (pages, began, mut starts) = gated();
    let images = body(move |_, _| {
        began.add_permits(1);
        async { RunEnd::Done }
    });
    let worker = Worker::start_on(&bench.queue, &[("page", 1, pages), ("image", 1, images)], |config| {
        config.never_alone = vec!["page".to_owned()];
        // The test would not wait for the end of an exclusive run.
        config.alone = SOON * 100;
    });
    assert_eq!(soon("the suspect starts", starts.recv()).await, Some(suspect));
    bench.add_one(image()).await;
    bench.ended(2).await;
    worker.stop().await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_jobs_start_when_alone_job_makes_progress() {
    other_jobs_begin_during_the_suspect(SOON, true).await;
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_jobs_start_after_alone_time_limit() {
    other_jobs_begin_during_the_suspect(Duration::from_millis(100), false).await;
}

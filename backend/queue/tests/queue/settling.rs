//! Tests all transitions from `running` and their fences, also with many concurrent workers.
use crate::support::{Fixture, image, kinds, page, soon};
use queue::{Claim, Config, JobState, NewJob, QueueError};
use serde_json::json;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

#[testing::test]
async fn completion_moves_job_to_finished_table() {
    let fixture = Fixture::new().await;
    let job =
        NewJob { unique_key: Some("k".to_owned()), group_id: Some(Uuid::now_v7()), priority: 4, ..page() };
    let id = fixture.enqueue_one(job.clone()).await;
    let claim = fixture.claim_one().await.claim;
    fixture.complete(claim).await.unwrap();

    assert_eq!(fixture.count("select count(*) from jobs").await, 0);
    let row = fixture.get(id).await;
    assert_eq!((row.state, row.attempt, row.priority), (JobState::Completed, 1, 4));
    assert_eq!((row.kind, row.payload, row.group_id), (job.kind, job.payload, job.group_id));
    assert!(row.finished_at.unwrap() >= row.created_at);
    assert!(
        matches!(fixture.complete(claim).await, Err(QueueError::Stale(stale)) if stale == id),
        "only the first call succeeds"
    );
}

#[testing::test]
async fn complete_many_returns_stale_claims() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![page(); 30]).await;
    let claims: Vec<Claim> = fixture.claim(30).await.into_iter().map(|job| job.claim).collect();
    fixture.complete(claims[3]).await.unwrap();
    let older = Claim { fence: claims[5].fence - 1, ..claims[5] };
    let unknown = Claim { id: Uuid::now_v7(), fence: 1 };
    let mut batch = claims.clone();
    batch[5] = older;
    batch.push(unknown);
    let mut stale = fixture.queue.complete_many(&batch).await.unwrap();
    stale.sort();
    assert_eq!(stale, [claims[3], older, unknown]);
    assert_eq!(fixture.state(claims[5].id).await, JobState::Running);
    assert_eq!(fixture.count_completed().await, 29);
    assert!(fixture.queue.complete_many(&[]).await.unwrap().is_empty());
}

#[testing::test]
async fn complete_many_waits_for_locked_row() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&[page(), page()]).await;
    let claims: Vec<Claim> = fixture.claim(2).await.into_iter().map(|job| job.claim).collect();
    let mut tx = fixture.db.pool().begin().await.unwrap();
    sqlx::query("select from jobs where id = $1 for update")
        .bind(claims[0].id)
        .execute(&mut *tx)
        .await
        .unwrap();
    let queue = fixture.queue.clone();
    let batch = tokio::spawn({
        let claims = claims.clone();
        async move { queue.complete_many(&claims).await }
    });
    // The unlocked job is completed, and the locked one is not reported as lost.
    crate::support::until("the unlocked job is completed", || async {
        fixture.state(claims[1].id).await == JobState::Completed
    })
    .await;
    assert!(fixture.queue.heartbeat(&claims[..1]).await.unwrap().is_empty());
    tx.rollback().await.unwrap();
    assert!(crate::support::soon("the batch ends", batch).await.unwrap().unwrap().is_empty());
    assert_eq!(fixture.state(claims[0].id).await, JobState::Completed);
}

#[testing::test]
async fn lock_claims_omits_stale_claims_and_jobs_locked_elsewhere() {
    let fixture = Fixture::new().await;
    let group = Some(Uuid::now_v7());
    fixture.enqueue(&vec![NewJob { group_id: group, ..page() }; 4]).await;
    let claims: Vec<Claim> = fixture.claim(4).await.into_iter().map(|job| job.claim).collect();
    fixture.complete(claims[0]).await.unwrap();
    let older = Claim { fence: claims[1].fence - 1, ..claims[1] };
    let mut other = fixture.db.pool().begin().await.unwrap();
    sqlx::query("select from jobs where id = $1 for update")
        .bind(claims[2].id)
        .execute(&mut *other)
        .await
        .unwrap();

    let mut tx = fixture.db.pool().begin().await.unwrap();
    let wanted = [claims[0], older, claims[2], claims[3]];
    let held = fixture.queue.lock_claims(&mut tx, &wanted).await.unwrap();
    assert_eq!(held, HashSet::from([claims[3]]));
    fixture.queue.complete_locked(&mut tx, &claims[3..]).await.unwrap();
    let lost = fixture.queue.complete_locked(&mut tx, &[claims[0]]).await;
    assert!(matches!(lost, Err(QueueError::Stale(id)) if id == claims[0].id), "{lost:?}");
    tx.commit().await.unwrap();
    other.rollback().await.unwrap();
    assert_eq!(fixture.state(claims[3].id).await, JobState::Completed);
    assert_eq!(fixture.state(claims[2].id).await, JobState::Running);
}

#[testing::test]
async fn cancellation_waits_for_locked_claims() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    let id = fixture.enqueue_one(NewJob { group_id: Some(group), ..page() }).await;
    let claim = fixture.claim_one().await.claim;
    let mut tx = fixture.db.pool().begin().await.unwrap();
    assert_eq!(fixture.queue.lock_claims(&mut tx, &[claim]).await.unwrap().len(), 1);
    let queue = fixture.queue.clone();
    let pool = fixture.db.pool().clone();
    let cancellation = tokio::spawn(async move {
        let mut tx = pool.begin().await.unwrap();
        queue.groups().cancel(&mut tx, group, 10).await.unwrap();
        tx.commit().await.unwrap();
    });
    crate::support::until("the cancellation waits", || async {
        fixture.count("select count(*) from pg_locks where not granted").await > 0
    })
    .await;
    fixture.queue.complete_locked(&mut tx, &[claim]).await.unwrap();
    tx.commit().await.unwrap();
    crate::support::soon("the cancellation ends", cancellation).await.unwrap();
    assert_eq!(fixture.state(id).await, JobState::Completed, "the job was completed first");
}

#[testing::test]
async fn completion_is_atomic_with_caller_writes() {
    let fixture = Fixture::new().await;
    fixture.run_sql("create table results (job uuid)").await;
    fixture.enqueue(&[page(), page()]).await;
    let jobs = fixture.claim(2).await;

    for (job, commit) in jobs.iter().zip([false, true]) {
        let mut tx = fixture.db.pool().begin().await.unwrap();
        sqlx::query("insert into results values ($1)").bind(job.claim.id).execute(&mut *tx).await.unwrap();
        fixture.queue.enqueue(&mut tx, &[image()]).await.unwrap();
        fixture.queue.complete(&mut tx, job.claim).await.unwrap();
        if commit {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
    }
    assert_eq!(fixture.state(jobs[0].claim.id).await, JobState::Running, "rolled back: still claimed");
    assert_eq!(fixture.state(jobs[1].claim.id).await, JobState::Completed);
    assert_eq!(fixture.count("select count(*) from results").await, 1);
    assert_eq!(fixture.count("select count(*) from jobs where kind = 'image'").await, 1);
    fixture.complete(jobs[0].claim).await.unwrap();
}

#[testing::test]
async fn failed_job_is_retried_with_growing_backoff() {
    let config = Config {
        retry_base: Duration::from_secs(100),
        retry_max: Duration::from_secs(250),
        ..Config::default()
    };
    let fixture = Fixture::with(config).await;
    let id = fixture.enqueue_one(NewJob { max_attempts: 4, ..page() }).await;
    for (attempt, max_delay) in [(1, 100.0), (2, 200.0), (3, 250.0)] {
        let job = fixture.claim_one().await;
        assert_eq!(job.attempt, attempt);
        let failed_at = OffsetDateTime::now_utc();
        assert_eq!(fixture.fail(job.claim, false).await.unwrap(), JobState::Retryable);
        let row = fixture.get(id).await;
        assert_eq!((row.state, row.attempt), (JobState::Retryable, attempt));
        assert_eq!(row.last_error.as_deref(), Some("failed"));
        let delay = (row.scheduled_at - failed_at).as_seconds_f64();
        // The upper bound allows for the time between the readings of the two clocks.
        assert!(
            delay > max_delay * 0.49 && delay < max_delay + 20.0,
            "attempt {attempt}: {delay} of {max_delay}"
        );
        assert!(fixture.claim(10).await.is_empty(), "it is not due yet");
        fixture.make_due(id).await;
    }
    let job = fixture.claim_one().await;
    assert_eq!(fixture.fail(job.claim, false).await.unwrap(), JobState::Discarded);
    let row = fixture.get(id).await;
    assert_eq!((row.state, row.attempt, row.last_error.as_deref()), (JobState::Discarded, 4, Some("failed")));
    assert!(row.finished_at.is_some());
}

#[testing::test]
async fn failure_may_be_final_or_set_retry_time() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&[page(), page()]).await;
    let jobs = fixture.claim(2).await;
    assert_eq!(fixture.fail(jobs[0].claim, true).await.unwrap(), JobState::Discarded);
    let (wait, start) = (Duration::from_secs(777), fixture.clock().await);
    let mut conn = fixture.db.pool().acquire().await.unwrap();
    let text = format!("NUL \0 and {}", "ü".repeat(10_000));
    let state = fixture.queue.fail(&mut conn, jobs[1].claim, &text, false, Some(wait)).await.unwrap();
    assert_eq!(state, JobState::Retryable);
    let row = fixture.get(jobs[1].claim.id).await;
    assert!((start + wait..=fixture.clock().await + wait).contains(&row.scheduled_at));
    let error = row.last_error.unwrap();
    assert!(error.starts_with("NUL \u{fffd} and ü") && error.len() <= 8192 + 2, "{}", error.len());
}

#[testing::test]
async fn snooze_and_release_use_no_attempt() {
    let fixture = Fixture::new().await;
    let id = fixture.enqueue_one(NewJob { max_attempts: 1, ..page() }).await;
    let wait = Duration::from_secs(3600);
    for _ in 0..3 {
        let job = fixture.claim_one().await;
        assert_eq!(job.attempt, 1);
        let start = fixture.clock().await;
        fixture.queue.snooze(job.claim, wait).await.unwrap();
        let row = fixture.get(id).await;
        assert_eq!((row.state, row.attempt), (JobState::Available, 0));
        assert!((start + wait..=fixture.clock().await + wait).contains(&row.scheduled_at));
        assert!(fixture.claim(10).await.is_empty());
        fixture.make_due(id).await;
    }
    let before = fixture.get(id).await;
    let claim = fixture.claim_one().await.claim;
    let unknown = Claim { id: Uuid::now_v7(), fence: 1 };
    assert_eq!(fixture.queue.release(&[claim, unknown]).await.unwrap(), 1);
    let row = fixture.get(id).await;
    assert_eq!((row.state, row.attempt, row.scheduled_at), (JobState::Available, 0, before.scheduled_at));
    assert_eq!(fixture.queue.release(&[claim]).await.unwrap(), 0, "only the first call succeeds");

    // A job that failed before returns to `retryable`.
    let failed_before = fixture.enqueue_one(image()).await;
    let claim = fixture.queue.claim(&["image".to_owned()], 1, "w").await.unwrap()[0].claim;
    fixture.fail(claim, false).await.unwrap();
    fixture.make_due(failed_before).await;
    let claim = fixture.queue.claim(&["image".to_owned()], 1, "w").await.unwrap()[0].claim;
    fixture.queue.release(&[claim]).await.unwrap();
    let row = fixture.get(failed_before).await;
    assert_eq!((row.state, row.attempt), (JobState::Retryable, 1));
}

#[testing::test]
async fn rescue_retries_job_or_discards_it_after_last_attempt() {
    let fixture = Fixture::new().await;
    let id = fixture.enqueue_one(NewJob { max_attempts: 2, ..page() }).await;
    let healthy = fixture.enqueue_one(image()).await;
    let first = fixture.claim(2).await.into_iter().find(|job| job.claim.id == id).unwrap().claim;
    assert_eq!(fixture.queue.rescue().await.unwrap(), 0, "no lease has expired");

    fixture.expire(id).await;
    assert_eq!(fixture.queue.rescue().await.unwrap(), 1);
    let row = fixture.get(id).await;
    assert_eq!(
        (row.state, row.attempt),
        (JobState::Retryable, 1),
        "the attempt is counted, because it may have crashed the worker"
    );
    assert_eq!(row.last_error.as_deref(), Some("lease expired"));
    fixture.make_due(id).await;
    let second = fixture.claim_one().await;
    assert_eq!((second.claim.id, second.attempt), (id, 2));
    assert!(second.claim.fence > first.fence);

    // No other job ran concurrently, so this job is regarded as the cause.
    fixture.queue.begin_alone(second.claim).await.unwrap();
    fixture.expire(id).await;
    assert_eq!(fixture.queue.rescue().await.unwrap(), 1);
    let row = fixture.get(id).await;
    assert_eq!((row.state, row.last_error.as_deref()), (JobState::Discarded, Some("lease expired")));
    assert_eq!(fixture.state(healthy).await, JobState::Running);
}

#[testing::test]
async fn rescue_handles_any_number_of_jobs() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![page(); 2500]).await;
    assert_eq!(fixture.claim(2500).await.len(), 2500);
    fixture.run_sql("update jobs set lease_until = now() - interval '1 s'").await;
    assert_eq!(fixture.queue.rescue().await.unwrap(), 2500);
    assert_eq!(fixture.count("select count(*) from jobs where state = 'retryable'").await, 2500);
}

#[testing::test]
async fn heartbeat_extends_leases_and_returns_lost_claims() {
    let fixture = Fixture::new().await;
    fixture.enqueue(&[page(), page()]).await;
    let claims: Vec<Claim> = fixture.claim(2).await.into_iter().map(|job| job.claim).collect();
    for claim in &claims {
        fixture.expire(claim.id).await;
    }
    // The lease expired, but no process has rescued the job, so a heartbeat extends it.
    assert!(fixture.queue.heartbeat(&claims[..1]).await.unwrap().is_empty());
    assert_eq!(fixture.queue.rescue().await.unwrap(), 1);
    assert_eq!(fixture.state(claims[0].id).await, JobState::Running);
    assert_eq!(fixture.state(claims[1].id).await, JobState::Retryable);
    let unknown = Claim { id: Uuid::now_v7(), fence: 1 };
    let mut lost = fixture.queue.heartbeat(&[claims[0], claims[1], unknown]).await.unwrap();
    lost.sort();
    assert_eq!(lost, [claims[1], unknown]);
}

#[testing::test]
async fn stale_claim_cannot_change_job() {
    let fixture = Fixture::new().await;
    fixture.run_sql("create table results (worker text)").await;
    let id = fixture.enqueue_one(NewJob::new("page", json!({}))).await;
    let stale_claim = fixture.claim_one().await.claim;
    fixture.expire(id).await;
    fixture.queue.rescue().await.unwrap();
    fixture.make_due(id).await;

    // In the first round no worker holds the job; in the second round another worker holds it.
    for has_new_claim in [false, true] {
        let current = if has_new_claim { Some(fixture.claim_one().await.claim) } else { None };
        let before = fixture.get(id).await;
        let mut tx = fixture.db.pool().begin().await.unwrap();
        sqlx::query("insert into results values ('slow')").execute(&mut *tx).await.unwrap();
        let result = fixture.queue.complete(&mut tx, stale_claim).await;
        assert!(matches!(result, Err(QueueError::Stale(stale)) if stale == id));
        drop(tx);
        assert!(matches!(fixture.fail(stale_claim, true).await, Err(QueueError::Stale(_))));
        assert!(matches!(fixture.queue.snooze(stale_claim, Duration::ZERO).await, Err(QueueError::Stale(_))));
        assert_eq!(fixture.queue.release(&[stale_claim]).await.unwrap(), 0);
        assert_eq!(fixture.queue.heartbeat(&[stale_claim]).await.unwrap(), [stale_claim]);
        assert_eq!(fixture.queue.complete_many(&[stale_claim]).await.unwrap(), [stale_claim]);
        let after = fixture.get(id).await;
        assert_eq!(
            (after.state, after.attempt, after.scheduled_at),
            (before.state, before.attempt, before.scheduled_at)
        );
        if let Some(current) = current {
            assert!(current.fence > stale_claim.fence);
            fixture.complete(current).await.unwrap();
        }
    }
    assert_eq!(fixture.state(id).await, JobState::Completed);
    assert_eq!(fixture.count("select count(*) from results").await, 0, "its result is discarded");
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_workers_never_claim_same_job() {
    const JOBS: usize = 6000;
    let fixture = Fixture::new().await;
    fixture.enqueue(&vec![page(); JOBS]).await;
    let workers = (0..8).map(|worker| {
        let queue = fixture.queue.clone();
        tokio::spawn(async move {
            let mut completed = Vec::new();
            // A worker may get too few jobs because others are claiming them, so this repeats until
            // no job remains.
            loop {
                let jobs = queue.claim(&kinds(), 7, &format!("worker {worker}")).await.unwrap();
                if jobs.is_empty() && queue.next_due(&kinds()).await.unwrap().is_none() {
                    return completed;
                }
                let claims: Vec<Claim> = jobs.iter().map(|job| job.claim).collect();
                assert!(queue.complete_many(&claims).await.unwrap().is_empty());
                completed.extend(claims);
            }
        })
    });
    let claims: Vec<Claim> = soon("all jobs are claimed", futures::future::join_all(workers))
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    assert_eq!(claims.len(), JOBS);
    assert_eq!(claims.iter().map(|claim| claim.id).collect::<HashSet<_>>().len(), JOBS);
    assert_eq!(fixture.count_completed().await, JOBS as i64);
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_complete_once_under_constant_rescues() {
    const JOBS: i64 = 600;
    let (retry_base, retry_max) = (Duration::from_millis(1), Duration::from_millis(5));
    let fixture = Fixture::with(Config { retry_base, retry_max, ..Config::default() }).await;
    fixture.enqueue(&vec![NewJob { max_attempts: i16::MAX, ..page() }; JOBS as usize]).await;
    let is_over = AtomicBool::new(false);
    // Leases expire continuously, including those of jobs that are being completed.
    let expire_leases = async {
        while !is_over.load(Ordering::Relaxed) {
            sqlx::query(
                "update jobs set lease_until = now() - interval '1 s' where id = any(array(
                     select id from jobs where state = 'running' and random() < 0.3 for update skip locked))",
            )
            .execute(fixture.db.pool())
            .await
            .unwrap();
            fixture.queue.rescue().await.unwrap();
        }
    };
    let work = async {
        let workers = (0..5).map(|worker| {
            let fixture = &fixture;
            async move {
                let (mut done, mut stale) = (0, 0);
                while let depth = fixture.queue.jobs().depth().await.unwrap()
                    && depth.counts.iter().any(|(_, state, _)| state.is_live())
                {
                    for job in fixture.queue.claim(&kinds(), 10, &format!("worker {worker}")).await.unwrap() {
                        match fixture.complete(job.claim).await {
                            Ok(()) => done += 1,
                            Err(QueueError::Stale(_)) => stale += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
                (done, stale)
            }
        });
        let counts = futures::future::join_all(workers).await;
        is_over.store(true, Ordering::Relaxed);
        counts
    };
    let (counts, ()) = soon("all jobs are completed", async { tokio::join!(work, expire_leases) }).await;
    let done: i64 = counts.iter().map(|(done, _)| done).sum();
    let stale: i64 = counts.iter().map(|(_, stale)| stale).sum();
    assert_eq!(done, JOBS, "{stale} claims were stale");
    assert!(stale > 0, "no lease expired");
    assert_eq!(fixture.count_completed().await, JOBS);
}

/// Runs workers that complete a job and add two in one transaction, batch completions, and
/// heartbeats. Concurrently, the group is held, released and finally cancelled. Expects no
/// deadlock, and no live job after the cancellation.
#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_changes_do_not_deadlock_with_workers() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    let job = NewJob { group_id: Some(group), ..page() };
    fixture.enqueue(&vec![job.clone(); 200]).await;
    let is_over = AtomicBool::new(false);

    let workers = futures::future::join_all((0..4).map(|worker: usize| {
        let (fixture, is_over, job) = (&fixture, &is_over, &job);
        async move {
            let mut active: HashMap<Uuid, Claim> = HashMap::new();
            while !is_over.load(Ordering::Relaxed) {
                let claims: Vec<Claim> =
                    fixture.claim(20).await.into_iter().map(|claimed| claimed.claim).collect();
                active.extend(claims.iter().map(|claim| (claim.id, *claim)));
                let active_claims: Vec<Claim> = active.values().copied().collect();
                let (batch, single) = claims.split_at(claims.len() / 2);
                let (lost, stale) =
                    tokio::join!(fixture.queue.heartbeat(&active_claims), fixture.queue.complete_many(batch));
                lost.unwrap();
                stale.unwrap();
                for claim in single {
                    let mut tx = fixture.db.pool().begin().await.unwrap();
                    match fixture.queue.complete(&mut tx, *claim).await {
                        Ok(()) => {
                            if worker.is_multiple_of(2) {
                                fixture.queue.enqueue(&mut tx, &[job.clone(), job.clone()]).await.unwrap();
                            }
                            tx.commit().await.unwrap();
                        }
                        Err(QueueError::Stale(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                active.retain(|id, _| !claims.iter().any(|claim| claim.id == *id));
            }
        }
    }));
    let operator = async {
        for _ in 0..15 {
            fixture.hold(group).await;
            let (unheld, all): (i64, i64) = sqlx::query_as(
                "select count(*) filter (where not held), count(*) from jobs where group_id = $1",
            )
            .bind(group)
            .fetch_one(fixture.db.pool())
            .await
            .unwrap();
            assert_eq!(unheld, 0, "not all of the {all} jobs are held");
            fixture.release(group).await;
        }
        is_over.store(true, Ordering::Relaxed);
        let mut tx = fixture.db.pool().begin().await.unwrap();
        let cancelled = fixture.queue.groups().cancel(&mut tx, group, i64::MAX).await.unwrap();
        let live = fixture.queue.groups().count_live(&mut tx, group).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(live, 0, "{cancelled} jobs were cancelled");
    };
    soon("the workers end", async { tokio::join!(workers, operator) }).await;
    let listed =
        fixture.queue.jobs().list(Some(JobState::Running), None, Some(group), None, 10).await.unwrap();
    assert!(listed.is_empty());
}

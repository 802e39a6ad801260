//! Tests many concurrent workers.
use crate::support::{Bench, kinds, page, soon};
use queue::{Claim, Config, JobState, NewJob, QueueError};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use uuid::Uuid;

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_workers_never_hold_the_same_job() {
    const JOBS: usize = 6000;
    let bench = Bench::new().await;
    bench.add(&vec![page(); JOBS]).await;
    let workers = (0..8).map(|worker| {
        let queue = bench.queue.clone();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            // Repeats until no job remains: a short result may only mean that others were faster.
            loop {
                let jobs = queue.claim(&kinds(), 7, &format!("worker {worker}")).await.unwrap();
                if jobs.is_empty() && queue.next_due(&kinds()).await.unwrap().is_none() {
                    return mine;
                }
                let claims: Vec<Claim> = jobs.iter().map(|job| job.claim).collect();
                assert!(queue.complete_many(&claims).await.unwrap().is_empty());
                mine.extend(claims);
            }
        })
    });
    let held: Vec<Claim> = soon("the table is dry", futures::future::join_all(workers))
        .await
        .into_iter()
        .flat_map(Result::unwrap)
        .collect();
    assert_eq!(held.len(), JOBS);
    assert_eq!(held.iter().map(|claim| claim.id).collect::<HashSet<_>>().len(), JOBS);
    assert_eq!(
        bench.count("select count(*) from finished_jobs where state = 'completed'").await,
        JOBS as i64
    );
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_rescues_from_all_sides_each_job_is_completed_once() {
    const JOBS: i64 = 600;
    let (retry_base, retry_max) = (Duration::from_millis(1), Duration::from_millis(5));
    let bench = Bench::with(Config { retry_base, retry_max, ..Config::default() }).await;
    bench.add(&vec![NewJob { max_attempts: i16::MAX, ..page() }; JOBS as usize]).await;
    let over = AtomicBool::new(false);
    // Leases expire continuously, including those of jobs that are being completed.
    let thief = async {
        while !over.load(Ordering::Relaxed) {
            sqlx::query(
                "update jobs set lease_until = now() - interval '1 s' where id = any(array(
                     select id from jobs where state = 'running' and random() < 0.3 for update skip locked))",
            )
            .execute(bench.db.pool())
            .await
            .unwrap();
            bench.queue.rescue().await.unwrap();
        }
    };
    let work = async {
        let workers = (0..5).map(|worker| {
            let bench = &bench;
            async move {
                let (mut done, mut stale) = (0, 0);
                while bench.queue.depth().await.unwrap().counts.iter().any(|(_, state, _)| state.is_live()) {
                    for job in bench.queue.claim(&kinds(), 10, &format!("worker {worker}")).await.unwrap() {
                        match bench.complete(job.claim).await {
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
        over.store(true, Ordering::Relaxed);
        counts
    };
    let (counts, ()) = soon("all is done", async { tokio::join!(work, thief) }).await;
    let done: i64 = counts.iter().map(|(done, _)| done).sum();
    let stale: i64 = counts.iter().map(|(_, stale)| stale).sum();
    assert_eq!(done, JOBS, "{stale} were stale");
    assert!(stale > 0, "no lease expired");
    assert_eq!(bench.count("select count(*) from finished_jobs where state = 'completed'").await, JOBS);
}

/// Runs workers that complete a job and add two in one transaction, batch completions, and
/// heartbeats. Concurrently, the group is held, released and finally cancelled. Expects no
/// deadlock, and no live job after the cancellation.
#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn whole_group_changes_and_working_transactions_do_not_deadlock() {
    let bench = Bench::new().await;
    let group = Uuid::now_v7();
    let job = NewJob { group_id: Some(group), ..page() };
    bench.add(&vec![job.clone(); 200]).await;
    let over = AtomicBool::new(false);

    let workers = futures::future::join_all((0..4).map(|worker: usize| {
        let (bench, over, job) = (&bench, &over, &job);
        async move {
            let mut held: HashMap<Uuid, Claim> = HashMap::new();
            while !over.load(Ordering::Relaxed) {
                let claims: Vec<Claim> =
                    bench.claim(20).await.into_iter().map(|claimed| claimed.claim).collect();
                held.extend(claims.iter().map(|claim| (claim.id, *claim)));
                let all: Vec<Claim> = held.values().copied().collect();
                let (batch, single) = claims.split_at(claims.len() / 2);
                let (beat, stale) =
                    tokio::join!(bench.queue.heartbeat(&all), bench.queue.complete_many(batch));
                beat.unwrap();
                stale.unwrap();
                for claim in single {
                    let mut tx = bench.db.pool().begin().await.unwrap();
                    match bench.queue.complete(&mut tx, *claim).await {
                        Ok(()) => {
                            if worker.is_multiple_of(2) {
                                bench.queue.enqueue(&mut tx, &[job.clone(), job.clone()]).await.unwrap();
                            }
                            tx.commit().await.unwrap();
                        }
                        Err(QueueError::Stale(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
                held.retain(|id, _| !claims.iter().any(|claim| claim.id == *id));
            }
        }
    }));
    let operator = async {
        for _ in 0..15 {
            let mut tx = bench.db.pool().begin().await.unwrap();
            bench.queue.hold_group(&mut tx, group).await.unwrap();
            tx.commit().await.unwrap();
            let held: (i64, i64) = sqlx::query_as(
                "select count(*) filter (where not held), count(*) from jobs where group_id = $1",
            )
            .bind(group)
            .fetch_one(bench.db.pool())
            .await
            .unwrap();
            assert_eq!(held.0, 0, "of {} jobs, all are held", held.1);
            let mut tx = bench.db.pool().begin().await.unwrap();
            bench.queue.release_group(&mut tx, group).await.unwrap();
            tx.commit().await.unwrap();
        }
        over.store(true, Ordering::Relaxed);
        let mut tx = bench.db.pool().begin().await.unwrap();
        let cancelled = bench.queue.cancel_group(&mut tx, group, i64::MAX).await.unwrap();
        let left = bench.queue.live_in_group(&mut tx, group).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(left, 0, "{cancelled} were cancelled");
    };
    soon("all have ended", async { tokio::join!(workers, operator) }).await;
    let listed = bench.queue.list(Some(JobState::Running), None, Some(group), None, 10).await.unwrap();
    assert!(listed.is_empty());
}

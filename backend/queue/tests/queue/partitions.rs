//! Tests partition keys: how many jobs are unparked, and in which order.
use crate::support::{Bench, page};
use queue::{Config, JobState, NewJob, QueueError};
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;
use uuid::Uuid;

fn narrow() -> Config {
    Config { partition_window: 4, ..Config::default() }
}

fn job(group: Uuid, partition_key: &str, number: i64) -> NewJob {
    NewJob {
        group_id: Some(group),
        partition_key: Some(partition_key.into()),
        payload: json!(number),
        unique_key: Some(format!("{group} {partition_key} {number}")),
        ..page()
    }
}

fn jobs(group: Uuid, partition_key: &str, numbers: std::ops::Range<i64>) -> Vec<NewJob> {
    numbers.map(|number| job(group, partition_key, number)).collect()
}

async fn parked(bench: &Bench) -> i64 {
    sqlx::query_scalar("select count(*) from jobs where parked").fetch_one(bench.db.pool()).await.unwrap()
}

#[testing::test]
async fn a_full_partition_parks_the_rest_and_takes_it_in_when_half_has_ended() {
    let bench = Bench::with(narrow()).await;
    let group = Uuid::now_v7();
    bench.add(&jobs(group, "slow", 0..10)).await;
    assert_eq!(parked(&bench).await, 6);
    // Jobs of earlier calls are also counted.
    bench.add(&jobs(group, "slow", 10..12)).await;
    assert_eq!(parked(&bench).await, 8);
    let line = bench.claim(100).await;
    assert_eq!(line.iter().map(|job| job.payload.as_i64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(bench.queue.unpark().await.unwrap(), 0, "running jobs occupy places too");

    bench.complete(line[0].claim).await.unwrap();
    assert_eq!(bench.queue.unpark().await.unwrap(), 0, "more than half of the places are occupied");
    bench.complete(line[1].claim).await.unwrap();
    assert_eq!(bench.queue.unpark().await.unwrap(), 2);
    let next = bench.claim(100).await;
    assert_eq!(next.iter().map(|job| job.payload.as_i64().unwrap()).collect::<Vec<_>>(), [4, 5]);

    // A job that returns to the queue keeps its place.
    bench.queue.snooze(next[0].claim, Duration::from_secs(3600)).await.unwrap();
    assert_eq!((bench.queue.unpark().await.unwrap(), parked(&bench).await), (0, 6));
}

#[testing::test]
async fn partitions_kinds_and_groups_do_not_stand_in_each_others_way() {
    let bench = Bench::with(narrow()).await;
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    bench.add(&jobs(one, "slow", 0..1000)).await;
    bench.add(&jobs(one, "fast", 0..4)).await;
    bench.add(&jobs(two, "slow", 0..4)).await;
    bench.add(&vec![NewJob { group_id: Some(two), ..page() }; 10]).await;
    assert_eq!(parked(&bench).await, 996);
    let claimed = bench.claim(100).await;
    assert_eq!(claimed.len(), 4 + 4 + 4 + 10);
    let best = NewJob { priority: -1, ..job(one, "slow", 5000) };
    bench.add(&[best]).await;
    for job in &claimed {
        bench.complete(job.claim).await.unwrap();
    }
    // A job enqueued in the meantime runs before the parked jobs. Among those, the job with the
    // best priority is first.
    let newcomer = bench.add_one(job(two, "slow", 77)).await;
    assert_eq!(bench.queue.unpark().await.unwrap(), 4);
    let next = bench.claim(100).await;
    assert_eq!((next.len(), next[0].payload.as_i64()), (5, Some(5000)));
    assert_eq!(next[1].claim.id, newcomer);
}

#[testing::test]
async fn a_held_group_takes_in_nobody_who_could_run() {
    let bench = Bench::with(narrow()).await;
    let group = Uuid::now_v7();
    bench.add(&jobs(group, "slow", 0..10)).await;
    for job in bench.claim(100).await {
        bench.queue.complete_many(&[job.claim]).await.unwrap();
    }
    let mut tx = bench.db.pool().begin().await.unwrap();
    bench.queue.hold_group(&mut tx, group).await.unwrap();
    // The window has free places, but while the hold is in progress, the group's keys are skipped
    // without waiting.
    assert_eq!(bench.queue.unpark().await.unwrap(), 0);
    tx.commit().await.unwrap();
    assert_eq!(bench.queue.unpark().await.unwrap(), 4);
    assert!(bench.claim(100).await.is_empty());

    let mut tx = bench.db.pool().begin().await.unwrap();
    bench.queue.release_group(&mut tx, group).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(bench.claim(100).await.len(), 4, "only unparked jobs can be claimed");

    let mut tx = bench.db.pool().begin().await.unwrap();
    assert_eq!(bench.queue.cancel_group(&mut tx, group, i64::MAX).await.unwrap(), 6);
    tx.commit().await.unwrap();
    assert_eq!(parked(&bench).await, 0);
    let listed = bench.queue.list(Some(JobState::Cancelled), None, Some(group), None, 100).await.unwrap();
    assert_eq!(listed.len(), 4, "parked jobs leave no record");
}

#[testing::test]
async fn a_group_with_very_many_partitions_keeps_a_bounded_line_and_ends_all_the_same() {
    const PARTITIONS: i64 = 1_300;
    let bench = Bench::with(Config { group_window: 40, ..narrow() }).await;
    let group = Uuid::now_v7();
    let in_line = async || bench.count("select count(*) from jobs where not parked").await;
    // One key occupies at most its own window of 4. The others share the rest of the group's.
    bench.add(&jobs(group, "first", 0..10)).await;
    assert_eq!(in_line().await, 4);
    let all: Vec<NewJob> =
        (0..PARTITIONS).flat_map(|partition_key| jobs(group, &format!("{partition_key:04}"), 0..2)).collect();
    bench.add(&all).await;
    assert_eq!(in_line().await, 40);
    let mut done = HashSet::new();
    loop {
        let claimed = bench.claim(100).await;
        assert!(in_line().await <= 40);
        if claimed.is_empty() && bench.count("select count(*) from jobs").await == 0 {
            break;
        }
        done.extend(claimed.iter().map(|job| job.claim.id));
        let claims: Vec<_> = claimed.iter().map(|job| job.claim).collect();
        bench.queue.complete_many(&claims).await.unwrap();
        bench.queue.unpark().await.unwrap();
    }
    assert_eq!(done.len() as i64, 2 * PARTITIONS + 10);
}

#[testing::test]
async fn groups_with_very_many_partitions_do_not_wait_for_each_other_and_their_partitions_have_turns() {
    const PARTITIONS: i64 = 1_300;
    let bench = Bench::with(Config { group_window: 4, ..narrow() }).await;
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    for group in [one, two] {
        bench
            .add(
                &(0..PARTITIONS)
                    .map(|partition_key| job(group, &format!("{partition_key:04}"), partition_key))
                    .collect::<Vec<_>>(),
            )
            .await;
    }
    // The first group has no free places, so none of its parked jobs can be unparked.
    let full = bench.claim(4).await;
    assert!(full.iter().all(|job| job.group_id == Some(one)));
    let mut joined = Vec::new();
    for _ in 0..PARTITIONS / 4 {
        let claimed = bench.claim(100).await;
        assert!(claimed.iter().all(|job| job.group_id == Some(two)));
        joined.extend(claimed.iter().map(|job| job.payload.as_i64().unwrap()));
        bench.queue.complete_many(&claimed.iter().map(|job| job.claim).collect::<Vec<_>>()).await.unwrap();
        bench.queue.unpark().await.unwrap();
    }
    assert!(
        joined.is_sorted() && joined.len() as i64 == PARTITIONS,
        "partition keys are skipped: {:?} …",
        &joined[..20]
    );
}

#[testing::test]
async fn many_processes_take_in_each_job_once_and_miss_none() {
    const JOBS: i64 = 300;
    let bench = Bench::with(narrow()).await;
    let group = Uuid::now_v7();
    for partition_key in ["a", "b", "c"] {
        bench.add(&jobs(group, partition_key, 0..JOBS / 3)).await;
    }
    let worker = async || {
        let mut done = HashSet::new();
        loop {
            bench.queue.unpark().await.unwrap();
            let claimed = bench.claim(3).await;
            if claimed.is_empty() && bench.queue.next_due(&crate::support::kinds()).await.unwrap().is_none() {
                // No job is ready: another worker holds the remaining jobs, or all are completed.
                let live: i64 =
                    sqlx::query_scalar("select count(*) from jobs").fetch_one(bench.db.pool()).await.unwrap();
                if live == 0 {
                    return done;
                }
            }
            for job in claimed {
                bench.complete(job.claim).await.unwrap();
                assert!(done.insert(job.claim.id));
            }
        }
    };
    let (a, b, c) = tokio::join!(worker(), worker(), worker());
    assert_eq!((a.len() + b.len() + c.len()) as i64, JOBS);
    assert!(a.is_disjoint(&b) && b.is_disjoint(&c) && a.is_disjoint(&c));
}

#[testing::test]
async fn a_partition_key_without_a_group_is_refused() {
    let bench = Bench::new().await;
    let mut tx = bench.db.pool().begin().await.unwrap();
    let job = NewJob { partition_key: Some("slow".into()), ..page() };
    let refused = bench.queue.enqueue(&mut tx, &[job]).await;
    assert!(matches!(refused, Err(QueueError::Invalid(ref why)) if why.contains("group")), "{refused:?}");
}

//! Tests groups (hold, release, cancel) and partition keys (how many jobs are unparked, and in
//! which order).
use crate::support::{Bench, image, kinds, page, soon, until};
use queue::{Config, JobState, NewJob, QueueError};
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;
use uuid::Uuid;

fn of(group: Uuid) -> NewJob {
    NewJob { group_id: Some(group), ..page() }
}

impl Bench {
    pub(crate) async fn hold(&self, group: Uuid) {
        self.commit(async |conn| self.queue.groups().hold(conn, group).await).await.unwrap();
    }

    pub(crate) async fn release(&self, group: Uuid) {
        self.commit(async |conn| self.queue.groups().release(conn, group).await).await.unwrap();
    }

    /// Cancels at most `most` jobs of a group, and returns their number.
    pub(crate) async fn cancel(&self, group: Uuid, most: i64) -> u64 {
        self.commit(async |conn| self.queue.groups().cancel(conn, group, most).await).await.unwrap()
    }

    async fn live(&self, group: Uuid) -> i64 {
        let mut conn = self.db.pool().acquire().await.unwrap();
        let live = self.queue.groups().count_live(&mut conn, group).await.unwrap();
        assert_eq!(self.queue.groups().is_live(&mut conn, group).await.unwrap(), live > 0);
        live
    }
}

#[testing::test]
async fn held_group_holds_existing_and_new_jobs() {
    let bench = Bench::new().await;
    let (group, other) = (Uuid::now_v7(), Uuid::now_v7());
    bench.add(&[of(group), of(group), of(other), page()]).await;
    bench.hold(group).await;
    bench.hold(group).await;
    let added = bench.add(&[of(group), of(other)]).await;
    assert_eq!(added.len(), 2);

    let claimed = bench.claim(10).await;
    assert_eq!(claimed.len(), 3);
    assert!(claimed.iter().all(|job| job.group_id != Some(group)));
    assert_eq!(bench.queue.next_due(&kinds()).await.unwrap(), None, "what is held is not due");
    assert_eq!(bench.live(group).await, 3, "held jobs are live");
    let rows = bench.queue.jobs().list(None, None, Some(group), None, 10).await.unwrap();
    assert!(rows.iter().all(|row| row.held && row.state == JobState::Available));

    bench.release(group).await;
    assert_eq!(bench.claim(10).await.len(), 3);
    assert!(bench.add(&[of(group)]).await.len() == 1 && bench.claim(10).await.len() == 1);
}

#[testing::test]
async fn jobs_returned_to_held_group_are_held() {
    let bench = Bench::new().await;
    let group = Uuid::now_v7();
    bench.add(&vec![of(group); 5]).await;
    let claims: Vec<_> = bench.claim(5).await.into_iter().map(|job| job.claim).collect();
    bench.hold(group).await;

    bench.complete(claims[0]).await.unwrap();
    assert_eq!(bench.state(claims[0].id).await, JobState::Completed, "running jobs may end");
    bench.fail(claims[1], false).await.unwrap();
    bench.make_due(claims[1].id).await;
    bench.queue.snooze(claims[2], Duration::ZERO).await.unwrap();
    bench.queue.release(&claims[3..4]).await.unwrap();
    bench.expire(claims[4].id).await;
    bench.queue.rescue().await.unwrap();
    bench.make_due(claims[4].id).await;
    assert!(bench.claim(10).await.is_empty());
    assert_eq!(bench.live(group).await, 4);
    bench.release(group).await;
    assert_eq!(bench.claim(10).await.len(), 4);
}

#[testing::test]
async fn cancelling_group_makes_running_claims_stale() {
    let bench = Bench::new().await;
    let group = Uuid::now_v7();
    let keyed = NewJob { unique_key: Some("k".to_owned()), ..of(group) };
    let ids = bench.add(&[of(group), of(group), keyed.clone(), page()]).await;
    let running = bench.claim(1).await.remove(0);
    bench.fail(bench.claim(1).await[0].claim, false).await.unwrap();
    bench.hold(group).await;
    assert_eq!(bench.cancel(group, i64::MAX).await, 3);
    assert_eq!(bench.live(group).await, 0);
    assert_eq!(bench.cancel(group, i64::MAX).await, 0);

    assert!(matches!(bench.complete(running.claim).await, Err(QueueError::Stale(_))));
    assert_eq!(bench.queue.heartbeat(&[running.claim]).await.unwrap(), [running.claim]);
    let row = bench.get(running.claim.id).await;
    assert_eq!((row.state, row.attempt), (JobState::Cancelled, 1));
    let cancelled =
        bench.queue.jobs().list(Some(JobState::Cancelled), None, Some(group), None, 10).await.unwrap();
    assert_eq!(cancelled.len(), 3);
    assert_eq!(bench.claim(10).await.len(), ids.len() - 3, "the other job is untouched");

    // The hold was removed with the group, and the key can be used again.
    bench.add_one(keyed).await;
    let again = bench.claim_one().await;
    assert_eq!(again.group_id, Some(group));
    let retried = bench.retry(running.claim.id).await.unwrap();
    assert!(!retried.held);
    assert!(bench.claim_one().await.claim.fence > running.claim.fence);
}

#[testing::test]
async fn group_is_cancelled_in_batches_unparked_jobs_first() {
    let bench = Bench::with(queue::Config { partition_window: 3, ..queue::Config::default() }).await;
    let group = Uuid::now_v7();
    bench.add(&vec![NewJob { partition_key: Some("host".into()), ..of(group) }; 10]).await;
    let running = bench.claim(1).await.remove(0);
    assert_eq!((bench.cancel(group, 3).await, bench.live(group).await), (3, 7));
    assert!(bench.claim(10).await.is_empty(), "only parked jobs are left");
    assert!(matches!(bench.complete(running.claim).await, Err(QueueError::Stale(_))));
    let rest = (bench.cancel(group, 4).await, bench.cancel(group, 4).await);
    assert_eq!((rest, bench.live(group).await), ((4, 3), 0));
    assert_eq!(bench.cancel(group, 4).await, 0);
}

#[testing::test]
async fn hold_waits_for_transaction_adding_jobs() {
    let bench = Bench::new().await;
    let group = Uuid::now_v7();
    bench.add(&[of(group)]).await;
    let parent = bench.claim_one().await;

    // The group is held while a job ends and adds its children in one transaction.
    let mut tx = bench.db.pool().begin().await.unwrap();
    bench.queue.complete(&mut tx, parent.claim).await.unwrap();
    let hold = tokio::spawn({
        let (queue, pool) = (bench.queue.clone(), bench.db.pool().clone());
        async move {
            let mut other = pool.begin().await.unwrap();
            queue.groups().hold(&mut other, group).await.unwrap();
            other.commit().await.unwrap();
        }
    });
    until("the hold waits for the lock", || async {
        bench.count("select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())").await == 1
    })
    .await;
    bench.queue.enqueue(&mut tx, &[of(group), of(group)]).await.unwrap();
    tx.commit().await.unwrap();
    soon("the hold ends", hold).await.unwrap();
    assert!(bench.claim(10).await.is_empty(), "the children are held");
    assert_eq!(bench.live(group).await, 2);
    let mut conn = bench.db.pool().acquire().await.unwrap();
    assert!(bench.queue.groups().is_held(&mut conn, group).await.unwrap());
}

#[testing::test]
async fn rolled_back_hold_holds_nothing() {
    let bench = Bench::new().await;
    let group = Uuid::now_v7();
    bench.add(&[of(group), image()]).await;
    let mut tx = bench.db.pool().begin().await.unwrap();
    bench.queue.groups().hold(&mut tx, group).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(bench.claim(10).await.len(), 2);
    bench.add(&[of(group)]).await;
    assert_eq!(bench.claim(10).await.len(), 1);
}

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
    bench.count("select count(*) from jobs where parked").await
}

#[testing::test]
async fn full_partition_parks_jobs_until_half_has_ended() {
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
async fn partitions_and_groups_do_not_block_each_other() {
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
async fn unparked_jobs_of_held_group_stay_held() {
    let bench = Bench::with(narrow()).await;
    let group = Uuid::now_v7();
    bench.add(&jobs(group, "slow", 0..10)).await;
    for job in bench.claim(100).await {
        bench.queue.complete_many(&[job.claim]).await.unwrap();
    }
    let mut tx = bench.db.pool().begin().await.unwrap();
    bench.queue.groups().hold(&mut tx, group).await.unwrap();
    // The window has free places, but while the hold is in progress, the group's keys are skipped
    // without waiting.
    assert_eq!(bench.queue.unpark().await.unwrap(), 0);
    tx.commit().await.unwrap();
    assert_eq!(bench.queue.unpark().await.unwrap(), 4);
    assert!(bench.claim(100).await.is_empty());

    bench.release(group).await;
    assert_eq!(bench.claim(100).await.len(), 4, "only unparked jobs can be claimed");

    assert_eq!(bench.cancel(group, i64::MAX).await, 6);
    assert_eq!(parked(&bench).await, 0);
    let listed =
        bench.queue.jobs().list(Some(JobState::Cancelled), None, Some(group), None, 100).await.unwrap();
    assert_eq!(listed.len(), 4, "parked jobs leave no record");
}

#[testing::test]
async fn group_with_many_partitions_respects_group_window() {
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
async fn groups_with_many_partitions_do_not_block_each_other() {
    const PARTITIONS: i64 = 1_300;
    let bench = Bench::with(Config { group_window: 4, ..narrow() }).await;
    let (one, two) = (Uuid::now_v7(), Uuid::now_v7());
    for group in [one, two] {
        let one_of_each = (0..PARTITIONS).map(|key| job(group, &format!("{key:04}"), key));
        bench.add(&one_of_each.collect::<Vec<_>>()).await;
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
async fn concurrent_processes_unpark_each_job_once() {
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
                if bench.count("select count(*) from jobs").await == 0 {
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
async fn partition_key_without_group_is_rejected() {
    let bench = Bench::new().await;
    let mut tx = bench.db.pool().begin().await.unwrap();
    let job = NewJob { partition_key: Some("slow".into()), ..page() };
    let refused = bench.queue.enqueue(&mut tx, &[job]).await;
    assert!(matches!(refused, Err(QueueError::Invalid(ref why)) if why.contains("group")), "{refused:?}");
}

//! Tests groups (hold, release, cancel) and partition keys (which jobs are unparked, and when).
use crate::support::{Fixture, image, kinds, page, soon, until};
use queue::{Config, JobState, NewJob, QueueError};
use serde_json::json;
use std::collections::HashSet;
use std::time::Duration;
use uuid::Uuid;

fn job_of_group(group: Uuid) -> NewJob {
    NewJob { group_id: Some(group), ..page() }
}

impl Fixture {
    pub(crate) async fn hold(&self, group: Uuid) {
        self.commit(async |conn| self.queue.groups().hold(conn, group).await).await.unwrap();
    }

    pub(crate) async fn release(&self, group: Uuid) {
        self.commit(async |conn| self.queue.groups().release(conn, group).await).await.unwrap();
    }

    /// Cancels at most `limit` jobs of a group, and returns their number.
    pub(crate) async fn cancel(&self, group: Uuid, limit: i64) -> u64 {
        self.commit(async |conn| self.queue.groups().cancel(conn, group, limit).await).await.unwrap()
    }

    async fn count_live(&self, group: Uuid) -> i64 {
        let mut conn = self.db.pool().acquire().await.unwrap();
        let live = self.queue.groups().count_live(&mut conn, group).await.unwrap();
        assert_eq!(self.queue.groups().is_live(&mut conn, group).await.unwrap(), live > 0);
        live
    }
}

#[testing::test]
async fn held_group_holds_existing_and_new_jobs() {
    let fixture = Fixture::new().await;
    let (group, other_group) = (Uuid::now_v7(), Uuid::now_v7());
    fixture.enqueue(&[job_of_group(group), job_of_group(group), job_of_group(other_group), page()]).await;
    fixture.hold(group).await;
    fixture.hold(group).await;
    let enqueued = fixture.enqueue(&[job_of_group(group), job_of_group(other_group)]).await;
    assert_eq!(enqueued.len(), 2);

    let claimed = fixture.claim(10).await;
    assert_eq!(claimed.len(), 3);
    assert!(claimed.iter().all(|job| job.group_id != Some(group)));
    assert_eq!(fixture.queue.next_due(&kinds()).await.unwrap(), None, "held jobs are not due");
    assert_eq!(fixture.count_live(group).await, 3, "held jobs are live");
    let rows = fixture.queue.jobs().list(None, None, Some(group), None, 10).await.unwrap();
    assert!(rows.iter().all(|row| row.held && row.state == JobState::Available));

    fixture.release(group).await;
    assert_eq!(fixture.claim(10).await.len(), 3);
    assert!(fixture.enqueue(&[job_of_group(group)]).await.len() == 1 && fixture.claim(10).await.len() == 1);
}

#[testing::test]
async fn jobs_returned_to_held_group_are_held() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    fixture.enqueue(&vec![job_of_group(group); 5]).await;
    let claims: Vec<_> = fixture.claim(5).await.into_iter().map(|job| job.claim).collect();
    fixture.hold(group).await;

    fixture.complete(claims[0]).await.unwrap();
    assert_eq!(fixture.state(claims[0].id).await, JobState::Completed, "running jobs may end");
    fixture.fail(claims[1], false).await.unwrap();
    fixture.make_due(claims[1].id).await;
    fixture.queue.snooze(claims[2], Duration::ZERO).await.unwrap();
    fixture.queue.release(&claims[3..4]).await.unwrap();
    fixture.expire(claims[4].id).await;
    fixture.queue.rescue().await.unwrap();
    fixture.make_due(claims[4].id).await;
    assert!(fixture.claim(10).await.is_empty());
    assert_eq!(fixture.count_live(group).await, 4);
    fixture.release(group).await;
    assert_eq!(fixture.claim(10).await.len(), 4);
}

#[testing::test]
async fn cancelling_group_makes_running_claims_stale() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    let keyed = NewJob { unique_key: Some("k".to_owned()), ..job_of_group(group) };
    let ids = fixture.enqueue(&[job_of_group(group), job_of_group(group), keyed.clone(), page()]).await;
    let running = fixture.claim(1).await.remove(0);
    fixture.fail(fixture.claim(1).await[0].claim, false).await.unwrap();
    fixture.hold(group).await;
    assert_eq!(fixture.cancel(group, i64::MAX).await, 3);
    assert_eq!(fixture.count_live(group).await, 0);
    assert_eq!(fixture.cancel(group, i64::MAX).await, 0);

    assert!(matches!(fixture.complete(running.claim).await, Err(QueueError::Stale(_))));
    assert_eq!(fixture.queue.heartbeat(&[running.claim]).await.unwrap(), [running.claim]);
    let row = fixture.get(running.claim.id).await;
    assert_eq!((row.state, row.attempt), (JobState::Cancelled, 1));
    let cancelled =
        fixture.queue.jobs().list(Some(JobState::Cancelled), None, Some(group), None, 10).await.unwrap();
    assert_eq!(cancelled.len(), 3);
    assert_eq!(fixture.claim(10).await.len(), ids.len() - 3, "the job without a group is not cancelled");

    // The hold was removed with the group, and the key can be used again.
    fixture.enqueue_one(keyed).await;
    let reclaimed = fixture.claim_one().await;
    assert_eq!(reclaimed.group_id, Some(group));
    let retried = fixture.retry(running.claim.id).await.unwrap();
    assert!(!retried.held);
    assert!(fixture.claim_one().await.claim.fence > running.claim.fence);
}

#[testing::test]
async fn group_is_cancelled_in_batches_unparked_jobs_first() {
    let fixture = Fixture::with(queue::Config { partition_window: 3, ..queue::Config::default() }).await;
    let group = Uuid::now_v7();
    fixture.enqueue(&vec![NewJob { partition_key: Some("host".into()), ..job_of_group(group) }; 10]).await;
    let running = fixture.claim(1).await.remove(0);
    assert_eq!((fixture.cancel(group, 3).await, fixture.count_live(group).await), (3, 7));
    assert!(fixture.claim(10).await.is_empty(), "only parked jobs remain");
    assert!(matches!(fixture.complete(running.claim).await, Err(QueueError::Stale(_))));
    let cancelled = (fixture.cancel(group, 4).await, fixture.cancel(group, 4).await);
    assert_eq!((cancelled, fixture.count_live(group).await), ((4, 3), 0));
    assert_eq!(fixture.cancel(group, 4).await, 0);
}

#[testing::test]
async fn hold_waits_for_transaction_adding_jobs() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    fixture.enqueue(&[job_of_group(group)]).await;
    let parent = fixture.claim_one().await;

    // The group is held while a job ends and adds its children in one transaction.
    let mut tx = fixture.db.pool().begin().await.unwrap();
    fixture.queue.complete(&mut tx, parent.claim).await.unwrap();
    let hold = tokio::spawn({
        let (queue, pool) = (fixture.queue.clone(), fixture.db.pool().clone());
        async move {
            let mut tx = pool.begin().await.unwrap();
            queue.groups().hold(&mut tx, group).await.unwrap();
            tx.commit().await.unwrap();
        }
    });
    until("the hold waits for the lock", || async {
        fixture.count("select count(*) from pg_locks where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())").await == 1
    })
    .await;
    fixture.queue.enqueue(&mut tx, &[job_of_group(group), job_of_group(group)]).await.unwrap();
    tx.commit().await.unwrap();
    soon("the hold ends", hold).await.unwrap();
    assert!(fixture.claim(10).await.is_empty(), "the children are held");
    assert_eq!(fixture.count_live(group).await, 2);
    let mut conn = fixture.db.pool().acquire().await.unwrap();
    assert!(fixture.queue.groups().is_held(&mut conn, group).await.unwrap());
}

#[testing::test]
async fn rolled_back_hold_holds_nothing() {
    let fixture = Fixture::new().await;
    let group = Uuid::now_v7();
    fixture.enqueue(&[job_of_group(group), image()]).await;
    let mut tx = fixture.db.pool().begin().await.unwrap();
    fixture.queue.groups().hold(&mut tx, group).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(fixture.claim(10).await.len(), 2);
    fixture.enqueue(&[job_of_group(group)]).await;
    assert_eq!(fixture.claim(10).await.len(), 1);
}

fn small_window() -> Config {
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

async fn count_parked(fixture: &Fixture) -> i64 {
    fixture.count("select count(*) from jobs where parked").await
}

#[testing::test]
async fn full_partition_parks_jobs_until_half_has_ended() {
    let fixture = Fixture::with(small_window()).await;
    let group = Uuid::now_v7();
    fixture.enqueue(&jobs(group, "slow", 0..10)).await;
    assert_eq!(count_parked(&fixture).await, 6);
    // Jobs of earlier calls are also counted.
    fixture.enqueue(&jobs(group, "slow", 10..12)).await;
    assert_eq!(count_parked(&fixture).await, 8);
    let claimed = fixture.claim(100).await;
    assert_eq!(claimed.iter().map(|job| job.payload.as_i64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert_eq!(fixture.queue.unpark().await.unwrap(), 0, "running jobs occupy places too");

    fixture.complete(claimed[0].claim).await.unwrap();
    assert_eq!(fixture.queue.unpark().await.unwrap(), 0, "more than half of the places are occupied");
    fixture.complete(claimed[1].claim).await.unwrap();
    assert_eq!(fixture.queue.unpark().await.unwrap(), 2);
    let unparked = fixture.claim(100).await;
    assert_eq!(unparked.iter().map(|job| job.payload.as_i64().unwrap()).collect::<Vec<_>>(), [4, 5]);

    // A job that returns to the queue keeps its place.
    fixture.queue.snooze(unparked[0].claim, Duration::from_secs(3600)).await.unwrap();
    assert_eq!((fixture.queue.unpark().await.unwrap(), count_parked(&fixture).await), (0, 6));
}

#[testing::test]
async fn partitions_and_groups_do_not_block_each_other() {
    let fixture = Fixture::with(small_window()).await;
    let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
    fixture.enqueue(&jobs(first, "slow", 0..1000)).await;
    fixture.enqueue(&jobs(first, "fast", 0..4)).await;
    fixture.enqueue(&jobs(second, "slow", 0..4)).await;
    fixture.enqueue(&vec![NewJob { group_id: Some(second), ..page() }; 10]).await;
    assert_eq!(count_parked(&fixture).await, 996);
    let claimed = fixture.claim(100).await;
    assert_eq!(claimed.len(), 4 + 4 + 4 + 10);
    let urgent_job = NewJob { priority: -1, ..job(first, "slow", 5000) };
    fixture.enqueue(&[urgent_job]).await;
    for job in &claimed {
        fixture.complete(job.claim).await.unwrap();
    }
    // A job enqueued later runs before the parked jobs, which keep the order of their priority.
    let new_job = fixture.enqueue_one(job(second, "slow", 77)).await;
    assert_eq!(fixture.queue.unpark().await.unwrap(), 4);
    let unparked = fixture.claim(100).await;
    assert_eq!((unparked.len(), unparked[0].payload.as_i64()), (5, Some(5000)));
    assert_eq!(unparked[1].claim.id, new_job);
}

#[testing::test]
async fn unparked_jobs_of_held_group_stay_held() {
    let fixture = Fixture::with(small_window()).await;
    let group = Uuid::now_v7();
    fixture.enqueue(&jobs(group, "slow", 0..10)).await;
    for job in fixture.claim(100).await {
        fixture.queue.complete_many(&[job.claim]).await.unwrap();
    }
    let mut tx = fixture.db.pool().begin().await.unwrap();
    fixture.queue.groups().hold(&mut tx, group).await.unwrap();
    // The window has free places, but a hold is in progress, so the group's keys are skipped.
    assert_eq!(fixture.queue.unpark().await.unwrap(), 0);
    tx.commit().await.unwrap();
    assert_eq!(fixture.queue.unpark().await.unwrap(), 4);
    assert!(fixture.claim(100).await.is_empty());

    fixture.release(group).await;
    assert_eq!(fixture.claim(100).await.len(), 4, "only unparked jobs can be claimed");

    assert_eq!(fixture.cancel(group, i64::MAX).await, 6);
    assert_eq!(count_parked(&fixture).await, 0);
    let listed =
        fixture.queue.jobs().list(Some(JobState::Cancelled), None, Some(group), None, 100).await.unwrap();
    assert_eq!(listed.len(), 4, "parked jobs leave no record");
}

#[testing::test]
async fn group_with_many_partitions_respects_group_window() {
    const PARTITIONS: i64 = 1_300;
    let fixture = Fixture::with(Config { group_window: 40, ..small_window() }).await;
    let group = Uuid::now_v7();
    let count_unparked = async || fixture.count("select count(*) from jobs where not parked").await;
    // One key has at most 4 places. The other keys share the other 36 places of the group.
    fixture.enqueue(&jobs(group, "first", 0..10)).await;
    assert_eq!(count_unparked().await, 4);
    let all_jobs: Vec<NewJob> =
        (0..PARTITIONS).flat_map(|partition_key| jobs(group, &format!("{partition_key:04}"), 0..2)).collect();
    fixture.enqueue(&all_jobs).await;
    assert_eq!(count_unparked().await, 40);
    let mut done = HashSet::new();
    loop {
        let claimed = fixture.claim(100).await;
        assert!(count_unparked().await <= 40);
        if claimed.is_empty() && fixture.count("select count(*) from jobs").await == 0 {
            break;
        }
        done.extend(claimed.iter().map(|job| job.claim.id));
        let claims: Vec<_> = claimed.iter().map(|job| job.claim).collect();
        fixture.queue.complete_many(&claims).await.unwrap();
        fixture.queue.unpark().await.unwrap();
    }
    assert_eq!(done.len() as i64, 2 * PARTITIONS + 10);
}

#[testing::test]
async fn groups_with_many_partitions_do_not_block_each_other() {
    const PARTITIONS: i64 = 1_300;
    let fixture = Fixture::with(Config { group_window: 4, ..small_window() }).await;
    let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
    for group in [first, second] {
        let one_job_per_key = (0..PARTITIONS).map(|key| job(group, &format!("{key:04}"), key));
        fixture.enqueue(&one_job_per_key.collect::<Vec<_>>()).await;
    }
    // The first group has no free places, so none of its parked jobs can be unparked.
    let full = fixture.claim(4).await;
    assert!(full.iter().all(|job| job.group_id == Some(first)));
    let mut numbers = Vec::new();
    for _ in 0..PARTITIONS / 4 {
        let claimed = fixture.claim(100).await;
        assert!(claimed.iter().all(|job| job.group_id == Some(second)));
        numbers.extend(claimed.iter().map(|job| job.payload.as_i64().unwrap()));
        fixture.queue.complete_many(&claimed.iter().map(|job| job.claim).collect::<Vec<_>>()).await.unwrap();
        fixture.queue.unpark().await.unwrap();
    }
    assert!(
        numbers.is_sorted() && numbers.len() as i64 == PARTITIONS,
        "partition keys are skipped: {:?} …",
        &numbers[..20]
    );
}

#[testing::test]
async fn concurrent_processes_unpark_each_job_once() {
    const JOBS: i64 = 300;
    let fixture = Fixture::with(small_window()).await;
    let group = Uuid::now_v7();
    for partition_key in ["a", "b", "c"] {
        fixture.enqueue(&jobs(group, partition_key, 0..JOBS / 3)).await;
    }
    let worker = async || {
        let mut done = HashSet::new();
        loop {
            fixture.queue.unpark().await.unwrap();
            let claimed = fixture.claim(3).await;
            if claimed.is_empty() && fixture.queue.next_due(&crate::support::kinds()).await.unwrap().is_none()
            {
                // No job is ready: another worker holds the remaining jobs, or all are completed.
                if fixture.count("select count(*) from jobs").await == 0 {
                    return done;
                }
            }
            for job in claimed {
                fixture.complete(job.claim).await.unwrap();
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
    let fixture = Fixture::new().await;
    let mut tx = fixture.db.pool().begin().await.unwrap();
    let job = NewJob { partition_key: Some("slow".into()), ..page() };
    let result = fixture.queue.enqueue(&mut tx, &[job]).await;
    assert!(matches!(result, Err(QueueError::Invalid(ref reason)) if reason.contains("group")), "{result:?}");
}

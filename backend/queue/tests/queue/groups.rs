use crate::support::{Bench, image, kinds, page, soon, until};
use queue::{JobState, NewJob, QueueError};
use std::time::Duration;
use uuid::Uuid;

fn of(group: Uuid) -> NewJob {
    NewJob { group_id: Some(group), ..page() }
}

impl Bench {
    async fn hold(&self, group: Uuid) {
        let mut tx = self.db.pool().begin().await.unwrap();
        self.queue.hold_group(&mut tx, group).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn release(&self, group: Uuid) {
        let mut tx = self.db.pool().begin().await.unwrap();
        self.queue.release_group(&mut tx, group).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn cancel(&self, group: Uuid) -> u64 {
        let mut tx = self.db.pool().begin().await.unwrap();
        let count = self.queue.cancel_group(&mut tx, group, i64::MAX).await.unwrap();
        tx.commit().await.unwrap();
        count
    }

    async fn live(&self, group: Uuid) -> i64 {
        let mut conn = self.db.pool().acquire().await.unwrap();
        let live = self.queue.live_in_group(&mut conn, group).await.unwrap();
        assert_eq!(self.queue.group_is_live(&mut conn, group).await.unwrap(), live > 0);
        live
    }
}

#[testing::test]
async fn a_held_group_waits_with_all_its_jobs_old_and_new() {
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
    let rows = bench.queue.list(None, None, Some(group), None, 10).await.unwrap();
    assert!(rows.iter().all(|row| row.held && row.state == JobState::Available));

    bench.release(group).await;
    assert_eq!(bench.claim(10).await.len(), 3);
    assert!(bench.add(&[of(group)]).await.len() == 1 && bench.claim(10).await.len() == 1);
}

#[testing::test]
async fn what_comes_back_from_a_run_into_a_held_group_is_held() {
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
async fn a_cancelled_group_is_over_also_for_those_who_run() {
    let bench = Bench::new().await;
    let group = Uuid::now_v7();
    let keyed = NewJob { unique_key: Some("k".to_owned()), ..of(group) };
    let ids = bench.add(&[of(group), of(group), keyed.clone(), page()]).await;
    let running = bench.claim(1).await.remove(0);
    bench.fail(bench.claim(1).await[0].claim, false).await.unwrap();
    bench.hold(group).await;
    assert_eq!(bench.cancel(group).await, 3);
    assert_eq!(bench.live(group).await, 0);
    assert_eq!(bench.cancel(group).await, 0);

    assert!(matches!(bench.complete(running.claim).await, Err(QueueError::Stale(_))));
    assert_eq!(bench.queue.heartbeat(&[running.claim]).await.unwrap(), [running.claim]);
    let row = bench.get(running.claim.id).await;
    assert_eq!((row.state, row.attempt), (JobState::Cancelled, 1));
    let cancelled = bench.queue.list(Some(JobState::Cancelled), None, Some(group), None, 10).await.unwrap();
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
async fn a_large_group_is_cancelled_piece_by_piece_those_in_line_first() {
    let bench = Bench::with(queue::Config { partition_window: 3, ..queue::Config::default() }).await;
    let group = Uuid::now_v7();
    bench.add(&vec![NewJob { partition_key: Some("host".into()), ..of(group) }; 10]).await;
    let running = bench.claim(1).await.remove(0);
    let piece = async |most| {
        let mut tx = bench.db.pool().begin().await.unwrap();
        let count = bench.queue.cancel_group(&mut tx, group, most).await.unwrap();
        tx.commit().await.unwrap();
        count
    };
    assert_eq!((piece(3).await, bench.live(group).await), (3, 7));
    assert!(bench.claim(10).await.is_empty(), "only parked jobs are left");
    assert!(matches!(bench.complete(running.claim).await, Err(QueueError::Stale(_))));
    assert_eq!((piece(4).await, piece(4).await, bench.live(group).await), (4, 3, 0));
    assert_eq!(piece(4).await, 0);
}

#[testing::test]
async fn hold_waits_for_the_transaction_that_is_adding_jobs() {
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
            queue.hold_group(&mut other, group).await.unwrap();
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
    assert!(bench.queue.group_is_held(&mut conn, group).await.unwrap());
}

#[testing::test]
async fn a_rolled_back_hold_holds_nothing() {
    let bench = Bench::new().await;
    let group = Uuid::now_v7();
    bench.add(&[of(group), image()]).await;
    let mut tx = bench.db.pool().begin().await.unwrap();
    bench.queue.hold_group(&mut tx, group).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(bench.claim(10).await.len(), 2);
    bench.add(&[of(group)]).await;
    assert_eq!(bench.claim(10).await.len(), 1);
}

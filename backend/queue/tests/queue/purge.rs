//! Tests the deletion of records of ended jobs, and the removal of their contents.
use crate::failures::Admin;
use crate::support::{Fixture, page, until};
use queue::{Config, JobState, NewJob, Queue};
use serde_json::json;
use std::time::Duration;
use uuid::Uuid;

#[testing::test]
async fn purge_deletes_old_jobs_but_keeps_discarded_jobs() {
    let keep = Duration::from_secs(3600);
    let fixture = Fixture::with(Config { keep_finished: keep, ..Config::default() }).await;
    fixture.enqueue(&vec![page(); 5]).await;
    let group = Uuid::now_v7();
    fixture.enqueue(&[NewJob { group_id: Some(group), ..page() }]).await;
    let jobs = fixture.claim(6).await;
    for job in &jobs[..3] {
        fixture.complete(job.claim).await.unwrap();
    }
    for job in &jobs[3..5] {
        fixture.fail(job.claim, true).await.unwrap();
    }
    let mut conn = fixture.db.pool().acquire().await.unwrap();
    fixture.queue.groups().cancel(&mut conn, group, i64::MAX).await.unwrap();
    assert_eq!(fixture.queue.purge().await.unwrap(), 0, "no job is old enough");

    // All jobs except one completed job are older than the retention time.
    sqlx::query("update finished_jobs set finished_at = now() - interval '2 hours' where id <> $1")
        .bind(jobs[0].claim.id)
        .execute(fixture.db.pool())
        .await
        .unwrap();
    assert_eq!(fixture.queue.purge().await.unwrap(), 3);
    assert_eq!(fixture.state(jobs[0].claim.id).await, JobState::Completed);
    assert_eq!(fixture.state(jobs[3].claim.id).await, JobState::Discarded);

    assert_eq!(fixture.queue.jobs().purge_discarded(keep * 3).await.unwrap(), 0);
    assert_eq!(fixture.queue.jobs().purge_discarded(keep).await.unwrap(), 2);
    assert_eq!(fixture.state(jobs[0].claim.id).await, JobState::Completed);
}

/// Creates `jobs` completed jobs, and a tenth as many discarded ones, that ended two days ago.
async fn with_old_jobs(jobs: i64) -> Fixture {
    let fixture = Fixture::new().await;
    sqlx::query(
        "insert into finished_jobs (id, fence, scheduled_at, created_at, finished_at, priority, attempt, max_attempts, state, kind, payload)
         select gen_random_uuid(), 1, t, t, t, 0, 1, 5, state::job_state, 'page', '{}'
         from (select now() - interval '2 days' as t) at, (values ('completed', $1), ('discarded', $1 / 10)) as s(state, jobs),
              generate_series(1, s.jobs)",
    )
    .bind(jobs)
    .execute(fixture.db.pool())
    .await
    .unwrap();
    fixture
}

async fn count_remaining(fixture: &Fixture) -> (i64, i64) {
    let completed = fixture.count_completed().await;
    (completed, fixture.count("select count(*) from finished_jobs where state = 'discarded'").await)
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_purges_delete_each_job_once() {
    let fixture = with_old_jobs(20_000).await;
    let other_queue = sqlx::PgPool::connect(&fixture.db.url()).await.unwrap();
    let other_queue = Queue::new(other_queue, Config::default());
    let results = tokio::join!(fixture.queue.purge(), other_queue.purge());
    let mut purged = results.0.unwrap() + results.1.unwrap();
    // The process that did not acquire the lock deleted no jobs.
    purged += fixture.queue.purge().await.unwrap();
    assert_eq!(purged, 20_000);
    assert_eq!(count_remaining(&fixture).await, (0, 2_000));
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn purge_resumes_after_kill() {
    let fixture = with_old_jobs(100_000).await;
    let second_queue = sqlx::PgPool::connect(&fixture.db.url()).await.unwrap();
    let second_queue = Queue::new(second_queue, Config::default());
    let purge = tokio::spawn(async move { second_queue.purge().await });
    until("some jobs are deleted", || async { count_remaining(&fixture).await.0 < 100_000 }).await;
    Admin::connect(&fixture).await.kill_all().await;
    // Between two statements the pool opens a new connection, and the purge continues.
    let result = purge.await.unwrap();
    let (completed, discarded) = count_remaining(&fixture).await;
    assert_eq!(completed % 5_000, 0, "a statement deletes all of its rows or none");
    assert_eq!(discarded, 10_000);
    if result.is_ok() {
        assert_eq!(completed, 0);
    }
    // The server ends a killed connection with a delay. Until then, the connection holds the lock
    // of the purge, and other processes purge nothing.
    until("the other jobs are deleted", || async {
        fixture.queue.purge().await.unwrap();
        count_remaining(&fixture).await.0 == 0
    })
    .await;
    assert_eq!(count_remaining(&fixture).await, (0, 10_000));
}

#[testing::test]
async fn old_discarded_job_can_still_be_retried() {
    let fixture = Fixture::new().await;
    let id = fixture.enqueue_one(NewJob { unique_key: Some("one".into()), ..page() }).await;
    fixture.fail(fixture.claim_one().await.claim, true).await.unwrap();
    fixture.run_sql("update finished_jobs set finished_at = now() - interval '400 days'").await;
    assert_eq!(fixture.queue.purge().await.unwrap(), 0);
    assert_eq!(fixture.retry(id).await.unwrap().state, JobState::Available);
    assert_eq!(fixture.claim_one().await.claim.id, id);
}

#[testing::test]
async fn redact_clears_ended_jobs_but_not_live_jobs() {
    let fixture = Fixture::new().await;
    let (group, other_group) = (Uuid::now_v7(), Uuid::now_v7());
    let enqueue_keyed = async |group: Uuid, key: &str| {
        fixture.enqueue_one(NewJob { group_id: Some(group), unique_key: Some(key.into()), ..page() }).await
    };
    let completed = enqueue_keyed(group, "completed").await;
    fixture.complete(fixture.claim_one().await.claim).await.unwrap();
    let discarded = enqueue_keyed(group, "discarded").await;
    fixture.fail(fixture.claim_one().await.claim, true).await.unwrap();
    let in_other_group = enqueue_keyed(other_group, "other").await;
    fixture.complete(fixture.claim_one().await.claim).await.unwrap();
    let live = enqueue_keyed(group, "live").await;

    let mut conn = fixture.db.pool().acquire().await.unwrap();
    let keys = ["completed", "discarded", "other", "live"].map(String::from);
    assert_eq!(fixture.queue.groups().redact_keyed(&mut conn, &[group], &keys).await.unwrap(), 2);
    for id in [completed, discarded] {
        let row = fixture.get(id).await;
        assert_eq!((row.payload, row.last_error), (json!({}), None));
    }
    for id in [in_other_group, live] {
        assert_eq!(fixture.get(id).await.payload, page().payload);
    }
    assert_eq!(fixture.queue.jobs().redact(&mut conn, &[in_other_group, live]).await.unwrap(), 1);
    assert_eq!(fixture.get(in_other_group).await.payload, json!({}));
    assert_eq!(fixture.get(live).await.payload, page().payload);
}

#[testing::test]
async fn redact_clears_errors_of_selected_live_jobs() {
    let fixture = Fixture::new().await;
    let (crawl, video) = (Uuid::now_v7(), Uuid::now_v7());
    let enqueue_keyed = async |group: Uuid, key: &str| {
        let id = fixture
            .enqueue_one(NewJob { group_id: Some(group), unique_key: Some(key.into()), ..page() })
            .await;
        fixture.fail(fixture.claim_one().await.claim, false).await.unwrap();
        assert!(fixture.get(id).await.last_error.is_some());
        id
    };
    let (row, other_job) = (enqueue_keyed(crawl, "row").await, enqueue_keyed(crawl, "other").await);
    let video_job = enqueue_keyed(video, "video").await;
    let mut conn = fixture.db.pool().acquire().await.unwrap();
    fixture.queue.groups().redact_keyed(&mut conn, &[crawl], &["row".into()]).await.unwrap();
    fixture.queue.groups().redact(&mut conn, &[video]).await.unwrap();
    for (id, is_kept) in [(row, false), (other_job, true), (video_job, false)] {
        let job = fixture.get(id).await;
        assert_eq!((job.last_error.is_some(), job.payload), (is_kept, page().payload), "the job runs again");
    }
    fixture.make_due(video_job).await;
    let claim = fixture.claim_one().await.claim;
    fixture.fail(claim, true).await.unwrap();
    fixture.queue.groups().redact(&mut conn, &[video]).await.unwrap();
    let job = fixture.get(video_job).await;
    assert_eq!((job.payload, job.last_error), (json!({}), None));
}

//! Tests the deletion of records of ended jobs, and the removal of their contents.
use crate::failures::Admin;
use crate::support::{Bench, page, until};
use queue::{Config, JobState, NewJob, Queue};
use serde_json::json;
use std::time::Duration;
use uuid::Uuid;

#[testing::test]
async fn purge_deletes_old_jobs_but_keeps_discarded_jobs() {
    let keep = Duration::from_secs(3600);
    let bench = Bench::with(Config { keep_finished: keep, ..Config::default() }).await;
    bench.add(&vec![page(); 5]).await;
    let group = Uuid::now_v7();
    bench.add(&[NewJob { group_id: Some(group), ..page() }]).await;
    let jobs = bench.claim(6).await;
    for job in &jobs[..3] {
        bench.complete(job.claim).await.unwrap();
    }
    for job in &jobs[3..5] {
        bench.fail(job.claim, true).await.unwrap();
    }
    let mut conn = bench.db.pool().acquire().await.unwrap();
    bench.queue.groups().cancel(&mut conn, group, i64::MAX).await.unwrap();
    assert_eq!(bench.queue.purge().await.unwrap(), 0, "nothing is old");

    // Everything except one completed job is older than the retention time.
    sqlx::query("update finished_jobs set finished_at = now() - interval '2 hours' where id <> $1")
        .bind(jobs[0].claim.id)
        .execute(bench.db.pool())
        .await
        .unwrap();
    assert_eq!(bench.queue.purge().await.unwrap(), 3);
    assert_eq!(bench.state(jobs[0].claim.id).await, JobState::Completed);
    assert_eq!(bench.state(jobs[3].claim.id).await, JobState::Discarded);

    assert_eq!(bench.queue.jobs().purge_discarded(keep * 3).await.unwrap(), 0);
    assert_eq!(bench.queue.jobs().purge_discarded(keep).await.unwrap(), 2);
    assert_eq!(bench.state(jobs[0].claim.id).await, JobState::Completed);
}

/// Creates `jobs` completed jobs, and a tenth as many discarded ones, that ended two days ago.
async fn with_old(jobs: i64) -> Bench {
    let bench = Bench::new().await;
    sqlx::query(
        "insert into finished_jobs (id, fence, scheduled_at, created_at, finished_at, priority, attempt, max_attempts, state, kind, payload)
         select gen_random_uuid(), 1, t, t, t, 0, 1, 5, state::job_state, 'page', '{}'
         from (select now() - interval '2 days' as t) at, (values ('completed', $1), ('discarded', $1 / 10)) as s(state, jobs),
              generate_series(1, s.jobs)",
    )
    .bind(jobs)
    .execute(bench.db.pool())
    .await
    .unwrap();
    bench
}

async fn left(bench: &Bench) -> (i64, i64) {
    let completed = bench.completed().await;
    (completed, bench.count("select count(*) from finished_jobs where state = 'discarded'").await)
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_purges_delete_each_job_once() {
    let bench = with_old(20_000).await;
    let other = sqlx::PgPool::connect(&bench.db.url()).await.unwrap();
    let other = Queue::new(other, Config::default());
    let both = tokio::join!(bench.queue.purge(), other.purge());
    let mut purged = both.0.unwrap() + both.1.unwrap();
    // The process that did not acquire the lock deleted no jobs.
    purged += bench.queue.purge().await.unwrap();
    assert_eq!(purged, 20_000);
    assert_eq!(left(&bench).await, (0, 2_000));
}

#[testing::test(flavor = "multi_thread", worker_threads = 2)]
async fn purge_resumes_after_kill() {
    let bench = with_old(100_000).await;
    let doomed = sqlx::PgPool::connect(&bench.db.url()).await.unwrap();
    let doomed = Queue::new(doomed, Config::default());
    let purge = tokio::spawn(async move { doomed.purge().await });
    until("some are gone", || async { left(&bench).await.0 < 100_000 }).await;
    Admin::of(&bench).await.kill_all().await;
    // Between two statements the pool opens a new connection, and the purge continues.
    let first = purge.await.unwrap();
    let (completed, discarded) = left(&bench).await;
    assert_eq!(completed % 5_000, 0, "a statement deletes all of its rows or none");
    assert_eq!(discarded, 10_000);
    if first.is_ok() {
        assert_eq!(completed, 0);
    }
    // The server ends a killed connection with a delay. Until then, the connection holds the lock
    // of the purge, and other processes purge nothing.
    until("the rest is gone", || async {
        bench.queue.purge().await.unwrap();
        left(&bench).await.0 == 0
    })
    .await;
    assert_eq!(left(&bench).await, (0, 10_000));
}

#[testing::test]
async fn old_discarded_job_can_still_be_retried() {
    let bench = Bench::new().await;
    let id = bench.add_one(NewJob { unique_key: Some("one".into()), ..page() }).await;
    bench.fail(bench.claim_one().await.claim, true).await.unwrap();
    bench.run_sql("update finished_jobs set finished_at = now() - interval '400 days'").await;
    assert_eq!(bench.queue.purge().await.unwrap(), 0);
    assert_eq!(bench.retry(id).await.unwrap().state, JobState::Available);
    assert_eq!(bench.claim_one().await.claim.id, id);
}

#[testing::test]
async fn redact_clears_ended_jobs_but_not_live_jobs() {
    let bench = Bench::new().await;
    let (group, other) = (Uuid::now_v7(), Uuid::now_v7());
    let add = async |group: Uuid, key: &str| {
        bench.add_one(NewJob { group_id: Some(group), unique_key: Some(key.into()), ..page() }).await
    };
    let completed = add(group, "completed").await;
    bench.complete(bench.claim_one().await.claim).await.unwrap();
    let discarded = add(group, "discarded").await;
    bench.fail(bench.claim_one().await.claim, true).await.unwrap();
    let elsewhere = add(other, "elsewhere").await;
    bench.complete(bench.claim_one().await.claim).await.unwrap();
    let live = add(group, "live").await;

    let mut conn = bench.db.pool().acquire().await.unwrap();
    let keys = ["completed", "discarded", "elsewhere", "live"].map(String::from);
    assert_eq!(bench.queue.groups().redact_keyed(&mut conn, &[group], &keys).await.unwrap(), 2);
    for id in [completed, discarded] {
        let row = bench.get(id).await;
        assert_eq!((row.payload, row.last_error), (json!({}), None));
    }
    for id in [elsewhere, live] {
        assert_eq!(bench.get(id).await.payload, page().payload);
    }
    assert_eq!(bench.queue.jobs().redact(&mut conn, &[elsewhere, live]).await.unwrap(), 1);
    assert_eq!(bench.get(elsewhere).await.payload, json!({}));
    assert_eq!(bench.get(live).await.payload, page().payload);
}

#[testing::test]
async fn redact_clears_errors_of_selected_live_jobs() {
    let bench = Bench::new().await;
    let (crawl, video) = (Uuid::now_v7(), Uuid::now_v7());
    let add = async |group: Uuid, key: &str| {
        let id =
            bench.add_one(NewJob { group_id: Some(group), unique_key: Some(key.into()), ..page() }).await;
        bench.fail(bench.claim_one().await.claim, false).await.unwrap();
        assert!(bench.get(id).await.last_error.is_some());
        id
    };
    let (row, other) = (add(crawl, "row").await, add(crawl, "other").await);
    let of_video = add(video, "video").await;
    let mut conn = bench.db.pool().acquire().await.unwrap();
    bench.queue.groups().redact_keyed(&mut conn, &[crawl], &["row".into()]).await.unwrap();
    bench.queue.groups().redact(&mut conn, &[video]).await.unwrap();
    for (id, is_kept) in [(row, false), (other, true), (of_video, false)] {
        let job = bench.get(id).await;
        assert_eq!((job.last_error.is_some(), job.payload), (is_kept, page().payload), "the job runs again");
    }
    bench.make_due(of_video).await;
    let claim = bench.claim_one().await.claim;
    bench.fail(claim, true).await.unwrap();
    bench.queue.groups().redact(&mut conn, &[video]).await.unwrap();
    let job = bench.get(of_video).await;
    assert_eq!((job.payload, job.last_error), (json!({}), None));
}

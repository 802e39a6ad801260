//! Tests the removal of contents from the records of jobs that have ended.
use crate::support::{Bench, page};
use queue::NewJob;
use serde_json::json;
use uuid::Uuid;

#[testing::test]
async fn ended_jobs_are_forgotten_by_key_and_by_id_and_live_ones_are_not() {
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
    assert_eq!(bench.queue.redact_keyed(&mut conn, &[group], &keys).await.unwrap(), 2);
    for id in [completed, discarded] {
        let row = bench.get(id).await;
        assert_eq!((row.payload, row.last_error), (json!({}), None));
    }
    for id in [elsewhere, live] {
        assert_eq!(bench.get(id).await.payload, page().payload);
    }
    assert_eq!(bench.queue.redact(&mut conn, &[elsewhere, live]).await.unwrap(), 1);
    assert_eq!(bench.get(elsewhere).await.payload, json!({}));
    assert_eq!(bench.get(live).await.payload, page().payload);
}

#[testing::test]
async fn the_errors_of_live_jobs_are_forgotten_by_key_and_by_group() {
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
    bench.queue.redact_keyed(&mut conn, &[crawl], &["row".into()]).await.unwrap();
    bench.queue.redact_groups(&mut conn, &[video]).await.unwrap();
    for (id, is_kept) in [(row, false), (other, true), (of_video, false)] {
        let job = bench.get(id).await;
        assert_eq!((job.last_error.is_some(), job.payload), (is_kept, page().payload), "the job runs again");
    }
    bench.make_due(of_video).await;
    let claim = bench.claim_one().await.claim;
    bench.fail(claim, true).await.unwrap();
    bench.queue.redact_groups(&mut conn, &[video]).await.unwrap();
    let job = bench.get(of_video).await;
    assert_eq!((job.payload, job.last_error), (json!({}), None));
}

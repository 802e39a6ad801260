use crate::support::{App, Options, field, json_of, ok, problem};
use queue::NewJob;
use reqwest::StatusCode;
use serde_json::json;

#[testing::test]
async fn discarded_jobs_are_listed_and_given_a_new_life() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let queue = &app.state.services.queue;
    let mut tx = app.state.services.store.begin().await.unwrap();
    let jobs = [NewJob::new("scan_image", json!({"n": 1})), NewJob::new("scan_image", json!({"n": 2}))];
    queue.enqueue(tx.conn(), &jobs).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(app.get_ok("/jobs").await["jobs"], json!([]));
    assert_eq!(
        app.get_ok("/jobs?state=available&kind=scan_image").await["jobs"].as_array().unwrap().len(),
        2
    );

    let claimed = queue.claim(&["scan_image".to_owned()], 1, "test").await.unwrap();
    let mut tx = app.state.services.store.begin().await.unwrap();
    queue.fail(tx.conn(), claimed[0].claim, "the disk is full", true, None).await.unwrap();
    tx.commit().await.unwrap();
    let listed = app.get_ok("/jobs").await;
    let job = &listed["jobs"][0];
    assert_eq!((&job["state"], &job["last_error"]), (&json!("discarded"), &json!("the disk is full")));
    assert_eq!(app.get_ok("/jobs?state=any&limit=1").await["jobs"].as_array().unwrap().len(), 1);

    assert_eq!(&app.get_ok(&format!("/jobs/{}", job["id"].as_str().unwrap())).await, job);
    problem(app.get("/jobs/00000000-0000-7000-8000-000000000000").await, 404, "not_found").await;
    let stats = app.get_ok("/jobs/stats").await;
    let kind = &stats["kinds"][0];
    assert_eq!((&stats["window_seconds"], &kind["kind"]), (&json!(60), &json!("scan_image")));
    assert_eq!((&kind["available"], &kind["running"], &kind["discarded"]), (&json!(1), &json!(0), &json!(1)));
    assert_eq!(kind["discarded_per_second"], json!(1.0 / 60.0));
    assert!(kind["oldest_due_seconds"].as_f64().unwrap() >= 0.0, "{stats}");
    let wrong = problem(app.get("/jobs/stats?window_seconds=0").await, 400, "bad_query").await;
    assert_eq!(field(&wrong), "window_seconds");

    let path = format!("/jobs/{}/retry", job["id"].as_str().unwrap());
    let retried = ok(app.post_json(&path, &json!({})).await).await;
    assert_eq!((&retried["state"], &retried["attempt"]), (&json!("available"), &json!(0)));
    assert_eq!(app.get_ok("/jobs").await["jobs"], json!([]));
    problem(app.post_json(&path, &json!({})).await, 404, "not_found").await;
    let nowhere = "/jobs/00000000-0000-7000-8000-000000000000/retry";
    problem(app.post_json(nowhere, &json!({})).await, 404, "not_found").await;
}

#[testing::test]
async fn a_job_of_an_ended_crawl_is_not_given_a_life_without_use() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let body = json!({"seeds": ["http://127.0.0.1:9/a"]});
    let crawl = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    let id = crawl["id"].as_str().unwrap();
    ok(app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await).await;
    let listed = app.get_ok(&format!("/jobs?state=cancelled&crawl_id={id}")).await;
    let path = format!("/jobs/{}/retry", listed["jobs"][0]["id"].as_str().unwrap());
    let refused = problem(app.post_json(&path, &json!({})).await, 409, "conflict").await;
    assert!(refused["detail"].as_str().unwrap().contains("cancelled"), "{refused}");
    assert_eq!(app.get_ok("/jobs?state=available").await["jobs"], json!([]));
}

#[testing::test]
async fn jobs_of_a_crawl_are_found_by_it() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let body = json!({"seeds": ["http://127.0.0.1:9/a", "http://127.0.0.1:9/b"]});
    let crawl = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    let id = crawl["id"].as_str().unwrap();
    let first = app.get_ok(&format!("/jobs?state=any&crawl_id={id}&limit=1")).await;
    assert_eq!(first["jobs"][0]["crawl_id"], id);
    let cursor = first["next_cursor"].as_str().unwrap();
    let second = app.get_ok(&format!("/jobs?state=any&crawl_id={id}&cursor={cursor}")).await;
    assert_eq!((second["jobs"].as_array().unwrap().len(), &second["next_cursor"]), (1, &json!(null)));
    assert_ne!(first["jobs"][0]["id"], second["jobs"][0]["id"]);
    for query in ["state=lost", "crawl_id=1", "cursor=1", "limit=0", "id=1"] {
        let wrong = problem(app.get(&format!("/jobs?{query}")).await, 400, "bad_query").await;
        assert_eq!(field(&wrong), query.split('=').next().unwrap(), "{wrong}");
    }
}

#[testing::test]
async fn the_largest_page_of_jobs_leads_to_the_next() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let jobs: Vec<NewJob> = (0..1001).map(|n| NewJob::new("scan_image", json!({"n": n}))).collect();
    let mut tx = app.state.services.store.begin().await.unwrap();
    app.state.services.queue.enqueue(tx.conn(), &jobs).await.unwrap();
    tx.commit().await.unwrap();
    let path = "/jobs?state=available&kind=scan_image&limit=1000";
    let first = app.get_ok(path).await;
    assert_eq!(first["jobs"].as_array().unwrap().len(), 1000);
    let cursor = first["next_cursor"].as_str().expect("one more job");
    let rest = app.get_ok(&format!("{path}&cursor={cursor}")).await;
    assert_eq!((rest["jobs"].as_array().unwrap().len(), &rest["next_cursor"]), (1, &json!(null)));
}

//! Tests health, devices, metrics, jobs and the audit log.
use crate::support::images::{drawing, png};
use crate::support::site::Site;
use crate::support::{App, Json, Models, Options, field, ok, problem, tenant_scopes};
use queue::NewJob;
use reqwest::Method;
use serde_json::{Value, json};
use store::keys::Scope;

#[testing::test]
async fn complete_service_is_live_and_ready() {
    let app = App::spawn().await;
    assert_eq!(app.get_ok("/health/live").await["status"], "ok");
    assert_eq!(app.get_ok("/health/ready").await, json!({"status": "ready"}));
}

#[testing::test]
async fn service_without_database_is_live_but_not_ready() {
    let app = App::spawn().await;
    app.state.services.store.pool().close().await;
    assert_eq!(app.get_ok("/health/live").await["status"], "ok");
    let reasons = problem(app.get("/health/ready").await, 503, "not_ready").await;
    assert_eq!(reasons["errors"], json!(["the database does not respond"]));
    let failed = problem(app.get("/faces").await, 500, "internal").await;
    let text = failed.to_string().to_lowercase();
    assert!(!text.contains("pool") && !text.contains("sql") && !text.contains("postgres"), "{text}");
    // The metrics are still available, and the failure is counted.
    let metrics = app.get("/metrics").await.text().await.unwrap();
    assert!(metrics.contains("facecrawl_scrape_errors_total{source=\"queue\"}"), "{metrics}");
}

#[testing::test]
async fn stopping_service_answers_accepted_request() {
    let app = App::spawn().await;
    let site = Site::new(&[]).await;
    let (client, url) = (app.client.clone(), format!("{}/faces/detect", app.url));
    let body = json!({"url": format!("{}/held.jpg", site.url)});
    let request = tokio::spawn(async move { client.post(url).json(&body).send().await.unwrap() });
    site.request_arrived.notified().await;
    let stopped = tokio::spawn(app.stop());
    site.release.notify_one();
    let response = problem(request.await.unwrap(), 422, "url_unreachable").await;
    assert_eq!(response["reason"], "http_404");
    stopped.await.unwrap().unwrap();
}

#[testing::test]
async fn gpu_endpoint_reports_device_of_each_operation() {
    let app = App::spawn().await;
    let report = app.get_ok("/gpu").await;
    let operations = report.list("operations");
    let names: Vec<&str> = operations.iter().map(|operation| operation.text("operation")).collect();
    let engine = inference::Operation::ALL.map(inference::Operation::name);
    assert_eq!(names, [engine.as_slice(), &["video_decoding"]].concat());
    assert_eq!((&operations[5]["requested"], &operations[5]["effective"]), (&"cpu".into(), &"cpu".into()));
    assert!(!report.text("runtime_version").is_empty());
    assert!(!report.list("backends").is_empty());
    for model in report.list("models") {
        assert_eq!(
            (&model["device"], &model["provider"], &model["precision"]),
            (&"cpu".into(), &"cpu".into(), &"fp32".into())
        );
    }
    check_match_report(&app, [drawing("ada.jpg"), drawing("ada_2.jpg")]).await;

    // The response to a face detection contains the same devices. No video is decoded for it.
    let response = ok(app.post_raw("/faces/detect", "image/png", png(32, 32)).await).await;
    for operation in &operations[..5] {
        assert_eq!(response["devices"][operation.text("operation")], operation["effective"]);
    }
}

/// Checks that a pair of images of one person matches. The threshold and the false match rate must
/// equal those of `/gpu`.
async fn check_match_report(app: &App, pair: [Vec<u8>; 2]) {
    let matching = app.get_ok("/gpu").await["matching"].clone();
    let compared = ok(app.post_parts("/faces/compare", &pair.map(|file| ("image", file))).await).await;
    assert_eq!(compared["match"], true, "{compared}");
    assert!(matching["threshold"].as_f64().unwrap() > 0.0);
    assert_eq!((&matching["threshold"], &matching["fmr"]), (&compared["threshold"], &compared["match_fmr"]));
}

#[testing::test]
async fn measured_false_match_rate_is_reported_with_match() {
    let app = App::spawn_with(Options { models: Models::Fixture, worker: false, ..Options::default() }).await;
    assert_eq!(app.get_ok("/gpu").await["matching"]["fmr"], testing::fixture_models::MATCH_FMR);
    let mut image = testing::fixture_models::Canvas::from_raw(640, 480, vec![90; 640 * 480 * 3]).unwrap();
    testing::draw_face(&mut image, 5, 5, 3);
    let frame = vision::Frame::new(640, 480, image.into_raw()).unwrap();
    let file = vision::encode::png(&frame);
    check_match_report(&app, [file.clone(), file]).await;
}

#[testing::test]
async fn metrics_count_requests_and_queue_jobs() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    ok(app.post_raw("/faces/detect", "image/png", png(32, 32)).await).await;
    app.get("/faces/00000000-0000-7000-8000-000000000000").await;
    app.get("/some/path/that/a/stranger/made/up").await;
    let mut tx = app.state.services.store.begin().await.unwrap();
    // The job kind is unique to this test, because other tests of the process share the recorder.
    app.state.services.queue.enqueue(tx.conn(), &[NewJob::new("counted", json!({}))]).await.unwrap();
    tx.commit().await.unwrap();

    let response = app.get("/metrics").await;
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/plain; version=0.0.4"));
    let text = response.text().await.unwrap();
    for line in [
        "facecrawl_http_requests_total{method=\"POST\",route=\"/faces/detect\",status=\"200\"}",
        "facecrawl_http_requests_total{method=\"GET\",route=\"/faces/{id}\",status=\"404\"}",
        "facecrawl_http_requests_total{method=\"GET\",route=\"unmatched\",status=\"404\"}",
        "facecrawl_http_request_duration_seconds_bucket{method=\"POST\",route=\"/faces/detect\",le=\"0.1\"}",
        "facecrawl_http_requests_in_flight",
        "facecrawl_queue_jobs{kind=\"counted\",state=\"available\"} 1",
        "facecrawl_queue_oldest_due_seconds",
        "facecrawl_search_index_lag_seconds 0",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    assert!(!text.contains("stranger"), "callers must not create time series");

    // A gauge that is missing from the current counts is exported as 0.
    app.state.services.queue.claim(&["counted".to_owned()], 1, "test").await.unwrap();
    let text = app.get("/metrics").await.text().await.unwrap();
    assert!(text.contains("facecrawl_queue_jobs{kind=\"counted\",state=\"available\"} 0"), "{text}");
    assert!(text.contains("facecrawl_queue_jobs{kind=\"counted\",state=\"running\"} 1"), "{text}");
}

#[testing::test]
async fn discarded_jobs_are_listed_and_can_be_retried() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let queue = &app.state.services.queue;
    let mut tx = app.state.services.store.begin().await.unwrap();
    let jobs = [NewJob::new("scan_image", json!({"n": 1})), NewJob::new("scan_image", json!({"n": 2}))];
    queue.enqueue(tx.conn(), &jobs).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(app.get_ok("/jobs").await["jobs"], json!([]));
    assert_eq!(app.get_ok("/jobs?state=available&kind=scan_image").await.list("jobs").len(), 2);

    let claimed = queue.claim(&["scan_image".to_owned()], 1, "test").await.unwrap();
    app.commit(async |tx| queue.fail(tx.conn(), claimed[0].claim, "the disk is full", true, None).await)
        .await;
    let listed = app.get_ok("/jobs").await;
    let job = &listed["jobs"][0];
    assert_eq!((&job["state"], &job["last_error"]), (&json!("discarded"), &json!("the disk is full")));
    assert_eq!(app.get_ok("/jobs?state=any&limit=1").await.list("jobs").len(), 1);

    assert_eq!(&app.get_ok(&format!("/jobs/{}", job.text("id"))).await, job);
    problem(app.get("/jobs/00000000-0000-7000-8000-000000000000").await, 404, "not_found").await;
    let stats = app.get_ok("/jobs/stats").await;
    let kind = &stats["kinds"][0];
    assert_eq!((&stats["window_seconds"], &kind["kind"]), (&json!(60), &json!("scan_image")));
    assert_eq!((&kind["available"], &kind["running"], &kind["discarded"]), (&json!(1), &json!(0), &json!(1)));
    assert_eq!(kind["discarded_per_second"], json!(1.0 / 60.0));
    assert!(kind["oldest_due_seconds"].as_f64().unwrap() >= 0.0, "{stats}");
    let error = problem(app.get("/jobs/stats?window_seconds=0").await, 400, "bad_query").await;
    assert_eq!(field(&error), "window_seconds");

    let path = format!("/jobs/{}/retry", job.text("id"));
    let retried = app.post_ok(&path, &json!({})).await;
    assert_eq!((&retried["state"], &retried["attempt"]), (&json!("available"), &json!(0)));
    assert_eq!(app.get_ok("/jobs").await["jobs"], json!([]));
    problem(app.post_json(&path, &json!({})).await, 404, "not_found").await;
    let nowhere = "/jobs/00000000-0000-7000-8000-000000000000/retry";
    problem(app.post_json(nowhere, &json!({})).await, 404, "not_found").await;
}

#[testing::test]
async fn retry_of_job_of_ended_crawl_is_rejected() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let crawl = app.create("/crawls", &json!({"seeds": ["http://127.0.0.1:9/a"]})).await;
    let id = crawl.text("id");
    app.post_ok(&format!("/crawls/{id}/cancel"), &json!({})).await;
    let listed = app.get_ok(&format!("/jobs?state=cancelled&crawl_id={id}")).await;
    let path = format!("/jobs/{}/retry", listed["jobs"][0].text("id"));
    let error = problem(app.post_json(&path, &json!({})).await, 409, "conflict").await;
    assert!(error.text("detail").contains("cancelled"), "{error}");
    assert_eq!(app.get_ok("/jobs?state=available").await["jobs"], json!([]));
}

#[testing::test]
async fn jobs_are_filtered_by_crawl() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let body = json!({"seeds": ["http://127.0.0.1:9/a", "http://127.0.0.1:9/b"]});
    let crawl = app.create("/crawls", &body).await;
    let id = crawl.text("id");
    let first = app.get_ok(&format!("/jobs?state=any&crawl_id={id}&limit=1")).await;
    assert_eq!(first["jobs"][0]["crawl_id"], id);
    let cursor = first.text("next_cursor");
    let second = app.get_ok(&format!("/jobs?state=any&crawl_id={id}&cursor={cursor}")).await;
    assert_eq!((second.list("jobs").len(), &second["next_cursor"]), (1, &json!(null)));
    assert_ne!(first["jobs"][0]["id"], second["jobs"][0]["id"]);
    for query in ["state=lost", "crawl_id=1", "cursor=1", "limit=0", "id=1"] {
        let error = problem(app.get(&format!("/jobs?{query}")).await, 400, "bad_query").await;
        assert_eq!(field(&error), query.split('=').next().unwrap(), "{error}");
    }
}

#[testing::test]
async fn largest_job_page_has_next_cursor() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let jobs: Vec<NewJob> = (0..1001).map(|n| NewJob::new("scan_image", json!({"n": n}))).collect();
    app.commit(async |tx| app.state.services.queue.enqueue(tx.conn(), &jobs).await).await;
    let path = "/jobs?state=available&kind=scan_image&limit=1000";
    let first = app.get_ok(path).await;
    assert_eq!(first.list("jobs").len(), 1000);
    let cursor = first["next_cursor"].as_str().expect("one more job");
    let last_page = app.get_ok(&format!("{path}&cursor={cursor}")).await;
    assert_eq!((last_page.list("jobs").len(), &last_page["next_cursor"]), (1, &json!(null)));
}

#[testing::test]
async fn searches_and_deletions_are_audited_without_personal_data() {
    let (app, key, our_key) = App::with_key(Some("ours"), &tenant_scopes()).await;
    let site = Site::new(&["ada_small.jpg", "two_people.jpg"]).await;
    let (_, their_key) = app.create_key(Some("theirs"), &tenant_scopes()).await;
    let (_, operator) = app.create_key(None, &[Scope::Admin]).await;
    app.crawl_as(&our_key, None, &site.page()).await;
    let faces = app.get_as(&our_key, "/faces").await;
    let face = faces["faces"][0].clone();
    let id = face.text("id");
    let search_result =
        ok(app.call(&our_key, Method::POST, "/faces/search", Some(&json!({"face_id": id}))).await).await;
    app.call(&our_key, Method::DELETE, &format!("/faces/{id}"), None).await.error_for_status().unwrap();

    let log = app.get_as(&our_key, "/audit").await;
    let records = log.list("records");
    let actions: Vec<&str> = records.iter().map(|record| record.text("action")).collect();
    assert_eq!(actions, ["face.delete", "face.search"]);
    for record in records {
        assert_eq!((&record["collection"], &record["key_id"]), (&json!("ours"), &json!(key.id)));
        assert!(!record.text("request_id").is_empty());
        assert_eq!(record["detail"]["face_id"], id);
    }
    assert_eq!(records[1]["detail"]["matches"], search_result.list("matches").len());
    let text = log.to_string();
    assert!(!text.contains("http") && !text.contains("embedding"), "{text}");

    // No request of the other tenant returns a record. The operator sees all records.
    for query in ["".to_owned(), format!("?key_id={}", key.id)] {
        let log = app.get_as(&their_key, &format!("/audit{query}")).await;
        assert_eq!(log["records"], json!([]));
    }
    problem(app.call(&their_key, Method::GET, "/audit?collection=ours", None).await, 404, "not_found").await;
    let operator_log = app.get_as(&operator, "/audit?collection=ours").await;
    assert_eq!(operator_log["records"], log["records"]);
}

#[testing::test]
async fn audit_log_is_filtered_and_paginated() {
    let app = App::spawn().await;
    for name in ["a", "b", "c"] {
        app.post_json("/collections", &json!({"name": name})).await;
    }
    let names = |log: &Value| -> Vec<String> {
        let records = log.list("records");
        records.iter().map(|record| record["detail"].text("name").to_owned()).collect()
    };
    let first = app.get_ok("/audit?limit=2").await;
    assert_eq!(names(&first), ["c", "b"]);
    let cursor = first.text("next_cursor");
    let last = app.get_ok(&format!("/audit?limit=2&cursor={cursor}")).await;
    assert_eq!((names(&last), &last["next_cursor"]), (vec!["a".to_owned()], &Value::Null));
    assert_eq!(names(&app.get_ok("/audit?collection=b").await), ["b"]);
    assert_eq!(names(&app.get_ok("/audit?action=face.search").await), [""; 0]);
    let middle = first["records"][1].text("at").replace('+', "%2B");
    assert_eq!(names(&app.get_ok(&format!("/audit?since={middle}")).await), ["c", "b"]);
    assert_eq!(names(&app.get_ok(&format!("/audit?until={middle}")).await), ["a"]);
    for (query, name) in
        [("action=look", "action"), ("since=today", "since"), ("key_id=1", "key_id"), ("cursor=x", "cursor")]
    {
        let error = problem(app.get(&format!("/audit?{query}")).await, 400, "bad_query").await;
        assert_eq!(field(&error), name);
        assert!(!error.list("allowed").is_empty());
    }
}

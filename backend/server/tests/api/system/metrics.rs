use crate::support::pictures::drawn;
use crate::support::{App, Options, ok};
use queue::NewJob;
use serde_json::json;

#[testing::test]
async fn requests_and_the_queue_are_counted() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    ok(app.post_raw("/faces/detect", "image/png", drawn(32, 32)).await).await;
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

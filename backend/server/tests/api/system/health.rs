use crate::support::site::Site;
use crate::support::{App, problem};
use serde_json::json;

#[testing::test]
async fn a_whole_service_is_live_and_ready() {
    let app = App::spawn().await;
    assert_eq!(app.get_ok("/health/live").await["status"], "ok");
    assert_eq!(app.get_ok("/health/ready").await, json!({"status": "ready"}));
}

#[testing::test]
async fn without_its_database_it_is_live_but_not_ready_and_leaks_nothing() {
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
async fn a_service_that_is_asked_to_stop_answers_what_it_accepted() {
    let app = App::spawn().await;
    let site = Site::with(&[]).await;
    let (client, url) = (app.client.clone(), format!("{}/faces/detect", app.url));
    let body = json!({"url": format!("{}/held.jpg", site.url)});
    let held = tokio::spawn(async move { client.post(url).json(&body).send().await.unwrap() });
    site.asked.notified().await;
    let stopped = tokio::spawn(app.stop());
    site.release.notify_one();
    let answer = problem(held.await.unwrap(), 422, "url_unreachable").await;
    assert_eq!(answer["reason"], "http_404");
    stopped.await.unwrap().unwrap();
}

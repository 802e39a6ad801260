//! Tests recurring crawls, that is, the field `every` of `POST /crawls`.
use crate::support::site::Site;
use crate::support::{App, Options, json_of, ok, problem, time};
use reqwest::StatusCode;
use serde_json::{Value, json};
use time::OffsetDateTime;

async fn create(app: &App, seed: String) -> String {
    let body = json!({"seeds": [seed], "delay_ms": 0, "every": "60m"});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    assert_eq!(
        (&created["options"]["every"], &created["series_id"], &created["next_run_at"]),
        (&json!("1h"), &created["id"], &Value::Null)
    );
    created["id"].as_str().unwrap().to_owned()
}

/// Makes the scheduled next run due now.
async fn an_hour_later(app: &App) {
    app.database.execute("update jobs set scheduled_at = now() where kind = 'start_crawl'").await;
}

async fn runs(app: &App, series: &str, wanted: usize) -> Vec<Value> {
    let all = |answer: &Value| {
        let runs = answer["crawls"].as_array().unwrap();
        runs.len() == wanted && runs.iter().all(|run| run["finished_at"] != Value::Null)
    };
    let answer = app.until(&format!("/crawls?series_id={series}"), all).await;
    answer["crawls"].as_array().unwrap().clone()
}

#[testing::test]
async fn every_run_is_a_crawl_of_its_own_and_promises_the_next() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg"]).await;
    let id = create(&app, site.page()).await;
    let first = &runs(&app, &id, 1).await[0];
    assert_eq!(time(&first["next_run_at"]) - time(&first["created_at"]), time::Duration::HOUR);
    let early = problem(app.delete(&format!("/crawls/{id}")).await, 409, "conflict").await;
    assert!(early["detail"].as_str().unwrap().contains("a further run is scheduled"), "{early}");

    an_hour_later(&app).await;
    let both = runs(&app, &id, 2).await;
    let (second, first) = (&both[0], &both[1]);
    assert_eq!((&first["id"], &first["next_run_at"]), (&json!(id), &Value::Null));
    assert_eq!((&second["series_id"], &second["state"]), (&json!(id), &json!("completed")));
    assert_eq!((&second["seeds"], &second["options"]), (&first["seeds"], &first["options"]));
    assert_eq!(
        second["counts"]["images"]["duplicate"], 1,
        "each run has its own ledger, and the image is known"
    );
    assert!(second["next_run_at"].is_string());
    assert_eq!(app.delete(&format!("/crawls/{id}")).await.status(), StatusCode::NO_CONTENT);
    an_hour_later(&app).await;
    assert_eq!(runs(&app, &id, 2).await.len(), 2, "the series goes on without its first run");
}

#[testing::test]
async fn a_cancelled_series_is_over_between_two_runs_and_in_one() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg"]).await;
    let id = create(&app, site.page()).await;
    runs(&app, &id, 1).await;
    let cancelled = ok(app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await).await;
    assert_eq!((&cancelled["state"], &cancelled["next_run_at"]), (&json!("completed"), &Value::Null));
    problem(app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await, 409, "conflict").await;
    an_hour_later(&app).await;
    app.until("/jobs?kind=start_crawl&state=any", |answer| {
        answer["jobs"].as_array().unwrap().iter().all(|job| job["state"] == "completed")
    })
    .await;
    assert_eq!(runs(&app, &id, 1).await.len(), 1, "no run starts after the cancellation");

    // The caller cancels with the id of the first run, regardless of which run is active.
    let id = create(&app, format!("{}/held.jpg", site.url)).await;
    site.asked.notified().await;
    site.release.notify_one();
    runs(&app, &id, 1).await;
    an_hour_later(&app).await;
    site.asked.notified().await;
    ok(app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await).await;
    let both = runs(&app, &id, 2).await;
    assert_eq!((&both[0]["state"], &both[0]["next_run_at"]), (&json!("cancelled"), &Value::Null));
}

#[testing::test]
async fn a_run_that_takes_longer_is_followed_at_once() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let id = create(&app, "http://127.0.0.1:9/".into()).await;
    app.database.execute("update crawls set created_at = now() - interval '3 hours'").await;
    app.database.execute("update pages set state = 'failed', reason = 'connect_failure'").await;
    let ended = app.state.services.crawls.reconcile().await.unwrap();
    assert_eq!(ended.crawls, 1);
    let run = app.get_ok(&format!("/crawls/{id}")).await;
    assert_eq!(run["state"], "failed", "the next run follows a failed one too");
    assert!(time(&run["next_run_at"]) <= OffsetDateTime::now_utc());
}

//! Tests the deliveries of alerts to webhooks.
use super::support::{Gallery, alerts, app, options, settle, watch};
use crate::support::receiver::{Receiver, SECRET};
use crate::support::{App, Json, Options, problem};
use serde_json::json;

#[testing::test]
async fn alerts_are_delivered_signed_and_in_order() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let mut receiver = Receiver::start().await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({"webhook": receiver.url})).await;
    let mut faces = Vec::new();
    for _ in 0..3 {
        faces.extend(gallery.store(&[1.0, 2.0, 3.0]).await);
    }
    let alerts = alerts(&app, &watchlist, faces.len()).await;
    for alert in &alerts {
        let message = receiver.next().await;
        assert!(message.is_signed_with(SECRET) && !message.is_signed_with("another secret"));
        assert_eq!(message.header("x-facecrawl-event"), "alert.match");
        assert_eq!(message.header("x-facecrawl-delivery"), alert.text("id"));
        let body = message.json();
        assert_eq!((&body["event"], &body["delivery"]), (&json!("alert.match"), &alert["id"]));
        for name in
            ["id", "sequence", "watchlist_id", "face_id", "subject_id", "similarity", "stream", "created_at"]
        {
            assert_eq!(body["alert"].get(name), alert.get(name), "{name}");
        }
        assert_eq!(body["alert"]["watchlist"], json!(null), "names are not sent");
    }
    let page = app.poll("/alerts?delivery=delivered", |page| page.list("alerts").len() == faces.len()).await;
    assert!(page.list("alerts").iter().all(|alert| alert["delivered_at"].is_string()));
    assert!(!receiver.has_message(), "each alert is delivered once");
}

#[testing::test]
async fn failed_delivery_is_repeated_with_same_id_before_later_alerts() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let mut receiver = Receiver::start().await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({"webhook": format!("{}/broken", receiver.url)})).await;
    gallery.store(&[1.0, 2.0]).await;
    let alerts = alerts(&app, &watchlist, 2).await;
    let first = receiver.next().await;
    let second = receiver.next().await;
    for message in [&first, &second] {
        assert_eq!(message.header("x-facecrawl-delivery"), alerts[0].text("id"));
    }
    assert_eq!(first.body, second.body);
    let path = format!("/alerts/{}", alerts[0].text("id"));
    let pending = app.poll(&path, |alert| alert["attempts"].as_i64() >= Some(2)).await;
    assert_eq!((&pending["delivery"], &pending["delivered_at"]), (&json!("pending"), &json!(null)));
    assert_eq!(pending["error"], "the webhook responded with status 500");
    receiver.repair();
    loop {
        let message = receiver.next().await;
        if message.header("x-facecrawl-delivery") == alerts[1].text("id") {
            break;
        }
        assert_eq!(message.header("x-facecrawl-delivery"), alerts[0].text("id"), "the order is kept");
    }
    app.poll(&path, |alert| alert["delivery"] == "delivered" && alert["error"].is_null()).await;
}

#[testing::test]
async fn refused_delivery_is_listed_and_can_be_repeated() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let mut receiver = Receiver::start().await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({"webhook": format!("{}/gone", receiver.url)})).await;
    gallery.store(&[1.0]).await;
    let alert = alerts(&app, &watchlist, 1).await[0].clone();
    let failed = app.poll("/alerts?delivery=failed", |page| page.list("alerts").len() == 1).await;
    assert_eq!(failed["alerts"][0]["error"], "the webhook responded with status 410 (gone)");
    let list = format!("/watchlists/{}", watchlist.text("id"));
    app.patch(&list, &json!({"webhook": receiver.url})).await;
    let path = format!("/alerts/{}/redeliver", alert.text("id"));
    assert_eq!(app.post_ok(&path, &json!({})).await["id"], alert["id"]);
    for _ in 0..2 {
        assert_eq!(receiver.next().await.header("x-facecrawl-delivery"), alert.text("id"));
    }
    app.poll("/alerts?delivery=delivered", |page| page.list("alerts").len() == 1).await;
    app.patch(&list, &json!({"webhook": null})).await;
    let error = problem(app.post_json(&path, &json!({})).await, 409, "conflict").await;
    assert!(error.text("detail").contains("no webhook"), "{error}");
}

#[testing::test]
async fn delivery_ends_after_its_time_limit() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let mut receiver = Receiver::start().await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({"webhook": format!("{}/broken", receiver.url)})).await;
    gallery.store(&[1.0]).await;
    alerts(&app, &watchlist, 1).await;
    receiver.next().await;
    app.database.execute("update alerts set deliver_until = clock_timestamp()").await;
    app.poll("/alerts?delivery=failed", |page| page.list("alerts").len() == 1).await;
}

#[testing::test]
async fn silent_receiver_delays_no_other_watchlist() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let (mut silent, mut receiver) = (Receiver::start().await, Receiver::start().await);
    let subject = gallery.enrol(0.0).await;
    watch(&app, &subject, json!({"webhook": format!("{}/silent", silent.url)})).await;
    watch(&app, &subject, json!({"webhook": receiver.url})).await;
    let face = gallery.store(&[1.0]).await;
    silent.next().await;
    // The request to the silent receiver is still open.
    assert_eq!(receiver.next().await.json()["alert"]["face_id"], json!(face[0]));
    let face = gallery.store(&[2.0]).await;
    assert_eq!(receiver.next().await.json()["alert"]["face_id"], json!(face[0]));
}

#[testing::test]
async fn webhook_of_watchlist_passes_guard_and_needs_secret() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let body = |webhook: &str| json!({"name": webhook, "purpose": "a test", "subjects": [subject], "webhook": webhook});
    for url in ["http://10.0.0.1/", "http://169.254.169.254/latest/", "http://[::1]/"] {
        let error = problem(app.post_json("/watchlists", &body(url)).await, 422, "forbidden_url").await;
        assert_eq!(error["field"], "webhook", "{error}");
    }
    let watchlist = watch(&app, &subject, json!({})).await;
    let list = format!("/watchlists/{}", watchlist.text("id"));
    problem(app.patch(&list, &json!({"webhook": "http://10.0.0.1/"})).await, 422, "forbidden_url").await;

    let app = App::spawn_with(Options { webhook_secret: None, ..options() }).await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let body = json!({"name": "a", "purpose": "b", "subjects": [subject], "webhook": "https://example.org/"});
    let error = problem(app.post_json("/watchlists", &body).await, 422, "invalid_field").await;
    assert!(error.text("detail").contains("WEBHOOK_SECRET"), "{error}");
    settle(&app).await;
}

#[testing::test]
async fn forbidden_address_of_webhook_is_recorded() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    // Postgres sets an address that the guard rejects, as a change of the DNS would.
    let watchlist = watch(&app, &subject, json!({"webhook": "http://127.0.0.1:9/"})).await;
    app.database.execute("update watchlists set webhook = 'http://10.0.0.1/'").await;
    gallery.store(&[1.0]).await;
    let alert = alerts(&app, &watchlist, 1).await[0].clone();
    let path = format!("/alerts/{}", alert.text("id"));
    let alert = app.poll(&path, |alert| alert["attempts"].as_i64() >= Some(1)).await;
    assert!(alert.text("error").contains("forbidden"), "{alert}");
    assert!(!alert.text("error").contains("10.0.0.1/"), "{alert}");
}

#[testing::test]
async fn deliveries_of_killed_process_continue_when_its_connection_closes() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let mut receiver = Receiver::start().await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({"webhook": receiver.url})).await;
    // Another process delivers the alerts of the watchlist.
    let mut killed = app.state.services.store.alerts().delivery_locks().await.unwrap();
    assert!(killed.try_lock(watchlist.text("id").parse().unwrap()).await.unwrap());
    gallery.store(&[1.0]).await;
    let alert = alerts(&app, &watchlist, 1).await[0].clone();
    assert!(!receiver.has_message(), "the other process delivers it");
    drop(killed);
    assert_eq!(receiver.next().await.header("x-facecrawl-delivery"), alert.text("id"));
}

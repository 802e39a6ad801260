//! Tests that erasures and deletions remove alerts and what watchlists watch.
use super::support::{Gallery, alerts, app, settle, watch};
use crate::erasures::dump;
use crate::support::{App, Json, erase};
use serde_json::{Value, json};

async fn counts(app: &App) -> [i64; 4] {
    [
        app.database.number("select count(*) from alerts").await,
        app.database.number("select count(*) from watched_people").await,
        app.database.number("select count(*) from watched_faces").await,
        app.database.number("select count(*) from watchlists").await,
    ]
}

/// Returns a service with a person, two new faces of this person, and a watchlist of the person and
/// one of a stored face. Each watchlist has two alerts.
async fn watched() -> (App, String, String, Vec<String>) {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let probe = gallery.store(&[2.0]).await.remove(0);
    let people = watch(&app, &subject, json!({})).await;
    let faces = watch(&app, &subject, json!({"subjects": [], "faces": [probe]})).await;
    let new = gallery.store(&[1.0, 3.0]).await;
    for watchlist in [people, faces] {
        alerts(&app, &watchlist, 2).await;
    }
    (app, subject, probe, new)
}

#[testing::test]
async fn erasure_of_person_removes_alerts_and_watched_person() {
    let (app, subject, ..) = watched().await;
    assert_eq!(counts(&app).await, [4, 1, 1, 2]);
    erase(&app, &json!({"subject_id": subject})).await;
    assert_eq!(counts(&app).await, [2, 0, 1, 2]);
    let page = app.get_ok("/alerts").await;
    assert!(page.list("alerts").iter().all(|alert| alert["subject_id"] == Value::Null));
}

#[testing::test]
async fn erasure_of_face_removes_its_alerts_and_those_that_matched_it() {
    let (app, _, probe, new) = watched().await;
    erase(&app, &json!({"face_id": new[0]})).await;
    assert_eq!(counts(&app).await, [2, 1, 1, 2]);
    assert_eq!(app.get_ok(&format!("/alerts?face_id={}", new[0])).await["alerts"], json!([]));
    erase(&app, &json!({"face_id": probe})).await;
    assert_eq!(counts(&app).await, [1, 1, 0, 2]);
}

#[testing::test]
async fn deletions_of_faces_people_and_images_remove_alerts() {
    let (app, subject, _, new) = watched().await;
    let image = app.get_ok(&format!("/faces/{}", new[0])).await.text("image_id").to_owned();
    assert!(app.delete(&format!("/faces/{}", new[0])).await.status().is_success());
    assert_eq!(counts(&app).await, [2, 1, 1, 2]);
    assert!(app.delete(&format!("/subjects/{subject}")).await.status().is_success());
    assert_eq!(counts(&app).await, [1, 0, 1, 2]);
    assert!(app.delete(&format!("/images/{image}")).await.status().is_success());
    assert_eq!(counts(&app).await, [0, 0, 1, 2]);
}

#[testing::test]
async fn deletion_of_watchlist_removes_its_alerts() {
    let (app, ..) = watched().await;
    for watchlist in app.get_ok("/watchlists").await.list("watchlists") {
        let path = format!("/watchlists/{}", watchlist.text("id"));
        assert_eq!(app.delete(&path).await.status(), 204);
        assert_eq!(app.get(&path).await.status(), 404);
    }
    assert_eq!(counts(&app).await, [0, 0, 0, 0]);
    let log = app.get_ok("/audit?action=watchlist.delete").await;
    assert!(!log.list("records").is_empty(), "{log}");
    let gallery = Gallery::new(&app, "default").await;
    gallery.store(&[1.0]).await;
    assert_eq!(app.database.number("select count(*) from watch_outbox").await, 0);
}

#[testing::test]
async fn deleted_collection_creates_no_alert() {
    let (app, ..) = watched().await;
    assert!(app.delete("/collections/default").await.status().is_success());
    let start = std::time::Instant::now();
    while counts(&app).await != [0, 0, 0, 0] {
        assert!(start.elapsed() < testing::MAX_WAIT, "{:?}", counts(&app).await);
        tokio::task::yield_now().await;
    }
}

#[testing::test]
async fn no_erased_watched_data_remains_in_database() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({"name": "quaxwatch", "purpose": "quaxpurpose"})).await;
    gallery.store(&[1.0]).await;
    let alert = alerts(&app, &watchlist, 1).await[0].clone();
    app.patch(&format!("/alerts/{}", alert.text("id")), &json!({"note": "quaxnote"})).await;
    settle(&app).await;
    assert!(app.delete(&format!("/watchlists/{}", watchlist.text("id"))).await.status().is_success());
    erase(&app, &json!({"subject_id": subject})).await;
    let dump = dump(&app);
    assert!(dump.contains("quaxpurpose"), "the audit log keeps the purpose");
    for text in ["quaxwatch", "quaxnote", &subject, alert.text("watched_face_id")] {
        assert!(!dump.contains(text), "{text} remains");
    }
}

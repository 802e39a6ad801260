//! Tests watchlists: which new faces create alerts, and the operations on watchlists and alerts.
//! The deliveries are tested in `deliveries`.
mod deliveries;
mod erased;
mod support;

use crate::support::site::Site;
use crate::support::{
    App, Events, FAKE_ID, Json, Options, export, field, key_options, merge, ok, parse_lines, problem,
};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use store::keys::Scope;
use support::{Gallery, alerts, app, options, settle, watch};

#[testing::test]
async fn crawled_face_of_watched_person_creates_one_alert() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_2.jpg", "ben.jpg", "ada_and_ben.jpg"]).await;
    let subject = app.create("/subjects", &json!({"name": "Ada"})).await.text("id").to_owned();
    let image = ("image", testing::drawing("ada.jpg"));
    let enrolled = app.post_parts(&format!("/subjects/{subject}/faces"), &[image]).await;
    assert!(enrolled.status().is_success(), "{}", enrolled.text().await.unwrap());
    let watchlist = watch(&app, &subject, json!({})).await;
    let crawl = app.crawl(&[site.page()]).await;
    assert_eq!(crawl["counts"]["images"]["processed"], 3, "{crawl}");

    let alerts = alerts(&app, &watchlist, 2).await;
    settle(&app).await;
    let faces = app.get_ok("/faces").await;
    for alert in &alerts {
        assert_eq!((&alert["subject_id"], &alert["notify"]), (&json!(subject), &json!("match")));
        assert_eq!((&alert["state"], &alert["delivery"]), (&json!("new"), &json!("none")));
        assert!(alert["similarity"].as_f64().unwrap() > 0.5, "{alert}");
        let face = faces.list("faces").iter().find(|face| face["id"] == alert["face_id"]).unwrap();
        assert_eq!(face["image_id"], alert["image_id"]);
    }
    // The same files again are the same faces.
    app.crawl_with(json!({"seeds": [site.page()], "revalidate": false})).await;
    settle(&app).await;
    assert_eq!(app.get_ok("/alerts").await.list("alerts").len(), 2);
}

#[testing::test]
async fn enrolment_of_watched_person_creates_no_alert() {
    let app = App::spawn().await;
    let subject = app.create("/subjects", &json!({"name": "Ada"})).await.text("id").to_owned();
    let enrol = async |name: &str| {
        let path = format!("/subjects/{subject}/faces?force=true");
        let enrolled = app.post_parts(&path, &[("image", testing::drawing(name))]).await;
        assert!(enrolled.status().is_success(), "{}", enrolled.text().await.unwrap());
    };
    enrol("ada.jpg").await;
    watch(&app, &subject, json!({})).await;
    watch(&app, &subject, json!({"notify": "unknown"})).await;
    enrol("ada_2.jpg").await;
    settle(&app).await;
    assert_eq!(app.get_ok("/alerts").await["alerts"], json!([]));
}

#[testing::test]
async fn watchlist_applies_to_faces_stored_after_its_creation() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let first = watch(&app, &subject, json!({"threshold": 0.9})).await;
    gallery.store(&[5.0]).await;
    settle(&app).await;
    let second = watch(&app, &subject, json!({"threshold": 0.9})).await;
    let faces = gallery.store(&[6.0, 90.0]).await;
    assert_eq!(alerts(&app, &second, 1).await[0]["face_id"], json!(faces[0]));
    let alerts = alerts(&app, &first, 2).await;
    assert_eq!(alerts[1]["face_id"], json!(faces[0]));
    assert!(alerts[0]["sequence"].as_i64() < alerts[1]["sequence"].as_i64());
    assert!((alerts[1]["similarity"].as_f64().unwrap() - 6_f64.to_radians().cos()).abs() < 1e-3);
}

#[testing::test]
async fn changes_of_watchlists_and_people_apply_to_next_face() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let (ada, ben) = (gallery.enrol(0.0).await, gallery.enrol(90.0).await);
    let watchlist = watch(&app, &ada, json!({"threshold": 0.9})).await;
    let path = format!("/watchlists/{}", watchlist.text("id"));
    let count = async || {
        settle(&app).await;
        app.get_ok("/alerts").await.list("alerts").len()
    };
    gallery.store(&[90.0]).await;
    assert_eq!(count().await, 0);
    ok(app.patch(&path, &json!({"subjects": [ada, ben]})).await).await;
    gallery.store(&[90.0]).await;
    assert_eq!(count().await, 1);
    // A face that a user assigns to a watched person is compared from then on.
    let face = gallery.store(&[180.0]).await;
    assert_eq!(count().await, 1);
    app.post_ok(&format!("/subjects/{ada}/faces"), &json!({"face_ids": face, "force": true})).await;
    gallery.store(&[181.0]).await;
    assert_eq!(count().await, 2);
    let removed = app.delete(&format!("/subjects/{ada}/faces/{}", face[0])).await;
    assert!(removed.status().is_success());
    gallery.store(&[181.0]).await;
    assert_eq!(count().await, 2);
    // The watchlist follows a person that is merged into another one.
    app.post_ok(&format!("/subjects/{ben}/merge"), &json!({"subjects": [ada]})).await;
    gallery.store(&[0.0]).await;
    assert_eq!(count().await, 3);
    let watched = app.get_ok(&path).await;
    assert_eq!((&watched["subjects"], &watched["subject_count"]), (&json!([ben]), &json!(1)));
    ok(app.patch(&path, &json!({"threshold": 0.99999})).await).await;
    gallery.store(&[91.0]).await;
    assert_eq!(count().await, 3);
}

#[testing::test]
async fn unknown_faces_are_reported_by_watchlist_of_known_people() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({"notify": "unknown", "threshold": 0.9})).await;
    let stranger = gallery.store(&[1.0, 90.0]).await[1].clone();
    let alert = alerts(&app, &watchlist, 1).await[0].clone();
    settle(&app).await;
    assert_eq!((&alert["face_id"], &alert["subject_id"]), (&json!(stranger), &Value::Null));
    assert_eq!((&alert["similarity"], &alert["watched_face_id"]), (&Value::Null, &Value::Null));
    assert_eq!(app.get_ok("/alerts").await.list("alerts").len(), 1);
}

#[testing::test]
async fn stored_face_is_watched_like_saved_search() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let probe = gallery.store(&[0.0]).await;
    let body = json!({"name": "a search", "purpose": "a test", "faces": probe, "threshold": 0.9});
    let watchlist = app.create("/watchlists", &body).await;
    let faces = gallery.store(&[3.0, 90.0]).await;
    let alert = alerts(&app, &watchlist, 1).await[0].clone();
    assert_eq!(
        (&alert["face_id"], &alert["watched_face_id"], &alert["subject_id"]),
        (&json!(faces[0]), &json!(probe[0]), &Value::Null)
    );
}

#[testing::test]
async fn alerts_within_cooldown_are_suppressed_per_person() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let (ada, ben) = (gallery.enrol(0.0).await, gallery.enrol(90.0).await);
    let fields = json!({"subjects": [ada, ben], "cooldown_seconds": 3600, "threshold": 0.9});
    let watchlist = watch(&app, &ada, fields).await;
    gallery.store(&[1.0, 2.0]).await;
    settle(&app).await;
    gallery.store(&[3.0, 91.0]).await;
    let alerts = alerts(&app, &watchlist, 4).await;
    let deliveries: Vec<_> = alerts.iter().map(|alert| alert.text("delivery")).collect();
    assert_eq!(deliveries, ["none", "suppressed", "suppressed", "none"]);
    app.database.execute("update alerts set created_at = created_at - interval '2 hours'").await;
    let faces = gallery.store(&[4.0]).await;
    settle(&app).await;
    let latest = app.get_ok(&format!("/alerts?face_id={}", faces[0])).await;
    assert_eq!(latest["alerts"][0]["delivery"], "none", "the cooldown has ended");
}

#[testing::test]
async fn expired_watchlist_matches_nothing_and_is_ended() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({"expires_at": "2099-01-01T00:00:00Z"})).await;
    gallery.store(&[1.0]).await;
    alerts(&app, &watchlist, 1).await;
    app.database.execute("update watchlists set expires_at = clock_timestamp()").await;
    gallery.store(&[1.0]).await;
    settle(&app).await;
    let path = format!("/watchlists/{}", watchlist.text("id"));
    assert_eq!(app.get_ok(&path).await["active"], false);
    let services = &app.state.services;
    let maintenance = pipeline::Maintenance::new(services.store.clone(), services.blobs.clone());
    assert_eq!(maintenance.end_watchlists().await.unwrap(), 1);
    assert_eq!(maintenance.end_watchlists().await.unwrap(), 0);
    assert_eq!(app.get_ok(&path).await["subjects"], json!([]));
    let error = problem(app.patch(&path, &json!({"expires_at": null})).await, 409, "conflict").await;
    assert!(error.text("detail").contains("create a new one"), "{error}");
    assert_eq!(app.get_ok("/alerts").await.list("alerts").len(), 1, "its alerts are kept");
}

#[testing::test]
async fn alerts_are_filtered_paged_acknowledged_and_exported() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({"name": "=formula"})).await;
    let faces = gallery.store(&[1.0, 2.0, 3.0]).await;
    let all = alerts(&app, &watchlist, 3).await;
    let listed = async |query: &str| -> Vec<Value> {
        let page = app.get_ok(&format!("/alerts?{query}")).await;
        page.list("alerts").iter().map(|alert| alert["face_id"].clone()).collect()
    };
    let first = app.get_ok("/alerts?limit=2").await;
    assert_eq!(first["alerts"], json!([all[2], all[1]]), "newest first");
    let next = first.text("next_cursor");
    assert_eq!(listed(&format!("limit=2&cursor={next}")).await, [faces[0].as_str()]);
    assert_eq!(listed(&format!("face_id={}", faces[1])).await, [faces[1].as_str()]);
    assert_eq!(listed(&format!("subject_id={subject}")).await.len(), 3);
    assert_eq!(listed(&format!("subject_id={FAKE_ID}")).await.len(), 0);
    assert_eq!(listed("until=2020-01-01T00:00:00Z").await.len(), 0);
    assert_eq!(listed("since=2020-01-01T00:00:00Z").await.len(), 3);

    let path = format!("/alerts/{}", all[1].text("id"));
    let changed = json!({"state": "acknowledged", "note": "seen"});
    let alert = ok(app.patch(&path, &changed).await).await;
    assert_eq!((&alert["state"], &alert["note"]), (&json!("acknowledged"), &json!("seen")));
    assert_eq!(app.get_ok(&path).await, alert);
    assert_eq!(listed("state=acknowledged").await, [faces[1].as_str()]);
    assert_eq!(ok(app.patch(&path, &json!({"note": null})).await).await["note"], Value::Null);

    let lines = parse_lines(&export(&app, "/alerts/export", "application/x-ndjson").await);
    let sequences: Vec<_> = lines.iter().map(|line| line["sequence"].clone()).collect();
    assert_eq!(sequences, all.iter().map(|alert| alert["sequence"].clone()).collect::<Vec<_>>());
    let csv = export(&app, "/alerts/export?format=csv", "text/csv").await;
    assert_eq!(csv.lines().count(), 4);
    let columns: BTreeSet<&str> = csv.lines().next().unwrap().split(',').collect();
    let fields = lines[0].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(columns, fields, "both forms have the same fields");
    assert!(csv.contains(",'=formula,"), "a name must not be read as a formula: {csv}");

    let records = app.get_ok("/audit").await;
    let actions: Vec<_> = records.list("records").iter().map(|record| record.text("action")).collect();
    assert_eq!(actions, ["alert.export", "alert.export", "alert.update", "alert.update", "watchlist.create"]);
    assert_eq!(records["records"][4]["detail"]["purpose"], "a test");
}

#[testing::test]
async fn each_change_of_watchlist_is_recorded() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let limited = json!({"expires_at": "2999-01-01T00:00:00Z", "quality_profile": "strict"});
    let path = format!("/watchlists/{}", watch(&app, &subject, limited).await.text("id"));
    let changed = json!({"name": "new", "expires_at": null, "quality_profile": null, "threshold": 0.75});
    ok(app.patch(&path, &changed).await).await;
    ok(app.patch(&path, &json!({"cooldown_seconds": 7})).await).await;
    let log = app.get_ok("/audit").await;
    let mut details: Vec<Value> = log.list("records").iter().map(|record| record["detail"].clone()).collect();
    for detail in &mut details {
        detail.as_object_mut().unwrap().remove("watchlist_id").expect("each record names the watchlist");
    }
    assert_eq!(details[0], json!({"cooldown_seconds": 7}));
    assert_eq!(
        details[1],
        json!({"renamed": true, "expires_at": null, "quality_profile": null, "threshold": 0.75})
    );
    assert_eq!(
        (&details[2]["expires_at"], &details[2]["quality_profile"]),
        (&json!("2999-01-01T00:00:00Z"), &json!("strict"))
    );
}

#[testing::test]
async fn event_stream_of_alerts_resumes_after_last_event() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let watchlist = watch(&app, &subject, json!({})).await;
    gallery.store(&[1.0]).await;
    let first = alerts(&app, &watchlist, 1).await[0].clone();
    let mut events = Events::new(&app, "/alerts").await;
    let faces = gallery.store(&[2.0, 3.0]).await;
    for face in &faces {
        let (name, alert) = events.next().await.unwrap();
        assert_eq!((name.as_str(), &alert["face_id"]), ("alert", &json!(face)), "only new alerts");
    }
    let mut resumed = Events::after(&app, "/alerts", &first["sequence"]).await;
    for face in &faces {
        assert_eq!(resumed.next().await.unwrap().1["face_id"], json!(face));
    }
    let path = format!("{}/alerts/events", app.url);
    let invalid = app.client.get(path).header("last-event-id", "x").send().await.unwrap();
    assert_eq!(field(&problem(invalid, 400, "bad_query").await), "last-event-id");
}

#[testing::test]
async fn key_without_scope_watch_is_rejected() {
    let others: Vec<Scope> = Scope::ALL.iter().copied().filter(|scope| *scope != Scope::Watch).collect();
    let (app, _, key) = App::with_key(None, &others).await;
    let body = json!({"name": "a", "purpose": "b", "subjects": [FAKE_ID]});
    let id = |path: &str| format!("/{path}/{FAKE_ID}");
    for (method, path, body) in [
        (Method::POST, "/watchlists".to_owned(), Some(&body)),
        (Method::GET, "/watchlists".into(), None),
        (Method::GET, id("watchlists"), None),
        (Method::PATCH, id("watchlists"), Some(&json!({}))),
        (Method::DELETE, id("watchlists"), None),
        (Method::GET, "/alerts".into(), None),
        (Method::GET, "/alerts/events".into(), None),
        (Method::GET, "/alerts/export".into(), None),
        (Method::GET, id("alerts"), None),
        (Method::PATCH, id("alerts"), Some(&json!({}))),
        (Method::POST, format!("{}/redeliver", id("alerts")), None),
    ] {
        let error = problem(app.call(&key, method, &path, body).await, 403, "scope_missing").await;
        assert_eq!(error["allowed"], json!(["a key with the scope watch"]), "{path}");
    }
}

#[testing::test]
async fn collections_do_not_share_watchlists() {
    let keys = key_options();
    let app = App::spawn_with(Options { config: keys.config, ..options() }).await;
    let (_, ours) = app.create_key(Some("ours"), &[Scope::Watch]).await;
    let (_, theirs) = app.create_key(Some("theirs"), &[Scope::Watch]).await;
    let (our_gallery, their_gallery) = (Gallery::new(&app, "ours").await, Gallery::new(&app, "theirs").await);
    let our_subject = our_gallery.enrol(0.0).await;
    let their_subject = their_gallery.enrol(0.0).await;
    let body = |subject: &str| json!({"name": "a", "purpose": "b", "subjects": [subject]});
    let foreign = app.call(&ours, Method::POST, "/watchlists", Some(&body(&their_subject))).await;
    problem(foreign, 404, "not_found").await;
    app.create_as(&ours, "/watchlists", &body(&our_subject)).await;
    app.create_as(&theirs, "/watchlists", &body(&their_subject)).await;
    let face = our_gallery.store(&[1.0]).await;
    settle(&app).await;
    let page = app.get_as(&ours, "/alerts").await;
    assert_eq!(page["alerts"][0]["face_id"], json!(face[0]));
    assert_eq!(app.get_as(&theirs, "/alerts").await["alerts"], json!([]));
    let foreign = app.call(&theirs, Method::GET, "/alerts/events?collection=ours", None).await;
    problem(foreign, 404, "not_found").await;
}

#[testing::test]
async fn invalid_watchlist_error_names_field_and_allowed_values() {
    let app = app().await;
    let gallery = Gallery::new(&app, "default").await;
    let subject = gallery.enrol(0.0).await;
    let valid = json!({"name": "a", "purpose": "b", "subjects": [subject]});
    for (fields, field_name, allowed) in [
        (json!({"name": " "}), "name", "1 to 200 characters"),
        (json!({"purpose": ""}), "purpose", "1 to 500 characters"),
        (json!({"purpose": null}), "purpose", "a string"),
        (json!({"subjects": []}), "subjects", "1 to 10000 ids"),
        (json!({"subjects": ["x"]}), "subjects[0]", ""),
        (json!({"notify": "all"}), "notify", "match"),
        (json!({"threshold": 2}), "threshold", "-1 to 1"),
        (json!({"quality_profile": "best"}), "quality_profile", "standard"),
        (json!({"cooldown_seconds": -1}), "cooldown_seconds", "0 to 2592000"),
        (json!({"expires_at": "2020-01-01T00:00:00Z"}), "expires_at", "in the future"),
        (json!({"expires_at": "soon"}), "expires_at", "2026-01-31T12:00:00Z"),
        (json!({"webhook": "ftp://example.org/"}), "webhook", ""),
        (json!({"colour": "red"}), "colour", "purpose"),
    ] {
        let body = merge(valid.clone(), fields);
        let response = app.post_json("/watchlists", &body).await;
        assert_eq!(response.status(), StatusCode::UNPROCESSABLE_ENTITY, "{body}");
        let error: Value = response.json().await.unwrap();
        assert_eq!(field(&error), field_name, "{error}");
        assert!(error["allowed"].to_string().contains(allowed), "{allowed}: {error}");
    }
    let missing = json!({"name": "a", "subjects": [subject]});
    let error = problem(app.post_json("/watchlists", &missing).await, 422, "invalid_field").await;
    assert_eq!(field(&error), "purpose", "the purpose is required: {error}");
    let created = app.create("/watchlists", &valid).await;
    let error = problem(app.post_json("/watchlists", &valid).await, 409, "conflict").await;
    assert!(error.text("detail").contains("\"a\""), "{error}");
    let path = format!("/watchlists/{}", created.text("id"));
    let error = problem(app.patch(&path, &json!({"subjects": []})).await, 409, "conflict").await;
    assert!(error.text("detail").contains("watch nobody"), "{error}");
    let unknown = json!({"name": "c", "purpose": "b", "subjects": [FAKE_ID]});
    problem(app.post_json("/watchlists", &unknown).await, 404, "not_found").await;
}

use crate::support::events::Events;
use crate::support::site::Site;
use crate::support::{App, Options, json_of, problem};
use domain::{ImageState, Reason};
use reqwest::StatusCode;
use serde_json::{Value, json};
use store::crawls::pages::{ImageUrlResult, NewImageUrl};

#[testing::test]
async fn progress_is_told_until_the_crawl_is_done() {
    let app = App::spawn().await;
    let site = Site::with(&["ada_small.jpg"]).await;
    let body = json!({"seeds": [site.page(), format!("{}/held", site.url)], "delay_ms": 0});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    let id = created["id"].as_str().unwrap();
    let mut events = Events::of(&app, &format!("/crawls/{id}")).await;
    let mut seen: Vec<Value> = Vec::new();
    let last = loop {
        let (name, data) = events.next().await.expect("the stream ends with `done`");
        assert_eq!(data["id"], id);
        if name == "done" {
            break data;
        }
        assert_eq!((name.as_str(), &data["state"]), ("progress", &json!("running")));
        assert_ne!(seen.last(), Some(&data), "an event is sent only after a change");
        // The held image keeps the crawl running until this test has seen the progress.
        if data["counts"]["images"]["processed"] == 1 {
            site.release.notify_one();
        }
        seen.push(data);
    };
    assert!(!seen.is_empty());
    assert_eq!(last, app.get_ok(&format!("/crawls/{id}")).await, "the same JSON as the crawl itself");
    assert_eq!((&last["state"], &last["counts"]["images"]["failed"]), (&json!("completed"), &json!(1)));
    assert_eq!(events.next().await, None);

    // The stream of a crawl that has ended has one event.
    let mut again = Events::of(&app, &format!("/crawls/{id}")).await;
    assert_eq!(again.next().await, Some(("done".to_owned(), last)));
    assert_eq!(again.next().await, None);
}

#[testing::test]
async fn many_changes_are_told_in_order_without_repetition() {
    const IMAGES: i64 = 400;
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let body = json!({"seeds": ["http://127.0.0.1:9/"]});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    let id = created["id"].as_str().unwrap().to_owned();
    let store = app.state.services.store.clone();
    let crawl = id.parse().unwrap();
    let urls: Vec<NewImageUrl> = (0..IMAGES)
        .map(|n| NewImageUrl {
            url: format!("http://127.0.0.1:9/{n}.jpg"),
            page_url: None,
            asked_url: None,
            alt: None,
        })
        .collect();
    let mut tx = store.begin().await.unwrap();
    let rows = store.admit_images(tx.conn(), crawl, IMAGES, &urls).await.unwrap();
    tx.commit().await.unwrap();

    let mut watched =
        [Events::of(&app, &format!("/crawls/{id}")).await, Events::of(&app, &format!("/crawls/{id}")).await];
    let settling = tokio::spawn(async move {
        for row in rows {
            let mut tx = store.begin().await.unwrap();
            let (state, reason) = (ImageState::Failed, Some(Reason::Http(404)));
            let result = ImageUrlResult { state, reason, detail: None, image: None };
            store.settle_image_url(tx.conn(), row.id, result).await.unwrap();
            tx.commit().await.unwrap();
        }
    });
    for events in &mut watched {
        let mut failed = -1;
        while failed < IMAGES {
            let (name, data) = events.next().await.unwrap();
            let images = &data["counts"]["images"];
            let (now, queued) = (images["failed"].as_i64().unwrap(), images["queued"].as_i64().unwrap());
            assert_eq!((name.as_str(), now + queued), ("progress", IMAGES));
            assert!(now > failed, "events are sent after changes and in order: {failed}, then {now}");
            failed = now;
        }
    }
    settling.await.unwrap();
    app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await;
    for mut events in watched {
        let (name, data) = events.next().await.unwrap();
        assert_eq!((name.as_str(), &data["state"]), ("done", &json!("cancelled")));
        assert_eq!(events.next().await, None);
    }
}

#[testing::test]
async fn a_stream_ends_when_the_service_stops() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let body = json!({"seeds": ["http://127.0.0.1:9/"]});
    let created = json_of(app.post_json("/crawls", &body).await, StatusCode::CREATED).await;
    let mut events = Events::of(&app, &format!("/crawls/{}", created["id"].as_str().unwrap())).await;
    assert_eq!(events.next().await.unwrap().0, "progress");
    app.shutdown.cancel();
    assert_eq!(events.next().await, None);
    app.stop().await.unwrap();
}

#[testing::test]
async fn there_are_no_events_of_an_unknown_crawl() {
    let app = App::spawn().await;
    let response = app.get("/crawls/00000000-0000-7000-8000-000000000000/events").await;
    problem(response, 404, "not_found").await;
}

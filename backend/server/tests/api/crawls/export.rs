//! Tests the event streams and the exports of crawls.
use crate::support::site::Site;
use crate::support::{App, Events, Json, Options, export, field, image_urls, parse_lines, problem};
use domain::{ImageState, Reason};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use store::crawls::pages::ImageUrlResult;
use store::images::NewImage;
use uuid::Uuid;

#[testing::test]
async fn progress_events_continue_until_crawl_ends() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg"]).await;
    let body = json!({"seeds": [site.page(), format!("{}/held", site.url)], "delay_ms": 0});
    let created = app.create("/crawls", &body).await;
    let id = created.text("id");
    let mut events = Events::new(&app, &format!("/crawls/{id}")).await;
    let mut events_so_far: Vec<Value> = Vec::new();
    let last = loop {
        let (name, data) = events.next().await.expect("the stream ends with `done`");
        assert_eq!(data["id"], id);
        if name == "done" {
            break data;
        }
        assert_eq!((name.as_str(), &data["state"]), ("progress", &json!("running")));
        assert_ne!(events_so_far.last(), Some(&data), "an event is sent only after a change");
        // The held image keeps the crawl running until this test has seen the progress.
        if data["counts"]["images"]["processed"] == 1 {
            site.release.notify_one();
        }
        events_so_far.push(data);
    };
    assert!(!events_so_far.is_empty());
    assert_eq!(last, app.get_ok(&format!("/crawls/{id}")).await, "the same JSON as the crawl itself");
    assert_eq!((&last["state"], &last["counts"]["images"]["failed"]), (&json!("completed"), &json!(1)));
    assert_eq!(events.next().await, None);

    // The stream of a crawl that has ended has one event.
    let mut second_stream = Events::new(&app, &format!("/crawls/{id}")).await;
    assert_eq!(second_stream.next().await, Some(("done".to_owned(), last)));
    assert_eq!(second_stream.next().await, None);
}

#[testing::test]
async fn progress_events_are_ordered_without_repetition() {
    const IMAGES: i64 = 400;
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let created = app.create("/crawls", &json!({"seeds": ["http://127.0.0.1:9/"]})).await;
    let id = created.text("id").to_owned();
    let store = app.state.services.store.clone();
    let crawl = id.parse().unwrap();
    let urls = image_urls(IMAGES as usize);
    let rows =
        app.commit(async |tx| store.ledger().admit_images(tx.conn(), crawl, IMAGES, &urls).await).await;

    let stream = async || Events::new(&app, &format!("/crawls/{id}")).await;
    let mut streams = [stream().await, stream().await];
    let writer = tokio::spawn(async move {
        for row in rows {
            let mut tx = store.begin().await.unwrap();
            let (state, reason) = (ImageState::Failed, Some(Reason::Http(404)));
            let result = ImageUrlResult { state, reason, detail: None, image: None, final_url: None };
            store.ledger().settle_image_url(tx.conn(), row.id, result).await.unwrap();
            tx.commit().await.unwrap();
        }
    });
    for events in &mut streams {
        let mut failed = -1;
        while failed < IMAGES {
            let (name, data) = events.next().await.unwrap();
            let images = &data["counts"]["images"];
            let (count, queued) = (images["failed"].as_i64().unwrap(), images["queued"].as_i64().unwrap());
            assert_eq!((name.as_str(), count + queued), ("progress", IMAGES));
            assert!(count > failed, "events are sent after changes and in order: {failed}, then {count}");
            failed = count;
        }
    }
    writer.await.unwrap();
    app.post_json(&format!("/crawls/{id}/cancel"), &json!({})).await;
    for mut events in streams {
        let (name, data) = events.next().await.unwrap();
        assert_eq!((name.as_str(), &data["state"]), ("done", &json!("cancelled")));
        assert_eq!(events.next().await, None);
    }
}

#[testing::test]
async fn event_stream_ends_when_service_stops() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let mut events = Events::new(&app, &app.idle_crawl().await).await;
    assert_eq!(events.next().await.unwrap().0, "progress");
    app.shutdown.cancel();
    assert_eq!(events.next().await, None);
    app.stop().await.unwrap();
}

#[testing::test]
async fn events_of_unknown_crawl_return_404() {
    let app = App::spawn().await;
    let response = app.get("/crawls/00000000-0000-7000-8000-000000000000/events").await;
    problem(response, 404, "not_found").await;
}

#[testing::test]
async fn export_contains_faces_and_only_sources_of_crawl() {
    let app = App::spawn().await;
    let site = Site::new(&["ada_small.jpg", "small_pair.jpg"]).await;
    // Another crawl found one of the images before. Its source must not appear in this export.
    app.crawl(&[site.image("ada_small.jpg")]).await;
    let crawl = app.crawl(&[site.page()]).await;
    let path = format!("/crawls/{}/export", crawl.text("id"));

    let exported = parse_lines(&export(&app, &path, "application/x-ndjson").await);
    assert_eq!(exported.len(), 2);
    let faces = app.get_ok("/faces?limit=1000").await;
    let stored_face = |face: &Value| {
        let mut faces = faces.list("faces").iter();
        faces.find(|row| row["id"] == face["face_id"]).cloned().expect("every exported face is stored")
    };
    let mut face_count = 0;
    for image in &exported {
        let stored = app.get_ok(&format!("/images/{}", image.text("image_id"))).await;
        for key in ["sha256", "phash", "width", "height", "format", "bytes", "rotation", "created_at"] {
            assert_eq!(image[key], stored[key], "{key}");
        }
        let sources = image.list("sources");
        assert_eq!((sources.len(), &sources[0]["page_url"]), (1, &json!(site.page())));
        assert!(image.list("faces").len() as u64 == stored["face_count"].as_u64().unwrap());
        for face in image.list("faces") {
            let stored = stored_face(face);
            for key in ["bbox", "det_score", "landmarks", "quality", "embedding_model"] {
                assert_eq!(face[key], stored[key], "{key}");
            }
            assert_eq!(face.get("embedding"), None, "embeddings are exported only on request");
            face_count += 1;
        }
    }
    assert_eq!(face_count as u64, crawl["counts"]["faces"].as_u64().unwrap());

    let exported =
        parse_lines(&export(&app, &format!("{path}?embeddings=true"), "application/x-ndjson").await);
    for face in exported.iter().flat_map(|image| image.list("faces")) {
        let embedding = face.list("embedding");
        let length: f64 = embedding.iter().map(|v| v.as_f64().unwrap().powi(2)).sum();
        assert!(embedding.len() == 128 && (length - 1.0).abs() < 0.01, "{length}");
    }

    let table = export(&app, &format!("{path}?format=csv&embeddings=true"), "text/csv").await;
    let rows: Vec<Vec<&str>> = table.split_terminator("\r\n").map(|row| row.split(',').collect()).collect();
    assert_eq!(rows.len(), 1 + face_count);
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    let column = |name: &str| rows[0].iter().position(|column| *column == name).unwrap();
    for row in &rows[1..] {
        assert_eq!(row[column("page_url")], site.page());
        assert_eq!(row[column("embedding")].split(' ').count(), 128);
        assert!(row[column("quality")].parse::<f32>().is_ok(), "{row:?}");
    }
}

#[testing::test]
async fn long_export_contains_every_image_once() {
    const IMAGES: usize = 250;
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let created = app.create("/crawls", &json!({"seeds": ["http://127.0.0.1:9/"]})).await;
    let crawl: Uuid = created.text("id").parse().unwrap();
    let store = &app.state.services.store;
    let collection = store.collections().get("default").await.unwrap().id;
    // An image with two URLs still has one line.
    let urls = image_urls(2 * IMAGES);
    let mut tx = store.begin().await.unwrap();
    let rows = store.ledger().admit_images(tx.conn(), crawl, 10_000, &urls).await.unwrap();
    let mut expected = BTreeSet::new();
    for (number, rows) in rows.chunks(2).enumerate() {
        let mut sha256 = [0; 32];
        sha256[..8].copy_from_slice(&(number as u64).to_be_bytes());
        let image = NewImage {
            id: Uuid::now_v7(),
            sha256,
            phash: number as i64,
            dhash: 0,
            ahash: 0,
            width: 64,
            height: 48,
            format: "png".into(),
            bytes: 100,
            rotation: 0,
            parts: None,
        };
        store.images().insert(tx.conn(), collection, &image).await.unwrap().unwrap();
        expected.insert(image.id.to_string());
        for row in rows {
            let (state, image) = (ImageState::Processed, Some(image.id));
            let result = ImageUrlResult { state, reason: None, detail: None, image, final_url: None };
            store.ledger().settle_image_url(tx.conn(), row.id, result).await.unwrap();
        }
    }
    tx.commit().await.unwrap();
    let path = format!("/crawls/{crawl}/export");
    let exported = parse_lines(&export(&app, &path, "application/x-ndjson").await);
    let ids: Vec<&str> = exported.iter().map(|image| image.text("image_id")).collect();
    assert!(ids.iter().copied().eq(expected.iter().map(String::as_str)), "each image once, the oldest first");
    assert_eq!(exported[0].list("sources").len(), 2);
    let table = export(&app, &format!("{path}?format=csv"), "text/csv").await;
    assert_eq!(table.split_terminator("\r\n").count(), 1 + IMAGES);
}

#[testing::test]
async fn invalid_crawl_export_request_is_rejected() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let path = format!("{}/export", app.idle_crawl().await);
    let error = problem(app.get(&format!("{path}?format=xml")).await, 400, "bad_query").await;
    assert_eq!((field(&error), &error["allowed"]), ("format", &json!(["jsonl", "csv"])));
    problem(app.get("/crawls/00000000-0000-7000-8000-000000000000/export").await, 404, "not_found").await;
    assert_eq!(export(&app, &path, "application/x-ndjson").await, "");
    assert!(export(&app, &format!("{path}?format=csv"), "text/csv").await.starts_with("image_id,"));
}

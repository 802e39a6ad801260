//! Tests `GET /videos/{id}/export`, and the videos in `GET /crawls/{id}/export`.
use super::{analyze, app_with_videos, clip};
use crate::support::site::Site;
use crate::support::{App, Json, Options, erase, export, field, new_video, parse_lines, problem};
use axum::Router;
use axum::http::header;
use axum::response::{Html, Redirect};
use axum::routing::get;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use store::faces::NewFace;
use store::videos::tracks::{NewFrame, NewTrack, ShotFace};
use uuid::Uuid;

/// Returns the rows of CSV by the names of their columns.
async fn rows(app: &App, path: &str) -> Vec<BTreeMap<String, String>> {
    let table = export(app, path, "text/csv").await;
    let mut rows = table.split_terminator("\r\n").map(|row| row.split(',').map(str::to_owned));
    let head: Vec<String> = rows.next().unwrap().collect();
    rows.map(|row| {
        let row: Vec<String> = row.collect();
        assert_eq!(row.len(), head.len());
        head.iter().cloned().zip(row).collect()
    })
    .collect()
}

/// Asserts that `lines` describes the tracks that the API lists, with all their faces.
async fn check_tracks(app: &App, video: &Value, lines: &[Value]) {
    let path = format!("/videos/{}/tracks?limit=1000", video.as_str().unwrap());
    let listed = app.get_ok(&path).await;
    let listed = listed.list("tracks");
    assert!(listed.len() > 1 && lines.len() == listed.len(), "{} {}", lines.len(), listed.len());
    for (line, track) in lines.iter().zip(listed) {
        assert_eq!(
            (&line["kind"], &line["video_id"], &line["track_id"]),
            (&json!("track"), video, &track["id"])
        );
        for key in ["person", "start_ms", "end_ms", "samples", "boxes"] {
            assert_eq!(line[key], track[key], "{key}");
        }
        for (face, shot) in line.list("faces").iter().zip(track.list("faces")) {
            assert_eq!((&face["face_id"], &face["at_ms"]), (&shot["face_id"], &shot["at_ms"]));
            let stored = app.get_ok(&format!("/faces/{}", face.text("face_id"))).await;
            for key in ["bbox", "det_score", "landmarks", "quality", "embedding_model", "image_id"] {
                assert_eq!(face[key], stored[key], "{key}");
            }
            assert_eq!(face.get("embedding"), None, "embeddings are exported only on request");
        }
    }
}

#[testing::needs(video)]
#[testing::test]
async fn video_export_contains_tracks_and_omits_erased_ones() {
    let app = app_with_videos().await;
    let video = analyze(&app, "?sampling=fps=5", clip()).await;
    let path = format!("/videos/{}/export", video.text("id"));
    let exported = parse_lines(&export(&app, &path, "application/x-ndjson").await);
    let first = &exported[0];
    assert_eq!(
        (&first["kind"], &first["video_id"], &first["people"]),
        (&json!("video"), &video["id"], &json!(7))
    );
    for key in [
        "state",
        "sha256",
        "bytes",
        "codec",
        "width",
        "height",
        "duration_ms",
        "read_ms",
        "frames",
        "created_at",
    ] {
        assert_eq!(first[key], video[key], "{key}");
    }
    assert_eq!(
        (&first["sources"], &first["sources_cut"]),
        (&json!([]), &json!(false)),
        "an upload has no address"
    );
    check_tracks(&app, &video["id"], &exported[1..]).await;

    let exported_with_embeddings =
        parse_lines(&export(&app, &format!("{path}?embeddings=true"), "application/x-ndjson").await);
    for face in exported_with_embeddings[1..].iter().flat_map(|track| track.list("faces")) {
        assert_eq!(face.list("embedding").len(), 128);
    }
    let table = rows(&app, &format!("{path}?format=csv&embeddings=true")).await;
    assert_eq!(table.len(), exported.len() - 1);
    for (row, track) in table.iter().zip(&exported[1..]) {
        let best = &track["faces"][0];
        assert_eq!(
            (json!(row["track_id"]), json!(row["face_id"])),
            (track["track_id"].clone(), best["face_id"].clone())
        );
        assert_eq!(row["start_ms"], track["start_ms"].to_string());
        assert_eq!(
            (row["faces"].parse().unwrap(), row["embedding"].split(' ').count()),
            (track.list("faces").len(), 128)
        );
    }
    // An erased track is not exported.
    let face = &exported[1]["faces"][0]["face_id"];
    erase(&app, &json!({"face_id": face})).await;
    let remaining = parse_lines(&export(&app, &path, "application/x-ndjson").await);
    assert_eq!(remaining.len(), exported.len() - 1);
    assert!(remaining.iter().all(|line| line["track_id"] != exported[1]["track_id"]));
}

/// Adds a completed video with tracks of one face each, and returns its id and the ids of the
/// faces.
async fn long_video(app: &App, tracks: usize) -> (Uuid, Vec<Uuid>) {
    let store = &app.state.services.store;
    let collection = store.collections().get("default").await.unwrap().id;
    let new = new_video(collection, 7);
    let mut tx = store.begin().await.unwrap();
    let video = store.videos().insert(tx.conn(), &new).await.unwrap().unwrap();
    let mut faces = Vec::new();
    for second in 0..tracks {
        let at_us = second as i64 * 1_000_000;
        let face = NewFace {
            id: Uuid::now_v7(),
            bbox: [1.0, 2.0, 30.0, 40.0],
            det_score: 0.75,
            landmarks: [0.5; 10],
            quality: None,
            quality_overall: None,
            quality_passed: None,
            embedding: (0..128).map(|at| if at == 0 { 1.0 } else { 0.0 }).collect(),
            model_id: app.state.services.face_store.model_id(),
            parts: None,
        };
        faces.push(face.id);
        let owner = (collection, video);
        let frame = [NewFrame { at_us, face_count: 0, parts: None }];
        let image = store.tracks().insert_frames(tx.conn(), owner, (640, 360), &frame).await.unwrap()[0];
        store.faces().insert(tx.conn(), collection, image, std::slice::from_ref(&face)).await.unwrap();
        let track = NewTrack {
            number: second as i32 + 1,
            started_us: at_us,
            ended_us: at_us,
            samples: 1,
            // Version 1 of the format, without boxes.
            boxes: vec![1, 0],
            faces: vec![ShotFace { at_us, face }],
        };
        store.tracks().insert(tx.conn(), owner, &[track]).await.unwrap();
    }
    tx.commit().await.unwrap();
    (video, faces)
}

#[testing::test]
async fn long_video_export_is_complete_and_cancellable() {
    const TRACKS: usize = 220;
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let (video, faces) = long_video(&app, TRACKS).await;
    let path = format!("/videos/{video}/export?embeddings=true");
    // There are more requests than connections to the database.
    for _ in 0..30 {
        let mut response = app.get(&path).await;
        assert!(response.chunk().await.unwrap().is_some());
        drop(response);
    }
    let exported = parse_lines(&export(&app, &path, "application/x-ndjson").await);
    let ids: Vec<Value> = exported[1..].iter().map(|track| track["faces"][0]["face_id"].clone()).collect();
    assert_eq!(ids, faces.iter().map(|id| json!(id)).collect::<Vec<_>>(), "each track once, in order");
    assert_eq!(rows(&app, &format!("/videos/{video}/export?format=csv")).await.len(), TRACKS);
}

#[testing::test]
async fn invalid_video_export_request_is_rejected() {
    let app = App::spawn_with(Options { worker: false, ..Options::default() }).await;
    let missing = "/videos/00000000-0000-7000-8000-000000000000/export";
    problem(app.get(missing).await, 404, "not_found").await;
    let error = problem(app.get(&format!("{missing}?format=xml")).await, 400, "bad_query").await;
    assert_eq!((field(&error), &error["allowed"]), ("format", &json!(["jsonl", "csv"])));
}

/// Serves a page with an image, and a video at two addresses.
async fn site() -> Site {
    let (file, image) = (clip(), testing::drawing("ada_small.jpg"));
    let page =
        "<title>Film</title><img src=/ada.jpg><video src=/film.mp4></video><a href=/moved.mp4>again</a>";
    Site::start(
        Router::new()
            .route("/", get(move || async move { Html(page) }))
            .route(
                "/ada.jpg",
                get(move || async move { ([(header::CONTENT_TYPE, "image/jpeg")], image.clone()) }),
            )
            .route(
                "/film.mp4",
                get(move || async move { ([(header::CONTENT_TYPE, "video/mp4")], file.clone()) }),
            )
            .route("/moved.mp4", get(|| async { Redirect::temporary("/film.mp4") })),
    )
    .await
}

#[testing::needs(video)]
#[testing::test]
async fn crawl_export_contains_each_video_once_with_all_sources() {
    let app = app_with_videos().await;
    let site = site().await;
    let body = json!({"seeds": [format!("{}/", site.url)], "delay_ms": 0, "videos": true});
    let crawled = app.crawl_with(body.clone()).await;
    let path = format!("/crawls/{}/export", crawled.text("id"));
    let exported = parse_lines(&export(&app, &path, "application/x-ndjson").await);
    let kinds: Vec<&str> = exported.iter().map(|line| line.text("kind")).collect();
    assert_eq!((kinds[0], kinds[1]), ("image", "video"), "{kinds:?}");
    let video = &exported[1];
    let mut sources: Vec<(&str, &str)> =
        video.list("sources").iter().map(|entry| (entry.text("page_url"), entry.text("video_url"))).collect();
    sources.sort_unstable();
    let page = format!("{}/", site.url);
    let [file, moved] = ["film", "moved"].map(|name| format!("{}/{name}.mp4", site.url));
    assert_eq!(sources, [(page.as_str(), file.as_str()), (page.as_str(), moved.as_str())]);
    assert_eq!((&video["sources_total"], &video["state"]), (&json!(2), &json!("completed")));
    check_tracks(&app, &video["video_id"], &exported[2..]).await;

    let faces: usize = exported[2..].iter().map(|track| track.list("faces").len()).sum();
    let table = rows(&app, &format!("{path}?format=csv")).await;
    assert_eq!(table.len(), exported[0].list("faces").len() + faces);
    let video_rows: Vec<_> = table.iter().filter(|row| !row["video_id"].is_empty()).collect();
    assert_eq!(video_rows.len(), faces);
    for row in video_rows {
        assert_eq!((row["format"].as_str(), &row["page_url"]), ("video_frame", &page));
        assert_eq!(
            (json!(row["sha256"]), json!(row["video_id"])),
            (video["sha256"].clone(), video["video_id"].clone())
        );
        assert!(row["at_ms"].parse::<i64>().is_ok() && !row["face_id"].is_empty());
    }
    // Another crawl finds the file unchanged. Its export contains the video too, from its own page.
    let crawl = app.crawl_with(body).await;
    let second = parse_lines(
        &export(&app, &format!("/crawls/{}/export", crawl.text("id")), "application/x-ndjson").await,
    );
    assert_eq!(
        second.iter().filter(|line| line["video_id"] == video["video_id"]).count(),
        exported.len() - 1
    );
}

//! Tests the operations for videos with the standard test video, whose people are known.
mod crawled;
mod erased;
mod export;
mod limits;

use crate::erasures::dump;
use crate::support::{App, Events, Json, Options, erase, ok, problem, to_json};
use reqwest::StatusCode;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use testing::film::{Codec, Container, Encoding, Film};

/// Returns the standard test video: 25 s with a keyframe every second.
pub(crate) fn clip() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("film.mp4");
    let encoding = Encoding { keyframe_interval: 25, ..Encoding::new(Codec::H264, Container::Mp4) };
    Film::standard().encode(&encoding, &path).unwrap();
    std::fs::read(path).unwrap()
}

async fn app_with_videos() -> App {
    App::spawn_with(Options { videos: true, ..Options::default() }).await
}

/// Sends a video and waits for its end.
async fn analyze(app: &App, query: &str, file: Vec<u8>) -> Value {
    let sent = app.post_raw(&format!("/videos{query}"), "video/mp4", file).await;
    let location = sent.headers()["location"].to_str().unwrap().to_owned();
    let video = to_json(sent, StatusCode::ACCEPTED).await;
    assert_eq!(location, format!("/videos/{}", video.text("id")));
    // The worker may have begun before the response was written.
    assert!(["queued", "running"].contains(&video.text("state")), "{video}");
    let has_ended = |video: &Value| video["finished_at"].is_string();
    app.poll(&location, has_ended).await
}

#[testing::needs(video)]
#[testing::test]
async fn video_tracks_are_found_by_time_person_and_face() {
    let app = app_with_videos().await;
    let file = clip();
    let video = analyze(&app, "?sampling=fps=5", file.clone()).await;
    assert_eq!((&video["state"], &video["reason"]), (&json!("completed"), &Value::Null), "{video:#}");
    assert_eq!((video["people"].as_i64(), video["width"].as_i64()), (Some(7), Some(640)));
    assert_eq!(video["options"]["sampling"], "fps=5");
    assert_eq!(video["read_ms"], 24_960);
    let path = format!("/videos/{}", video.text("id"));
    let list = app.get_ok(&format!("{path}/tracks")).await;
    let tracks = list.list("tracks");
    assert_eq!(video["tolerance_ms"], 200);
    let is_last = |track: &Value| track["end_ms"] == 24_960;
    assert!(tracks.iter().all(|track| track["to_end"] == is_last(track)), "{list}");
    assert!(tracks.iter().any(is_last), "{list}");
    assert!(tracks.len() > 10 && list["next_cursor"].is_null());
    // The parameters for pages, times and people select from the same list.
    let mut paged = Vec::new();
    let mut page = app.get_ok(&format!("{path}/tracks?limit=3")).await;
    loop {
        paged.extend(page.list("tracks").clone());
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        page = app.get_ok(&format!("{path}/tracks?limit=3&cursor={cursor}")).await;
    }
    assert_eq!(&paged, tracks);
    let between = app.get_ok(&format!("{path}/tracks?from_ms=5000&to_ms=9000")).await;
    let expected: Vec<Value> = tracks
        .iter()
        .filter(|track| track["end_ms"].as_i64() >= Some(5_000) && track["start_ms"].as_i64() < Some(9_000))
        .cloned()
        .collect();
    assert_eq!(between.list("tracks"), &expected);
    let person = app.get_ok(&format!("{path}/tracks?person=2")).await;
    assert!(!person.list("tracks").is_empty());
    assert!(person.list("tracks").iter().all(|track| track["person"] == 2));
    // A search by a stored face finds the other shots of the person, with their times.
    let track = &person.list("tracks")[0];
    let shot = &track["faces"][0];
    let found = app.post_ok("/faces/search", &json!({"face_id": shot["face_id"]})).await;
    let appearance = &found["matches"][0]["appearances"][0];
    assert_eq!((&appearance["video_id"], &appearance["person"]), (&video["id"], &json!(2)));
    let times = [&appearance["start_ms"], &appearance["at_ms"], &appearance["end_ms"]];
    assert!(times.is_sorted_by_key(|time| time.as_i64()), "{times:?}");
    // A best shot has a crop, a chip and an image, but no thumbnail of the whole frame.
    let face = app.get_ok(&format!("/faces/{}", shot.text("face_id"))).await;
    for kind in ["crop", "chip"] {
        let image = app.get(&format!("/faces/{}/crop?kind={kind}", shot.text("face_id"))).await;
        assert_eq!(image.status(), StatusCode::OK);
    }
    let image = format!("/images/{}", face.text("image_id"));
    assert_eq!(app.get_ok(&image).await["format"], "video_frame");
    assert_eq!(app.get(&format!("{image}/thumbnail")).await.status(), StatusCode::NOT_FOUND);
    // The same file is not stored again.
    let second = ok(app.post_raw("/videos", "video/mp4", file).await).await;
    assert_eq!(second["id"], video["id"]);
    let listed = app.get_ok("/videos?state=completed").await;
    assert_eq!(listed.list("videos").len(), 1);
    assert!(app.get_ok("/videos?state=queued").await.list("videos").is_empty());
    problem(app.post_json(&format!("{path}/pause"), &json!({})).await, 409, "conflict").await;
    // The deletion of the video deletes all its data.
    assert_eq!(app.delete(&path).await.status(), StatusCode::NO_CONTENT);
    problem(app.get(&path).await, 404, "not_found").await;
    assert!(app.get_ok("/faces").await.list("faces").is_empty());
    assert!(app.get_ok("/images").await.list("images").is_empty());
    assert_eq!(testing::files_below(app.blob_folder.path()), Vec::<std::path::PathBuf>::new());
    let audit = app.get_ok("/audit?action=video.delete").await;
    assert_eq!(audit.list("records")[0]["detail"]["video_id"], video["id"]);
}

#[testing::needs(video)]
#[testing::test]
async fn refine_option_is_stored_and_applied() {
    let app = app_with_videos().await;
    let video = analyze(&app, "?refine=true&max_gap_ms=4000", clip()).await;
    assert_eq!((&video["state"], &video["people"]), (&json!("completed"), &json!(7)), "{video:#}");
    assert_eq!(video["options"], json!({"sampling": "auto", "max_gap_ms": 4000, "refine": true}));
    let frames = video["frames"].as_i64().unwrap();
    assert!((80..=130).contains(&frames), "{frames}");
}

#[testing::needs(video)]
#[testing::test]
async fn video_progress_events_continue_until_completion() {
    let app = app_with_videos().await;
    let sent = app.post_raw("/videos?sampling=fps=5", "video/mp4", clip()).await;
    let video = to_json(sent, StatusCode::ACCEPTED).await;
    let path = format!("/videos/{}", video.text("id"));
    let mut events = Events::new(&app, &path).await;
    let mut last = Value::Null;
    while let Some((name, data)) = events.next().await {
        assert_eq!(data["id"], video["id"]);
        assert_ne!(data, last, "an event is sent only after a change");
        let has_ended = data["finished_at"].is_string();
        assert_eq!(name, if has_ended { "done" } else { "progress" });
        last = data;
    }
    assert_eq!(last, app.get_ok(&path).await);
    assert_eq!((&last["state"], &last["read_ms"]), (&json!("completed"), &json!(24_960)));
    // A stream of a video that has ended contains only `done`.
    let mut second_stream = Events::new(&app, &path).await;
    assert_eq!(second_stream.next().await, Some(("done".to_owned(), last)));
    assert_eq!(second_stream.next().await, None);
    problem(app.get(&format!("/videos/{}/events", uuid::Uuid::nil())).await, 404, "not_found").await;
}

/// All stored data of some tracks: boxes as they are in a dump, and the ids and blobs of their
/// faces.
struct Traces {
    texts: BTreeSet<String>,
    blobs: BTreeSet<std::path::PathBuf>,
}

#[testing::needs(video)]
#[testing::test]
async fn erased_person_of_video_leaves_no_data() {
    let app = app_with_videos().await;
    let file = clip();
    let video = analyze(&app, "?sampling=fps=5", file.clone()).await;
    let path = format!("/videos/{}", video.text("id"));
    let before = app.get_ok(&format!("{path}/tracks")).await;
    let filter_tracks = |tracks: &Value, person: i64, is_person: bool| -> Vec<Value> {
        let is_selected = |track: &&Value| (track["person"] == person) == is_person;
        tracks.list("tracks").iter().filter(is_selected).cloned().collect()
    };
    let their_tracks = filter_tracks(&before, 1, true);
    assert!(their_tracks.len() > 1);
    let traces = collect_traces(&app, &their_tracks).await;
    let database = dump(&app);
    for text in &traces.texts {
        assert!(database.contains(text.as_str()), "{text}");
    }
    assert!(traces.blobs.iter().all(|blob| blob.exists()));
    // The person is enrolled with the faces of all tracks, and erased with `suppress_person`.
    let faces: Vec<&Value> =
        their_tracks.iter().flat_map(|track| track.list("faces")).map(|face| &face["face_id"]).collect();
    let subject = app.create("/subjects", &json!({"name": "A"})).await;
    let enrol = format!("/subjects/{}/faces", subject.text("id"));
    app.post_ok(&enrol, &json!({"face_ids": faces, "force": true})).await;
    let erasure = json!({"subject_id": subject["id"], "suppress_person": true});
    let erased = erase(&app, &erasure).await;
    assert_eq!(erased["erasure"]["faces"].as_u64(), Some(faces.len() as u64), "{erased:#}");
    let after = app.get_ok(&format!("{path}/tracks")).await;
    assert_eq!(after.list("tracks"), &filter_tracks(&before, 1, false));
    let database = dump(&app);
    for text in &traces.texts {
        assert!(!database.contains(text.as_str()), "{text}");
    }
    for blob in &traces.blobs {
        assert!(!blob.exists(), "{blob:?}");
    }
    // When the same file is analysed again, the person is not stored.
    assert_eq!(app.delete(&path).await.status(), StatusCode::NO_CONTENT);
    let second_video = analyze(&app, "?sampling=fps=5", file).await;
    assert_eq!(second_video["people"], video["people"].as_i64().unwrap() - 1);
}

async fn collect_traces(app: &App, tracks: &[Value]) -> Traces {
    let mut traces = Traces { texts: BTreeSet::new(), blobs: BTreeSet::new() };
    let store = &app.state.services.store;
    for track in tracks {
        traces.texts.insert(track.text("id").into());
        for shot in track.list("faces") {
            let face = store.faces().get(shot.text("face_id").parse().unwrap()).await.unwrap();
            traces.texts.insert(face.id.to_string());
            for part in [face.parts.crop(), face.parts.chip()] {
                traces.blobs.insert(app.blob_folder.path().join(part.unwrap().key));
            }
            // The beginning of the embedding, as a dump writes it.
            let (_, embedding) = store.faces().embedding(face.id).await.unwrap();
            let start: Vec<String> = embedding.iter().take(4).map(f32::to_string).collect();
            traces.texts.insert(format!("[{},", start.join(",")));
        }
    }
    let filter =
        store::videos::VideoFilter { collection: "default".into(), ..store::videos::VideoFilter::default() };
    let video = store.videos().list(&filter, None, 1).await.unwrap()[0].id;
    let ids: BTreeSet<&str> = tracks.iter().map(|track| track.text("id")).collect();
    for track in store
        .tracks()
        .list(video, &store::videos::tracks::TrackFilter::default(), None, 1_000)
        .await
        .unwrap()
        .tracks
    {
        if ids.contains(track.id.to_string().as_str()) {
            traces.texts.insert(hex::encode(&track.boxes));
        }
    }
    traces
}

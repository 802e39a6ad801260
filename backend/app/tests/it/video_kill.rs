//! Tests that a service which is killed in the middle of a video loses at most one part of it, and
//! stores nothing twice.
#![cfg(unix)]

use crate::common::process::TestFolder;
use crate::common::service::{Service, client, get, until};
use rustix::process::Signal;
use serde_json::{Value, json};
use testing::TestDatabase;
use testing::film::{Codec, Container, Encoding, Film, repeat};

/// Returns what must not depend on interruptions.
fn summaries(tracks: &Value) -> Vec<Value> {
    let without_ids = |track: &Value| {
        let shots: Vec<Value> = track["faces"].as_array().unwrap().iter().map(shot).collect();
        json!([track["person"], track["start_ms"], track["end_ms"], track["samples"], track["boxes"], shots])
    };
    assert_eq!(tracks["next_cursor"], Value::Null);
    tracks["tracks"].as_array().unwrap().iter().map(without_ids).collect()
}

fn shot(face: &Value) -> Value {
    json!([face["at_ms"], face["quality"]])
}

async fn json_at(url: &str) -> Value {
    serde_json::from_str(&get(url).await.1).unwrap()
}

/// Sends a film and returns the path of the video.
async fn send(base: &str, query: &str, film: &[u8]) -> String {
    let url = format!("{base}/videos{query}");
    let request = client().post(url).header("content-type", "video/x-matroska").body(film.to_vec());
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 202);
    answer.headers()["location"].to_str().unwrap().to_owned()
}

#[testing::needs(video, slow)]
#[testing::test(flavor = "multi_thread")]
async fn a_service_killed_twice_in_a_video_finds_the_same_tracks() {
    let place = TestFolder::new();
    let (once, path) = (place.path().join("once.mkv"), place.path().join("film.mkv"));
    let encoding = Encoding::new(Codec::H264, Container::Mkv);
    Film::standard().encode(&encoding, &once).unwrap();
    repeat(&once, 5, &encoding, &path).unwrap();
    let film = std::fs::read(&path).unwrap();
    let database = TestDatabase::create().await;
    let spool = place.path().join("spool");
    std::fs::create_dir(&spool).unwrap();
    let start = || {
        let mut command = place.facecrawl(&["up", "--port", "0"]);
        command.env("DATABASE_URL", database.url()).env("FFMPEG", testing::ffmpeg());
        command.env("VIDEO_SPOOL", &spool);
        Service::start(&mut command)
    };
    let mut service = start();
    let video = send(&service.base, "?sampling=fps=5", &film).await;
    let mut stored_ms = 0;
    for _ in 0..2 {
        let url = format!("{}{video}", service.base);
        let read = until(&url, |video| video["read_ms"].as_i64() > Some(stored_ms)).await;
        assert_eq!(read["state"], "running");
        service.signal(Signal::KILL);
        service.ended();
        stored_ms = read["read_ms"].as_i64().unwrap();
        assert_eq!(std::fs::read_dir(&spool).unwrap().count(), 0, "the copy of the file has no name");
        // The lease of the dead worker need not run out.
        database.execute("update jobs set lease_until = now() where state = 'running'").await;
        service = start();
        let kept = json_at(&format!("{}{video}", service.base)).await;
        assert!(kept["read_ms"].as_i64() >= Some(stored_ms), "{kept}");
    }
    let ended = |video: &Value| video["finished_at"].is_string();
    let interrupted = until(&format!("{}{video}", service.base), ended).await;
    assert_eq!((&interrupted["state"], &interrupted["reason"]), (&json!("completed"), &Value::Null));
    let found = summaries(&json_at(&format!("{}{video}/tracks?limit=1000", service.base)).await);

    let collections = format!("{}/collections", service.base);
    let created = client().post(collections).json(&json!({"name": "undisturbed"})).send().await.unwrap();
    assert_eq!(created.status(), 201);
    let other = send(&service.base, "?sampling=fps=5&collection=undisturbed", &film).await;
    let undisturbed = until(&format!("{}{other}", service.base), ended).await;
    let expected = summaries(&json_at(&format!("{}{other}/tracks?limit=1000", service.base)).await);
    assert!(expected.len() > 40, "{}", expected.len());
    assert_eq!(found, expected);
    for same in ["people", "frames", "unidentified_tracks", "read_ms"] {
        assert_eq!(interrupted[same], undisturbed[same], "{same}");
    }
    // Nothing is stored twice.
    let faces = |collection: &str| format!("{}/faces?limit=1000&collection={collection}", service.base);
    let count = async |collection| json_at(&faces(collection)).await["faces"].as_array().unwrap().len();
    assert_eq!(count("default").await, count("undisturbed").await);
}

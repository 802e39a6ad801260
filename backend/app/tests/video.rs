//! Tests the analysis of video files by the binary, without a database.
#![allow(clippy::unwrap_used, missing_docs)]
mod common;

use common::process::TestFolder;
use testing::film::{Codec, Container, Encoding, Film};

/// The program starts itself again as the sandbox of ffmpeg.
#[testing::needs(video)]
#[test]
fn detect_prints_who_appears_in_a_video_and_when() {
    let place = TestFolder::new();
    let encoding = Encoding::new(Codec::H264, Container::Mkv);
    Film::standard().encode(&encoding, &place.path().join("film.mkv")).unwrap();
    let ffmpeg = format!("FFMPEG={}", testing::ffmpeg().display());
    let detect = ["detect", "-s", ffmpeg.as_str(), "film.mkv", "--sampling"];
    let with = |more: &[&'static str]| -> Vec<&str> { detect.iter().chain(more).copied().collect() };
    let found = place.run(&with(&["fps=5", "--json", "--no-embeddings"])).expect(0).json();
    let film = &found["results"][0];
    assert_eq!(
        (&film["file"], &film["video"]["codec"], &film["people"]),
        (&"film.mkv".into(), &"h264".into(), &7.into())
    );
    let track = &film["tracks"][0];
    assert_eq!((&track["track"], &track["start_ms"]), (&1.into(), &0.into()));
    assert!(track["end_ms"].as_i64().unwrap() > 1_000 && track["boxes"][0].as_array().unwrap().len() == 5);
    assert!(track["faces"][0]["quality"]["passed"].as_bool().unwrap());
    assert!(track["faces"][0].get("embedding").is_none());
    let table = place.run(&with(&["auto"])).expect(0);
    assert!(table.stdout.contains("film.mkv: h264 640x360, 0:00:25.0; "), "{}", table.stdout);

    place.put("cut.mkv", &std::fs::read(place.path().join("film.mkv")).unwrap()[..200]);
    let broken = place.run(&["detect", "-s", ffmpeg.as_str(), "cut.mkv", "--json"]).expect(1).json();
    assert_eq!(broken["results"][0]["error"]["code"], "not_a_video");
    let missing = place.run(&["detect", "-s", "FFMPEG=/no/such/ffmpeg", "film.mkv"]).expect(1);
    assert!(missing.stderr.contains("/no/such/ffmpeg"), "{}", missing.stderr);
    place.run(&["detect", "film.mkv", "--sampling", "fps=0"]).expect(2);
    place.run(&["detect", "film.mkv", "--draw", "out.png"]).expect(2);
}

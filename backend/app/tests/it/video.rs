//! Tests the analysis of video files by the binary, and its measurement, without a database.
mod gpu;

use crate::common::process::TestFolder;
use testing::film::{Codec, Container, Encoding, Film};

/// The program starts itself again as the sandbox of ffmpeg.
#[testing::needs(video, slow)]
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
    let refused = place.run(&["detect", "film.mkv", "--sampling", "fps=5", "--refine"]).expect(2);
    assert!(refused.stderr.contains("--refine: it requires the sampling auto"), "{}", refused.stderr);
    let closer = place.run(&with(&["auto", "--refine", "--json", "--no-embeddings"])).expect(0).json();
    assert_eq!(closer["results"][0]["people"], 7);
    let frames = closer["results"][0]["video"]["frames"].as_i64().unwrap();
    assert!((80..=130).contains(&frames), "{frames}");
    place.run(&["detect", "film.mkv", "--draw", "out.png"]).expect(2);
}

#[testing::needs(video)]
#[test]
fn detect_tells_how_exact_the_times_of_a_video_are() {
    let place = TestFolder::new();
    let mut film = Film::standard();
    film.shots = vec![film.shots[1].clone()];
    film.shots[0].frames = 99;
    let encoding = Encoding::new(Codec::H264, Container::Mp4);
    film.encode(&encoding, &place.path().join("film.mp4")).unwrap();
    let ffmpeg = format!("FFMPEG={}", testing::ffmpeg().display());
    let detect = ["detect", "-s", ffmpeg.as_str(), "film.mp4"];
    let with = |more: &[&'static str]| -> Vec<&str> { detect.iter().chain(more).copied().collect() };
    let table = place.run(&with(&[])).expect(0).stdout;
    assert!(table.contains("analysed, 1 person, 1 track; times are exact to 2.00 s"), "{table}");
    assert!(table.contains("0:00:03.9 (end)"), "{table}");
    let json = place.run(&with(&["--json", "--no-embeddings"])).expect(0).json();
    let film = &json["results"][0];
    assert_eq!(film["video"]["tolerance_ms"], 2_000);
    assert_eq!((&film["tracks"][0]["end_ms"], &film["tracks"][0]["to_end"]), (&3_920.into(), &true.into()));
}

#[testing::needs(video)]
#[test]
fn bench_measures_every_sampling_and_decoding_alone() {
    let place = TestFolder::new();
    let encoding = Encoding::new(Codec::H264, Container::Mp4);
    Film::standard().encode(&encoding, &place.path().join("film.mp4")).unwrap();
    let ffmpeg = format!("FFMPEG={}", testing::ffmpeg().display());
    let bench = ["bench", "-s", ffmpeg.as_str(), "--operation", "video", "film.mp4", "--no-gpu"];
    let with = |more: &[&'static str]| -> Vec<&str> { bench.iter().chain(more).copied().collect() };
    let measured = place.run(&with(&["--iterations", "1", "--json", "-"])).expect(0).json();
    let plan = &measured["plan"];
    assert_eq!((&plan["codec"], &plan["seconds"]), (&"h264".into(), &25.0.into()), "{plan}");
    assert!(measured["system"]["detector"].is_string());
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{measured}"));
    for (sampling, frames) in [("auto", 13..27), ("keyframes", 13..60), ("fps=5", 126..127)] {
        let result = &measured["benchmark_results"]["video"][sampling]["gpu_false"];
        assert_eq!((&result["analyses"], &result["success_rate"]), (&1.into(), &1.0.into()), "{result}");
        assert!(frames.contains(&result["frames"].as_u64().unwrap()), "{sampling}: {result}");
        let times = &result["times_real_time"];
        assert!(number(&times["min"]) <= number(&times["median"]) && number(&times["min"]) > 0.0);
        assert!(number(&result["decoding"]["times_real_time"]["median"]) > 0.0);
        assert!(number(&result["share_of_decode_limit"]) > 0.0 && number(&result["people"]) > 1.0);
        let (cpu, memory) = (&result["cpu_seconds_per_minute"], &result["resident_bytes"]);
        assert!(number(&cpu["service"]) > 0.0 && number(&cpu["decoder"]) > 0.0, "{cpu}");
        assert!(number(&cpu["parts"]["detect"]) > 0.0 && number(&cpu["parts"]["read"]) > 0.0, "{cpu}");
        assert!(number(&memory["peak_service"]) > 1e7, "{memory}");
        // Memory is sampled, and a decoder that reads only key frames may end between two samples.
        assert!(sampling == "keyframes" || number(&memory["peak_decoder"]) > 1e6, "{memory}");
        assert_eq!(memory["tenths"].as_array().unwrap().len(), 10);
    }
    let table = place.run(&with(&["--iterations", "1", "--sampling", "keyframes"])).expect(0);
    table.fits();
    let written = &table.stdout;
    assert!(
        written.contains("film.mp4: h264 640x360, 25.0 s, ") && written.contains("keyframes, CPU"),
        "{written}"
    );
    assert!(!written.contains("fps=5"), "{written}");

    place.put("broken.mp4", &std::fs::read(place.path().join("film.mp4")).unwrap()[..200]);
    let broken = ["bench", "-s", ffmpeg.as_str(), "--operation", "video", "broken.mp4", "--no-gpu"];
    assert!(place.run(&broken).expect(1).stderr.contains("error: "));
}

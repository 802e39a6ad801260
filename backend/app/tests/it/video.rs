//! Tests the analysis of video files by the binary, and its measurement. Tests `VIDEO_DECODING_GPU`
//! with a program that replaces ffmpeg and simulates GPUs.
use crate::common::service::{Output, Service, TestFolder, assert_contains, get};
use serde_json::Value;
use std::process::Command;
use testing::film::Film;
use testing::{FakeGpu, TestDatabase, ffmpeg_with_gpu};

/// The program starts itself again as the sandbox of ffmpeg.
#[testing::needs(video, slow)]
#[test]
fn detect_lists_people_and_times_in_video() {
    let folder = TestFolder::new();
    folder.put_film("film.mkv", &Film::standard());
    let ffmpeg = format!("FFMPEG={}", testing::ffmpeg().display());
    let detect = ["detect", "-s", ffmpeg.as_str(), "film.mkv", "--sampling"];
    let args = |more: &[&'static str]| -> Vec<&str> { detect.iter().chain(more).copied().collect() };
    let output = folder.run(&args(&["fps=5", "--json", "--no-embeddings"])).success().json();
    let film = &output["results"][0];
    assert_eq!(
        (&film["file"], &film["video"]["codec"], &film["people"]),
        (&"film.mkv".into(), &"h264".into(), &7.into())
    );
    let track = &film["tracks"][0];
    assert_eq!((&track["track"], &track["start_ms"]), (&1.into(), &0.into()));
    assert!(track["end_ms"].as_i64().unwrap() > 1_000 && track["boxes"][0].as_array().unwrap().len() == 5);
    assert!(track["faces"][0]["quality"]["passed"].as_bool().unwrap());
    assert!(track["faces"][0].get("embedding").is_none());
    let table = folder.run(&args(&["auto"])).success();
    assert!(table.stdout.contains("film.mkv: h264 640x360, 0:00:25.0; "), "{}", table.stdout);

    folder.put("cut.mkv", &std::fs::read(folder.path().join("film.mkv")).unwrap()[..200]);
    let broken = folder.run(&["detect", "-s", ffmpeg.as_str(), "cut.mkv", "--json"]).assert_status(1).json();
    assert_eq!(broken["results"][0]["error"]["code"], "not_a_video");
    folder.run(&["detect", "-s", "FFMPEG=/no/such/ffmpeg", "film.mkv"]).fails(1, &["/no/such/ffmpeg"]);
    folder.run(&["detect", "film.mkv", "--sampling", "fps=0"]).assert_status(2);
    folder
        .run(&["detect", "film.mkv", "--sampling", "fps=5", "--refine"])
        .fails(2, &["--refine: it requires the sampling auto"]);
    let refined = folder.run(&args(&["auto", "--refine", "--json", "--no-embeddings"])).success().json();
    assert_eq!(refined["results"][0]["people"], 7);
    let frames = refined["results"][0]["video"]["frames"].as_i64().unwrap();
    assert!((80..=130).contains(&frames), "{frames}");
    folder.run(&["detect", "film.mkv", "--draw", "out.png"]).assert_status(2);
}

#[testing::needs(video)]
#[test]
fn detect_reports_time_tolerance_of_video() {
    let folder = TestFolder::new();
    let mut film = Film::standard();
    film.shots = vec![film.shots[1].clone()];
    film.shots[0].frames = 99;
    folder.put_film("film.mp4", &film);
    let ffmpeg = format!("FFMPEG={}", testing::ffmpeg().display());
    let detect = ["detect", "-s", ffmpeg.as_str(), "film.mp4"];
    let args = |more: &[&'static str]| -> Vec<&str> { detect.iter().chain(more).copied().collect() };
    let table = folder.run(&args(&[])).success().stdout;
    assert!(table.contains("analysed, 1 person, 1 track; times are exact to 2.00 s"), "{table}");
    assert!(table.contains("0:00:03.9 (end)"), "{table}");
    let json = folder.run(&args(&["--json", "--no-embeddings"])).success().json();
    let film = &json["results"][0];
    assert_eq!(film["video"]["tolerance_ms"], 2_000);
    assert_eq!((&film["tracks"][0]["end_ms"], &film["tracks"][0]["to_end"]), (&3_920.into(), &true.into()));
}

#[testing::needs(video)]
#[test]
fn bench_measures_every_sampling_and_decoding() {
    let folder = TestFolder::new();
    folder.put_film("film.mp4", &Film::standard());
    let ffmpeg = format!("FFMPEG={}", testing::ffmpeg().display());
    let bench = ["bench", "-s", ffmpeg.as_str(), "--operation", "video", "film.mp4", "--no-gpu"];
    let args = |more: &[&'static str]| -> Vec<&str> { bench.iter().chain(more).copied().collect() };
    let report = folder.run(&args(&["--iterations", "1", "--json", "-"])).success().json();
    let plan = &report["plan"];
    assert_eq!((&plan["codec"], &plan["seconds"]), (&"h264".into(), &25.0.into()), "{plan}");
    assert!(report["system"]["detector"].is_string());
    let number = |value: &serde_json::Value| value.as_f64().unwrap_or_else(|| panic!("{report}"));
    for (sampling, frames) in [("auto", 13..27), ("keyframes", 13..60), ("fps=5", 126..127)] {
        let result = &report["benchmark_results"]["video"][sampling]["gpu_false"];
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
    let table = folder.run(&args(&["--iterations", "1", "--sampling", "keyframes"])).success();
    table.assert_table_width();
    let written = &table.stdout;
    assert_contains(written, &["film.mp4: h264 640x360, 25.0 s, ", "keyframes, CPU"]);
    assert!(!written.contains("fps=5"), "{written}");

    folder.put("broken.mp4", &std::fs::read(folder.path().join("film.mp4")).unwrap()[..200]);
    let broken = ["bench", "-s", ffmpeg.as_str(), "--operation", "video", "broken.mp4", "--no-gpu"];
    folder.run(&broken).fails(1, &["error: "]);
}

/// Returns a command that decodes with these GPUs, if `variables` request it. The program that
/// replaces ffmpeg is a shell script, which cannot run in the sandbox.
fn command(folder: &TestFolder, gpu: FakeGpu, args: &[&str], variables: &[(&str, &str)]) -> Command {
    let mut command = folder.facecrawl(args);
    command.env("MODEL_PACK", "fixture").env("GPU_BACKEND", "cuda").env("VIDEO_SANDBOX", "false");
    command.env("FFMPEG", ffmpeg_with_gpu(folder.path(), gpu)).envs(variables.to_vec());
    command
}

/// Returns the last operation of `facecrawl gpu --json`.
fn operation(folder: &TestFolder, gpu: FakeGpu, variables: &[(&str, &str)]) -> Value {
    let mut command = command(folder, gpu, &["gpu", "--json"], variables);
    let report = Output::run(&mut command).success().json();
    let operations = report["operations"].as_array().unwrap();
    assert_eq!((operations.len(), &operations[5]["operation"]), (6, &"video_decoding".into()));
    operations[5].clone()
}

const GPU_DECODING: (&str, &str) = ("VIDEO_DECODING_GPU", "true");
const STRICT: (&str, &str) = ("FORCE_GPU_ONLY", "true");

#[testing::needs(video)]
#[test]
fn gpu_reports_video_decoder_and_reason() {
    let (folder, _) = TestFolder::with_small_models();
    let device = |entry: &Value| entry["effective"].as_str().unwrap().to_owned();
    let default = operation(&folder, FakeGpu::Works, &[]);
    assert_eq!((device(&default).as_str(), &default["gpu_requested"]), ("cpu", &false.into()));
    let gpus = operation(&folder, FakeGpu::Works, &[GPU_DECODING, STRICT, ("GPU_DEVICE_IDS", "1,0")]);
    assert_eq!((device(&gpus).as_str(), &gpus["requested"]), ("cuda:1,cuda:0", &"cuda".into()), "{gpus}");
    let all_gpu = operation(&folder, FakeGpu::Works, &[("ALL_GPU", "true")]);
    assert_eq!((device(&all_gpu).as_str(), &all_gpu["reason"]), ("cuda:0", &Value::Null), "{all_gpu}");

    for (gpu, backend, kind, expected) in [
        (FakeGpu::Missing, "cuda", "driver_missing", "cuda: the NVIDIA driver is missing"),
        (FakeGpu::Differs, "auto", "disagrees", "10 of 10 frames differ"),
        (FakeGpu::Works, "rocm", "unsuited", "GPUs of NVIDIA only"),
        (FakeGpu::Works, "mps", "unsuited", "GPUs of NVIDIA only"),
    ] {
        let variables = [GPU_DECODING, ("GPU_BACKEND", backend)];
        let entry = operation(&folder, gpu, &variables);
        let reason = entry["reason"].as_str().unwrap();
        assert_eq!((device(&entry).as_str(), &entry["reason_kind"]), ("cpu", &kind.into()), "{entry}");
        assert!(reason.contains(expected), "{reason}");
        let strict = [&variables[..], &[STRICT]].concat();
        let error = "FORCE_GPU_ONLY is set, but video_decoding cannot run on a GPU";
        Output::run(&mut command(&folder, gpu, &["gpu"], &strict)).fails(1, &[error, expected]);
    }
}

/// Without ffmpeg, videos are not decoded, so there is no fallback.
#[test]
fn missing_ffmpeg_is_reported_as_reason_without_fallback() {
    let (folder, _) = TestFolder::with_small_models();
    let mut command = folder.facecrawl(&["gpu", "--json"]);
    command.env("MODEL_PACK", "fixture").env("FFMPEG", "/no/such/ffmpeg").envs([GPU_DECODING, STRICT]);
    let report = Output::run(&mut command).success().json();
    let entry = &report["operations"][5];
    assert_eq!((&entry["effective"], &entry["reason_kind"]), (&"none".into(), &"program_missing".into()));
    assert!(entry["reason"].as_str().unwrap().contains("/no/such/ffmpeg"), "{entry}");
}

/// The process with the GPU runs in its own sandbox. No machine has a GPU with this number.
#[testing::needs(video)]
#[test]
fn real_ffmpeg_without_gpu_falls_back_with_reason() {
    let (folder, _) = TestFolder::with_small_models();
    let mut command = folder.facecrawl(&["gpu", "--json"]);
    command.env("MODEL_PACK", "fixture").env("FFMPEG", testing::ffmpeg());
    command.env("GPU_DEVICE_ID", "250").env("GPU_BACKEND", "cuda").envs([GPU_DECODING]);
    let finished = Output::run(&mut command).success();
    let entry = &finished.json()["operations"][5];
    assert_eq!((&entry["requested"], &entry["effective"]), (&"cuda".into(), &"cpu".into()), "{entry}");
    let (reason, detail) = (entry["reason"].as_str().unwrap(), entry["detail"].as_str().unwrap());
    assert!(reason.starts_with("cuda: ") && detail.starts_with("cuda: "), "{entry}");
    assert!(finished.stderr.contains("no GPU for these operations"), "{}", finished.stderr);
}

#[testing::needs(video)]
#[test]
fn failed_gpu_decoding_continues_on_cpu_unless_forced() {
    let folder = TestFolder::new();
    let mut film = Film::standard();
    film.shots.truncate(2);
    folder.put_film("film.mkv", &film);
    let detect = ["detect", "--json", "--sampling", "fps=5", "film.mkv"];
    let run = |variables: &[(&str, &str)]| {
        let mut command = command(&folder, FakeGpu::Breaks(3_000_000), &detect, variables);
        Output::run(command.env_remove("MODEL_PACK"))
    };
    let cpu = run(&[]).success().json();
    let finished = run(&[GPU_DECODING]).success();
    assert_contains(&finished.stderr, &["the CPU decodes the rest of it", "cuvidDecodePicture failed"]);
    let gpu = finished.json();
    let frames_and_tracks = |report: &Value| {
        let result = &report["results"][0];
        assert!(result["video"]["frames"].as_u64().unwrap() > 10, "{report}");
        (result["video"]["frames"].clone(), result["tracks"].clone())
    };
    assert_eq!(frames_and_tracks(&gpu), frames_and_tracks(&cpu));
    let used = std::fs::read_to_string(folder.path().join("gpus")).unwrap();
    assert_eq!(used.lines().count(), 2, "the self-test and the video");
    let strict = run(&[GPU_DECODING, STRICT]).assert_status(1).json();
    let error = &strict["results"][0]["error"];
    assert_eq!(error["code"], "video_unavailable", "{strict}");
    assert!(error.to_string().contains("FORCE_GPU_ONLY"), "{error}");
}

#[testing::needs(video)]
#[testing::test(flavor = "multi_thread")]
async fn service_counts_and_reports_gpu_fallback() {
    let (folder, database) = (TestFolder::with_small_models().0, TestDatabase::create().await);
    let mut command = command(&folder, FakeGpu::Missing, &["serve", "--port", "0"], &[GPU_DECODING]);
    let service = Service::start(command.env("DATABASE_URL", database.url()));
    let (status, report) = get(&format!("{}/gpu", service.base)).await;
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (status, &report["operations"][5]["reason_kind"]),
        (200, &"driver_missing".into()),
        "{report}"
    );
    let (_, metrics) = get(&format!("{}/metrics", service.base)).await;
    let counter = "facecrawl_ep_fallback_total{operation=\"video_decoding\",provider=\"cuda\"} 1";
    assert!(metrics.contains(counter), "{metrics}");
}

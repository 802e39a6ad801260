//! Tests `VIDEO_DECODING_GPU` with a program that replaces ffmpeg and behaves as on a machine with
//! GPUs, and with the real ffmpeg on a machine without a GPU.
use crate::common::process::{Finished, TestFolder};
use crate::common::service::{Service, get};
use serde_json::Value;
use testing::film::{Codec, Container, Encoding, Film};
use testing::{FakeGpu, TestDatabase, ffmpeg_with_gpu};

/// A folder with small models, which need no download.
fn place() -> TestFolder {
    let place = TestFolder::new();
    let models = place.path().join("models");
    std::fs::create_dir(&models).unwrap();
    place.put("models/packs.toml", testing::fixture_pack(&models).manifest());
    place
}

/// Returns a command that decodes with these GPUs, if `variables` request it. The program that
/// replaces ffmpeg is a shell script, which cannot run in the sandbox.
fn command(
    place: &TestFolder,
    gpu: FakeGpu,
    args: &[&str],
    variables: &[(&str, &str)],
) -> std::process::Command {
    let mut command = place.facecrawl(args);
    command.env("MODEL_PACK", "fixture").env("GPU_BACKEND", "cuda").env("VIDEO_SANDBOX", "false");
    command.env("FFMPEG", ffmpeg_with_gpu(place.path(), gpu)).envs(variables.to_vec());
    command
}

/// Returns the last operation of `facecrawl gpu --json`.
fn operation(place: &TestFolder, gpu: FakeGpu, variables: &[(&str, &str)]) -> Value {
    let mut command = command(place, gpu, &["gpu", "--json"], variables);
    let report = Finished::of(&mut command).expect(0).json();
    let operations = report["operations"].as_array().unwrap();
    assert_eq!((operations.len(), &operations[5]["operation"]), (6, &"video_decoding".into()));
    operations[5].clone()
}

const ON: (&str, &str) = ("VIDEO_DECODING_GPU", "true");
const STRICT: (&str, &str) = ("FORCE_GPU_ONLY", "true");

#[testing::needs(video)]
#[test]
fn gpu_reports_where_videos_are_decoded_and_why() {
    let place = place();
    let device = |found: &Value| found["effective"].as_str().unwrap().to_owned();
    let off = operation(&place, FakeGpu::Works, &[]);
    assert_eq!((device(&off).as_str(), &off["gpu_requested"]), ("cpu", &false.into()));
    let on = operation(&place, FakeGpu::Works, &[ON, STRICT, ("GPU_DEVICE_IDS", "1,0")]);
    assert_eq!((device(&on).as_str(), &on["requested"]), ("cuda:1,cuda:0", &"cuda".into()), "{on}");
    let all = operation(&place, FakeGpu::Works, &[("ALL_GPU", "true")]);
    assert_eq!((device(&all).as_str(), &all["reason"]), ("cuda:0", &Value::Null), "{all}");

    for (gpu, backend, kind, said) in [
        (FakeGpu::Missing, "cuda", "driver_missing", "cuda: the NVIDIA driver is missing"),
        (FakeGpu::Differs, "auto", "disagrees", "10 of 10 frames differ"),
        (FakeGpu::Works, "rocm", "unsuited", "GPUs of NVIDIA only"),
        (FakeGpu::Works, "mps", "unsuited", "GPUs of NVIDIA only"),
    ] {
        let variables = [ON, ("GPU_BACKEND", backend)];
        let found = operation(&place, gpu, &variables);
        let reason = found["reason"].as_str().unwrap();
        assert_eq!((device(&found).as_str(), &found["reason_kind"]), ("cpu", &kind.into()), "{found}");
        assert!(reason.contains(said), "{reason}");
        let strict = [&variables[..], &[STRICT]].concat();
        let failed = Finished::of(&mut command(&place, gpu, &["gpu"], &strict)).expect(1).stderr;
        let named = failed.contains("FORCE_GPU_ONLY is set, but video_decoding cannot run on a GPU");
        assert!(named && failed.contains(said), "{failed}");
    }
}

/// Without ffmpeg, nothing decodes videos, so there is no fallback.
#[test]
fn without_ffmpeg_the_variable_has_no_effect_and_the_report_says_why() {
    let place = place();
    let mut command = place.facecrawl(&["gpu", "--json"]);
    command.env("MODEL_PACK", "fixture").env("FFMPEG", "/no/such/ffmpeg").envs([ON, STRICT]);
    let report = Finished::of(&mut command).expect(0).json();
    let found = &report["operations"][5];
    assert_eq!((&found["effective"], &found["reason_kind"]), (&"none".into(), &"program_missing".into()));
    assert!(found["reason"].as_str().unwrap().contains("/no/such/ffmpeg"), "{found}");
}

/// The process with the GPU runs in its own sandbox. No machine has a GPU with this number.
#[testing::needs(video)]
#[test]
fn the_real_ffmpeg_without_a_gpu_falls_back_with_a_reason() {
    let place = place();
    let mut command = place.facecrawl(&["gpu", "--json"]);
    command.env("MODEL_PACK", "fixture").env("FFMPEG", testing::ffmpeg());
    command.env("GPU_DEVICE_ID", "250").env("GPU_BACKEND", "cuda").envs([ON]);
    let finished = Finished::of(&mut command).expect(0);
    let found = &finished.json()["operations"][5];
    assert_eq!((&found["requested"], &found["effective"]), (&"cuda".into(), &"cpu".into()), "{found}");
    let (reason, detail) = (found["reason"].as_str().unwrap(), found["detail"].as_str().unwrap());
    assert!(reason.starts_with("cuda: ") && detail.starts_with("cuda: "), "{found}");
    assert!(finished.stderr.contains("no GPU for these operations"), "{}", finished.stderr);
}

#[testing::needs(video)]
#[test]
fn a_video_on_which_the_gpu_fails_is_read_by_the_cpu_or_is_an_error() {
    let place = TestFolder::new();
    let encoding = Encoding::new(Codec::H264, Container::Mkv);
    let mut film = Film::standard();
    film.shots.truncate(2);
    film.encode(&encoding, &place.path().join("film.mkv")).unwrap();
    let detect = ["detect", "--json", "--sampling", "fps=5", "film.mkv"];
    let run = |variables: &[(&str, &str)]| {
        let mut command = command(&place, FakeGpu::Breaks(3_000_000), &detect, variables);
        Finished::of(command.env_remove("MODEL_PACK"))
    };
    let cpu = run(&[]).expect(0).json();
    let finished = run(&[ON]).expect(0);
    assert!(finished.stderr.contains("the CPU decodes the rest of it"), "{}", finished.stderr);
    assert!(finished.stderr.contains("cuvidDecodePicture failed"), "{}", finished.stderr);
    let gpu = finished.json();
    let found = |report: &Value| {
        let result = &report["results"][0];
        assert!(result["video"]["frames"].as_u64().unwrap() > 10, "{report}");
        (result["video"]["frames"].clone(), result["tracks"].clone())
    };
    assert_eq!(found(&gpu), found(&cpu));
    let used = std::fs::read_to_string(place.path().join("gpus")).unwrap();
    assert_eq!(used.lines().count(), 2, "the proof and the video");
    let strict = run(&[ON, STRICT]).expect(1).json();
    let error = &strict["results"][0]["error"];
    assert_eq!(error["code"], "video_unavailable", "{strict}");
    assert!(error.to_string().contains("FORCE_GPU_ONLY"), "{error}");
}

#[testing::needs(video)]
#[testing::test(flavor = "multi_thread")]
async fn the_service_counts_the_fallback_and_reports_it() {
    let (place, database) = (place(), TestDatabase::create().await);
    let mut command = command(&place, FakeGpu::Missing, &["serve", "--port", "0"], &[ON]);
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

//! Tests the binary without a database.

use crate::common::service::{Finished, TestFolder, assert_says};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn help_lists_every_command_and_exit_codes() {
    let help = TestFolder::new().run(&["--help"]).expect(0);
    for word in [
        "up", "serve", "worker", "scan", "detect", "bench", "models", "gpu", "config", "jobs", "migrate",
        "openapi", "health",
    ] {
        let line = help.stdout.lines().find(|line| line.trim_start().starts_with(word));
        assert!(line.is_some_and(|line| line.split_whitespace().count() > 2), "{word}: {}", help.stdout);
    }
    assert!(help.stdout.contains("Examples:") && help.stdout.contains("Exit status: 0 success"));
    for command in ["up", "scan", "detect", "models", "config"] {
        let help = TestFolder::new().run(&[command, "--help"]).expect(0);
        assert!(help.stdout.contains("--data-dir"), "{}", help.stdout);
    }
}

#[test]
fn invalid_command_line_exits_with_status_2() {
    let place = TestFolder::new();
    for args in [
        &["fly"][..],
        &["scan"],
        &["detect", "--min-score", "2", "a.jpg"],
        &["detect", "--max-faces", "0", "a.jpg"],
        &["detect", "--max-faces", "1001", "a.jpg"],
        &["scan", "nowhere"],
        &["detect", "--draw", "o.png", "a.jpg", "b.jpg"],
        &["--set", "PORT"],
        &["models", "verify", "huge"],
    ] {
        let finished = place.run(args).fails(2, &["error"]);
        assert!(finished.stdout.is_empty(), "{finished:?}");
    }
    assert!(place.run(&["scan", "nowhere"]).stderr.contains("nowhere is neither"));
}

#[test]
fn config_check_shows_values_and_sources_without_secrets() {
    let place = TestFolder::new();
    place.put("facecrawl.toml", "gpu_batch_size = 16");
    place.put(".env", "LOG_FORMAT=json\n");
    let run = |args: &[&str]| {
        Finished::of(
            place.facecrawl(args).env("DATABASE_URL", "postgres://u:s3cret@db/faces").env("WORKERS", ""),
        )
    };
    let checked = run(&["config", "check", "--json", "--port", "9000"]).expect(0).json();
    let of = |name: &str| -> (Value, Value) {
        let all = checked["variables"].as_array().unwrap();
        let one = all.iter().find(|variable| variable["name"] == name).unwrap();
        (one["value"].clone(), one["source"].clone())
    };
    assert_eq!(of("PORT"), ("9000".into(), "--port".into()));
    assert_eq!(of("DATABASE_URL"), ("postgres://u:***@db/faces".into(), "environment".into()));
    assert_eq!(of("LOG_FORMAT"), ("json".into(), ".env".into()));
    assert_eq!(of("GPU_BATCH_SIZE"), ("16".into(), "facecrawl.toml".into()));
    assert_eq!(of("WORKERS"), ("0".into(), "default".into()));
    assert_eq!(of("AUTH"), (Value::Null, "default".into()));
    let table = run(&["config", "check"]).expect(0);
    assert!(table.stdout.contains("GPU_BATCH_SIZE") && !table.stdout.contains("s3cret"), "{}", table.stdout);
}

#[test]
fn invalid_configuration_exits_2_and_names_setting() {
    let place = TestFolder::new();
    Finished::of(place.facecrawl(&["up"]).env("GPU_BACKEND", "vulkan"))
        .fails(2, &["GPU_BACKEND=vulkan (from environment)"]);
    place.run(&["config", "check", "--host", "0.0.0.0"]).fails(2, &["AUTH=none"]);
    place.run(&["serve", "--host", "0.0.0.0"]).fails(2, &["AUTH=none"]);
    let refused = Finished::of(
        place.facecrawl(&["gpu"]).env("FORCE_GPU_ONLY", "true").env("ALL_GPU", "1").env("GPU_BACKEND", "cpu"),
    );
    refused.fails(2, &["contradicts GPU_BACKEND=cpu"]);
}

#[test]
fn custom_pack_works_like_builtin_pack() {
    let (place, pack) = TestFolder::with_small_models();
    // The fixture's detector finds faces only at the scale of the whole image.
    let run = |args: &[&str]| {
        let mut command = place.facecrawl(args);
        Finished::of(command.env("MODEL_PACK", "fixture").env("DETECTION_PASSES", "single"))
    };
    assert!(run(&["models", "list"]).expect(0).stdout.contains("fixture (ready, in use)"));
    run(&["models", "verify"]).expect(0);

    place.put_drawing("one.png", &[(4, 3, 0)]);
    let found = run(&["detect", "one.png", "--json"]).expect(0).json();
    assert_eq!(found["results"][0]["faces"].as_array().unwrap().len(), 1, "{found}");

    place.put("pictures/one.png", std::fs::read(place.path().join("one.png")).unwrap());
    run(&["models", "samples", "--images", "pictures", "--to", "shown"]).expect(0);
    let shown = |name: &str| std::fs::read(place.path().join("shown").join(name)).unwrap();
    assert_eq!(shown("chips.rgb").len(), 112 * 112 * 3);
    assert_eq!(shown("canvas_0.rgb").len(), 640 * 480 * 3, "without black bars");
    let samples: Value = serde_json::from_slice(&shown("samples.json")).unwrap();
    assert_eq!(
        (&samples["canvases"][0]["faces"], &samples["embedder"]["dimensions"]),
        (&1.into(), &128.into())
    );
    run(&["models", "samples", "--images", "pictures", "--to", "shown"]).fails(2, &["not empty"]);
    place.put("pictures/two.png", "not an image");
    run(&["models", "samples", "--images", "pictures", "--to", "again"]).expect(3);

    place.put("models/fixture_embedder.onnx", "bit rot");
    let mut fetch = place.facecrawl(&["models", "fetch"]);
    Finished::of(fetch.env("MODEL_PACK", "fixture").env_remove("FACE_MODEL_MIRROR"))
        .fails(1, &["fixture_embedder.onnx", "packs.toml"]);
    place.put("models/packs.toml", pack.manifest().replace("match_threshold = 0.6\n", ""));
    run(&["config", "check"])
        .fails(2, &["packs.toml: fixture_embedder.onnx: an embedder requires match_threshold"]);
    place.put("models/packs.toml", "");
    run(&["config", "check"]).fails(2, &["MODEL_PACK", "compact"]);
}

fn state(place: &TestFolder, name: &str) -> Value {
    let list = place.run(&["models", "list", "--json"]).expect(0).json();
    let packs = list["packs"].as_array().unwrap();
    packs.iter().find(|pack| pack["name"] == name).unwrap()["state"].clone()
}

#[test]
fn lists_fetches_and_verifies_models() {
    let place = TestFolder::new();
    let pack = testing::pack().pack;
    let state = || state(&place, &pack.name);
    assert_eq!(state(), "missing");
    place.run(&["models", "verify"]).expect(1);
    place.run(&["models", "fetch"]).expect(0);
    assert_eq!(state(), "ready");
    place.run(&["models", "verify", &pack.name, "--json"]).expect(0);
    place.put(&format!("models/{}", pack.files[1].file), "bit rot");
    assert_eq!(state(), "corrupt");
    assert!(place.run(&["models", "verify"]).expect(1).stdout.contains("corrupt"));
    place.run(&["models", "fetch", &pack.name]).expect(0);
    place.run(&["models", "verify"]).expect(0);
    let listed = place.run(&["models", "list"]).expect(0).stdout;
    assert!(listed.contains(&format!("{} (ready, in use)", pack.name)), "{listed}");

    place.run(&["models", "fetch", "research"]).fails(2, &["non-commercial", "--accept-license"]);
}

#[testing::needs(shared)]
#[test]
fn fetches_restricted_pack_after_license_acceptance() {
    let place = TestFolder::new();
    let mut fetch = place.facecrawl(&["models", "fetch", "research", "--accept-license"]);
    Finished::of(fetch.env("FACE_MODEL_MIRROR", testing::shared_models())).expect(0);
    assert_eq!(state(&place, "research"), "ready");
}

#[test]
fn detect_processes_more_files_than_fit_in_memory() {
    let place = TestFolder::new();
    let files: Vec<String> = (0..6).map(|number| format!("{number}.jpg")).collect();
    files.iter().for_each(|file| drop(place.put(file, testing::drawing("ada.jpg"))));
    // The memory suffices for one of these images at a time.
    let room = ["-s", "MAX_IMAGE_MEGAPIXELS=2", "-s", "MAX_DECODED_MEGAPIXELS=2"];
    let args = ["detect", "--json"].into_iter().chain(room).chain(files.iter().map(String::as_str));
    let found = place.run(&args.collect::<Vec<_>>()).expect(0).json();
    for (result, file) in found["results"].as_array().unwrap().iter().zip(&files) {
        assert_eq!((&result["file"], result["faces"].as_array().unwrap().len()), (&file.as_str().into(), 1));
    }
}

#[test]
fn detect_returns_api_fields_and_reports_failed_files() {
    let ada = testing::drawing("ada.jpg");
    let place = TestFolder::new();
    place.put("ada.jpg", &ada);
    place.put("view.jpg", testing::drawing("view.jpg"));
    place.put("truncated.jpg", &ada[..2000]);
    place.put("notes.jpg", "no image");
    let found = place.run(&["detect", "--json", "ada.jpg", "view.jpg"]).expect(0).json();
    let results = found["results"].as_array().unwrap();
    assert_eq!((&results[0]["file"], &results[1]["file"]), (&"ada.jpg".into(), &"view.jpg".into()));
    let faces = results[0]["faces"].as_array().unwrap();
    assert_eq!(faces.len(), 1);
    assert!(faces[0]["det_score"].as_f64().unwrap() > 0.8);
    assert_eq!(faces[0]["landmarks"].as_array().unwrap().len(), 5);
    assert_eq!(faces[0]["embedding"].as_array().unwrap().len(), 128);
    assert!(faces[0]["quality"]["overall"].is_number());
    assert_eq!(results[0]["image"]["format"], "jpeg");
    assert_eq!(results[1]["faces"], Value::Array(Vec::new()));

    let mixed =
        place.run(&["detect", "--json", "--no-embeddings", "notes.jpg", "ada.jpg", "gone.jpg"]).expect(3);
    let mixed = mixed.json();
    assert_eq!(mixed["results"][0]["error"]["code"], "not_an_image");
    assert_eq!(mixed["results"][2]["error"]["code"], "unreadable");
    assert!(mixed["results"][1]["faces"][0].get("embedding").is_none());
    let failed =
        place.run(&["detect", "notes.jpg", "truncated.jpg"]).fails(1, &["notes.jpg", "not an image"]);
    assert_eq!(failed.stdout, "", "no table without rows");
}

#[test]
fn detect_prints_table_and_draws_faces() {
    let ada = testing::drawing("ada.jpg");
    let place = TestFolder::new();
    place.put("ada.jpg", &ada);
    let table = place.run(&["detect", "ada.jpg", "--draw", "faces.png"]).expect(0);
    assert!(table.stdout.contains("ada.jpg") && table.stdout.contains("score"), "{}", table.stdout);
    let drawn = std::fs::read(place.path().join("faces.png")).unwrap();
    let limits = vision::Limits::default();
    let (before, after) =
        (vision::decode(&ada, &limits).unwrap().frame, vision::decode(&drawn, &limits).unwrap().frame);
    assert_eq!((before.width(), before.height()), (after.width(), after.height()));
    let green = |frame: &vision::Frame| frame.data().chunks(3).filter(|rgb| **rgb == [64, 255, 64]).count();
    assert!(green(&after) > 500 && green(&before) == 0);
}

#[test]
fn onnx_runtime_leaves_no_files_in_home_folder() {
    let place = TestFolder::new();
    let home = place.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let report = Finished::of(place.facecrawl(&["gpu", "--json"]).env("HOME", &home)).expect(0).json();
    assert!(report["runtime_version"].is_string(), "the library was loaded: {report}");
    let left: Vec<_> = std::fs::read_dir(&home).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn gpu_reports_device_of_each_operation() {
    let place = TestFolder::new();
    let report = Finished::of(place.facecrawl(&["gpu", "--json"]).env("GPU_BACKEND", "cpu")).expect(0).json();
    let operations = report["operations"].as_array().unwrap();
    assert_eq!(operations.len(), 6);
    // ffmpeg runs the last operation, and may be missing.
    assert!(operations[..5].iter().all(|operation| operation["effective"] == "cpu"), "{report}");
    let table = place.run(&["gpu"]).expect(0);
    assert_says(&table.stdout, &["ONNX Runtime", "face_detection"]);
}

#[testing::needs(slow)]
#[test]
fn gpu_test_and_model_build_report_missing_providers() {
    let place = TestFolder::new();
    let run = |args: &[&str], backend: &str| {
        Finished::of(place.facecrawl(args).env("GPU_BACKEND", backend).env("GPU_BATCH_SIZE", "2"))
    };
    let report = run(&["gpu", "--test", "--json"], "auto").expect(0).json();
    let tests = report["tests"].as_array().unwrap();
    assert!(tests.iter().any(|test| test["operation"] == "face_embedding" && test["outcome"] == "passed"));
    assert!(tests.iter().any(|test| test["provider"] == "cuda" && test["outcome"] == "absent"), "{report}");
    let missing = run(&["gpu", "--test"], "cuda").expect(1);
    assert!(missing.stdout.contains("absent") && missing.stdout.contains("passed"), "{}", missing.stdout);
    assert!(missing.stdout.contains("\ncuda, tensorrt: the loaded ONNX Runtime"), "{}", missing.stdout);
    missing.fits();
    let listed = Finished::of(place.facecrawl(&["gpu"]).env("ALL_GPU", "true")).expect(0);
    let reasons = listed.stdout.lines().filter(|line| line.contains("built without it")).count();
    assert_eq!(reasons, 1, "each reason is reported once: {}", listed.stdout);
    listed.fits();
    run(&["config", "check"], "auto").expect(0).fits();
    run(&["models", "list"], "auto").expect(0).fits();

    run(&["models", "build"], "cuda").fails(2, &["GPU_BACKEND=tensorrt"]);
    run(&["models", "build"], "tensorrt").fails(1, &["cannot build TensorRT engines"]);
    let forced = Finished::of(
        place.facecrawl(&["gpu"]).env("FORCE_GPU_ONLY", "true").env("FACE_DETECTION_GPU", "true"),
    );
    forced.fails(1, &["FORCE_GPU_ONLY", "cuda: "]);
}

#[test]
fn error_names_unloadable_onnx_runtime_library() {
    let (place, _) = TestFolder::with_small_models();
    let library = place.put("broken.so", "no library");
    let mut gpu = place.facecrawl(&["gpu"]);
    Finished::of(gpu.env("ORT_DYLIB_PATH", &library).env("MODEL_PACK", "fixture")).fails(1, &["broken.so"]);
}

/// A library with a destructor that leaves a file. ONNX Runtime has destructors of static objects.
#[cfg(target_os = "linux")]
const WITH_DESTRUCTOR: &str = r#"
    #[unsafe(link_section = ".fini_array")]
    #[used]
    static DESTRUCTOR: extern "C" fn() = destructor;
    extern "C" fn destructor() { let _ = std::fs::write("destroyed", ""); }
"#;

/// A command that does run destructors proves that the library is loaded.
#[cfg(target_os = "linux")]
#[test]
fn exit_runs_no_destructor_of_loaded_library() {
    let place = TestFolder::new();
    let source = place.put("library.rs", WITH_DESTRUCTOR);
    let library = place.path().join("library.so");
    testing::build_library(&source, &library, &[]);
    let destroyed = place.path().join("destroyed");
    let mut other = Command::new("true");
    other.current_dir(place.path()).env("LD_PRELOAD", &library);
    Finished::of(&mut other).expect(0);
    assert!(std::fs::exists(&destroyed).unwrap());
    std::fs::remove_file(&destroyed).unwrap();
    for (args, status) in [(&["config", "check"][..], 0), (&["detect", "nowhere.jpg"], 1)] {
        let finished = Finished::of(place.facecrawl(args).env("LD_PRELOAD", &library)).expect(status);
        assert!(!std::fs::exists(&destroyed).unwrap(), "{args:?}");
        assert!(!finished.stdout.is_empty() || status > 0, "what is on stdout is written first");
    }
}

#[test]
fn client_guide_matches_openapi_document() {
    let document = TestFolder::new().run(&["openapi"]).expect(0).stdout;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut script = Command::new("python3");
    script.arg(root.join("scripts/client-snippets")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut script = script.spawn().unwrap();
    // The script reads its whole input before it writes.
    script.stdin.take().unwrap().write_all(document.as_bytes()).unwrap();
    let written = script.wait_with_output().unwrap();
    assert!(written.status.success());
    let page = std::fs::read_to_string(root.join("docs/how-to/CLIENTS.md")).unwrap();
    let written = String::from_utf8(written.stdout).unwrap();
    assert_eq!(written, page, "cargo run -- openapi | ./scripts/client-snippets >docs/how-to/CLIENTS.md");
}

#[test]
fn openapi_command_prints_document_without_service() {
    let printed = TestFolder::new().run(&["openapi", "--log-level", "info"]).expect(0);
    let document = printed.json();
    assert!(document["paths"]["/faces/detect"]["post"].is_object(), "{document}");
    assert_eq!(printed.stderr, "", "the examples of errors are not logged as events");
}

#[test]
fn health_fails_without_listening_service() {
    TestFolder::new().run(&["health", "--port", "1"]).fails(1, &["/health/ready"]);
}

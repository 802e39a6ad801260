//! Tests the binary without a database.

use crate::common::service::{Output, TestFolder, assert_contains};
use serde_json::Value;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

#[test]
fn help_lists_every_command_and_exit_codes() {
    let help = TestFolder::new().run(&["--help"]).success();
    for word in [
        "up", "serve", "worker", "scan", "detect", "bench", "models", "gpu", "config", "jobs", "migrate",
        "openapi", "health",
    ] {
        let line = help.stdout.lines().find(|line| line.trim_start().starts_with(word));
        assert!(line.is_some_and(|line| line.split_whitespace().count() > 2), "{word}: {}", help.stdout);
    }
    assert!(help.stdout.contains("Examples:") && help.stdout.contains("Exit status: 0 success"));
    for command in ["up", "scan", "detect", "models", "config"] {
        let help = TestFolder::new().run(&[command, "--help"]).success();
        assert!(help.stdout.contains("--data-dir"), "{}", help.stdout);
    }
}

#[test]
fn invalid_command_line_exits_with_status_2() {
    let folder = TestFolder::new();
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
        let finished = folder.run(args).fails(2, &["error"]);
        assert!(finished.stdout.is_empty(), "{finished:?}");
    }
    assert!(folder.run(&["scan", "nowhere"]).stderr.contains("nowhere is neither"));
}

#[test]
fn config_check_shows_values_and_sources_without_secrets() {
    let folder = TestFolder::new();
    folder.put("facecrawl.toml", "gpu_batch_size = 16");
    folder.put(".env", "LOG_FORMAT=json\n");
    let run = |args: &[&str]| {
        Output::run(
            folder.facecrawl(args).env("DATABASE_URL", "postgres://u:s3cret@db/faces").env("WORKERS", ""),
        )
    };
    let checked = run(&["config", "check", "--json", "--port", "9000"]).success().json();
    let variable = |name: &str| -> (Value, Value) {
        let variables = checked["variables"].as_array().unwrap();
        let variable = variables.iter().find(|variable| variable["name"] == name).unwrap();
        (variable["value"].clone(), variable["source"].clone())
    };
    assert_eq!(variable("PORT"), ("9000".into(), "--port".into()));
    assert_eq!(variable("DATABASE_URL"), ("postgres://u:***@db/faces".into(), "environment".into()));
    assert_eq!(variable("LOG_FORMAT"), ("json".into(), ".env".into()));
    assert_eq!(variable("GPU_BATCH_SIZE"), ("16".into(), "facecrawl.toml".into()));
    assert_eq!(variable("WORKERS"), ("0".into(), "default".into()));
    assert_eq!(variable("AUTH"), (Value::Null, "default".into()));
    let table = run(&["config", "check"]).success();
    assert!(table.stdout.contains("GPU_BATCH_SIZE") && !table.stdout.contains("s3cret"), "{}", table.stdout);
}

#[test]
fn invalid_configuration_exits_2_and_names_setting() {
    let folder = TestFolder::new();
    Output::run(folder.facecrawl(&["up"]).env("GPU_BACKEND", "vulkan"))
        .fails(2, &["GPU_BACKEND=vulkan (from environment)"]);
    folder.run(&["config", "check", "--host", "0.0.0.0"]).fails(2, &["AUTH=none"]);
    folder.run(&["serve", "--host", "0.0.0.0"]).fails(2, &["AUTH=none"]);
    let mut command = folder.facecrawl(&["gpu"]);
    command.env("FORCE_GPU_ONLY", "true").env("ALL_GPU", "1").env("GPU_BACKEND", "cpu");
    Output::run(&mut command).fails(2, &["contradicts GPU_BACKEND=cpu"]);
}

#[test]
fn custom_pack_works_like_builtin_pack() {
    let (folder, pack) = TestFolder::with_small_models();
    // The fixture's detector finds faces only at the scale of the whole image.
    let run = |args: &[&str]| {
        let mut command = folder.facecrawl(args);
        Output::run(command.env("MODEL_PACK", "fixture").env("DETECTION_PASSES", "single"))
    };
    assert!(run(&["models", "list"]).success().stdout.contains("fixture (ready, in use)"));
    run(&["models", "verify"]).success();

    folder.put_drawing("one.png", &[(4, 3, 0)]);
    let found = run(&["detect", "one.png", "--json"]).success().json();
    assert_eq!(found["results"][0]["faces"].as_array().unwrap().len(), 1, "{found}");

    folder.put("album/one.png", std::fs::read(folder.path().join("one.png")).unwrap());
    run(&["models", "samples", "--images", "album", "--to", "samples"]).success();
    let read_sample = |name: &str| std::fs::read(folder.path().join("samples").join(name)).unwrap();
    assert_eq!(read_sample("chips.rgb").len(), 112 * 112 * 3);
    assert_eq!(read_sample("canvas_0.rgb").len(), 640 * 480 * 3, "without black bars");
    let samples: Value = serde_json::from_slice(&read_sample("samples.json")).unwrap();
    assert_eq!(
        (&samples["canvases"][0]["faces"], &samples["embedder"]["dimensions"]),
        (&1.into(), &128.into())
    );
    run(&["models", "samples", "--images", "album", "--to", "samples"]).fails(2, &["not empty"]);
    folder.put("album/two.png", "not an image");
    run(&["models", "samples", "--images", "album", "--to", "more_samples"]).assert_status(3);

    folder.put("models/fixture_embedder.onnx", "bit rot");
    let mut fetch = folder.facecrawl(&["models", "fetch"]);
    Output::run(fetch.env("MODEL_PACK", "fixture").env_remove("FACE_MODEL_MIRROR"))
        .fails(1, &["fixture_embedder.onnx", "packs.toml"]);
    folder.put("models/packs.toml", pack.manifest().replace("match_threshold = 0.6\n", ""));
    run(&["config", "check"])
        .fails(2, &["packs.toml: fixture_embedder.onnx: an embedder requires match_threshold"]);
    folder.put("models/packs.toml", "");
    run(&["config", "check"]).fails(2, &["MODEL_PACK", "compact"]);
}

fn pack_state(folder: &TestFolder, name: &str) -> Value {
    let list = folder.run(&["models", "list", "--json"]).success().json();
    let packs = list["packs"].as_array().unwrap();
    packs.iter().find(|pack| pack["name"] == name).unwrap()["state"].clone()
}

#[test]
fn lists_fetches_and_verifies_models() {
    let folder = TestFolder::new();
    let pack = testing::pack().pack;
    let state = || pack_state(&folder, &pack.name);
    assert_eq!(state(), "missing");
    folder.run(&["models", "verify"]).assert_status(1);
    folder.run(&["models", "fetch"]).success();
    assert_eq!(state(), "ready");
    folder.run(&["models", "verify", &pack.name, "--json"]).success();
    folder.put(&format!("models/{}", pack.files[1].file), "bit rot");
    assert_eq!(state(), "corrupt");
    assert!(folder.run(&["models", "verify"]).assert_status(1).stdout.contains("corrupt"));
    folder.run(&["models", "fetch", &pack.name]).success();
    folder.run(&["models", "verify"]).success();
    let listed = folder.run(&["models", "list"]).success().stdout;
    assert!(listed.contains(&format!("{} (ready, in use)", pack.name)), "{listed}");

    folder.run(&["models", "fetch", "research"]).fails(2, &["non-commercial", "--accept-license"]);
}

#[testing::needs(shared)]
#[test]
fn fetches_restricted_pack_after_license_acceptance() {
    let folder = TestFolder::new();
    let mut fetch = folder.facecrawl(&["models", "fetch", "research", "--accept-license"]);
    Output::run(fetch.env("FACE_MODEL_MIRROR", testing::shared_models())).success();
    assert_eq!(pack_state(&folder, "research"), "ready");
}

#[test]
fn detect_processes_more_files_than_fit_in_memory() {
    let folder = TestFolder::new();
    let files: Vec<String> = (0..6).map(|number| format!("{number}.jpg")).collect();
    files.iter().for_each(|file| drop(folder.put(file, testing::drawing("ada.jpg"))));
    // The memory suffices for one of these images at a time.
    let limits_args = ["-s", "MAX_IMAGE_MEGAPIXELS=2", "-s", "MAX_DECODED_MEGAPIXELS=2"];
    let args = ["detect", "--json"].into_iter().chain(limits_args).chain(files.iter().map(String::as_str));
    let output = folder.run(&args.collect::<Vec<_>>()).success().json();
    for (result, file) in output["results"].as_array().unwrap().iter().zip(&files) {
        assert_eq!((&result["file"], result["faces"].as_array().unwrap().len()), (&file.as_str().into(), 1));
    }
}

#[test]
fn detect_returns_api_fields_and_reports_failed_files() {
    let ada = testing::drawing("ada.jpg");
    let folder = TestFolder::new();
    folder.put("ada.jpg", &ada);
    folder.put("view.jpg", testing::drawing("view.jpg"));
    folder.put("truncated.jpg", &ada[..2000]);
    folder.put("notes.jpg", "no image");
    let output = folder.run(&["detect", "--json", "ada.jpg", "view.jpg"]).success().json();
    let results = output["results"].as_array().unwrap();
    assert_eq!((&results[0]["file"], &results[1]["file"]), (&"ada.jpg".into(), &"view.jpg".into()));
    let faces = results[0]["faces"].as_array().unwrap();
    assert_eq!(faces.len(), 1);
    assert!(faces[0]["det_score"].as_f64().unwrap() > 0.8);
    assert_eq!(faces[0]["landmarks"].as_array().unwrap().len(), 5);
    assert_eq!(faces[0]["embedding"].as_array().unwrap().len(), 128);
    assert!(faces[0]["quality"]["overall"].is_number());
    assert_eq!(results[0]["image"]["format"], "jpeg");
    assert_eq!(results[1]["faces"], Value::Array(Vec::new()));

    let mixed = folder
        .run(&["detect", "--json", "--no-embeddings", "notes.jpg", "ada.jpg", "gone.jpg"])
        .assert_status(3)
        .json();
    assert_eq!(mixed["results"][0]["error"]["code"], "not_an_image");
    assert_eq!(mixed["results"][2]["error"]["code"], "unreadable");
    assert!(mixed["results"][1]["faces"][0].get("embedding").is_none());
    let failed =
        folder.run(&["detect", "notes.jpg", "truncated.jpg"]).fails(1, &["notes.jpg", "not an image"]);
    assert_eq!(failed.stdout, "", "no table without rows");
}

#[test]
fn detect_prints_table_and_draws_faces() {
    let ada = testing::drawing("ada.jpg");
    let folder = TestFolder::new();
    folder.put("ada.jpg", &ada);
    let table = folder.run(&["detect", "ada.jpg", "--draw", "faces.png"]).success();
    assert!(table.stdout.contains("ada.jpg") && table.stdout.contains("score"), "{}", table.stdout);
    let drawn = std::fs::read(folder.path().join("faces.png")).unwrap();
    let limits = vision::Limits::default();
    let (before, after) =
        (vision::decode(&ada, &limits).unwrap().frame, vision::decode(&drawn, &limits).unwrap().frame);
    assert_eq!((before.width(), before.height()), (after.width(), after.height()));
    let count_green_pixels =
        |frame: &vision::Frame| frame.data().chunks(3).filter(|rgb| **rgb == [64, 255, 64]).count();
    assert!(count_green_pixels(&after) > 500 && count_green_pixels(&before) == 0);
}

#[test]
fn onnx_runtime_leaves_no_files_in_home_folder() {
    let folder = TestFolder::new();
    let home = folder.path().join("home");
    std::fs::create_dir(&home).unwrap();
    let report = Output::run(folder.facecrawl(&["gpu", "--json"]).env("HOME", &home)).success().json();
    assert!(report["runtime_version"].is_string(), "the library was loaded: {report}");
    let remaining_files: Vec<_> = std::fs::read_dir(&home).unwrap().collect();
    assert!(remaining_files.is_empty(), "{remaining_files:?}");
}

#[test]
fn gpu_reports_device_of_each_operation() {
    let folder = TestFolder::new();
    let report = Output::run(folder.facecrawl(&["gpu", "--json"]).env("GPU_BACKEND", "cpu")).success().json();
    let operations = report["operations"].as_array().unwrap();
    assert_eq!(operations.len(), 6);
    // ffmpeg runs the last operation, and may be missing.
    assert!(operations[..5].iter().all(|operation| operation["effective"] == "cpu"), "{report}");
    let table = folder.run(&["gpu"]).success();
    assert_contains(&table.stdout, &["ONNX Runtime", "face_detection"]);
}

#[testing::needs(slow)]
#[test]
fn gpu_test_and_model_build_report_missing_providers() {
    let folder = TestFolder::new();
    let run = |args: &[&str], backend: &str| {
        Output::run(folder.facecrawl(args).env("GPU_BACKEND", backend).env("GPU_BATCH_SIZE", "2"))
    };
    let report = run(&["gpu", "--test", "--json"], "auto").success().json();
    let tests = report["tests"].as_array().unwrap();
    assert!(tests.iter().any(|test| test["operation"] == "face_embedding" && test["outcome"] == "passed"));
    assert!(tests.iter().any(|test| test["provider"] == "cuda" && test["outcome"] == "absent"), "{report}");
    let missing = run(&["gpu", "--test"], "cuda").assert_status(1);
    assert!(missing.stdout.contains("absent") && missing.stdout.contains("passed"), "{}", missing.stdout);
    assert!(missing.stdout.contains("\ncuda, tensorrt: the loaded ONNX Runtime"), "{}", missing.stdout);
    missing.assert_table_width();
    let listed = Output::run(folder.facecrawl(&["gpu"]).env("ALL_GPU", "true")).success();
    let reasons = listed.stdout.lines().filter(|line| line.contains("not cuda: ")).count();
    assert_eq!(reasons, 1, "each reason is reported once: {}", listed.stdout);
    listed.assert_table_width();
    run(&["config", "check"], "auto").success().assert_table_width();
    run(&["models", "list"], "auto").success().assert_table_width();

    run(&["models", "build"], "cuda").fails(2, &["GPU_BACKEND=tensorrt"]);
    run(&["models", "build"], "tensorrt").fails(1, &["cannot build TensorRT engines"]);
    let forced = Output::run(
        folder.facecrawl(&["gpu"]).env("FORCE_GPU_ONLY", "true").env("FACE_DETECTION_GPU", "true"),
    );
    forced.fails(1, &["FORCE_GPU_ONLY", "its plug-in is not installed"]);
}

#[test]
fn error_names_unloadable_onnx_runtime_library() {
    let (folder, _) = TestFolder::with_small_models();
    let library = folder.put("broken.so", "no library");
    let mut gpu = folder.facecrawl(&["gpu"]);
    Output::run(gpu.env("ORT_DYLIB_PATH", &library).env("MODEL_PACK", "fixture")).fails(1, &["broken.so"]);
}

/// Source of a library whose destructor creates a file. ONNX Runtime also has destructors.
#[cfg(target_os = "linux")]
const LIBRARY_WITH_DESTRUCTOR: &str = r#"
    #[unsafe(link_section = ".fini_array")]
    #[used]
    static DESTRUCTOR: extern "C" fn() = destructor;
    extern "C" fn destructor() { let _ = std::fs::write("destroyed", ""); }
"#;

/// The command `true` runs destructors, which proves that the library is loaded.
#[cfg(target_os = "linux")]
#[test]
fn exit_runs_no_destructor_of_loaded_library() {
    let folder = TestFolder::new();
    let source = folder.put("library.rs", LIBRARY_WITH_DESTRUCTOR);
    let library = folder.path().join("library.so");
    testing::build_library(&source, &library, &[]);
    let destroyed = folder.path().join("destroyed");
    let mut true_command = Command::new("true");
    true_command.current_dir(folder.path()).env("LD_PRELOAD", &library);
    Output::run(&mut true_command).success();
    assert!(std::fs::exists(&destroyed).unwrap());
    std::fs::remove_file(&destroyed).unwrap();
    for (args, status) in [(&["config", "check"][..], 0), (&["detect", "nowhere.jpg"], 1)] {
        let finished = Output::run(folder.facecrawl(args).env("LD_PRELOAD", &library)).assert_status(status);
        assert!(!std::fs::exists(&destroyed).unwrap(), "{args:?}");
        assert!(!finished.stdout.is_empty() || status > 0, "stdout is written before the exit");
    }
}

#[test]
fn client_guide_matches_openapi_document() {
    let document = TestFolder::new().run(&["openapi"]).success().stdout;
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
    let printed = TestFolder::new().run(&["openapi", "--log-level", "info"]).success();
    let document = printed.json();
    assert!(document["paths"]["/faces/detect"]["post"].is_object(), "{document}");
    assert_eq!(printed.stderr, "", "the examples of errors are not logged as events");
}

#[test]
fn health_fails_without_listening_service() {
    TestFolder::new().run(&["health", "--port", "1"]).fails(1, &["/health/ready"]);
}

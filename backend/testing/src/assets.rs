//! Photographs, models and reference outputs from the folder beside the checkout.
//!
//! They are optional: without them the tests that need them say so and pass, unless `REQUIRE_MODELS=1`, which turns
//! their absence into a failure.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

/// Says that something is missing and that the test is skipped; a failure where `variable` is 1.
pub fn skip(variable: &str, missing: &str, remedy: &str) {
    let required = std::env::var(variable).as_deref() == Ok("1");
    assert!(!required, "{variable}=1, but {missing} is not there; {remedy}");
    eprintln!("skipped: {missing} is not there; {remedy} ({variable}=1 makes this a failure)");
}

/// `path` of the workspace, or `None` where the test must skip itself.
fn optional(path: &str, variable: &str, remedy: &str) -> Option<PathBuf> {
    let path = root().join(path);
    if path.exists() {
        return Some(path);
    }
    skip(variable, &path.display().to_string(), remedy);
    None
}

fn shared(part: &str) -> Option<PathBuf> {
    optional(&format!("../shared/{part}"), "REQUIRE_MODELS", "put a folder with it beside the checkout")
}

/// ONNX Runtime's shared library as `./scripts/setup` unpacks it. Panics when it is absent: every checkout has it after set-up.
pub fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH") {
        return path.into();
    }
    let name = if cfg!(target_os = "macos") { "libonnxruntime.dylib" } else { "libonnxruntime.so" };
    let path = root().join(".runtime/onnxruntime").join(name);
    assert!(path.exists(), "{} is not there; run ./scripts/setup", path.display());
    path
}

/// ONNX Runtime with OpenVINO as `./scripts/openvino` unpacks it, or `None` where the test must skip itself.
pub fn openvino() -> Option<PathBuf> {
    optional(".runtime/openvino/libonnxruntime.so", "REQUIRE_OPENVINO", "run ./scripts/openvino")
}

/// The folder of models, or `None` where the test must skip itself.
pub fn models_dir() -> Option<PathBuf> {
    shared("models")
}

/// One model file.
pub fn model(file: &str) -> Option<PathBuf> {
    shared("models").map(|dir| dir.join(file))
}

/// The bytes of one photograph.
pub fn image(file: &str) -> Option<Vec<u8>> {
    let path = shared("images")?.join(file);
    Some(std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
}

/// All photographs, by name.
pub fn images() -> Option<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(shared("images")?)
        .expect("the folder can be read")
        .map(|entry| entry.expect("the entry can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e != "md"))
        .collect();
    files.sort();
    Some(files)
}

/// What OpenCV computes with the default pack's files: file name to `{width, height, scale, faces}`.
pub fn oracle_opencv() -> Option<serde_json::Value> {
    let text =
        std::fs::read(shared("oracle")?.join("reference_opencv.json")).expect("the oracle can be read");
    Some(serde_json::from_slice(&text).expect("the oracle is JSON"))
}

/// The reference outputs: file name to `{width, height, image_quality, yunet_native, scrfd_640}`.
pub fn oracle() -> Option<serde_json::Value> {
    let text = std::fs::read(shared("oracle")?.join("reference.json")).expect("the oracle can be read");
    Some(serde_json::from_slice(&text).expect("the oracle is JSON"))
}

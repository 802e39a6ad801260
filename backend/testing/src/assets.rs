//! Files that tests read: the default models, the libraries, and the reference photographs and outputs of `../shared`.
//!
//! Everything is there when a test runs: a test that needs more than `./scripts/test` brings says so with
//! [`needs`](crate::needs), and is reported as ignored where that is missing.

use inference::{Manifest, ResolvedPack};
use std::path::{Path, PathBuf};

/// Returns the root of the checkout.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

/// Returns `path`, relative to the root of the checkout. Panics with the remedy when it is not there.
fn present(path: impl AsRef<Path>, remedy: &str) -> PathBuf {
    let path = root().join(path);
    assert!(path.exists(), "{} is not there; {remedy}", path.display());
    path
}

fn shared(part: &str) -> PathBuf {
    present(
        Path::new("../shared").join(part),
        "the test lacks #[needs(shared)], or ./scripts/test must compile it anew",
    )
}

/// Returns ONNX Runtime's shared library as `./scripts/setup` unpacks it.
///
/// # Panics
/// When it is absent.
pub fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH") {
        return path.into();
    }
    let name = if cfg!(target_os = "macos") { "libonnxruntime.dylib" } else { "libonnxruntime.so" };
    present(Path::new(".runtime/onnxruntime").join(name), "run ./scripts/setup")
}

/// Returns ONNX Runtime with OpenVINO as `./scripts/openvino` unpacks it.
///
/// # Panics
/// When it is absent: the test must say `#[needs(openvino)]`.
pub fn openvino() -> PathBuf {
    present(".runtime/openvino/libonnxruntime.so", "run ./scripts/openvino")
}

/// Returns the folder that holds the files of the default pack.
///
/// # Panics
/// When one of them is absent.
pub fn models_dir() -> PathBuf {
    let models = root().join("models");
    for file in &default_pack().files {
        present(
            Path::new("models").join(&file.file),
            "run ./scripts/test, and remove models/.fetched before",
        );
    }
    models
}

/// The pack that the program uses where nothing else is chosen.
pub const DEFAULT_PACK: &str = "opencv";

fn default_pack() -> inference::Pack {
    Manifest::builtin().pack(DEFAULT_PACK).expect("the default pack is described").clone()
}

/// Returns the default pack in [`models_dir`].
///
/// # Panics
/// When a file is absent or is not what the manifest says.
pub fn pack() -> ResolvedPack {
    ResolvedPack::verify(&default_pack(), &models_dir()).expect("the files of the default pack are whole")
}

/// Returns the folder of all models, those of the default pack and those that no package index has.
///
/// # Panics
/// When it is absent: the test must say `#[needs(shared)]`.
pub fn shared_models() -> PathBuf {
    shared("models")
}

/// Returns one model file of [`shared_models`].
///
/// # Panics
/// When the folder is absent.
pub fn model(file: &str) -> PathBuf {
    shared_models().join(file)
}

/// Returns the bytes of one reference photograph.
///
/// # Panics
/// When it is absent: the test must say `#[needs(shared)]`.
pub fn image(file: &str) -> Vec<u8> {
    let path = shared("images").join(file);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the paths of all reference photographs, by name.
///
/// # Panics
/// When the folder is absent: the test must say `#[needs(shared)]`.
pub fn images() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(shared("images"))
        .expect("the folder can be read")
        .map(|entry| entry.expect("the entry can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e != "md"))
        .collect();
    files.sort();
    files
}

/// Returns what OpenCV computes with the default pack's files: file name to `{width, height, scale, faces}`.
///
/// # Panics
/// When it is absent: the test must say `#[needs(shared)]`.
pub fn oracle_opencv() -> serde_json::Value {
    let text = std::fs::read(shared("oracle/reference_opencv.json")).expect("the oracle can be read");
    serde_json::from_slice(&text).expect("the oracle is JSON")
}

/// Returns the reference outputs: file name to `{width, height, image_quality, yunet_native, scrfd_640}`.
///
/// # Panics
/// When they are absent: the test must say `#[needs(shared)]`.
pub fn oracle() -> serde_json::Value {
    let text = std::fs::read(shared("oracle/reference.json")).expect("the oracle can be read");
    serde_json::from_slice(&text).expect("the oracle is JSON")
}

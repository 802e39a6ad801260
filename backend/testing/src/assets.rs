//! Provides the paths of files that tests read: the default models, the libraries, the reference
//! photographs and outputs of `../shared`, and drawn films, which are kept for the next process.
//!
//! All these files exist when a test runs. A test that needs more than `./scripts/test` provides
//! declares the requirement with [`needs`](crate::needs), and is reported as ignored if the
//! requirement is not met.
use inference::{Manifest, ResolvedPack};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

/// Returns `path`, relative to the root of the checkout. Panics with `remedy` if it does not exist.
pub(crate) fn require(path: impl AsRef<Path>, remedy: &str) -> PathBuf {
    let path = root().join(path);
    assert!(path.exists(), "{} does not exist; {remedy}", path.display());
    path
}

fn shared(part: &str) -> PathBuf {
    require(
        Path::new("../shared").join(part),
        "the test lacks #[needs(shared)], or ./scripts/test must recompile it",
    )
}

/// Returns the shared library of ONNX Runtime that `./scripts/setup` unpacks. Panics without it.
pub fn library() -> PathBuf {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH") {
        return path.into();
    }
    let name = if cfg!(target_os = "macos") { "libonnxruntime.dylib" } else { "libonnxruntime.so" };
    require(Path::new(".runtime/onnxruntime").join(name), "run ./scripts/setup")
}

/// Returns the ONNX Runtime with OpenVINO that `./scripts/openvino` unpacks. Panics if it does not
/// exist. The test must be marked `#[needs(openvino)]`.
pub fn openvino() -> PathBuf {
    require(".runtime/openvino/libonnxruntime.so", "run ./scripts/openvino")
}

/// Returns the ffmpeg that the variable `FFMPEG` names, or that `./scripts/video` installs. Panics
/// if neither exists. The test must be marked `#[needs(video)]`.
pub fn ffmpeg() -> PathBuf {
    match std::env::var_os("FFMPEG").filter(|path| !path.is_empty()) {
        Some(path) => path.into(),
        None => require(".runtime/ffmpeg/ffmpeg", "run ./scripts/video"),
    }
}

/// Compiles a Rust source file to the shared library `target`. Panics if `rustc` fails.
pub fn build_library(source: &Path, target: &Path, arguments: &[&str]) {
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition", "2024", "--crate-type", "cdylib", "-C", "opt-level=0"]).args(arguments);
    assert!(rustc.arg("-o").args([target, source]).status().expect("rustc starts").success());
}

/// Returns the folder with the files of the default pack. Panics if one of them does not exist.
pub fn models_dir() -> PathBuf {
    let models = root().join("models");
    for file in &default_pack().files {
        require(Path::new("models").join(&file.file), "remove models/.fetched and run ./scripts/test");
    }
    models
}

pub const DEFAULT_PACK: &str = "opencv";

fn default_pack() -> inference::Pack {
    Manifest::builtin().pack(DEFAULT_PACK).expect("the manifest has the default pack").clone()
}

/// Returns the default pack in [`models_dir`]. Panics if a file does not exist or differs from the
/// manifest.
pub fn pack() -> ResolvedPack {
    ResolvedPack::verify(&default_pack(), &models_dir())
        .expect("the files of the default pack match the manifest")
}

/// Returns the folder of all models, which are those of the default pack and those that no package
/// index provides. Panics if it does not exist. The test must be marked `#[needs(shared)]`.
pub fn shared_models() -> PathBuf {
    shared("models")
}

/// Returns the path of one model file in [`shared_models`]. Panics if the folder does not exist.
pub fn model(file: &str) -> PathBuf {
    shared_models().join(file)
}

/// Returns the bytes of one reference photograph. Panics if it does not exist. The test must be
/// marked `#[needs(shared)]`.
pub fn image(file: &str) -> Vec<u8> {
    let path = shared("images").join(file);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the paths of all reference photographs, ordered by name. Panics if the folder does not
/// exist. The test must be marked `#[needs(shared)]`.
pub fn images() -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(shared("images"))
        .expect("the folder can be read")
        .map(|entry| entry.expect("the entry can be read").path())
        .filter(|path| path.extension().is_some_and(|e| e != "md"))
        .collect();
    files.sort();
    files
}

/// Returns OpenCV's results with the files of the default pack: file name to `{width, height,
/// scale, faces}`. Panics if the file does not exist. The test must be marked `#[needs(shared)]`.
pub fn oracle_opencv() -> serde_json::Value {
    let text = std::fs::read(shared("oracle/reference_opencv.json")).expect("the oracle can be read");
    serde_json::from_slice(&text).expect("the oracle is JSON")
}

/// Returns the reference outputs: file name to `{width, height, image_quality, yunet_native,
/// scrfd_640}`. Panics if the file does not exist. The test must be marked `#[needs(shared)]`.
pub fn oracle() -> serde_json::Value {
    let text = std::fs::read(shared("oracle/reference.json")).expect("the oracle can be read");
    serde_json::from_slice(&text).expect("the oracle is JSON")
}

/// Writes a file to `path`. `draw` creates the file at the path that it gets, unless an earlier
/// call of any process has created one with the same `description`. The files are in
/// `.runtime/drawn`, in a folder for the current version of this crate, so a change of its source
/// draws everything again. Fails if `draw` or a file operation fails.
pub(crate) fn write_cached(
    description: &str,
    path: &Path,
    draw: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or("bin");
    let name = hex::encode(&Sha256::digest(description)[..16]);
    let cached = drawn_folder().join(format!("{name}.{extension}"));
    if !cached.exists() {
        // Processes and threads may draw the same file at the same time. Each of them renames its
        // own draft.
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let draft = drawn_folder().join(format!("{name}-{}-{number}.{extension}", std::process::id()));
        if let Err(error) = draw(&draft) {
            let _partial = std::fs::remove_file(&draft);
            return Err(error);
        }
        std::fs::rename(&draft, &cached)?;
    }
    std::fs::copy(&cached, path)?;
    Ok(())
}

/// Returns the folder of this version. The first call deletes the folders of other versions.
fn drawn_folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let parent = root().join(".runtime/drawn");
        let folder = parent.join(source_hash());
        for entry in std::fs::read_dir(&parent).into_iter().flatten().flatten() {
            if entry.path() != folder {
                // Another process may delete it at the same time.
                let _deleted = std::fs::remove_dir_all(entry.path());
            }
        }
        std::fs::create_dir_all(&folder).expect("the folder of drawn files can be created");
        folder
    })
}

/// Returns a hash of the sources that draw.
fn source_hash() -> String {
    let mut hash = Sha256::new();
    let mut files = crate::files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    files.sort();
    for file in files {
        hash.update(std::fs::read(file).expect("the source can be read"));
    }
    hex::encode(&hash.finalize()[..8])
}

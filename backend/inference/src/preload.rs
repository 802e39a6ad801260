//! Loads CUDA's libraries by path from the folder of ONNX Runtime.
//!
//! The provider's library refers to CUDA's libraries by file name, and has no search path. The
//! loader reuses a library that is already loaded under the same name. Loading the libraries by
//! path first therefore makes `LD_LIBRARY_PATH` unnecessary. If they are not in the folder of ONNX
//! Runtime, nothing is loaded and the system's loader searches as usual.
use crate::ep::Provider;
use crate::runtime::Runtime;
use parking_lot::Mutex;
use std::path::{Path, PathBuf};

/// Libraries of CUDA, each after the libraries that it depends on. cuDNN and cuFFT find their other
/// files in their own folder.
const CUDA: [&str; 8] = [
    "libcudart",
    "libnvrtc",
    "libnvJitLink",
    "libcublasLt",
    "libcublas",
    "libcurand",
    "libcufft",
    "libcudnn",
];
const TENSORRT: [&str; 3] = ["libnvinfer", "libnvinfer_plugin", "libnvonnxparser"];

/// Loads the libraries of `provider` from the folder of ONNX Runtime, once per process.
pub(crate) fn libraries(provider: Provider, runtime: &Runtime) {
    static DONE: Mutex<Vec<Provider>> = Mutex::new(Vec::new());
    let names: Vec<&str> = match provider {
        _ if !cfg!(target_os = "linux") => return,
        Provider::Cuda => CUDA.to_vec(),
        Provider::Tensorrt => [&CUDA[..], &TENSORRT[..]].concat(),
        _ => return,
    };
    let mut done = DONE.lock();
    if done.contains(&provider) {
        return;
    }
    done.push(provider);
    let Some(folder) = runtime.path().parent() else { return };
    for library in names.iter().filter_map(|name| find_library(folder, name)) {
        match ort::util::preload_dylib(&library) {
            Ok(()) => tracing::debug!(library = %library.display(), "library loaded by path"),
            // The provider then fails with its own error, which is reported.
            Err(error) => {
                tracing::debug!(library = %library.display(), %error, "library cannot be loaded by path");
            }
        }
    }
}

/// Returns the path of `NAME.so.VERSION` in the folder; the last by name if there are several.
fn find_library(folder: &Path, name: &str) -> Option<PathBuf> {
    let start = format!("{name}.so.");
    let named =
        |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&start));
    std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).filter(named).max()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_library_is_found_by_its_name_and_not_by_the_beginning_of_another() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libcublasLt.so.13", "libcublas.so.13", "libcublas.so.12", "libcublas.a"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(find_library(folder.path(), "libcublas"), Some(folder.path().join("libcublas.so.13")));
        assert_eq!(find_library(folder.path(), "libcudnn"), None);
        assert_eq!(find_library(&folder.path().join("nowhere"), "libcublas"), None);
    }
}

//! Loads ONNX Runtime's shared library once per process, and never unloads it. Also loads CUDA's
//! libraries by path.
use crate::StartError;
use crate::ep::Provider;
use ort::environment::Environment;
use ort::logging::LogLevel;
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The loaded library.
#[derive(Clone, Debug)]
pub struct Runtime {
    environment: Environment,
    path: PathBuf,
    version: String,
}

/// The state of the one library that a process may load.
enum LibraryState {
    NotLoaded,
    Loaded(Runtime),
    /// The library is loaded, but could not be initialised.
    Broken(PathBuf, String),
}

static LIBRARY: Mutex<LibraryState> = Mutex::new(LibraryState::NotLoaded);

impl Runtime {
    /// Loads the library at `path`; with `None` the library that the system's loader finds. Later
    /// calls return the same library.
    ///
    /// # Errors
    /// Fails if the library cannot be loaded or initialised, or if a different library is already
    /// loaded. A process can load only one.
    pub fn load(path: Option<&Path>) -> Result<Self, StartError> {
        let library = locate_library(path)?;
        let load_error = |reason: String| StartError::Library { path: library.display().to_string(), reason };
        let mut state = LIBRARY.lock();
        match &*state {
            LibraryState::Loaded(runtime) if runtime.path == library => return Ok(runtime.clone()),
            LibraryState::Loaded(runtime) => {
                let reason = format!(
                    "this process already uses {}; only one library can be loaded per process",
                    runtime.path.display()
                );
                return Err(load_error(reason));
            }
            LibraryState::Broken(path, reason) => {
                return Err(load_error(format!(
                    "an earlier attempt to load {} failed: {reason}",
                    path.display()
                )));
            }
            LibraryState::NotLoaded => {}
        }
        // `ort` panics on null pointers, which a library other than ONNX Runtime may return.
        let builder = match catch_unwind(AssertUnwindSafe(|| ort::init_from(&library))) {
            Ok(Ok(builder)) => builder,
            Ok(Err(error)) => return Err(load_error(explain_outdated_library(&error.to_string()))),
            Err(_) => return Err(load_error("the library does not provide its API".to_owned())),
        };
        let create_environment = || {
            let environment = builder.with_name("facecrawl").with_telemetry(false).build()?;
            environment.set_log_level(log_level());
            Ok::<_, ort::Error>(environment)
        };
        let environment = match catch_unwind(AssertUnwindSafe(create_environment)) {
            Ok(Ok(environment)) => environment,
            failure => {
                let reason = match failure {
                    Ok(Err(error)) => error.to_string(),
                    _ => {
                        format!("the library does not support version {} of the API", ort::MINOR_VERSION)
                    }
                };
                *state = LibraryState::Broken(library.clone(), reason.clone());
                return Err(load_error(reason));
            }
        };
        let version = version(&library);
        let runtime = Self { environment, path: library, version };
        tracing::info!(library = %runtime.path.display(), version = %runtime.version, "ONNX Runtime loaded");
        *state = LibraryState::Loaded(runtime.clone());
        Ok(runtime)
    }

    pub(crate) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Runs `attempt`, which may fail, and suppresses the library's own error messages, because the
    /// caller reports the failure. At debug level the messages are logged.
    pub(crate) fn suppress_library_errors<T>(&self, attempt: impl FnOnce() -> T) -> T {
        if tracing::enabled!(target: "ort::logging", tracing::Level::DEBUG) {
            return attempt();
        }
        self.environment.set_log_level(LogLevel::Fatal);
        let result = attempt();
        self.environment.set_log_level(log_level());
        result
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the library's version from its file name, or its build information.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Loads the libraries of `provider` from the folder of ONNX Runtime, once per process.
    ///
    /// The provider's library refers to CUDA's libraries by file name, and has no search path. The
    /// loader reuses a library that is already loaded under the same name. Loading the libraries by
    /// path first therefore makes `LD_LIBRARY_PATH` unnecessary. If they are not in the folder of
    /// ONNX Runtime, nothing is loaded and the system's loader searches as usual.
    pub(crate) fn preload_libraries(&self, provider: Provider) {
        static LOADED: Mutex<Vec<Provider>> = Mutex::new(Vec::new());
        let names: Vec<&str> = match provider {
            _ if !cfg!(target_os = "linux") => return,
            Provider::Cuda => CUDA_LIBRARIES.to_vec(),
            Provider::Tensorrt => [&CUDA_LIBRARIES[..], &TENSORRT_LIBRARIES[..]].concat(),
            _ => return,
        };
        let mut loaded = LOADED.lock();
        if loaded.contains(&provider) {
            return;
        }
        loaded.push(provider);
        let Some(folder) = self.path.parent() else { return };
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

    /// Returns the providers that both the library and this program were built with.
    pub fn providers(&self) -> Vec<Provider> {
        Provider::ALL.into_iter().filter(|p| p.is_in_library()).collect()
    }
}

/// Libraries of CUDA, each after the libraries that it depends on. cuDNN and cuFFT find their other
/// files in their own folder.
const CUDA_LIBRARIES: [&str; 8] = [
    "libcudart",
    "libnvrtc",
    "libnvJitLink",
    "libcublasLt",
    "libcublas",
    "libcurand",
    "libcufft",
    "libcudnn",
];
const TENSORRT_LIBRARIES: [&str; 3] = ["libnvinfer", "libnvinfer_plugin", "libnvonnxparser"];

/// Returns the file to load. The file is checked before the loader opens it, because the loader's
/// message about a folder is unclear, and opening a pipe would block forever.
fn locate_library(path: Option<&Path>) -> Result<PathBuf, StartError> {
    let Some(path) = path else {
        let name = format!("{}onnxruntime{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        return Ok(name.into());
    };
    let load_error = |reason: String| StartError::Library { path: path.display().to_string(), reason };
    let canonical = path.canonicalize().map_err(|e| load_error(e.to_string()))?;
    if !canonical.is_file() {
        return Err(load_error(
            "the path is not a file; it must be the path of the shared library".to_owned(),
        ));
    }
    Ok(canonical)
}

/// Returns the version from names such as `libonnxruntime.so.1.31.1` and
/// `libonnxruntime.1.31.1.dylib`. For other names, it returns the library's build information.
fn version(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let numbers: Vec<&str> =
        name.split('.').filter(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit())).collect();
    if numbers.len() >= 2 { numbers.join(".") } else { ort::info().to_owned() }
}

/// Replaces `ort`'s message about an outdated library with a clearer one; keeps other messages.
fn explain_outdated_library(text: &str) -> String {
    let quoted =
        |after: &str| Some(text.split_once(after)?.1.split(['\'', '`']).next()?.trim_end_matches(".x"));
    match (quoted("but got '"), quoted("expected version >= '")) {
        (Some(actual), Some(required)) => {
            format!(
                "the library has version {actual}, but {required} or newer is required; `./scripts/setup` installs it"
            )
        }
        _ => text.to_owned(),
    }
}

/// Returns the log level for the library. It follows the level of the log, because the library
/// formats every message of its level, even if the message is not logged.
pub(crate) fn log_level() -> LogLevel {
    if tracing::enabled!(target: "ort::logging", tracing::Level::TRACE) {
        LogLevel::Verbose
    } else if tracing::enabled!(target: "ort::logging", tracing::Level::DEBUG) {
        LogLevel::Info
    } else {
        LogLevel::Warning
    }
}

/// Returns the path of `NAME.so.VERSION` in the folder. If there are several, returns the last one
/// in alphabetical order.
fn find_library(folder: &Path, name: &str) -> Option<PathBuf> {
    let prefix = format!("{name}.so.");
    let has_name =
        |path: &PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&prefix));
    std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).filter(has_name).max()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn finds_library_by_full_name() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["libcublasLt.so.13", "libcublas.so.13", "libcublas.so.12", "libcublas.a"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(find_library(folder.path(), "libcublas"), Some(folder.path().join("libcublas.so.13")));
        assert_eq!(find_library(folder.path(), "libcudnn"), None);
        assert_eq!(find_library(&folder.path().join("nowhere"), "libcublas"), None);
    }
}

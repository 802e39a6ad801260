//! Selects the ONNX Runtime library that is loaded.
use super::{Resolved, Settings};
use inference::gpu_runtime;
use std::path::{Path, PathBuf};

impl Settings {
    /// Returns whether an operation requests a GPU that `GPU_BACKEND` allows.
    pub(super) fn requests_gpu(&self) -> bool {
        !self.gpu_operations().is_empty() && gpu_runtime(self.gpu.backend).is_some()
    }

    /// Returns the GPU runtime that `scripts/gpu-runtime` must install for the operations that
    /// request a GPU. Returns `None` if no operation does, or if `ORT_DYLIB_PATH` is set.
    pub fn wanted_gpu_runtime(&self) -> Option<&'static str> {
        let open = self.models.ort_dylib_path.is_none() && !self.gpu_operations().is_empty();
        open.then(|| gpu_runtime(self.gpu.backend))?
    }

    /// Returns the path of ONNX Runtime's library: `ORT_DYLIB_PATH`, or the installed one. If `gpu`
    /// is set, the GPU's library is preferred. `None` means the system's library.
    pub fn library(&self, gpu: bool) -> Option<PathBuf> {
        let name = format!("{}onnxruntime{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let part = |folder: &str| self.runtime_part(&format!("{folder}/{name}"));
        let of_gpu = || gpu_runtime(self.gpu.backend).filter(|_| gpu).and_then(part);
        self.models.ort_dylib_path.clone().or_else(of_gpu).or_else(|| part("onnxruntime"))
    }

    /// Returns a path inside `.runtime`. The search covers the checkout, the working folder, and
    /// the folders above the program (so a build in `target/` finds its checkout).
    pub(super) fn runtime_part(&self, part: &str) -> Option<PathBuf> {
        let program = std::env::current_exe().ok();
        let above =
            program.iter().flat_map(|program| program.ancestors().skip(1).take(4).map(Path::to_path_buf));
        let root = self.root.iter().cloned();
        root.chain(std::iter::once(PathBuf::new()))
            .chain(above)
            .map(|folder| folder.join(".runtime").join(part))
            .find(|path| path.exists())
    }
}

/// Displays the path of the library in listings that would otherwise contain "unset".
pub(super) fn show(settings: &Settings, mut resolved: Vec<Resolved>) -> Vec<Resolved> {
    let found = settings.library(settings.requests_gpu()).map(|path| path.display().to_string());
    for line in resolved.iter_mut().filter(|line| line.name == "ORT_DYLIB_PATH" && line.value.is_none()) {
        line.value = found.clone();
    }
    resolved
}

/// The variable with which ONNX Runtime sets up no telemetry.
#[cfg(unix)]
const NO_TELEMETRY: &str = "ORT_DISABLE_TELEMETRY";

/// Starts the program again with `ORT_DISABLE_TELEMETRY=1`, unless the variable has this value. The
/// process keeps its ID, and nothing is lost if this is called before anything else.
///
/// From version 1.31, ONNX Runtime's library for Linux writes a device ID and a database for events
/// to the user's cache folder while it loads, before a program can switch its telemetry off. Only
/// the environment prevents this, and a process cannot safely change its own environment.
#[cfg(unix)]
pub fn disable_library_telemetry() {
    use std::os::unix::process::CommandExt;

    if std::env::var_os(NO_TELEMETRY).is_some_and(|value| value == "1") {
        return;
    }
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    let error = match std::env::current_exe() {
        Ok(program) => {
            let mut command = std::process::Command::new(program);
            if let Some(name) = name {
                command.arg0(name);
            }
            command.args(arguments).env(NO_TELEMETRY, "1").exec()
        }
        Err(error) => error,
    };
    eprintln!(
        "warning: cannot restart with {NO_TELEMETRY}=1 ({error}); set it, or ONNX Runtime writes a device ID"
    );
}

/// Does nothing: only systems with `exec` can restart a program in its place.
#[cfg(not(unix))]
pub fn disable_library_telemetry() {}

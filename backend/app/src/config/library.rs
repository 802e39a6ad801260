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

//! Which ONNX Runtime is loaded.
use super::{Resolved, Settings};
use inference::gpu_runtime;
use std::path::{Path, PathBuf};

impl Settings {
    /// Whether an operation asks for a GPU that `GPU_BACKEND` allows.
    pub(super) fn asks_for_gpu(&self) -> bool {
        !self.gpu_operations().is_empty() && gpu_runtime(self.gpu.backend).is_some()
    }

    /// What `scripts/gpu-runtime` has to bring for the operations that ask for a GPU; `None` where
    /// none does, and where `ORT_DYLIB_PATH` names a library.
    pub fn wanted_gpu_runtime(&self) -> Option<&'static str> {
        let open = self.models.ort_dylib_path.is_none() && !self.gpu_operations().is_empty();
        open.then(|| gpu_runtime(self.gpu.backend))?
    }

    /// ONNX Runtime's library: `ORT_DYLIB_PATH`, or the one that was set up; with `gpu` the one of
    /// the GPU first. `None`: the system's.
    pub fn library(&self, gpu: bool) -> Option<PathBuf> {
        let name = format!("{}onnxruntime{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        let part = |folder: &str| self.runtime_part(&format!("{folder}/{name}"));
        let of_gpu = || gpu_runtime(self.gpu.backend).filter(|_| gpu).and_then(part);
        self.models.ort_dylib_path.clone().or_else(of_gpu).or_else(|| part("onnxruntime"))
    }

    /// Something in `.runtime`: of the checkout, in the working folder, or above the program itself
    /// (a build in `target/` finds its checkout).
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

/// Puts the library in force where a listing would say "unset".
pub(super) fn show(settings: &Settings, mut resolved: Vec<Resolved>) -> Vec<Resolved> {
    let found = settings.library(settings.asks_for_gpu()).map(|path| path.display().to_string());
    for line in resolved.iter_mut().filter(|line| line.name == "ORT_DYLIB_PATH" && line.value.is_none()) {
        line.value = found.clone();
    }
    resolved
}

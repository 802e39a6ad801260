//! Execution providers in libraries of their own (plug-ins), which ONNX Runtime loads at run time:
//! their names and the places of their libraries. The module `runtime` loads them.
use crate::ep::Provider;
use parking_lot::{ReentrantMutex, ReentrantMutexGuard};
use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
use std::path::{Path, PathBuf};

/// A plug-in.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) provider: Provider,
    /// The name of the provider in ONNX Runtime. The names of its options start with it.
    pub(crate) ep_name: &'static str,
    /// The folder of the library, named like its Python package.
    pub(crate) package: &'static str,
    /// The library without `lib` and the extension of the platform.
    library: &'static str,
    /// The libraries in the same folder that `library` needs, in the order of loading.
    pub(crate) dependencies: &'static [&'static str],
    /// The argument of `scripts/gpu-runtime` that installs the plug-in.
    pub(crate) argument: &'static str,
    /// The package of the plug-in in the Python package index.
    pub(crate) wheel: &'static str,
}

const PLUGINS: [Plugin; 3] = [
    Plugin {
        provider: Provider::TensorrtRtx,
        ep_name: "NvTensorRTRTXExecutionProvider",
        package: "onnxruntime_ep_nv_tensorrt_rtx",
        library: "onnxruntime_providers_nv_tensorrt_rtx",
        dependencies: &["libcudart", "libtensorrt_rtx", "libtensorrt_onnxparser_rtx"],
        argument: "tensorrt-rtx",
        wheel: "onnxruntime-ep-nv-tensorrt-rtx-cu13",
    },
    Plugin {
        provider: Provider::OpenVinoGpu,
        ep_name: "OpenVINOExecutionProvider",
        package: "onnxruntime_ep_openvino",
        library: "onnxruntime_providers_openvino_plugin",
        dependencies: &[],
        argument: "openvino",
        wheel: "onnxruntime-ep-openvino",
    },
    Plugin {
        provider: Provider::WebGpu,
        ep_name: "WebGpuExecutionProvider",
        package: "onnxruntime_ep_webgpu",
        library: "onnxruntime_providers_webgpu",
        dependencies: &[],
        argument: "webgpu",
        wheel: "onnxruntime-ep-webgpu",
    },
];

/// The lock of a provider.
pub(crate) type ProviderLock = ReentrantMutexGuard<'static, ()>;

impl Provider {
    /// Waits for the provider's lock. Only WebGPU has one, because all sessions of its plug-in
    /// (0.4.0) record commands into one encoder. Two threads crash the process, or fail with
    /// "Command encoding already finished". The GPU runs the commands one after the other anyway.
    pub(crate) fn lock(self) -> Option<ProviderLock> {
        static WEBGPU: ReentrantMutex<()> = ReentrantMutex::new(());
        (self == Self::WebGpu).then(|| WEBGPU.lock())
    }

    /// Returns the plug-in of the provider; `None` if it is part of ONNX Runtime.
    pub(crate) fn plugin(self) -> Option<&'static Plugin> {
        PLUGINS.iter().find(|plugin| plugin.provider == self)
    }
}

impl Plugin {
    /// Returns the path of the library in `folder`, if it is installed.
    pub(crate) fn find(&self, folder: Option<&Path>) -> Option<PathBuf> {
        let path = folder?.join(self.package).join(format!("{DLL_PREFIX}{}{DLL_SUFFIX}", self.library));
        // ONNX Runtime resolves relative paths against the folder of its own library.
        path.canonicalize().ok().filter(|path| path.is_file())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn finds_library_in_folder_of_its_package() {
        let folder = tempfile::tempdir().unwrap();
        let plugin = Provider::WebGpu.plugin().unwrap();
        assert_eq!(plugin.find(Some(folder.path())), None);
        assert_eq!(plugin.find(None), None);
        let package = folder.path().join("onnxruntime_ep_webgpu");
        let name = format!("{DLL_PREFIX}onnxruntime_providers_webgpu{DLL_SUFFIX}");
        std::fs::create_dir_all(package.join(&name)).unwrap();
        assert_eq!(plugin.find(Some(folder.path())), None, "a folder is not a library");
        std::fs::remove_dir(package.join(&name)).unwrap();
        std::fs::write(package.join(&name), "").unwrap();
        assert_eq!(plugin.find(Some(folder.path())), Some(package.canonicalize().unwrap().join(name)));
        assert!(Provider::Cuda.plugin().is_none(), "CUDA is part of ONNX Runtime");
    }
}

//! A GPU in software: the WebGPU plug-in on SwiftShader, a Vulkan driver that computes on the CPU.
//! The tests that use it must be marked `#[needs(webgpu)]`.
use crate::assets::{build_library, require, root};
use std::path::{Path, PathBuf};

/// The variables with which the plug-in uses SwiftShader. `./scripts/test` sets them.
const VARIABLES: [&str; 3] = ["VK_DRIVER_FILES", "VK_ICD_FILENAMES", "ORT_WEBGPU_EP_ALLOW_SOFTWARE_ADAPTER"];

/// Returns a folder with the WebGPU plug-in alone. Panics if the plug-in is not installed.
pub fn plugins_dir() -> PathBuf {
    const PACKAGE: &str = "onnxruntime_ep_webgpu";
    let installed = require(Path::new(".runtime/plugins").join(PACKAGE), "run ./scripts/gpu-runtime webgpu");
    let folder = root().join(".runtime/test-plugins");
    std::fs::create_dir_all(&folder).expect("the checkout is writable");
    let link = folder.join(PACKAGE);
    // Another test may have created it.
    let _result = std::os::unix::fs::symlink(installed, &link);
    assert!(link.exists(), "{} cannot be created", link.display());
    folder
}

/// Returns the variables of a process that uses SwiftShader. Panics if this process lacks them.
pub fn software_gpu_variables() -> Vec<(&'static str, String)> {
    let read = |name| {
        (name, std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run ./scripts/test")))
    };
    VARIABLES.map(read).to_vec()
}

/// A Vulkan layer that makes the software GPU fail, as after a reset.
pub struct DeviceLoss {
    folder: PathBuf,
}

impl DeviceLoss {
    const LAYER: &str = "VK_LAYER_TEST_device_loss";

    /// Builds the layer in `folder`.
    pub fn build(folder: &Path) -> Self {
        let library = folder.join("libdevice_loss.so");
        build_library(&root().join("backend/testing/layers/device_loss.rs"), &library, &[]);
        let manifest = serde_json::json!({
            "file_format_version": "1.2.0",
            "layer": {
                "name": Self::LAYER, "type": "GLOBAL", "library_path": library, "api_version": "1.3.0",
                "implementation_version": "1", "description": "makes the device fail",
            },
        });
        std::fs::write(folder.join("device_loss.json"), manifest.to_string())
            .expect("the folder is writable");
        Self { folder: folder.to_owned() }
    }

    /// Returns the variables of a process whose GPU can fail.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let own = [
            ("VK_LAYER_PATH", self.folder.display().to_string()),
            ("VK_INSTANCE_LAYERS", Self::LAYER.to_owned()),
            ("DEVICE_LOSS_FILE", self.file().display().to_string()),
        ];
        [software_gpu_variables(), own.to_vec()].concat()
    }

    /// Makes every submission of work to the GPU fail from now on.
    pub fn lose_device(&self) {
        std::fs::write(self.file(), "").expect("the folder is writable");
    }

    fn file(&self) -> PathBuf {
        self.folder.join("lost")
    }
}

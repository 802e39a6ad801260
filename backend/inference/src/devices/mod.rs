//! Lists the machine's GPUs, whether or not the loaded runtime can use them.
mod amd;
mod nvidia;

use crate::ep::Provider;
use serde::Serialize;

#[derive(Clone, Debug, Serialize)]
pub struct GpuDevice {
    /// Index in the driver's numbering.
    pub id: u32,
    pub name: String,
    /// `cuda`, `rocm`, `mps`.
    pub backend: &'static str,
    /// Total memory in bytes.
    pub memory_total: Option<u64>,
    /// Used memory in bytes.
    pub memory_used: Option<u64>,
    /// Driver version.
    pub driver: Option<String>,
    /// Share of the last sample period in which the GPU was busy, 0..1.
    pub utilization: Option<f64>,
    /// NVIDIA's compute capability: `8.6`.
    pub compute_capability: Option<String>,
}

/// Returns this machine's GPUs, with the values that their drivers currently report.
pub(crate) fn discover() -> Vec<GpuDevice> {
    let mut devices = nvidia::discover();
    devices.extend(amd::discover());
    devices
}

/// Returns the driver's entry for the device that `provider` numbers as `id`.
pub(crate) fn find(provider: Provider, id: u32) -> Option<GpuDevice> {
    let devices = match provider {
        Provider::Cuda | Provider::Tensorrt => nvidia::discover(),
        Provider::Migraphx => amd::discover(),
        Provider::Cpu | Provider::OpenVino | Provider::CoreMl => Vec::new(),
    };
    devices.into_iter().find(|device| device.id == id)
}

/// What the drivers of a provider report.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drivers {
    pub(crate) version: Option<String>,
    /// Number of GPUs that the driver lists.
    pub(crate) devices: usize,
}

/// Returns the current report of the drivers of `provider`; empty for providers without a driver.
pub(crate) fn drivers(provider: Provider) -> Drivers {
    match provider {
        Provider::Cuda | Provider::Tensorrt => {
            Drivers { version: nvidia::driver(), devices: nvidia::discover().len() }
        }
        Provider::Migraphx => Drivers { version: None, devices: amd::discover().len() },
        Provider::Cpu | Provider::OpenVino | Provider::CoreMl => Drivers::default(),
    }
}

/// Sets the gauges `facecrawl_gpu_memory_bytes` and `facecrawl_gpu_utilization`. It queries the
/// drivers, which takes milliseconds.
pub fn record() {
    for device in discover() {
        let label = format!("{}:{}", device.backend, device.id);
        let memory = |state: &'static str, bytes: Option<u64>| {
            if let Some(bytes) = bytes {
                metrics::gauge!("facecrawl_gpu_memory_bytes", "device" => label.clone(), "state" => state)
                    .set(bytes as f64);
            }
        };
        memory("used", device.memory_used);
        memory("total", device.memory_total);
        if let Some(utilization) = device.utilization {
            metrics::gauge!("facecrawl_gpu_utilization", "device" => label.clone()).set(utilization);
        }
    }
}

/// Returns the entries of a folder, sorted; empty if the folder cannot be read.
fn folders(path: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> =
        std::fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.sort();
    found
}

#[cfg(test)]
pub(super) mod testing {
    //! A temporary folder that imitates a part of `/proc` or `/sys`.
    #![allow(clippy::unwrap_used)]
    use std::path::{Path, PathBuf};

    pub(crate) struct Tree(PathBuf);

    impl Tree {
        pub(crate) fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("facecrawl-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&root).unwrap();
            Self(root)
        }
        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
        pub(crate) fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

//! Lists NVIDIA GPUs from the driver's management library (NVML). Without NVML, as in some
//! containers, it reads the driver's files.
//!
//! NVML and these files number the devices in PCI bus order. CUDA uses that order with
//! `CUDA_DEVICE_ORDER=PCI_BUS_ID` and without `CUDA_VISIBLE_DEVICES`. On machines with different
//! GPUs, set `CUDA_DEVICE_ORDER` so that `GPU_DEVICE_ID` refers to the device listed here.
use super::{GpuDevice, folders};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

/// The driver's files, for machines without NVML.
const FILES: &str = "/proc/driver/nvidia";

pub(super) fn discover() -> Vec<GpuDevice> {
    let managed = library().map(read_managed).transpose().unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to query NVIDIA's management library");
        None
    });
    managed.unwrap_or_else(|| read_files(Path::new(FILES)))
}

/// Returns the driver's version, even if the driver lists no GPU.
pub(super) fn driver() -> Option<String> {
    let managed = library().and_then(|nvml| nvml.sys_driver_version().ok());
    managed.or_else(|| read_version(Path::new(FILES)))
}

fn library() -> Option<&'static Nvml> {
    static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
    let init = || {
        Nvml::init()
            .inspect_err(|error| tracing::debug!(%error, "NVIDIA's management library not found"))
            .ok()
    };
    LIBRARY.get_or_init(init).as_ref()
}

fn read_managed(nvml: &Nvml) -> Result<Vec<GpuDevice>, NvmlError> {
    let driver = nvml.sys_driver_version().ok();
    (0..nvml.device_count()?)
        .map(|id| {
            // A value that a device does not report is `None`: integrated GPUs have no dedicated
            // memory.
            let device = nvml.device_by_index(id)?;
            let memory = device.memory_info().ok();
            let capability = device.cuda_compute_capability().ok();
            Ok(GpuDevice {
                id,
                name: device.name().unwrap_or_else(|_| "NVIDIA GPU".to_owned()),
                backend: "cuda",
                memory_total: memory.as_ref().map(|m| m.total),
                memory_used: memory.as_ref().map(|m| m.used),
                driver: driver.clone(),
                utilization: device.utilization_rates().ok().map(|u| f64::from(u.gpu) / 100.0),
                compute_capability: capability.map(|c| format!("{}.{}", c.major, c.minor)),
            })
        })
        .collect()
}

fn read_version(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("version")).ok()?;
    let line = text.lines().find(|line| line.contains("NVRM version"))?;
    line.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
}

fn read_files(root: &Path) -> Vec<GpuDevice> {
    let driver = read_version(root);
    folders(&root.join("gpus"))
        .iter()
        .filter_map(|gpu| fs::read_to_string(gpu.join("information")).ok())
        .zip(0..)
        .map(|(text, id)| {
            let name = text.lines().find_map(|line| line.strip_prefix("Model:"));
            GpuDevice {
                id,
                name: name.map_or("NVIDIA GPU", str::trim).to_owned(),
                backend: "cuda",
                memory_total: None,
                memory_used: None,
                driver: driver.clone(),
                utilization: None,
                compute_capability: None,
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::devices::testing::Tree;

    #[test]
    fn without_the_library_the_drivers_files_tell_name_and_version() {
        let tree = Tree::new("nvidia");
        tree.write("version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26\n");
        tree.write("gpus/0000:01:00.0/information", "Model: \t\t NVIDIA A10\nIRQ: 5\n");
        tree.write("gpus/0000:02:00.0/information", "Model: \t\t NVIDIA L4\n");
        let found = read_files(tree.path());
        let names: Vec<_> = found.iter().map(|d| (d.id, d.name.as_str(), d.driver.as_deref())).collect();
        assert_eq!(names, [(0, "NVIDIA A10", Some("570.124.06")), (1, "NVIDIA L4", Some("570.124.06"))]);
    }

    /// Source of a library with NVML's entry points and two devices that report different values.
    /// The test builds it.
    const LIBRARY: &str = r#"
        #![allow(non_snake_case)]
        use std::ffi::{c_char, c_int, c_uint, c_void};
        #[repr(C)] pub struct Memory { version: c_uint, total: u64, reserved: u64, free: u64, used: u64 }
        #[repr(C)] pub struct Utilization { gpu: c_uint, memory: c_uint }
        unsafe fn text(to: *mut c_char, text: &str) {
            unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len()); *to.add(text.len()) = 0; }
        }
        #[unsafe(no_mangle)] pub extern "C" fn nvmlInit_v2() -> c_int { 0 }
        #[unsafe(no_mangle)] pub extern "C" fn nvmlShutdown() -> c_int { 0 }
        #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, _: c_uint) -> c_int { unsafe { text(to, "580.1") }; 0 }
        #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> c_int { unsafe { *to = 2 }; 0 }
        #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(at: c_uint, to: *mut *mut c_void) -> c_int { unsafe { *to = (at as usize + 1) as *mut c_void }; 0 }
        #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlDeviceGetName(at: *mut c_void, to: *mut c_char, _: c_uint) -> c_int { unsafe { text(to, if at as usize == 1 { "NVIDIA A10" } else { "NVIDIA Orin" }) }; 0 }
        #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(at: *mut c_void, to: *mut Memory) -> c_int {
            if at as usize != 1 { return 3 }
            unsafe { (*to).total = 24 << 30; (*to).used = 5 << 30; } 0
        }
        #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(at: *mut c_void, to: *mut Utilization) -> c_int {
            if at as usize != 1 { return 3 }
            unsafe { (*to).gpu = 62; (*to).memory = 9; } 0
        }
        #[unsafe(no_mangle)] pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(_: *mut c_void, major: *mut c_int, minor: *mut c_int) -> c_int { unsafe { *major = 8; *minor = 6 }; 0 }
    "#;

    #[test]
    #[cfg(target_os = "linux")]
    fn the_library_tells_memory_utilisation_and_capability() {
        let tree = Tree::new("nvml");
        tree.write("nvml.rs", LIBRARY);
        let library = tree.path().join("libnvidia-ml.so");
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let built = std::process::Command::new(rustc)
            .args(["--edition", "2024", "--crate-type", "cdylib", "-C", "opt-level=0", "-o"])
            .args([&library, &tree.path().join("nvml.rs")])
            .status();
        assert!(built.unwrap().success());
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
        let found = read_managed(&nvml).unwrap();
        assert_eq!(found.len(), 2);
        let card = &found[0];
        assert_eq!((card.id, card.name.as_str(), card.driver.as_deref()), (0, "NVIDIA A10", Some("580.1")));
        assert_eq!((card.memory_total, card.memory_used), (Some(24 << 30), Some(5 << 30)));
        assert_eq!((card.utilization, card.compute_capability.as_deref()), (Some(0.62), Some("8.6")));
        let board = &found[1];
        assert_eq!((board.name.as_str(), board.memory_total, board.utilization), ("NVIDIA Orin", None, None));
    }
}

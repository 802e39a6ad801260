//! Lists GPUs, whether or not the loaded runtime can use them.
//!
//! NVIDIA GPUs come from the driver's management library (NVML). Without NVML, as in some
//! containers, they come from the driver's files. Both number the devices in PCI bus order. CUDA
//! uses that order with `CUDA_DEVICE_ORDER=PCI_BUS_ID` and without `CUDA_VISIBLE_DEVICES`. On
//! machines with different GPUs, set `CUDA_DEVICE_ORDER` so that `GPU_DEVICE_ID` refers to the
//! device listed here. AMD GPUs come from sysfs (the files of the amdgpu driver). The GPUs of the
//! plug-ins for WebGPU and OpenVINO come from Vulkan (see the module `vulkan`).
use crate::ep::Provider;
use crate::vulkan::{self, VulkanGpu};
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

#[derive(Clone, Debug, Default, Serialize)]
pub struct GpuDevice {
    /// Index in the driver's numbering.
    pub id: u32,
    pub name: String,
    /// The provider that numbers the device: `cuda`, `rocm`, `webgpu`, …
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
    let mut devices = nvidia_devices();
    devices.extend(amd_devices());
    devices
}

/// Returns the GPUs that `provider` numbers. Those of WebGPU and OpenVINO come from Vulkan.
fn devices_of(provider: Provider) -> Vec<GpuDevice> {
    match provider {
        Provider::Cuda | Provider::Tensorrt | Provider::TensorrtRtx => nvidia_devices(),
        Provider::Migraphx => amd_devices(),
        // The plug-in selects the first one.
        Provider::WebGpu => vulkan_devices(provider, |_| true).into_iter().take(1).collect(),
        Provider::OpenVinoGpu => vulkan_devices(provider, |name| name.contains("Intel")),
        Provider::Cpu | Provider::OpenVino | Provider::CoreMl => Vec::new(),
    }
}

/// Returns the GPUs of Vulkan's drivers whose name `is_wanted` accepts, numbered for `provider`.
fn vulkan_devices(provider: Provider, is_wanted: impl Fn(&str) -> bool) -> Vec<GpuDevice> {
    let gpus = vulkan::gpus().unwrap_or_default().iter().filter(|gpu| is_wanted(&gpu.name));
    let device = |(id, gpu): (u32, &VulkanGpu)| GpuDevice {
        id,
        name: gpu.name.clone(),
        backend: provider.name(),
        memory_total: Some(gpu.memory),
        ..GpuDevice::default()
    };
    (0..).zip(gpus).map(device).collect()
}

/// Returns the GPUs that the plug-ins among `providers` number.
pub(crate) fn devices_of_plugins(providers: &[Provider]) -> Vec<GpuDevice> {
    // The driver's library lists the GPUs of TensorRT for RTX.
    let others = [Provider::OpenVinoGpu, Provider::WebGpu].into_iter();
    others.filter(|provider| providers.contains(provider)).flat_map(devices_of).collect()
}

/// Returns the driver's entry for the device that `provider` numbers as `id`.
pub(crate) fn find(provider: Provider, id: u32) -> Option<GpuDevice> {
    devices_of(provider).into_iter().find(|device| device.id == id)
}

/// The report of the drivers of a provider.
#[derive(Clone, Debug, Default)]
pub(crate) struct Drivers {
    pub(crate) version: Option<String>,
    /// Number of GPUs that the driver lists.
    pub(crate) devices: usize,
}

/// Returns the current report of the drivers of `provider`; empty for providers without a driver.
pub(crate) fn drivers(provider: Provider) -> Drivers {
    let is_nvidia = matches!(provider, Provider::Cuda | Provider::Tensorrt | Provider::TensorrtRtx);
    let version = if is_nvidia { nvidia_driver() } else { None };
    Drivers { version, devices: devices_of(provider).len() }
}

/// The kinds of GPU that need different libraries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GpuKind {
    /// NVIDIA, supported by TensorRT for RTX ([`supports_tensorrt_rtx`]).
    NvidiaRtx,
    /// Another GPU of NVIDIA that CUDA 13 supports (compute capability 7.5 and newer).
    Nvidia,
    Intel,
    Other,
}

/// Returns whether TensorRT for RTX supports a GPU of NVIDIA: 8.6, 8.9, and 12.0 and newer, as the
/// plug-in (0.5.0) reports. Not 8.0 (A100), 9.0 (H100) and 10.0 (B200).
pub(crate) fn supports_tensorrt_rtx(compute_capability: &str) -> bool {
    parse_capability(compute_capability).is_some_and(|c| [(8, 6), (8, 9)].contains(&c) || c >= (12, 0))
}

fn parse_capability(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Returns the kinds of the machine's GPUs without duplicates, from the driver of NVIDIA and from
/// the PCI bus.
pub(crate) fn gpu_kinds() -> Vec<GpuKind> {
    let nvidia = nvidia_devices();
    let nvidia = nvidia.iter().map(|gpu| nvidia_kind(gpu.compute_capability.as_deref()));
    let mut kinds = Vec::new();
    for kind in nvidia.chain(read_pci_kinds(Path::new("/sys/bus/pci/devices"))) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

fn nvidia_kind(compute_capability: Option<&str>) -> GpuKind {
    match compute_capability {
        Some(text) if supports_tensorrt_rtx(text) => GpuKind::NvidiaRtx,
        Some(text) if parse_capability(text) >= Some((7, 5)) => GpuKind::Nvidia,
        _ => GpuKind::Other,
    }
}

/// Reads the kinds of display controllers (class 03) from the files of the PCI bus.
fn read_pci_kinds(root: &Path) -> Vec<GpuKind> {
    let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
    sorted_entries(root)
        .into_iter()
        .filter(|device| read(device.join("class")).starts_with("0x03"))
        .filter_map(|device| match read(device.join("vendor")).trim() {
            // The driver of NVIDIA lists its GPUs. Without it, none of its libraries work.
            "0x10de" => None,
            "0x8086" => Some(GpuKind::Intel),
            // Displays of virtual machines (Bochs, QXL, Cirrus, VMware, Hyper-V, virtio) and of
            // servers' management controllers (ASPEED, Matrox, Huawei).
            "0x1234" | "0x1b36" | "0x1013" | "0x15ad" | "0x1414" | "0x1af4" => None,
            "0x1a03" | "0x102b" | "0x19e5" | "" => None,
            _ => Some(GpuKind::Other),
        })
        .collect()
}

/// Sets the gauges `facecrawl_gpu_memory_bytes` and `facecrawl_gpu_utilization`. This queries the
/// drivers and takes milliseconds.
pub fn record_metrics() {
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

/// The driver's files, for machines without NVML.
const NVIDIA_FILES: &str = "/proc/driver/nvidia";

/// Lists NVIDIA GPUs from the management library or, if it is missing, from the driver's files.
fn nvidia_devices() -> Vec<GpuDevice> {
    let from_nvml = nvml().map(read_nvml).transpose().unwrap_or_else(|error| {
        tracing::warn!(%error, "failed to query NVIDIA's management library");
        None
    });
    from_nvml.unwrap_or_else(|| read_nvidia_files(Path::new(NVIDIA_FILES)))
}

/// Returns the driver's version, even if the driver lists no GPU.
fn nvidia_driver() -> Option<String> {
    let from_nvml = nvml().and_then(|nvml| nvml.sys_driver_version().ok());
    from_nvml.or_else(|| read_nvidia_version(Path::new(NVIDIA_FILES)))
}

fn nvml() -> Option<&'static Nvml> {
    static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
    let log = |error: &NvmlError| tracing::debug!(%error, "NVIDIA's management library not found");
    LIBRARY.get_or_init(|| Nvml::init().inspect_err(log).ok()).as_ref()
}

fn read_nvml(nvml: &Nvml) -> Result<Vec<GpuDevice>, NvmlError> {
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

fn read_nvidia_version(root: &Path) -> Option<String> {
    let text = fs::read_to_string(root.join("version")).ok()?;
    let line = text.lines().find(|line| line.contains("NVRM version"))?;
    line.split_whitespace().find(|word| word.starts_with(|c: char| c.is_ascii_digit())).map(str::to_owned)
}

fn read_nvidia_files(root: &Path) -> Vec<GpuDevice> {
    let driver = read_nvidia_version(root);
    sorted_entries(&root.join("gpus"))
        .iter()
        .filter_map(|gpu| fs::read_to_string(gpu.join("information")).ok())
        .zip(0..)
        .map(|(text, id)| {
            let name = text.lines().find_map(|line| line.strip_prefix("Model:"));
            GpuDevice {
                id,
                name: name.map_or("NVIDIA GPU", str::trim).to_owned(),
                backend: "cuda",
                driver: driver.clone(),
                ..GpuDevice::default()
            }
        })
        .collect()
}

const AMD_VENDOR: &str = "0x1002";

/// Lists AMD GPUs from sysfs.
fn amd_devices() -> Vec<GpuDevice> {
    read_amd(Path::new("/sys/class/drm"))
}

fn read_amd(root: &Path) -> Vec<GpuDevice> {
    let read = |path: PathBuf| fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    sorted_entries(root)
        .iter()
        // `card0` is a device; `card0-HDMI-A-1` is one of its connectors.
        .filter(|card| {
            let number = card.file_name().and_then(|n| n.to_str()?.strip_prefix("card"));
            number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
        })
        .map(|card| card.join("device"))
        .filter(|device| read(device.join("vendor")).as_deref() == Some(AMD_VENDOR))
        .zip(0..)
        .map(|(device, id)| {
            let number = |file: &str| read(device.join(file)).and_then(|n| n.parse::<u64>().ok());
            let name = read(device.join("product_name")).filter(|name| !name.is_empty());
            GpuDevice {
                id,
                name: name.unwrap_or_else(|| "AMD GPU".to_owned()),
                backend: "rocm",
                memory_total: number("mem_info_vram_total"),
                memory_used: number("mem_info_vram_used"),
                driver: read(device.join("driver/module/version")),
                utilization: number("gpu_busy_percent").map(|percent| percent as f64 / 100.0),
                ..GpuDevice::default()
            }
        })
        .collect()
}

/// Returns the entries of a folder, sorted; empty if the folder cannot be read.
fn sorted_entries(path: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(path).into_iter().flatten().flatten().map(|e| e.path()).collect();
    entries.sort();
    entries
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tempfile::TempDir;

    /// Writes a file of a folder that imitates a part of `/proc` or `/sys`.
    fn write(tree: &TempDir, path: &str, text: &str) {
        let path = tree.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn reads_kinds_of_display_controllers() {
        let tree = tempfile::tempdir().unwrap();
        for (address, class, vendor) in [
            ("0000:00:02.0", "0x030000", "0x8086"),
            ("0000:00:1f.0", "0x060100", "0x8086"),
            ("0000:01:00.0", "0x030200", "0x10de"),
            ("0000:02:00.0", "0x030000", "0x1234"),
            ("0000:03:00.0", "0x038000", "0x1002"),
        ] {
            write(&tree, &format!("{address}/class"), &format!("{class}\n"));
            write(&tree, &format!("{address}/vendor"), &format!("{vendor}\n"));
        }
        assert_eq!(read_pci_kinds(tree.path()), [GpuKind::Intel, GpuKind::Other]);
        assert_eq!(read_pci_kinds(&tree.path().join("nowhere")), []);
    }

    #[test]
    fn kind_of_nvidia_gpu_follows_compute_capability() {
        for capability in ["8.6", "8.9", "12.0", "12.1"] {
            assert_eq!(nvidia_kind(Some(capability)), GpuKind::NvidiaRtx, "{capability}");
        }
        for capability in ["7.5", "8.0", "9.0", "10.0"] {
            assert_eq!(nvidia_kind(Some(capability)), GpuKind::Nvidia, "{capability}");
        }
        assert_eq!([Some("6.1"), Some("?"), None].map(nvidia_kind), [GpuKind::Other; 3]);
    }

    #[test]
    fn reads_nvidia_name_and_driver_from_files() {
        let tree = tempfile::tempdir().unwrap();
        write(&tree, "version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.124.06  Wed Feb 26\n");
        write(&tree, "gpus/0000:01:00.0/information", "Model: \t\t NVIDIA A10\nIRQ: 5\n");
        write(&tree, "gpus/0000:02:00.0/information", "Model: \t\t NVIDIA L4\n");
        let devices = read_nvidia_files(tree.path());
        let names: Vec<_> = devices.iter().map(|d| (d.id, d.name.as_str(), d.driver.as_deref())).collect();
        assert_eq!(names, [(0, "NVIDIA A10", Some("570.124.06")), (1, "NVIDIA L4", Some("570.124.06"))]);
    }

    /// Source of a library with NVML's entry points and two devices that report different values.
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
    fn reads_nvidia_memory_and_utilisation_from_nvml() {
        let tree = tempfile::tempdir().unwrap();
        write(&tree, "nvml.rs", LIBRARY);
        let library = tree.path().join("libnvidia-ml.so");
        testing::build_library(&tree.path().join("nvml.rs"), &library, &[]);
        let nvml = Nvml::builder().lib_path(library.as_os_str()).init().unwrap();
        let devices = read_nvml(&nvml).unwrap();
        assert_eq!(devices.len(), 2);
        let card = &devices[0];
        assert_eq!((card.id, card.name.as_str(), card.driver.as_deref()), (0, "NVIDIA A10", Some("580.1")));
        assert_eq!((card.memory_total, card.memory_used), (Some(24 << 30), Some(5 << 30)));
        assert_eq!((card.utilization, card.compute_capability.as_deref()), (Some(0.62), Some("8.6")));
        let board = &devices[1];
        assert_eq!((board.name.as_str(), board.memory_total, board.utilization), ("NVIDIA Orin", None, None));
    }

    #[test]
    fn reads_only_amd_cards_from_sysfs() {
        let tree = tempfile::tempdir().unwrap();
        write(&tree, "card0/device/vendor", "0x8086\n");
        write(&tree, "card1/device/vendor", "0x1002\n");
        write(&tree, "card1/device/mem_info_vram_total", "12868124672\n");
        write(&tree, "card1/device/mem_info_vram_used", "1048576\n");
        write(&tree, "card1/device/gpu_busy_percent", "37\n");
        write(&tree, "card1-DP-1/status", "connected\n");
        let devices = read_amd(tree.path());
        assert_eq!(devices.len(), 1);
        let card = &devices[0];
        assert_eq!((card.id, card.name.as_str(), card.backend), (0, "AMD GPU", "rocm"));
        assert_eq!((card.memory_total, card.memory_used), (Some(12_868_124_672), Some(1_048_576)));
        assert_eq!(card.utilization, Some(0.37));
    }
}

//! The kinds of reasons why a provider cannot be used, with the advice for each. The module
//! `diagnosis` finds the kind from an error message.
mod diagnosis;

pub(crate) use diagnosis::{DIFFERS, diagnose, is_out_of_memory};

use crate::devices::{self, GpuKind};
use crate::ep::Provider;
use crate::{GpuBackend, Operation};
use std::fmt;

/// The oldest major version of the NVIDIA driver that supports CUDA 13.
const MIN_CUDA_13_DRIVER: u32 = 580;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnavailableKind {
    /// This program was built without the provider.
    NotInBuild,
    /// The loaded ONNX Runtime was built without the provider.
    NotInLibrary {
        library: String,
    },
    /// The provider is a plug-in that is not installed.
    PluginMissing,
    /// A shared library that the provider needs cannot be found.
    LibraryMissing {
        name: String,
    },
    /// The GPU's driver is not installed, or not visible in this container.
    DriverMissing,
    /// The driver is older than the provider needs.
    DriverTooOld {
        /// The driver's version, if it is reported.
        found: Option<String>,
    },
    /// The driver's library and its kernel module have different versions.
    DriverMismatch,
    /// The driver provides no GPU to this process.
    NoDevice {
        /// Number of GPUs that the driver's management library lists nevertheless.
        listed: usize,
    },
    /// No GPU has this number.
    DeviceId {
        id: u32,
        /// Number of GPUs that the driver lists.
        listed: usize,
    },
    /// The libraries contain no code for this generation of GPU.
    DeviceUnsupported,
    /// The GPU does not have enough free memory.
    OutOfMemory,
    /// The versions of ONNX Runtime, its provider and their libraries do not match.
    RuntimeOutOfDate,
    /// The provider's results differ from the CPU's.
    Disagrees,
    Unsuited,
    /// `GPU_BACKEND` is `cpu`.
    SwitchedOff,
    /// The program that runs the operation is missing or unusable.
    ProgramMissing,
    /// Any other failure; the detail describes it.
    Failed,
}

impl UnavailableKind {
    /// Returns the kind's name in `GET /gpu`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::NotInBuild => "not_in_build",
            Self::NotInLibrary { .. } => "not_in_library",
            Self::PluginMissing => "plugin_missing",
            Self::LibraryMissing { .. } => "library_missing",
            Self::DriverMissing => "driver_missing",
            Self::DriverTooOld { .. } => "driver_too_old",
            Self::DriverMismatch => "driver_mismatch",
            Self::NoDevice { .. } => "no_device",
            Self::DeviceId { .. } => "device_id",
            Self::DeviceUnsupported => "device_unsupported",
            Self::OutOfMemory => "out_of_memory",
            Self::RuntimeOutOfDate => "runtime_out_of_date",
            Self::Disagrees => "disagrees",
            Self::Unsuited => "unsuited",
            Self::SwitchedOff => "switched_off",
            Self::ProgramMissing => "program_missing",
            Self::Failed => "failed",
        }
    }

    /// Returns whether every operation would fail for this reason on the same device, so that one
    /// attempt is enough.
    pub(crate) fn affects_all_operations(&self) -> bool {
        matches!(
            self,
            Self::NotInBuild
                | Self::NotInLibrary { .. }
                | Self::PluginMissing
                | Self::LibraryMissing { .. }
                | Self::DriverMissing
                | Self::DriverTooOld { .. }
                | Self::DriverMismatch
                | Self::NoDevice { .. }
                | Self::DeviceId { .. }
                | Self::RuntimeOutOfDate
                | Self::SwitchedOff
        )
    }
}

/// Why one provider cannot be used. `Display` is one line: the provider, the problem, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The provider; `None` if no provider was allowed.
    pub provider: Option<Provider>,
    pub kind: UnavailableKind,
    /// The original message of the runtime, the loader or the driver.
    pub detail: String,
}

impl Unavailable {
    pub(crate) fn new(provider: Provider, kind: UnavailableKind, detail: impl Into<String>) -> Self {
        Self { provider: Some(provider), kind, detail: detail.into() }
    }

    /// Returns the reason for `GPU_BACKEND=cpu`, which allows no provider.
    pub(crate) fn switched_off() -> Self {
        let detail = "GPU_BACKEND is cpu".to_owned();
        Self { provider: None, kind: UnavailableKind::SwitchedOff, detail }
    }

    /// Returns the provider's name and a colon, if there is a provider.
    pub(crate) fn prefix(&self) -> String {
        self.provider.map(|provider| format!("{}: ", provider.name())).unwrap_or_default()
    }

    /// Returns the problem as one sentence without a full stop.
    pub fn message(&self) -> String {
        use UnavailableKind as Kind;
        let is_amd = self.provider == Some(Provider::Migraphx);
        let vendor = match self.provider {
            Some(Provider::Migraphx) => "AMD GPU",
            Some(Provider::OpenVinoGpu) => "Intel GPU",
            Some(Provider::WebGpu) => "GPU with a Vulkan driver",
            _ => "NVIDIA GPU",
        };
        let cuda_13 = format!("CUDA 13 requires {MIN_CUDA_13_DRIVER} or newer");
        let text = match &self.kind {
            Kind::NotInBuild => "this program was built without it",
            Kind::NotInLibrary { library } => {
                return format!("the loaded ONNX Runtime {library} was built without it");
            }
            Kind::PluginMissing => "its plug-in is not installed",
            Kind::LibraryMissing { name } => return format!("the library {name} is missing"),
            Kind::DriverMissing if is_amd => "the AMD GPU driver is missing",
            Kind::DriverMissing => "the NVIDIA driver is missing (its library libcuda.so.1 was not found)",
            // Some minor versions of CUDA need a newer driver than the first one for CUDA 13.
            Kind::DriverTooOld { found: Some(version) } if supports_cuda_13(version) => {
                return format!("the NVIDIA driver {version} is too old for these libraries");
            }
            Kind::DriverTooOld { found: Some(version) } => {
                return format!("the NVIDIA driver {version} is too old; {cuda_13}");
            }
            Kind::DriverTooOld { found: None } => {
                return format!("the NVIDIA driver is missing or too old; {cuda_13}");
            }
            Kind::DriverMismatch => {
                "the NVIDIA driver's library and its kernel module have different versions"
            }
            Kind::NoDevice { listed: 0 } => return format!("there is no {vendor}"),
            Kind::NoDevice { listed } => {
                let gpus = gpus_text(*listed);
                return format!("the driver lists {gpus}, but this process has no access to them");
            }
            Kind::DeviceId { id, listed: 0 } => return format!("there is no GPU with the number {id}"),
            Kind::DeviceId { id, listed } => {
                let gpus = gpus_text(*listed);
                return format!("there is no GPU with the number {id}; the driver lists {gpus}");
            }
            Kind::DeviceUnsupported => "the libraries do not support this GPU",
            Kind::OutOfMemory => "the GPU does not have enough free memory",
            Kind::RuntimeOutOfDate => {
                "the versions of ONNX Runtime and of the libraries in its folder do not match"
            }
            Kind::Disagrees | Kind::Unsuited | Kind::SwitchedOff | Kind::ProgramMissing | Kind::Failed => {
                return diagnosis::without_source_location(&self.detail);
            }
        };
        text.to_owned()
    }

    /// Returns what the operator should do; `None` if nothing can be done on this machine.
    pub fn advice(&self) -> Option<String> {
        use UnavailableKind as Kind;
        let advice = match (&self.kind, self.provider) {
            (Kind::NotInLibrary { .. } | Kind::PluginMissing, _) => return self.library_advice(),
            (Kind::LibraryMissing { name }, _) => return Some(Package::from_library(name).advice()),
            (Kind::DriverMissing | Kind::NoDevice { .. }, Some(Provider::Migraphx)) => {
                "install ROCm's driver; /dev/kfd and /dev/dri must be visible to this process"
            }
            (Kind::NoDevice { .. }, Some(Provider::WebGpu)) => {
                "install the GPU's Vulkan driver (on Debian: mesa-vulkan-drivers); /dev/dri must be visible to this process"
            }
            (Kind::NoDevice { .. }, Some(Provider::OpenVinoGpu)) => {
                "install Intel's compute driver (on Debian: intel-opencl-icd); /dev/dri must be visible to this process"
            }
            (Kind::DriverMissing, _) => {
                return Some(format!(
                    "install driver {MIN_CUDA_13_DRIVER} or newer (in a container: start it with `--gpus all`)"
                ));
            }
            (Kind::DriverTooOld { .. }, _) => "update the driver and restart the machine",
            (Kind::DriverMismatch, _) => "restart the machine",
            (Kind::NoDevice { .. }, _) => {
                "check `nvidia-smi` and CUDA_VISIBLE_DEVICES (in a container: start it with `--gpus all`)"
            }
            (Kind::DeviceId { .. }, _) => {
                "set GPU_DEVICE_ID or GPU_DEVICE_IDS to numbers from the list of `facecrawl gpu`"
            }
            (Kind::DeviceUnsupported, Some(Provider::TensorrtRtx)) => {
                "TensorRT for RTX requires compute capability 8.6, 8.9, or 12.0 or newer; `./scripts/gpu-runtime cuda` installs CUDA"
            }
            (Kind::DeviceUnsupported, _) => {
                "CUDA 13 requires compute capability 7.5 or newer (GeForce RTX 20, T4)"
            }
            (Kind::OutOfMemory, _) => {
                "lower GPU_MEMORY_LIMIT_GB or GPU_BATCH_SIZE, or stop other programs on the GPU"
            }
            (Kind::RuntimeOutOfDate, _) => {
                "run `./scripts/gpu-runtime cuda` and unset ORT_DYLIB_PATH and LD_LIBRARY_PATH"
            }
            (Kind::NotInBuild | Kind::Disagrees | Kind::Unsuited, _) => return None,
            (Kind::SwitchedOff | Kind::ProgramMissing | Kind::Failed, _) => return None,
        };
        Some(advice.to_owned())
    }

    fn library_advice(&self) -> Option<String> {
        let has_webgpu = self.provider == Some(Provider::WebGpu) && cfg!(target_arch = "aarch64");
        let has_script = cfg!(target_os = "linux") && (cfg!(target_arch = "x86_64") || has_webgpu);
        let provider = self.provider.filter(|_| has_script)?;
        if let Some(plugin) = provider.plugin() {
            return Some(format!(
                "`./scripts/gpu-runtime {}` installs it, or in an installation by pip `pip install {}`",
                plugin.argument, plugin.wheel
            ));
        }
        let advice = match provider {
            Provider::Cuda | Provider::Tensorrt => {
                "`./scripts/gpu-runtime cuda` installs a library that includes it"
            }
            Provider::OpenVino => "`./scripts/openvino` installs a library that includes it",
            Provider::Migraphx => "see docs/how-to/OPERATIONS.md (GPUs) for a library that includes it",
            _ => return None,
        };
        Some(advice.to_owned())
    }

    /// Returns the problem and the advice in one line, without the provider.
    pub fn sentence(&self) -> String {
        match self.advice() {
            Some(advice) => format!("{}; {advice}", self.message()),
            None => self.message(),
        }
    }

    /// Returns the priority of the reason in reports. It is higher if the provider came closer to
    /// running, and then if it is one of the `recommended` providers of this machine.
    fn report_priority(&self, recommended: &[Provider]) -> (u8, bool) {
        let is_other_system = match self.provider {
            Some(Provider::CoreMl) => !cfg!(target_os = "macos"),
            Some(Provider::Cuda | Provider::Tensorrt | Provider::TensorrtRtx | Provider::Migraphx) => {
                !cfg!(target_os = "linux")
            }
            _ => false,
        };
        let stage = match self.kind {
            _ if is_other_system => 0,
            UnavailableKind::NotInBuild => 1,
            UnavailableKind::NotInLibrary { .. } | UnavailableKind::PluginMissing => 2,
            _ => 3,
        };
        (stage, self.provider.is_some_and(|provider| recommended.contains(&provider)))
    }
}

fn supports_cuda_13(driver: &str) -> bool {
    let major = driver.split('.').next().and_then(|major| major.parse::<u32>().ok());
    major >= Some(MIN_CUDA_13_DRIVER)
}

fn gpus_text(count: usize) -> String {
    format!("{count} {}", if count == 1 { "GPU" } else { "GPUs" })
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.prefix(), self.sentence())
    }
}

/// Why an operation did not get the requested provider: the reason for the provider that came
/// closest to working, with the original messages of all providers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why the provider that came closest to working is unavailable.
    pub main_reason: Unavailable,
    /// The failures of the providers, the best provider first.
    pub failures: Vec<Unavailable>,
}

impl Refusal {
    /// Builds the refusal from the failures of the providers, the best provider first.
    pub(crate) fn from_attempts(failures: Vec<Unavailable>) -> Self {
        let recommended = recommended_providers(&devices::gpu_kinds());
        // Of several failures with the highest priority, `max_by_key` returns the last one.
        let main_reason = failures.iter().rev().max_by_key(|failure| failure.report_priority(&recommended));
        Self { main_reason: main_reason.cloned().unwrap_or_else(Unavailable::switched_off), failures }
    }

    /// Returns the original message of each provider that was tried, one per line.
    pub fn detail(&self) -> String {
        let line = |failure: &Unavailable| format!("{}{}", failure.prefix(), failure.detail.trim());
        self.failures.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Returns the advice, including how to run without a GPU.
    pub(crate) fn advice_or_cpu(&self) -> String {
        let cpu_advice = "set FORCE_GPU_ONLY=false to run on the CPU";
        self.main_reason
            .advice()
            .map_or_else(|| cpu_advice.to_owned(), |advice| format!("{advice}; or {cpu_advice}"))
    }
}

impl From<Unavailable> for Refusal {
    fn from(failure: Unavailable) -> Self {
        Self::from_attempts(vec![failure])
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.main_reason.fmt(f)
    }
}

/// Returns the providers that need the smallest set-up for GPUs of `kinds`. WebGPU runs on every
/// GPU, and is the only plug-in for other processors than x86-64.
fn recommended_providers(kinds: &[GpuKind]) -> Vec<Provider> {
    // On a machine with both kinds of NVIDIA, only CUDA supports all of its GPUs.
    let needs_cuda = kinds.contains(&GpuKind::Nvidia);
    let mut providers = Vec::new();
    for kind in kinds {
        let provider = match kind {
            _ if !cfg!(target_arch = "x86_64") => Provider::WebGpu,
            GpuKind::NvidiaRtx if !needs_cuda => Provider::TensorrtRtx,
            GpuKind::NvidiaRtx | GpuKind::Nvidia => Provider::Cuda,
            GpuKind::Intel => Provider::OpenVinoGpu,
            GpuKind::Other => Provider::WebGpu,
        };
        if !providers.contains(&provider) {
            providers.push(provider);
        }
    }
    if providers.is_empty() { vec![Provider::WebGpu] } else { providers }
}

/// Returns the providers whose libraries `scripts/gpu-runtime` installs for `backend` and the
/// `operations` that request a GPU: with `auto`, those with the smallest set-up for the GPUs of
/// this machine. If `has_cuda`, CUDA is installed, and also serves the GPUs of TensorRT for RTX.
pub(crate) fn providers_to_install(
    backend: GpuBackend,
    operations: &[Operation],
    has_cuda: bool,
) -> Vec<Provider> {
    let is_linux = cfg!(target_os = "linux");
    let mut providers = match backend {
        GpuBackend::Mps | GpuBackend::Cpu => Vec::new(),
        GpuBackend::Auto if is_linux => {
            let mut providers = recommended_providers(&devices::gpu_kinds());
            let models = [Operation::FaceDetection, Operation::FaceEmbedding];
            let has_image_operations = operations.iter().any(|operation| !models.contains(operation));
            if has_image_operations && !providers.iter().any(|provider| provider.runs_image_operations()) {
                providers.push(Provider::WebGpu);
            }
            providers
        }
        GpuBackend::Rocm | GpuBackend::Cuda => Provider::candidates(backend).to_vec(),
        _ if is_linux => Provider::candidates(backend).iter().take(1).copied().collect(),
        _ => Vec::new(),
    };
    for provider in providers.iter_mut().filter(|provider| has_cuda && **provider == Provider::TensorrtRtx) {
        *provider = Provider::Cuda;
    }
    providers
}

/// Returns the argument with which `scripts/gpu-runtime` installs the libraries of `provider`.
pub(crate) fn gpu_runtime_argument(provider: Provider) -> &'static str {
    provider.plugin().map_or(provider.name(), |plugin| plugin.argument)
}

/// Returns the arguments of `scripts/gpu-runtime` for `backend` and the `operations` that request a
/// GPU, for a program set up by `scripts/run`. Empty if the script installs nothing for it. If
/// `has_cuda`, CUDA is installed.
pub fn gpu_runtime_arguments(
    backend: GpuBackend,
    operations: &[Operation],
    has_cuda: bool,
) -> Vec<&'static str> {
    providers_to_install(backend, operations, has_cuda).into_iter().map(gpu_runtime_argument).collect()
}

/// The source of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Package {
    /// A wheel of `scripts/gpu-wheels.txt`.
    Wheel(&'static str),
    /// Another source, with the advice.
    Other(&'static str),
}

/// A wheel of `scripts/openvino-wheels.txt`.
const OPENVINO: Package = Package::Other("`./scripts/openvino` installs it");
/// No script installs TensorRT and ROCm.
const TENSORRT: Package = Package::Other(
    "install TensorRT 10 for CUDA 13 (package tensorrt), and copy its libraries to the folder of ONNX Runtime",
);
const ROCM: Package = Package::Other("install ROCm 7.2.4 with MIGraphX (package migraphx)");
/// The part of NVIDIA's driver that decodes videos.
const VIDEO_DRIVER: Package = Package::Other(
    "install the video libraries of the NVIDIA driver (in a container: NVIDIA_DRIVER_CAPABILITIES must \
     contain `video`)",
);
const UNKNOWN: Package = Package::Other("install the package that contains it");

/// Packages by the start of the library's file name; the first match applies. WebGPU needs Vulkan's
/// loader, and cuDNN needs zlib.
const PACKAGES: [(&str, Package); 18] = [
    ("libvulkan", Package::Other("install Vulkan's loader (package libvulkan1 or vulkan-loader)")),
    ("libonnxruntime_providers_openvino", OPENVINO),
    ("libonnxruntime_providers_migraphx", ROCM),
    ("libonnxruntime_providers_", Package::Wheel("onnxruntime-gpu")),
    ("libcublas", Package::Wheel("nvidia-cublas")),
    ("libcudart", Package::Wheel("nvidia-cuda-runtime")),
    ("libnvrtc", Package::Wheel("nvidia-cuda-nvrtc")),
    ("libnvJitLink", Package::Wheel("nvidia-nvjitlink")),
    ("libcufft", Package::Wheel("nvidia-cufft")),
    ("libcurand", Package::Wheel("nvidia-curand")),
    ("libcudnn", Package::Wheel("nvidia-cudnn-cu13")),
    ("libnvinfer", TENSORRT),
    ("libnvonnxparser", TENSORRT),
    ("libopenvino", OPENVINO),
    ("libmigraphx", ROCM),
    ("libamdhip", ROCM),
    ("libz.so", Package::Other("install zlib (package zlib1g or zlib)")),
    ("libnvcuvid", VIDEO_DRIVER),
];

impl Package {
    fn from_library(library: &str) -> Self {
        let package = PACKAGES.iter().find(|(prefix, _)| library.starts_with(prefix));
        package.map_or(UNKNOWN, |(_, package)| *package)
    }

    fn advice(self) -> String {
        match self {
            Self::Wheel(name) => format!("`./scripts/gpu-runtime cuda` installs it (package {name})"),
            Self::Other(advice) => advice.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_nvidia_wheel_maps_to_library() {
        let listed = include_str!("../../../../scripts/gpu-wheels.txt");
        let nvidia = listed.split("# AMD").next().unwrap_or_default();
        let wheels = nvidia.lines().filter_map(|line| Some(line.split_once("==")?.0));
        // Plug-ins find their libraries themselves.
        let wheels: Vec<&str> = wheels.filter(|wheel| !wheel.starts_with("onnxruntime-ep-")).collect();
        for wheel in &wheels {
            assert!(PACKAGES.iter().any(|(_, package)| *package == Package::Wheel(wheel)), "{wheel}");
        }
        for (library, package) in PACKAGES {
            if let Package::Wheel(wheel) = package {
                assert!(wheels.contains(&wheel), "{library}: {wheel} is not in scripts/gpu-wheels.txt");
            }
        }
        assert_eq!(Package::from_library("libcublasLt.so.13"), Package::Wheel("nvidia-cublas"));
        assert_eq!(Package::from_library("libelsewhere.so.1"), UNKNOWN);
    }
}

//! Execution providers: their names, availability and order. The module `backend` registers them
//! with sessions, and the module `engine` selects the device of an operation.
use crate::GpuBackend;
use ort::ep::{self, ExecutionProvider as _};
use ort::memory::AllocationDevice;

/// An execution provider of ONNX Runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// ONNX Runtime's own kernels on the CPU; always available.
    Cpu,
    /// Intel's OpenVINO on the CPU.
    OpenVino,
    Cuda,
    /// NVIDIA TensorRT, with CUDA as its fallback.
    Tensorrt,
    /// NVIDIA TensorRT for RTX; a plug-in that needs only the driver.
    TensorrtRtx,
    Migraphx,
    CoreMl,
    /// Intel's OpenVINO on GPUs of Intel; a plug-in.
    OpenVinoGpu,
    /// Any GPU with Vulkan, Metal or Direct3D 12; a plug-in.
    WebGpu,
}

impl Provider {
    /// The names in reports.
    const NAMES: [(Self, &str); 9] = [
        (Self::Cpu, "cpu"),
        (Self::OpenVino, "openvino"),
        (Self::Cuda, "cuda"),
        (Self::Tensorrt, "tensorrt"),
        (Self::TensorrtRtx, "tensorrt-rtx"),
        (Self::Migraphx, "rocm"),
        (Self::CoreMl, "mps"),
        (Self::OpenVinoGpu, "openvino-gpu"),
        (Self::WebGpu, "webgpu"),
    ];

    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMES.into_iter().map(|(provider, _)| provider)
    }

    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        let named = Self::NAMES.iter().find(|(provider, _)| *provider == self);
        named.expect("every provider has a name").1
    }

    pub fn runs_on_cpu(self) -> bool {
        matches!(self, Self::Cpu | Self::OpenVino)
    }

    /// Returns whether a session of this provider is prepared for one shape of the input at a time.
    /// A run with another shape prepares it again, which takes seconds.
    pub(crate) fn prepares_one_shape(self) -> bool {
        matches!(self, Self::Cuda | Self::Migraphx)
    }

    /// Returns whether this program was built with the provider. Plug-ins need no support in the
    /// program.
    pub fn is_in_build(self) -> bool {
        match self {
            Self::Cpu | Self::TensorrtRtx | Self::OpenVinoGpu | Self::WebGpu => true,
            Self::OpenVino => cfg!(feature = "openvino"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Tensorrt => cfg!(feature = "tensorrt"),
            Self::Migraphx => cfg!(feature = "migraphx"),
            Self::CoreMl => cfg!(feature = "coreml"),
        }
    }

    /// Returns whether the loaded library was built with the provider; `false` for plug-ins.
    pub(crate) fn is_in_library(self) -> bool {
        match self {
            Self::Cpu => true,
            #[cfg(feature = "openvino")]
            Self::OpenVino => ep::OpenVINO::is_available().unwrap_or(false),
            #[cfg(feature = "cuda")]
            Self::Cuda => ep::CUDA::is_available().unwrap_or(false),
            #[cfg(feature = "tensorrt")]
            Self::Tensorrt => ep::TensorRT::is_available().unwrap_or(false),
            #[cfg(feature = "migraphx")]
            Self::Migraphx => ep::MIGraphX::is_available().unwrap_or(false),
            #[cfg(feature = "coreml")]
            Self::CoreMl => ep::CoreML::is_available().unwrap_or(false),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Returns the providers that `backend` allows, best first. `auto` does not include the classic
    /// TensorRT: it compiles each model for minutes, so it must be requested by name. The providers
    /// of one vendor come before WebGPU, which runs on GPUs of every vendor, but has fewer
    /// optimised kernels.
    pub fn candidates(backend: GpuBackend) -> &'static [Self] {
        match backend {
            GpuBackend::Auto => &[
                Self::TensorrtRtx,
                Self::Cuda,
                Self::Migraphx,
                Self::CoreMl,
                Self::OpenVinoGpu,
                Self::WebGpu,
            ],
            GpuBackend::Cuda => &[Self::Cuda],
            GpuBackend::Tensorrt => &[Self::TensorrtRtx, Self::Tensorrt],
            GpuBackend::Rocm => &[Self::Migraphx],
            GpuBackend::Mps => &[Self::CoreMl],
            GpuBackend::OpenVino => &[Self::OpenVinoGpu],
            GpuBackend::WebGpu => &[Self::WebGpu],
            GpuBackend::Cpu => &[],
        }
    }

    /// Returns whether the provider runs the graphs of image operations. The others compile a graph
    /// for each size of image, or run only models.
    pub(crate) fn runs_image_operations(self) -> bool {
        matches!(self, Self::Cpu | Self::Cuda | Self::WebGpu)
    }

    /// Returns the memory through which the provider's sessions can pass tensors to each other.
    pub(crate) fn memory(self) -> Option<AllocationDevice<'static>> {
        match self {
            Self::Cpu => Some(AllocationDevice::CPU),
            Self::Cuda | Self::Tensorrt => Some(AllocationDevice::CUDA),
            Self::WebGpu => Some(AllocationDevice::WEBGPU_BUFFER),
            Self::OpenVino | Self::Migraphx | Self::CoreMl | Self::TensorrtRtx | Self::OpenVinoGpu => None,
        }
    }
}

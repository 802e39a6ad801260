//! Execution providers: their availability, order and registration. The module `engine` selects the
//! device of an operation.
use crate::backend::Placement;
use crate::report::ProviderReport;
use crate::runtime::Runtime;
use crate::unavailable::{Unavailable, UnavailableKind};
use crate::{GpuBackend, Precision};
use ort::ep::{
    self, ArbitrarilyConfigurableExecutionProvider as _, ExecutionProvider as _, ExecutionProviderDispatch,
};
use ort::memory::AllocationDevice;
use ort::session::Session;

/// An execution provider of ONNX Runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Provider {
    /// ONNX Runtime's own kernels on the CPU; always available.
    Cpu,
    /// Intel's OpenVINO on the CPU.
    OpenVino,
    /// NVIDIA CUDA.
    Cuda,
    /// NVIDIA TensorRT, with CUDA as its fallback.
    Tensorrt,
    /// AMD MIGraphX.
    Migraphx,
    /// Apple CoreML.
    CoreMl,
}

impl Provider {
    /// All providers.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::OpenVino, Self::Cuda, Self::Tensorrt, Self::Migraphx, Self::CoreMl];

    /// Returns the name in `GPU_BACKEND` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::OpenVino => "openvino",
            Self::Cuda => "cuda",
            Self::Tensorrt => "tensorrt",
            Self::Migraphx => "rocm",
            Self::CoreMl => "mps",
        }
    }

    /// Returns whether the provider's device is the CPU.
    pub fn on_cpu(self) -> bool {
        matches!(self, Self::Cpu | Self::OpenVino)
    }

    /// Returns whether this program was built with the provider.
    pub fn in_build(self) -> bool {
        match self {
            Self::Cpu => true,
            Self::OpenVino => cfg!(feature = "openvino"),
            Self::Cuda => cfg!(feature = "cuda"),
            Self::Tensorrt => cfg!(feature = "tensorrt"),
            Self::Migraphx => cfg!(feature = "migraphx"),
            Self::CoreMl => cfg!(feature = "coreml"),
        }
    }

    /// Returns whether the loaded library was built with the provider. The library must be loaded.
    pub(crate) fn in_library(self) -> bool {
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

    /// Reports whether the program and the library include the provider. The library must be
    /// loaded.
    pub(crate) fn report(self) -> ProviderReport {
        ProviderReport { name: self.name(), in_build: self.in_build(), in_library: self.in_library() }
    }

    /// Returns why this program and library cannot use the provider; `None` if it can be tried.
    pub(crate) fn absence(self, runtime: &Runtime) -> Option<Unavailable> {
        let kind = if !self.in_build() {
            UnavailableKind::NotInBuild
        } else if !self.in_library() {
            UnavailableKind::NotInLibrary { library: runtime.path().display().to_string() }
        } else {
            return None;
        };
        let detail = format!("not among the providers of {}", runtime.path().display());
        Some(Unavailable::new(self, kind, detail))
    }

    /// Loads the provider's libraries without a model; the error reports what is missing.
    pub(crate) fn load_library(self, runtime: &Runtime, device_id: u32) -> ort::Result<()> {
        let placement = Placement { provider: self, device_id, memory_limit: 1 << 30, ..Placement::CPU };
        Session::builder(runtime.environment())?
            .with_execution_providers(self.registrations(&placement)?)
            .map_err(|e| ort::Error::new(e.to_string()))?;
        Ok(())
    }

    /// Returns the providers that `backend` allows, best first. `auto` does not include TensorRT:
    /// it compiles each model for minutes, so it must be requested by name.
    pub fn candidates(backend: GpuBackend) -> &'static [Self] {
        match backend {
            GpuBackend::Auto => &[Self::Cuda, Self::Migraphx, Self::CoreMl],
            GpuBackend::Cuda => &[Self::Cuda],
            GpuBackend::Tensorrt => &[Self::Tensorrt],
            GpuBackend::Rocm => &[Self::Migraphx],
            GpuBackend::Mps => &[Self::CoreMl],
            GpuBackend::Cpu => &[],
        }
    }

    /// Returns the provider that runs image operations when this provider is requested.
    ///
    /// Images have any size. TensorRT would build an engine for each size, so CUDA is used on the
    /// same device and in the same memory. MIGraphX and CoreML also compile a graph for each size,
    /// and have no such alternative.
    ///
    /// # Errors
    /// Returns the reason if no provider can run them.
    pub(crate) fn for_pixels(self) -> Result<Self, Unavailable> {
        let reason = match self {
            Self::Cpu | Self::Cuda => return Ok(self),
            Self::Tensorrt => return Ok(Self::Cuda),
            Self::OpenVino => "OpenVINO runs only models; image operations run on the CPU without it",
            Self::Migraphx | Self::CoreMl => {
                "it compiles a new graph for every image size, so image operations run on the CPU"
            }
        };
        Err(Unavailable::new(self, UnavailableKind::Unsuited, reason))
    }

    /// Returns the memory through which the provider's sessions can pass tensors to each other.
    pub(crate) fn memory(self) -> Option<AllocationDevice<'static>> {
        match self {
            Self::Cpu => Some(AllocationDevice::CPU),
            Self::Cuda | Self::Tensorrt => Some(AllocationDevice::CUDA),
            Self::OpenVino | Self::Migraphx | Self::CoreMl => None,
        }
    }

    /// Returns the providers to register for a session, in order. A failed registration is an
    /// error, so no fallback is silent.
    pub(crate) fn registrations(self, placement: &Placement) -> ort::Result<Vec<ExecutionProviderDispatch>> {
        let device = i32::try_from(placement.device_id)
            .map_err(|_| ort::Error::new(format!("device id {} is too large", placement.device_id)))?;
        let _ = device;
        match self {
            Self::Cpu => Ok(vec![ep::CPU::default().with_arena_allocator(true).build()]),
            #[cfg(feature = "openvino")]
            Self::OpenVino => Ok(vec![openvino(placement)]),
            #[cfg(feature = "cuda")]
            Self::Cuda => Ok(vec![cuda(device, placement.memory_limit)]),
            #[cfg(feature = "tensorrt")]
            Self::Tensorrt => {
                let engine = placement.tensorrt.as_ref();
                let tensorrt = engine.map_or_else(
                    || ep::TensorRT::default().with_device_id(device),
                    |engine| engine.provider(device),
                );
                let mut registrations = vec![tensorrt.build().error_on_failure()];
                // Nodes that TensorRT does not support run on CUDA, not on the CPU.
                #[cfg(feature = "cuda")]
                registrations.push(cuda(device, placement.memory_limit));
                Ok(registrations)
            }
            #[cfg(feature = "migraphx")]
            Self::Migraphx => {
                let migraphx =
                    ep::MIGraphX::default().with_device_id(device).with_mem_limit(placement.memory_limit);
                Ok(vec![migraphx.build().error_on_failure()])
            }
            #[cfg(feature = "coreml")]
            Self::CoreMl => Ok(vec![ep::CoreML::default().with_subgraphs(true).build().error_on_failure()]),
            #[allow(unreachable_patterns)]
            other => Err(ort::Error::new(format!("this program was built without {}", other.name()))),
        }
    }
}

/// OpenVINO uses as many threads as other sessions. They are not pinned to cores, because parallel
/// sessions would be pinned to the same cores.
#[cfg(feature = "openvino")]
fn openvino(placement: &Placement) -> ExecutionProviderDispatch {
    let precision = match placement.precision {
        Precision::Bf16 => "bf16",
        Precision::Fp32 | Precision::Int8 => "f32",
    };
    let plugin = format!(
        r#"{{"CPU": {{"INFERENCE_NUM_THREADS": "{}", "NUM_STREAMS": "1", "ENABLE_CPU_PINNING": "NO", "INFERENCE_PRECISION_HINT": "{precision}"}}}}"#,
        placement.threads
    );
    let provider = ep::OpenVINO::default().with_device_type("CPU");
    provider.with_arbitrary_config("load_config", plugin).build().error_on_failure()
}

#[cfg(feature = "cuda")]
fn cuda(device: i32, memory_limit: usize) -> ExecutionProviderDispatch {
    ep::CUDA::default()
        .with_device_id(device)
        .with_memory_limit(memory_limit)
        // The default doubles the arena at each step and reaches the limit while half of the memory
        // is unused.
        .with_arena_extend_strategy(ep::ArenaExtendStrategy::SameAsRequested)
        // An exhaustive search would run every algorithm for every new shape.
        .with_conv_algorithm_search(ep::cuda::ConvAlgorithmSearch::Heuristic)
        .build()
        .error_on_failure()
}

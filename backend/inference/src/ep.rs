//! Execution providers: which exist, which are tried, how each is registered.
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
    /// ONNX Runtime's own kernels on the CPU; always there.
    Cpu,
    /// Intel's OpenVINO on the CPU.
    OpenVino,
    /// NVIDIA CUDA.
    Cuda,
    /// NVIDIA TensorRT with CUDA behind it.
    Tensorrt,
    /// AMD MIGraphX.
    Migraphx,
    /// Apple CoreML.
    CoreMl,
}

impl Provider {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Cpu, Self::OpenVino, Self::Cuda, Self::Tensorrt, Self::Migraphx, Self::CoreMl];

    /// The name that `GPU_BACKEND` and the reports use.
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

    /// Whether its device is the CPU.
    pub fn on_cpu(self) -> bool {
        matches!(self, Self::Cpu | Self::OpenVino)
    }

    /// Whether this program was built with it.
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

    /// Whether the loaded library was built with it. The library must be loaded.
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

    /// What is known of it. The library must be loaded.
    pub(crate) fn report(self) -> ProviderReport {
        ProviderReport { name: self.name(), in_build: self.in_build(), in_library: self.in_library() }
    }

    /// Why it cannot be used with this program and library; `None` when it can be tried.
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

    /// Makes the runtime load the provider's libraries, or says what is missing; no model is needed.
    pub(crate) fn load_library(self, runtime: &Runtime, device_id: u32) -> ort::Result<()> {
        let placement = Placement { provider: self, device_id, memory_limit: 1 << 30, ..Placement::CPU };
        Session::builder(runtime.environment())?
            .with_execution_providers(self.registrations(&placement)?)
            .map_err(|e| ort::Error::new(e.to_string()))?;
        Ok(())
    }

    /// Which providers `backend` allows, best first. `auto` leaves TensorRT out: it compiles each model for minutes, so it
    /// is used only when asked for by name.
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

    /// The provider that runs graphs on pictures where this one was asked for. The reason if there is none.
    ///
    /// Pictures have any size. TensorRT would build an engine for each, so CUDA does it on the same device and in the same memory. MIGraphX and
    /// CoreML compile a graph for each size too, and have nothing beside them that would not.
    pub(crate) fn for_pixels(self) -> Result<Self, Unavailable> {
        let reason = match self {
            Self::Cpu | Self::Cuda => return Ok(self),
            Self::Tensorrt => return Ok(Self::Cuda),
            Self::OpenVino => "it is for models; operations on pictures are this program's own on the CPU",
            Self::Migraphx | Self::CoreMl => {
                "it compiles a graph anew for every size of picture; operations on pictures stay on the CPU"
            }
        };
        Err(Unavailable::new(self, UnavailableKind::Unsuited, reason))
    }

    /// The memory in which its sessions can leave tensors for each other.
    pub(crate) fn memory(self) -> Option<AllocationDevice<'static>> {
        match self {
            Self::Cpu => Some(AllocationDevice::CPU),
            Self::Cuda | Self::Tensorrt => Some(AllocationDevice::CUDA),
            Self::OpenVino | Self::Migraphx | Self::CoreMl => None,
        }
    }

    /// What a session registers, in order. Each registration is an error when it fails: nothing falls back in silence.
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
                // What TensorRT cannot take runs on CUDA, not on the CPU.
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

/// Its own threads are as many as a session's of ours, and none is tied to a core: the sessions beside it would share the same ones.
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
        // The default doubles the arena at each step and so runs into the limit with half of it unused.
        .with_arena_extend_strategy(ep::ArenaExtendStrategy::SameAsRequested)
        // An exhaustive search runs every algorithm for every new shape.
        .with_conv_algorithm_search(ep::cuda::ConvAlgorithmSearch::Heuristic)
        .build()
        .error_on_failure()
}

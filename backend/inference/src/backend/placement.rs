//! Where a session runs: its device, its limits, and the execution providers that are registered
//! for it. The module `engine` selects the placement of a model.
use crate::Precision;
use crate::ep::Provider;
use crate::plugins::ProviderLock;
use crate::runtime::{Runtime, log_level};
use crate::tensorrt::EngineOptions;
use ort::ep::{self, ArbitrarilyConfigurableExecutionProvider as _, ExecutionProviderDispatch};
use ort::session::Session;
use ort::session::builder::{AutoDevicePolicy, GraphOptimizationLevel, SessionBuilder};
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;

/// Where a session runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    pub provider: Provider,
    /// Device index in the provider's numbering; ignored on the CPU.
    pub device_id: u32,
    /// Maximum device memory in bytes that the session may allocate; ignored on the CPU.
    pub memory_limit: usize,
    /// Number of threads of a session on the CPU, at least 1.
    pub threads: usize,
    /// The precision on the CPU; ignored on devices.
    pub precision: Precision,
    /// Options of the TensorRT engine; `None` for other providers.
    pub tensorrt: Option<EngineOptions>,
    /// Folder in which a plug-in keeps what it compiles.
    pub cache_dir: Option<PathBuf>,
}

impl Placement {
    pub const CPU: Self = Self::cpu(1);

    pub const fn cpu(threads: usize) -> Self {
        Self {
            provider: Provider::Cpu,
            device_id: 0,
            memory_limit: 0,
            threads,
            precision: Precision::Fp32,
            tensorrt: None,
            cache_dir: None,
        }
    }

    /// Returns whether a session on `other` can read tensors that a session on `self` stores in
    /// device memory.
    pub fn shares_memory_with(&self, other: &Self) -> bool {
        let memory = self.provider.memory();
        memory.is_some() && memory == other.provider.memory() && self.device_id == other.device_id
    }

    /// Returns `fp32`, `bf16`, `int8`, or the precisions that TensorRT may use.
    pub fn precision(&self) -> &'static str {
        match (self.provider, &self.tensorrt) {
            (Provider::Cpu | Provider::OpenVino, _) => self.precision.name(),
            (Provider::Tensorrt, Some(engine)) => engine.precision(),
            _ => Precision::Fp32.name(),
        }
    }

    /// Returns the name of the device: `cpu`, `cuda:0`, …
    pub fn label(&self) -> String {
        match self.provider {
            provider if provider.runs_on_cpu() => Provider::Cpu.name().to_owned(),
            provider => format!("{}:{}", provider.name(), self.device_id),
        }
    }

    /// Adds the provider to a session. A provider that cannot be used is an error, so no fallback
    /// is silent.
    fn add_to(&self, builder: SessionBuilder, runtime: &Runtime) -> ort::Result<SessionBuilder> {
        let Some(plugin) = self.provider.plugin() else {
            let builder = match self.provider {
                // Without this policy, the runtime on macOS would register CoreML automatically.
                Provider::Cpu => builder.with_auto_device(AutoDevicePolicy::PreferCPU)?,
                _ => builder,
            };
            return Ok(builder.with_execution_providers(self.registrations()?)?);
        };
        // With an empty list of devices, ONNX Runtime would run the session on the CPU.
        let device = runtime.plugin_devices(plugin).nth(self.device_id as usize);
        let device = device.ok_or_else(|| {
            ort::Error::new(format!("{} lists no device {}", plugin.ep_name, self.device_id))
        })?;
        let options = self.plugin_options().into_iter();
        let options: Vec<(String, String)> =
            options.map(|(name, value)| (format!("{}.{name}", plugin.ep_name), value)).collect();
        Ok(builder.with_devices([device], Some(&options))?)
    }

    /// Returns the options of a plug-in, with their names.
    fn plugin_options(&self) -> Option<(&'static str, String)> {
        let cache_dir = self.cache_dir.as_ref().map(|folder| folder.display().to_string());
        match self.provider {
            Provider::OpenVinoGpu => {
                // The default precision on GPUs is FP16.
                let mut gpu = serde_json::json!({ "INFERENCE_PRECISION_HINT": "f32" });
                if let Some(folder) = cache_dir {
                    gpu["CACHE_DIR"] = folder.into();
                }
                Some(("load_config", serde_json::json!({ "GPU": gpu }).to_string()))
            }
            Provider::TensorrtRtx => Some(("nv_runtime_cache_path", cache_dir?)),
            _ => None,
        }
    }

    /// Returns the providers of ONNX Runtime to register for a session, in order.
    fn registrations(&self) -> ort::Result<Vec<ExecutionProviderDispatch>> {
        let device = i32::try_from(self.device_id)
            .map_err(|_| ort::Error::new(format!("device id {} is too large", self.device_id)))?;
        let _ = device;
        Ok(match self.provider {
            Provider::Cpu => vec![ep::CPU::default().with_arena_allocator(true).build()],
            #[cfg(feature = "openvino")]
            Provider::OpenVino => vec![openvino(self)],
            #[cfg(feature = "cuda")]
            Provider::Cuda => vec![cuda(device, self)],
            #[cfg(feature = "tensorrt")]
            Provider::Tensorrt => {
                let without_engine = || ep::TensorRT::default().with_device_id(device);
                let engine = self.tensorrt.as_ref();
                let tensorrt = engine.map_or_else(without_engine, |engine| engine.provider(device));
                let mut registrations = vec![tensorrt.build().error_on_failure()];
                // Nodes that TensorRT does not support run on CUDA, not on the CPU.
                #[cfg(feature = "cuda")]
                registrations.push(cuda(device, self));
                registrations
            }
            #[cfg(feature = "migraphx")]
            Provider::Migraphx => {
                let migraphx = ep::MIGraphX::default().with_device_id(device);
                vec![migraphx.with_mem_limit(self.memory_limit).build().error_on_failure()]
            }
            #[cfg(feature = "coreml")]
            Provider::CoreMl => vec![ep::CoreML::default().with_subgraphs(true).build().error_on_failure()],
            #[allow(unreachable_patterns)]
            other => {
                return Err(ort::Error::new(format!("this program was built without {}", other.name())));
            }
        })
    }
}

/// A session that is created, run and released while the lock of its provider is held, if the
/// provider has one.
pub(super) struct ProviderSession {
    /// `None` only while it is dropped.
    session: Option<Session>,
    provider: Provider,
}

impl ProviderSession {
    /// Builds the session of a model (the file's bytes). `add_options` adds options to those that
    /// all sessions share. Spinning is disabled, because idle threads that spin would use the CPU
    /// cores of other sessions.
    pub(super) fn build(
        runtime: &Runtime,
        model: &[u8],
        placement: &Placement,
        add_options: impl FnOnce(SessionBuilder) -> ort::Result<SessionBuilder>,
    ) -> Result<Self, String> {
        let provider = placement.provider;
        let _lock = provider.lock();
        let build = || -> ort::Result<Session> {
            let builder = Session::builder(runtime.environment())?
                .with_log_level(log_level())?
                .with_optimization_level(GraphOptimizationLevel::Level3)?
                // Many sessions in parallel are faster than one session with many threads.
                .with_intra_threads(placement.threads.max(1))?
                .with_inter_threads(1)?
                .with_intra_op_spinning(false)?
                .with_inter_op_spinning(false)?;
            placement.add_to(add_options(builder)?, runtime)?.commit_from_memory(model)
        };
        Ok(Self { session: Some(build().map_err(|e| e.to_string())?), provider })
    }

    /// Waits for the lock of the provider. Hold it during a run and while its outputs exist.
    pub(super) fn lock(&self) -> Option<ProviderLock> {
        self.provider.lock()
    }
}

impl Deref for ProviderSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session.as_ref().expect("the session is not dropped")
    }
}

impl DerefMut for ProviderSession {
    fn deref_mut(&mut self) -> &mut Session {
        self.session.as_mut().expect("the session is not dropped")
    }
}

impl Drop for ProviderSession {
    fn drop(&mut self) {
        let _lock = self.provider.lock();
        self.session.take();
    }
}

/// Loads the libraries of `provider` without a model; the error reports what is missing.
pub(crate) fn load_library(runtime: &Runtime, provider: Provider, device_id: u32) -> ort::Result<()> {
    let placement = Placement { provider, device_id, memory_limit: 1 << 30, ..Placement::CPU };
    placement.add_to(Session::builder(runtime.environment())?, runtime).map(drop)
}

/// Returns the registration of OpenVINO, with as many threads as other sessions. The threads are
/// not pinned to cores, because parallel sessions would be pinned to the same cores.
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
fn cuda(device: i32, placement: &Placement) -> ExecutionProviderDispatch {
    ep::CUDA::default()
        .with_device_id(device)
        .with_memory_limit(placement.memory_limit)
        // With fused biases, only the first run of a shape is correct (ONNX Runtime 1.31.1, cuDNN
        // 9.19, YuNet on an H100).
        .with_fuse_conv_bias(false)
        // By default, the arena doubles whenever it grows, but never exceeds the limit. Up to half
        // of the limit would stay unused.
        .with_arena_extend_strategy(ep::ArenaExtendStrategy::SameAsRequested)
        // `Exhaustive` runs every algorithm for each new shape. `Default` selects slower
        // algorithms: on an H200, runs take 1.6 to 350 times as long.
        .with_conv_algorithm_search(ep::cuda::ConvAlgorithmSearch::Heuristic)
        .build()
        .error_on_failure()
}

//! Runs every model and every graph on each provider and device of the machine, compares the
//! results with the CPU's, and measures the time.
use super::images::CandidateImageOperation;
use super::prove::{CandidateLoader, CandidateModel};
use super::resolve::{Attempts, Trial, image_provider};
use crate::ep::Provider;
use crate::models::Model;
use crate::report::{BatchRun, LoadedModel};
use crate::runtime::Runtime;
use crate::unavailable::{Unavailable, UnavailableKind, diagnose};
use crate::{Config, GpuDevice, Operation, ResolvedPack, StartError, devices};
use serde::Serialize;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TestResult {
    /// The results agree with the CPU's.
    Passed,
    /// The provider exists, but the run failed or the results differ.
    Failed,
    /// The provider is not available here or does not support the operation.
    #[default]
    Absent,
}

/// The test of one operation on one device, or of one provider that is absent.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DeviceTest {
    /// `cpu`, `openvino`, `cuda`, `tensorrt`, `tensorrt-rtx`, `rocm`, `mps`, `openvino-gpu`,
    /// `webgpu`.
    pub provider: &'static str,
    /// `cuda:0`, …; the provider's name if it runs on the CPU or is absent.
    pub device: String,
    /// `face_detection`, …; `None` if the provider is absent.
    pub operation: Option<&'static str>,
    pub outcome: TestResult,
    /// Why the test did not pass, and what to do about it.
    pub reason: Option<String>,
    /// The kind of the reason, as in [`crate::OperationReport`].
    pub reason_kind: Option<&'static str>,
    /// The original message of the runtime, the loader or the driver.
    pub detail: Option<String>,
    /// Seconds to create the session, without any run.
    pub session_seconds: Option<f64>,
    /// Time and memory of the load and the first runs.
    pub load: Option<LoadedModel>,
    /// Runs with a batch of one and with the largest batch.
    pub runs: Vec<BatchRun>,
}

/// The results of all tests, and the machine's GPUs.
#[derive(Clone, Debug, Serialize)]
pub struct SelfTest {
    pub runtime_version: String,
    /// GPUs that the drivers list.
    pub devices: Vec<GpuDevice>,
    /// One test per provider, device and operation.
    pub tests: Vec<DeviceTest>,
}

/// Tests the pack's models and the image operations on all providers and devices. Blocks the
/// calling thread, with TensorRT for minutes if engines must be built.
///
/// # Errors
/// Fails as [`crate::Engine::start`] does if the library or a model cannot be used at all. Failures
/// on a device are part of the result.
pub fn self_test(config: &Config, pack: &ResolvedPack) -> Result<SelfTest, StartError> {
    let runtime = Runtime::start(config)?;
    let mut devices = devices::discover();
    devices.extend(devices::devices_of_plugins(&runtime.providers()));
    let models = CandidateLoader { config, runtime: &runtime, pack };
    let (mut detector, mut embedder) = (models.detector()?, models.embedder()?);
    let mut scorer = models.scorer().transpose()?;
    detector.allow_batches();
    embedder.allow_batches();
    scorer.iter_mut().for_each(CandidateModel::allow_batches);
    let (canvas, statistics) = (CandidateImageOperation::canvas(), CandidateImageOperation::statistics());
    let enhancement = CandidateImageOperation::enhancement();
    let attempts = Attempts::new(config, &runtime);
    let mut tests = Vec::new();
    for provider in Provider::all() {
        let ids = device_ids(provider, config, &devices);
        let first = ids.first().copied().unwrap_or(0);
        if let Err(reason) = attempts.attempt(provider, first, || Ok(())) {
            let (provider, device) = (provider.name(), provider.name().to_owned());
            let absent = DeviceTest { provider, device, ..DeviceTest::default() };
            tests.push(absent.with_reason(TestResult::Absent, &reason));
            continue;
        }
        for id in ids {
            tests.push(test_model(&attempts, &detector, provider, id));
            tests.push(test_model(&attempts, &embedder, provider, id));
            tests.extend(scorer.as_ref().map(|scorer| test_model(&attempts, scorer, provider, id)));
            // TensorRT uses CUDA for these operations, and OpenVINO uses the CPU's own code. CUDA
            // and this code are tested separately.
            if !matches!(provider, Provider::Tensorrt | Provider::OpenVino) {
                tests.push(test_image_operation(&attempts, &canvas, provider, id));
                tests.push(test_image_operation(&attempts, &enhancement, provider, id));
                tests.push(test_image_operation(&attempts, &statistics, provider, id));
            }
        }
    }
    Ok(SelfTest { runtime_version: runtime.version().to_owned(), devices, tests })
}

/// Returns the devices that the drivers list, and the configured ones.
fn device_ids(provider: Provider, config: &Config, devices: &[GpuDevice]) -> Vec<u32> {
    let backend = match provider {
        Provider::Cpu | Provider::OpenVino | Provider::CoreMl | Provider::WebGpu => return vec![0],
        Provider::Cuda | Provider::Tensorrt | Provider::TensorrtRtx => Provider::Cuda.name(),
        Provider::Migraphx | Provider::OpenVinoGpu => provider.name(),
    };
    let configured = config.device_ids.iter().filter(|device| {
        device.backend.is_none_or(|backend| Provider::candidates(backend).contains(&provider))
    });
    let driver_ids = devices.iter().filter(|device| device.backend == backend).map(|device| device.id);
    let mut ids: Vec<u32> = driver_ids.chain(configured.map(|device| device.id)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}

fn test_model<M: Model>(
    attempts: &Attempts<'_>,
    candidate: &CandidateModel<'_, M>,
    provider: Provider,
    id: u32,
) -> DeviceTest {
    let trial = attempts.attempt(provider, id, || {
        candidate.load_and_compare(provider, id, true).map_err(|text| diagnose(provider, id, &text))
    });
    DeviceTest::new(candidate.model.operation(), provider, id, trial)
}

fn test_image_operation<M: Model>(
    attempts: &Attempts<'_>,
    candidate: &CandidateImageOperation<M>,
    provider: Provider,
    id: u32,
) -> DeviceTest {
    let trial = image_provider(provider).and_then(|_| {
        attempts.attempt(provider, id, || candidate.load_and_compare(attempts, provider, id, true))
    });
    DeviceTest::new(candidate.model.operation(), provider, id, trial)
}

impl DeviceTest {
    /// Returns the result of `trial`. A provider that does not support the operation is absent.
    fn new<S>(
        operation: Operation,
        provider: Provider,
        id: u32,
        trial: Result<Trial<S>, Unavailable>,
    ) -> Self {
        let device = match provider {
            provider if provider.runs_on_cpu() => provider.name().to_owned(),
            _ => format!("{}:{id}", provider.name()),
        };
        let (provider, operation) = (provider.name(), Some(operation.name()));
        let test = Self { provider, device, operation, ..Self::default() };
        match trial {
            Ok(Trial { session_seconds, load, runs, .. }) => Self {
                outcome: TestResult::Passed,
                session_seconds: Some(session_seconds),
                load: Some(load),
                runs,
                ..test
            },
            Err(reason) if reason.kind == UnavailableKind::Unsuited => {
                test.with_reason(TestResult::Absent, &reason)
            }
            Err(reason) => test.with_reason(TestResult::Failed, &reason),
        }
    }

    fn with_reason(self, outcome: TestResult, reason: &Unavailable) -> Self {
        Self {
            outcome,
            reason: Some(reason.sentence()),
            reason_kind: Some(reason.kind.name()),
            detail: Some(reason.detail.clone()),
            ..self
        }
    }
}

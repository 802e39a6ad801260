//! Loads the models of a pack into a running engine, or builds TensorRT engines for a later start.
//! The module `resolve` selects the devices of a model, and `prove` checks its results on them.
use super::images::{DetectorPreparation, place_image_operations};
use super::prove::{CandidateLoader, CandidateModel, most_frequent_canvas};
use super::resolve::{Attempts, Trial, check_cpu_backend, cpu_placement, initial_report, selected_placement};
use super::run::{DetectorInfo, EmbedderInfo, Engine, Inner, LoadedDetector, ScorerInfo};
use crate::backend::{Backend, OnnxModel, Placement, load_library};
use crate::batcher::{Batcher, Device, Limits};
use crate::ep::Provider;
use crate::fair_queue::Requester;
use crate::manifest::ModelFile;
use crate::models::{DetectorModel, Model};
use crate::report::Loading;
use crate::runtime::Runtime;
use crate::unavailable::diagnose;
use crate::{
    Config, DetectionCanvas, DeviceId, DeviceReport, GpuBackend, LoadedModel, OperationReport,
    ProviderReport, ResolvedPack, StartError, devices,
};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Cluster margin of embedders whose manifest entry does not set one. Clustering compares each face
/// with all others, so it needs a higher similarity than a match of two faces.
const CLUSTER_MARGIN: f32 = 0.12;

impl Engine {
    /// Loads the library and the pack's models, and warms them up. This blocks; do not call it on
    /// an async thread.
    pub fn start(config: &Config, pack: &ResolvedPack) -> Result<Self, StartError> {
        let inner = Arc::new(load(config, pack)?);
        Ok(Self { inner, requester: Requester::default(), deadline: None })
    }
}

fn load(config: &Config, pack: &ResolvedPack) -> Result<Inner, StartError> {
    let started_at = Instant::now();
    describe_metrics();
    let runtime = Runtime::start(config)?;
    let attempts = Attempts::new(config, &runtime);
    let images = place_image_operations(&attempts)?;

    let models = CandidateLoader { config, runtime: &runtime, pack };
    let candidate = models.detector()?;
    let file = candidate.file;
    let canvas = most_frequent_canvas(config, &candidate.model);
    let placements = &images.canvas_placements;
    let preparation = DetectorPreparation { runtime: &runtime, input: &file.input, placements, canvas };
    let Started { batcher, report, mut loaded_models, accepts_images: draws_canvases_on_device } =
        start_batcher(&attempts, candidate, |model, trial, batch| preparation.prepare(model, trial, batch))?;
    let detector = describe_detector(config, file, batcher, &report)?;
    let mut first_look = None;
    if let Some(file) = first_look_file(config, pack, &report) {
        let started = start_batcher(&attempts, models.detector_from_file(file)?, session_backend)?;
        loaded_models.extend(started.loaded_models);
        first_look = Some(describe_detector(config, file, started.batcher, &started.report)?);
    }

    let candidate = models.embedder()?;
    let file = candidate.file;
    let embedding = start_batcher(&attempts, candidate, session_backend)?;
    let embedder = EmbedderInfo {
        name: file.stem().to_owned(),
        identity: crate::models::identity(file),
        dimensions: require(file, "dimensions", file.dimensions)?,
        match_threshold: require(file, "match_threshold", file.match_threshold)?,
        match_fmr: file.match_fmr,
        cluster_margin: file.cluster_margin.unwrap_or(CLUSTER_MARGIN),
        sketch_bits: file.sketch_bits,
    };

    let mut operations = vec![report, embedding.report];
    operations.extend(images.reports);
    loaded_models.extend(embedding.loaded_models);
    let mut scoring = None;
    if let Some(candidate) = models.scorer().transpose()? {
        let file = candidate.file;
        let info = ScorerInfo { name: file.stem().to_owned(), sha256: file.sha256.to_ascii_lowercase() };
        let started = start_batcher(&attempts, candidate, session_backend)?;
        if let Some(checks) = operations.iter_mut().find(|o| o.operation == started.report.operation) {
            add_quality_model_device(checks, &started.report, &info.name);
        }
        loaded_models.extend(started.loaded_models);
        scoring = Some((started.batcher, info));
    }
    attempts.fallbacks.log();
    let report = DeviceReport {
        runtime_version: runtime.version().to_owned(),
        backends: runtime.providers().into_iter().map(|p| p.name().to_owned()).collect(),
        providers: Provider::all().map(|provider| ProviderReport::new(provider, &runtime)).collect(),
        // Drivers are loaded only for operations that may use them.
        devices: match config.gpu_operations.as_slice() {
            [] => Vec::new(),
            _ => devices::devices_of_plugins(&runtime.providers()),
        },
        operations,
        models: loaded_models,
    };
    tracing::info!(
        detector = detector.info.name,
        first_look = first_look.as_ref().map(|detector| detector.info.name.as_str()),
        embedder = embedder.name,
        scorer = scoring.as_ref().map(|(_, info)| info.name.as_str()),
        seconds = started_at.elapsed().as_secs_f64(),
        "inference engine ready"
    );
    Ok(Inner {
        detector,
        first_look,
        embedding: embedding.batcher,
        embedder,
        scoring,
        report,
        images: images.devices,
        draws_canvases_on_device,
        force_gpu_only: config.force_gpu_only,
    })
}

/// Returns a value that the manifest must define for a model of this kind.
fn require<T>(file: &ModelFile, name: &str, value: Option<T>) -> Result<T, StartError> {
    value.ok_or_else(|| StartError::model(&file.file, format!("the manifest lacks {name}")))
}

fn describe_metrics() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_histogram!(
        "facecrawl_inference_run_seconds",
        Unit::Seconds,
        "Duration of one run on a device, including preparation and decoding."
    );
    describe_histogram!(
        "facecrawl_inference_queue_seconds",
        Unit::Seconds,
        "Time that a request waited for its run."
    );
    describe_histogram!("facecrawl_inference_batch_size", Unit::Count, "Number of requests in one run.");
    describe_gauge!(
        "facecrawl_inference_queue_depth",
        Unit::Count,
        "Number of requests that wait for a run."
    );
    describe_gauge!("facecrawl_gpu_memory_bytes", Unit::Bytes, "Memory of a GPU, used and total.");
    describe_gauge!(
        "facecrawl_gpu_utilization",
        Unit::Count,
        "Share of the last sample period in which a GPU was busy, 0..1."
    );
    describe_counter!(
        "facecrawl_ep_fallback_total",
        Unit::Count,
        "Operations at start and requests at run time that used the CPU instead of the requested provider."
    );
}

/// Returns the file of the detector of first looks, if this detector saves time. It saves time only
/// on the CPU, where the time of a run depends on the size of the canvas. `report` is the report of
/// the detector of faces.
fn first_look_file<'a>(
    config: &Config,
    pack: &'a ResolvedPack,
    report: &OperationReport,
) -> Option<&'a ModelFile> {
    let runs_on_cpu = !report.gpu_requested && report.effective == Provider::Cpu.name();
    let trims_canvas = config.detection_canvas == DetectionCanvas::Auto;
    pack.pack.first_look().filter(|_| runs_on_cpu && trims_canvas)
}

/// Adds the description of a started detector. `report` is its report.
fn describe_detector(
    config: &Config,
    file: &ModelFile,
    batcher: Batcher<DetectorModel>,
    report: &OperationReport,
) -> Result<LoadedDetector, StartError> {
    let info = DetectorInfo {
        name: file.stem().to_owned(),
        sha256: file.sha256.to_ascii_lowercase(),
        min_score: require(file, "min_score", file.min_score)?,
        nms_iou: require(file, "nms_iou", file.nms_iou)?,
        fixed_size: batcher.model().fixed_size(),
        landmarks: batcher.model().has_landmarks(),
    };
    let trims_canvases = config.detection_canvas == DetectionCanvas::Auto
        && info.fixed_size.is_none()
        && report.effective == Provider::Cpu.name();
    Ok(LoadedDetector { batcher, info, trims_canvases })
}

/// Returns the session as a backend, without preparation.
fn session_backend<M: Model>(_: &M, trial: Trial<OnnxModel>, _: usize) -> Box<dyn Backend> {
    Box::new(trial.session)
}

/// Adds the device of the quality model to the report of `quality_checks`, if it differs from the
/// device of the image statistics.
fn add_quality_model_device(report: &mut OperationReport, model: &OperationReport, name: &str) {
    if report.effective != model.effective {
        let reason = model.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        report.add_reason(format!("{name} runs on {}{reason}", model.effective));
    }
}

/// A model with its queue.
struct Started<M: Model> {
    batcher: Batcher<M>,
    report: OperationReport,
    loaded_models: Vec<LoadedModel>,
    /// Whether all its devices take images.
    accepts_images: bool,
}

/// Places one model on the devices that its operation requests, or on the CPU, and starts its
/// threads. `make_backend` converts a session on a device to a backend for batches of the given
/// size and may add preparation.
fn start_batcher<M: Model>(
    attempts: &Attempts<'_>,
    mut candidate: CandidateModel<'_, M>,
    make_backend: impl Fn(&M, Trial<OnnxModel>, usize) -> Box<dyn Backend>,
) -> Result<Started<M>, StartError> {
    let loading = Loading::start(Provider::Cpu, 0);
    let (config, file) = (candidate.config, candidate.file);
    let to_error = |reason: String| StartError::model(&file.file, reason);
    let mut report = initial_report(config, candidate.model.operation());
    let mut are_batches_allowed = false;
    let trials = attempts.place(&mut report, |provider, id| {
        if !std::mem::replace(&mut are_batches_allowed, true) {
            candidate.allow_batches();
        }
        candidate.load_and_compare(provider, id, false).map_err(|text| diagnose(provider, id, &text))
    })?;
    let placed = if trials.is_empty() {
        place_on_cpu(attempts, &mut candidate, &mut report, loading)
    } else {
        place_on_devices(&mut candidate, trials, make_backend)
    };
    let (devices, loaded_models) = placed.map_err(to_error)?;
    let accepts_images = devices.iter().all(|device| device.primary.accepts_images());
    let limits = Limits {
        queue_capacity: config.queue_capacity,
        max_batch: loaded_models.iter().map(|load| load.max_batch).min().unwrap_or(1),
        max_delay: config.batch_max_delay,
        // A backend that takes images writes the tensors on the device.
        prefetch: report.effective != Provider::Cpu.name() && !accepts_images,
    };
    let batcher = Batcher::start(candidate.model, devices, limits)
        .map_err(|e| to_error(format!("cannot start its threads: {e}")))?;
    Ok(Started { batcher, report, loaded_models, accepts_images })
}

/// The backends of a model, and the loads of its sessions.
type PlacedModel = (Vec<Device>, Vec<LoadedModel>);

/// Converts the trials to backends. Adds a CPU session as fallback to each of them, unless
/// `FORCE_GPU_ONLY` forbids it.
fn place_on_devices<M: Model>(
    candidate: &mut CandidateModel<'_, M>,
    mut trials: Vec<Trial<OnnxModel>>,
    make_backend: impl Fn(&M, Trial<OnnxModel>, usize) -> Box<dyn Backend>,
) -> Result<PlacedModel, String> {
    // All devices take batches from one queue.
    let max_batch = trials.iter().map(|trial| trial.load.max_batch).min().unwrap_or(1);
    for trial in &mut trials {
        trial.session.release_batches_above(max_batch);
        (trial.load.sessions, trial.load.max_batch) = (trial.session.session_count(), max_batch);
    }
    let loaded_models = trials.iter().map(|trial| trial.load.clone()).collect();
    let devices = trials.into_iter().map(|trial| {
        let primary = make_backend(&candidate.model, trial, max_batch);
        let fallback =
            (!candidate.config.force_gpu_only).then(|| candidate.reference_session()).transpose()?;
        Ok(Device { primary, fallback: fallback.map(|session| Box::new(session) as _) })
    });
    Ok((devices.collect::<Result<_, String>>()?, loaded_models))
}

fn place_on_cpu<M: Model>(
    attempts: &Attempts<'_>,
    candidate: &mut CandidateModel<'_, M>,
    report: &mut OperationReport,
    loading: Loading,
) -> Result<PlacedModel, String> {
    let (config, operation) = (candidate.config, candidate.model.operation());
    let sessions = cpu_sessions(config);
    let (mut first, mut placement) = (candidate.reference_session()?, cpu_placement(config));
    if let Some(selected) = selected_placement(config, operation, candidate.file) {
        let loaded = check_cpu_backend(candidate.runtime, &selected).and_then(|()| {
            candidate.cpu_session(&selected).map_err(|text| diagnose(selected.provider, 0, &text))
        });
        match loaded {
            Ok(session) => (first, placement) = (session, selected),
            Err(reason) => {
                let name = match selected.provider {
                    Provider::Cpu => selected.precision.name(),
                    provider => provider.name(),
                };
                attempts.fallbacks.record(report, name, &reason.into(), CPU_BACKEND_UNUSABLE);
            }
        }
    }
    let devices = load_sessions(candidate, first, sessions, &placement)?;
    let devices = devices.into_iter().map(|d| Device { primary: Box::new(d), fallback: None }).collect();
    let bytes = candidate.forms.general.len() as u64;
    let load = LoadedModel { bytes, sessions, max_batch: 1, ..candidate.describe() };
    Ok((devices, vec![loading.finish(&placement, load)]))
}

/// Warning for operations that cannot use the backend that `CPU_BACKEND` selects. The start does
/// not fail, because the operations still run on the CPU.
const CPU_BACKEND_UNUSABLE: &str =
    "what CPU_BACKEND selects is not usable for these operations; ONNX Runtime computes them in FP32";

/// Loads sessions in parallel until there are `count` sessions, including `first`.
///
/// Each session has its own copy of the weights, because sharing saves almost nothing. At this
/// optimisation level, the runtime fuses the weights and rewrites them into its kernels' layout,
/// per session. The resident memory of each further session was measured without sharing, with a
/// container of prepacked weights, and additionally with every weight as a shared initialiser.
/// MobileFaceNet takes 8.4, 8.4 and 7.9 MB. YuNet takes 17.7 MB and SCRFD 2.5G 46.4 MB in all three
/// cases; most of this memory is activations.
fn load_sessions<M: Model>(
    candidate: &CandidateModel<'_, M>,
    first: OnnxModel,
    count: usize,
    placement: &Placement,
) -> Result<Vec<OnnxModel>, String> {
    let load = || candidate.cpu_session(placement);
    std::thread::scope(|scope| {
        let loading: Vec<_> = (1..count).map(|_| scope.spawn(load)).collect();
        let further_sessions = loading.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err("the session's thread panicked while loading".to_owned()))
        });
        std::iter::once(Ok(first)).chain(further_sessions).collect()
    })
}

fn cpu_sessions(config: &Config) -> usize {
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    match config.cpu_sessions {
        0 => (cores() / config.cpu_session_threads.max(1)).max(1),
        configured => configured,
    }
}

/// The TensorRT engine of a model on one device.
#[derive(Clone, Debug, Serialize)]
pub struct BuiltEngine {
    /// `face_detection`, …
    pub operation: &'static str,
    pub file: String,
    /// `tensorrt:0`, …
    pub device: String,
    /// Whether the engine existed already.
    pub reused: bool,
    /// Seconds of the build, including every batch size and the comparison with the CPU.
    pub seconds: f64,
    /// The engine's folder; `key.txt` in it lists everything that the engine depends on.
    pub folder: PathBuf,
    /// The engine's files. A model can have several, or none if TensorRT runs no part of it.
    pub files: Vec<PathBuf>,
    /// Total size of these files in bytes.
    pub bytes: u64,
}

/// Builds the engines of all models of the pack for every configured device. Blocks for minutes.
///
/// # Errors
/// Fails with [`StartError::NoTensorrt`] if TensorRT cannot be used, or with
/// [`StartError::Library`] or [`StartError::Model`].
pub fn build_engines(config: &Config, pack: &ResolvedPack) -> Result<Vec<BuiltEngine>, StartError> {
    let runtime = Runtime::start(config)?;
    // A missing TensorRT is the most frequent failure, so it is checked before the models are read.
    check_tensorrt(config, &runtime).map_err(|reason| StartError::NoTensorrt { reason })?;
    let models = CandidateLoader { config, runtime: &runtime, pack };
    let mut built = build_on_devices(models.detector()?)?;
    built.extend(build_on_devices(models.embedder()?)?);
    if let Some(candidate) = models.scorer().transpose()? {
        built.extend(build_on_devices(candidate)?);
    }
    Ok(built)
}

fn check_tensorrt(config: &Config, runtime: &Runtime) -> Result<(), String> {
    let provider = Provider::Tensorrt;
    let Some(first) = config.device_ids.first().map(|device| device.id) else {
        return Err("no device id is given".to_owned());
    };
    runtime.check(provider, first).map_err(|reason| reason.to_string())?;
    runtime.preload_libraries(provider);
    runtime.suppress_library_errors(|| load_library(runtime, provider, first)).map_err(|error| {
        let reason = diagnose(provider, first, &error.to_string());
        tracing::debug!(provider = provider.name(), detail = reason.detail, "provider not usable");
        reason.to_string()
    })
}

fn build_on_devices<M: Model>(mut candidate: CandidateModel<'_, M>) -> Result<Vec<BuiltEngine>, StartError> {
    candidate.allow_batches();
    let file = &candidate.file.file;
    let build_on_device = |DeviceId { id, .. }: &DeviceId| {
        let trial = candidate
            .load_and_compare(Provider::Tensorrt, *id, false)
            .map_err(|reason| StartError::model(file, format!("on tensorrt:{id}: {reason}")))?;
        let engine = trial.placement.tensorrt.ok_or_else(|| StartError::NoTensorrt {
            reason: "the session was made without an engine".to_owned(),
        })?;
        let (files, bytes): (Vec<_>, Vec<_>) = engine.engine_files().into_iter().unzip();
        Ok(BuiltEngine {
            operation: trial.load.operation,
            file: file.clone(),
            device: trial.load.device,
            reused: engine.is_cached,
            seconds: trial.load.seconds,
            folder: engine.folder,
            files,
            bytes: bytes.iter().sum(),
        })
    };
    let is_tensorrt =
        |device: &&DeviceId| device.backend.is_none_or(|backend| backend == GpuBackend::Tensorrt);
    candidate.config.device_ids.iter().filter(is_tensorrt).map(build_on_device).collect()
}

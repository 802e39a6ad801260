//! Loads a pack from disk into a running engine.
use super::attempts::Attempts;
use super::candidate::{CandidateModel, Trial};
use super::detectors::LoadedDetector;
use super::placement::{PlacedModel, place};
use super::prepared::Colocation;
use super::{DetectorInfo, EmbedderInfo, Inner, ScorerInfo};
use crate::backend::{Backend, OnnxModel};
use crate::batcher::{Batcher, Limits};
use crate::ep::Provider;
use crate::manifest::{ModelFile, ModelKind};
use crate::models::{DetectionRequest, DetectorModel, EmbedderModel, Model, QualityModel};
use crate::runtime::Runtime;
use crate::{
    Config, DetectionCanvas, DeviceReport, LoadedModel, OperationReport, ProviderReport, ResolvedPack,
    StartError,
};
use std::time::Instant;
use vision::{Frame, Letterbox};

/// Cluster margin of embedders whose manifest entry does not set one. Clustering compares each face
/// with all others, so it needs a higher similarity than a match of two faces.
const CLUSTER_MARGIN: f32 = 0.12;

/// Returns a value that the manifest must define for a model of this kind.
fn required<T>(file: &ModelFile, name: &str, value: Option<T>) -> Result<T, StartError> {
    let missing =
        || StartError::Model { model: file.file.clone(), reason: format!("the manifest lacks {name}") };
    value.ok_or_else(missing)
}

pub(super) fn engine(config: &Config, pack: &ResolvedPack) -> Result<Inner, StartError> {
    let began = Instant::now();
    describe_metrics();
    let runtime = Runtime::load(config.dylib_path.as_deref())?;
    let attempts = Attempts::new(config, &runtime);
    let (pixels, other) = super::pixels::place(&attempts)?;

    let (candidate, reference) = detector(config, &runtime, pack)?;
    let file = candidate.file;
    let canvas = canvas(config, &candidate.model);
    let colocation =
        Colocation { runtime: &runtime, input: &file.input, placements: &pixels.placements, canvas };
    let make_backend = |model: &DetectorModel, trial: Trial, batch: usize| {
        colocation.prepare(model, trial.session, &trial.placement, batch)
    };
    let detection = start_batcher(&attempts, candidate, reference, make_backend)?;
    let (detection_report, detects_frames) = (detection.report.clone(), detection.takes_images);
    let mut models = detection.loads.clone();
    let detector = loaded(config, file, detection)?;
    let mut first_look = None;
    if let Some(file) = first_look_file(config, pack, &detection_report) {
        let (candidate, reference) = load_detector(config, &runtime, pack, file)?;
        let started = start_batcher(&attempts, candidate, reference, without_preparation)?;
        models.extend(started.loads.clone());
        first_look = Some(loaded(config, file, started)?);
    }

    let (candidate, reference) = embedder(config, &runtime, pack)?;
    let file = candidate.file;
    let embedding = start_batcher(&attempts, candidate, reference, without_preparation)?;
    let embedder = EmbedderInfo {
        name: file.stem().to_owned(),
        identity: crate::models::identity(file),
        dimensions: required(file, "dimensions", file.dimensions)?,
        match_threshold: required(file, "match_threshold", file.match_threshold)?,
        match_fmr: file.match_fmr,
        cluster_margin: file.cluster_margin.unwrap_or(CLUSTER_MARGIN),
        sketch_bits: file.sketch_bits,
    };

    let mut operations = vec![detection_report, embedding.report];
    operations.extend(other);
    models.extend(embedding.loads);
    let mut scoring = None;
    if let Some((candidate, reference)) = scorer(config, &runtime, pack)? {
        let file = candidate.file;
        let info = ScorerInfo { name: file.stem().to_owned(), sha256: file.sha256.to_ascii_lowercase() };
        let started = start_batcher(&attempts, candidate, reference, without_preparation)?;
        if let Some(checks) = operations.iter_mut().find(|o| o.operation == started.report.operation) {
            add_quality_model_device(checks, &started.report, &info.name);
        }
        models.extend(started.loads);
        scoring = Some((started.batcher, info));
    }
    attempts.fallbacks.log();
    let report = DeviceReport {
        runtime_version: runtime.version().to_owned(),
        backends: runtime.providers().into_iter().map(|p| p.name().to_owned()).collect(),
        providers: Provider::ALL.map(ProviderReport::of).to_vec(),
        devices: Vec::new(),
        operations,
        models,
    };
    tracing::info!(
        detector = detector.info.name,
        first_look = first_look.as_ref().map(|look| look.info.name.as_str()),
        embedder = embedder.name,
        scorer = scoring.as_ref().map(|(_, info)| info.name.as_str()),
        seconds = began.elapsed().as_secs_f64(),
        "inference engine ready"
    );
    Ok(Inner {
        detector,
        first_look,
        embedding: embedding.batcher,
        embedder,
        scoring,
        report,
        pixels,
        detects_frames,
        force_gpu_only: config.force_gpu_only,
    })
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

/// Returns the width and height of the detector's most frequent canvas.
fn canvas(config: &Config, model: &DetectorModel) -> (u32, u32) {
    model.fixed_size().unwrap_or((config.detection_size, config.detection_size))
}

fn file_of<'a>(pack: &'a ResolvedPack, kind: ModelKind, name: &str) -> Result<&'a ModelFile, StartError> {
    pack.pack.file(kind).ok_or_else(|| StartError::Model {
        model: pack.pack.name.clone(),
        reason: format!("the pack contains no {name}"),
    })
}

pub(super) fn detector<'a>(
    config: &'a Config,
    runtime: &'a Runtime,
    pack: &'a ResolvedPack,
) -> Result<(CandidateModel<'a, DetectorModel>, OnnxModel), StartError> {
    load_detector(config, runtime, pack, file_of(pack, ModelKind::Detector, "detector")?)
}

fn load_detector<'a>(
    config: &'a Config,
    runtime: &'a Runtime,
    pack: &'a ResolvedPack,
    file: &'a ModelFile,
) -> Result<(CandidateModel<'a, DetectorModel>, OnnxModel), StartError> {
    let on_canvas = |(width, height)| {
        let letterbox = Letterbox::identity((width, height));
        DetectionRequest { frame: crate::drawing::portrait(width, height).into(), letterbox, min_score: 0.5 }
    };
    let samples = |model: &DetectorModel| {
        let most_frequent = canvas(config, model);
        let second = config.second_canvas.map(|side| (side, side));
        let second = second.filter(|second| *second != most_frequent && model.check(*second).is_ok());
        (on_canvas(most_frequent), second.map(on_canvas).into_iter().collect())
    };
    CandidateModel::load(config, runtime, pack, file, DetectorModel::new, samples)
}

/// Returns the file of the detector of first looks, if this detector saves time. It saves time only
/// on the CPU, where a small canvas costs less than a large one. `report` is the report of the
/// detector of faces.
fn first_look_file<'a>(
    config: &Config,
    pack: &'a ResolvedPack,
    report: &OperationReport,
) -> Option<&'a ModelFile> {
    let on_the_cpu = !report.gpu_requested && report.effective == Provider::Cpu.name();
    let trims = config.detection_canvas == DetectionCanvas::Auto;
    pack.pack.first_look().filter(|_| on_the_cpu && trims)
}

/// Describes a detector that has started.
fn loaded(
    config: &Config,
    file: &ModelFile,
    started: Started<DetectorModel>,
) -> Result<LoadedDetector, StartError> {
    let info = DetectorInfo {
        name: file.stem().to_owned(),
        sha256: file.sha256.to_ascii_lowercase(),
        min_score: required(file, "min_score", file.min_score)?,
        nms_iou: required(file, "nms_iou", file.nms_iou)?,
        fixed_size: started.batcher.model().fixed_size(),
        landmarks: started.batcher.model().landmarks(),
    };
    let trims_canvases = config.detection_canvas == DetectionCanvas::Auto
        && info.fixed_size.is_none()
        && started.report.effective == Provider::Cpu.name();
    Ok(LoadedDetector { batcher: started.batcher, info, trims_canvases })
}

pub(super) fn embedder<'a>(
    config: &'a Config,
    runtime: &'a Runtime,
    pack: &'a ResolvedPack,
) -> Result<(CandidateModel<'a, EmbedderModel>, OnnxModel), StartError> {
    let file = file_of(pack, ModelKind::Embedder, "embedder")?;
    CandidateModel::load(config, runtime, pack, file, EmbedderModel::new, |_| (sample_chip(), Vec::new()))
}

/// Loads the pack's learned quality score, if it has one.
pub(super) fn scorer<'a>(
    config: &'a Config,
    runtime: &'a Runtime,
    pack: &'a ResolvedPack,
) -> Result<Option<(CandidateModel<'a, QualityModel>, OnnxModel)>, StartError> {
    let Some(file) = pack.pack.file(ModelKind::Quality) else { return Ok(None) };
    CandidateModel::load(config, runtime, pack, file, QualityModel::new, |_| (sample_chip(), Vec::new()))
        .map(Some)
}

fn sample_chip() -> std::sync::Arc<Frame> {
    crate::drawing::portrait(vision::CHIP, vision::CHIP).into()
}

/// Returns the session as a backend, without preparation.
fn without_preparation<M: Model>(_: &M, trial: Trial, _: usize) -> Box<dyn Backend> {
    Box::new(trial.session)
}

/// Adds the device of the quality model to the report of `quality_checks`, if it differs from the
/// device of the image statistics.
fn add_quality_model_device(report: &mut OperationReport, model: &OperationReport, name: &str) {
    if report.effective != model.effective {
        let why = model.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        report.add_reason(format!("{name} runs on {}{why}", model.effective));
    }
}

/// A model with its queue.
struct Started<M: Model> {
    batcher: Batcher<M>,
    report: OperationReport,
    loads: Vec<LoadedModel>,
    /// Whether all its devices take images.
    takes_images: bool,
}

/// Places one model and starts its threads. `make_backend` turns a session on a device into a
/// backend; it may add preparation.
fn start_batcher<M: Model>(
    attempts: &Attempts<'_>,
    candidate: CandidateModel<'_, M>,
    reference: OnnxModel,
    make_backend: impl Fn(&M, Trial, usize) -> Box<dyn Backend>,
) -> Result<Started<M>, StartError> {
    let (config, file) = (candidate.config, candidate.file);
    let PlacedModel { model, devices, max_batch, report, loads } =
        place(attempts, candidate, reference, make_backend)?;
    let takes_images = devices.iter().all(|device| device.primary.takes_images());
    let limits = Limits {
        queue_capacity: config.queue_capacity,
        max_batch,
        max_delay: config.batch_max_delay,
        // A backend that takes images writes the tensors on the device.
        prefetch: report.effective != Provider::Cpu.name() && !takes_images,
    };
    let batcher = Batcher::start(model, devices, limits).map_err(|e| StartError::Model {
        model: file.file.clone(),
        reason: format!("cannot start its threads: {e}"),
    })?;
    Ok(Started { batcher, report, loads, takes_images })
}

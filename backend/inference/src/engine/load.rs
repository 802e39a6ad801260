//! From a pack on disk to a running engine.
use super::placement::{Placed, place};
use super::subject::Subject;
use super::{DetectorInfo, EmbedderInfo, Inner};
use crate::backend::OnnxModel;
use crate::batcher::{Batcher, Limits};
use crate::ep::Provider;
use crate::manifest::ModelKind;
use crate::models::{DetectorModel, EmbedderModel, Model};
use crate::runtime::Runtime;
use crate::{Config, DeviceReport, LoadedModel, Operation, OperationReport, ResolvedPack, StartError};
use std::time::Instant;
use vision::Frame;

pub(super) fn engine(config: &Config, pack: &ResolvedPack) -> Result<Inner, StartError> {
    let began = Instant::now();
    describe_metrics();
    let runtime = Runtime::load(config.dylib_path.as_deref())?;
    let other = pixel_operations(config)?;

    let (subject, reference) = detector(config, &runtime, pack)?;
    let file = subject.file;
    let detection = start(subject, reference)?;
    let detector = DetectorInfo {
        name: file.stem().to_owned(),
        sha256: file.sha256.to_ascii_lowercase(),
        min_score: file.min_score.unwrap_or(0.5),
        nms_iou: file.nms_iou.unwrap_or(0.4),
        fixed_size: detection.0.model().fixed_size(),
        landmarks: detection.0.model().landmarks(),
    };

    let (subject, reference) = embedder(config, &runtime, pack)?;
    let file = subject.file;
    let embedding = start(subject, reference)?;
    let embedder = EmbedderInfo {
        name: file.stem().to_owned(),
        identity: crate::models::identity(&file.sha256, &file.input),
        dimensions: file.dimensions.unwrap_or(0),
        match_threshold: file.match_threshold.unwrap_or(0.4),
    };

    let mut operations = vec![detection.1, embedding.1];
    operations.extend(other);
    let report = DeviceReport {
        runtime_version: runtime.version().to_owned(),
        backends: runtime.providers().into_iter().map(|p| p.name().to_owned()).collect(),
        providers: Provider::ALL.map(Provider::report).to_vec(),
        devices: Vec::new(),
        operations,
        models: [detection.2, embedding.2].concat(),
    };
    tracing::info!(
        detector = detector.name,
        embedder = embedder.name,
        seconds = began.elapsed().as_secs_f64(),
        "the inference engine is ready"
    );
    Ok(Inner { detection: detection.0, embedding: embedding.0, detector, embedder, report })
}

fn describe_metrics() {
    use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
    describe_histogram!(
        "facecrawl_inference_run_seconds",
        Unit::Seconds,
        "One run on a device, preparation and decoding included."
    );
    describe_histogram!(
        "facecrawl_inference_queue_seconds",
        Unit::Seconds,
        "How long a request waited for its run."
    );
    describe_histogram!("facecrawl_inference_batch_size", Unit::Count, "Requests in one run.");
    describe_gauge!("facecrawl_inference_queue_depth", Unit::Count, "Requests that wait for a run.");
    describe_gauge!("facecrawl_gpu_memory_bytes", Unit::Bytes, "Memory of a GPU, used and total.");
    describe_gauge!(
        "facecrawl_gpu_utilization",
        Unit::Count,
        "Share of the last moments in which a GPU was at work, 0..1."
    );
    describe_counter!(
        "facecrawl_ep_fallback_total",
        Unit::Count,
        "Operations at start and requests at run time that went to the CPU instead of the provider asked for."
    );
}

/// The pack's detector.
pub(super) fn detector<'a>(
    config: &'a Config,
    runtime: &'a Runtime,
    pack: &'a ResolvedPack,
) -> Result<(Subject<'a, DetectorModel>, OnnxModel), StartError> {
    let sample = |model: &DetectorModel| {
        let (width, height) = model.fixed_size().unwrap_or((config.detection_size, config.detection_size));
        crate::models::Probe { canvas: crate::drawing::portrait(width, height).into(), min_score: 0.5 }
    };
    Subject::load(config, runtime, pack, ModelKind::Detector, DetectorModel::new, sample)
}

/// The pack's embedder.
pub(super) fn embedder<'a>(
    config: &'a Config,
    runtime: &'a Runtime,
    pack: &'a ResolvedPack,
) -> Result<(Subject<'a, EmbedderModel>, OnnxModel), StartError> {
    let chip = |_: &EmbedderModel| -> std::sync::Arc<Frame> {
        crate::drawing::portrait(crate::models::CHIP, crate::models::CHIP).into()
    };
    Subject::load(config, runtime, pack, ModelKind::Embedder, EmbedderModel::new, chip)
}

/// Places one model and starts its threads.
fn start<M: Model>(
    subject: Subject<'_, M>,
    reference: OnnxModel,
) -> Result<(Batcher<M>, OperationReport, Vec<LoadedModel>), StartError> {
    let (config, file) = (subject.config, subject.file);
    let Placed { model, devices, max_batch, report, loads } = place(subject, reference)?;
    let limits = Limits {
        queue_capacity: config.queue_capacity,
        max_batch,
        max_delay: config.batch_max_delay,
        prefetch: report.effective != Provider::Cpu.name(),
    };
    let batcher = Batcher::start(model, devices, limits).map_err(|e| StartError::Model {
        model: file.file.clone(),
        reason: format!("cannot start its threads: {e}"),
    })?;
    Ok((batcher, report, loads))
}

/// The operations that have no model. Their code runs on the CPU, so a flag that asks for a GPU is answered with the reason.
fn pixel_operations(config: &Config) -> Result<Vec<OperationReport>, StartError> {
    let operations = [Operation::ImageProcessing, Operation::ImageEnhancement, Operation::QualityChecks];
    operations
        .into_iter()
        .map(|operation| {
            let gpu_requested = config.gpu_operations.contains(&operation);
            let requested = super::placement::requested(config, operation);
            if !gpu_requested {
                return Ok(OperationReport {
                    operation: operation.name(),
                    gpu_requested,
                    requested,
                    effective: Provider::Cpu.name().to_owned(),
                    reason: None,
                });
            }
            let reason = format!("{} has no GPU implementation in this version", operation.name());
            super::placement::refuse(config, operation, &requested, &reason)?;
            Ok(OperationReport {
                operation: operation.name(),
                gpu_requested,
                requested,
                effective: Provider::Cpu.name().to_owned(),
                reason: Some(reason),
            })
        })
        .collect()
}

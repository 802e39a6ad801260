//! Starts the engines of the CPU run and the GPU run of a benchmark, and of each batch size.
use super::BenchArgs;
use super::args::Selection;
use crate::config::Settings;
use crate::progress;
use crate::service::start_engine_with;
use anyhow::bail;
use bench::{BatchSearch, BenchTarget, SearchReport, Side};
use inference::{Config, GpuBackend, Operation};
use pipeline::Analyzer;

/// Starts the sides that the flags request, the CPU first. Also returns notes for the reader of the
/// report.
pub(super) async fn start(settings: &Settings, args: &BenchArgs) -> anyhow::Result<(Vec<Side>, Vec<String>)> {
    let mut sides = Vec::new();
    let mut notes = Vec::new();
    if !args.gpu {
        sides.push(side(settings, on_cpu(settings, args), false).await?);
    }
    if args.no_gpu {
        return Ok((sides, notes));
    }
    if settings.gpu.backend == GpuBackend::Cpu {
        if args.gpu {
            bail!("--gpu requires a GPU, but GPU_BACKEND is cpu");
        }
        notes.push("no GPU was measured: GPU_BACKEND is cpu".to_owned());
        return Ok((sides, notes));
    }
    // If the library has no GPU provider, no GPU engine is started and no warning is logged.
    if let Some(cpu) = sides.first() {
        let report = cpu.analyzer.engine().report();
        if report.is_cpu_only() {
            notes.push(format!(
                "no GPU was measured: ONNX Runtime {} was built for the CPU only",
                report.runtime_version
            ));
            return Ok((sides, notes));
        }
    }
    let gpu = side(settings, on_gpu(settings, args), true).await?;
    match why_no_gpu(&gpu, &args.targets()) {
        None => sides.push(gpu),
        Some(reason) if args.gpu => bail!("there is no GPU to measure: {reason}"),
        Some(reason) => notes.push(format!("no GPU was measured: {reason}")),
    }
    Ok((sides, notes))
}

async fn side(settings: &Settings, config: Config, gpu: bool) -> anyhow::Result<Side> {
    let engine = start_engine_with(settings, config).await?;
    Ok(Side { gpu, analyzer: Analyzer::new(engine, crate::decoder::pipeline_config(settings)) })
}

/// Returns a configuration whose queue has room for every face of all concurrent images. The
/// benchmark measures speed, so no request may be rejected.
fn with_large_queue(settings: &Settings, args: &BenchArgs) -> Config {
    let config = settings.inference();
    let in_flight = args.in_flight().max(2 * config.gpu_batch_size);
    // A process loads one library, which both the CPU run and the GPU run use.
    let dylib_path = settings.library(!args.no_gpu);
    Config { queue_capacity: config.queue_capacity.max(64 * in_flight), dylib_path, ..config }
}

/// Returns a configuration that runs everything on the CPU, regardless of the variables.
fn on_cpu(settings: &Settings, args: &BenchArgs) -> Config {
    Config { gpu_operations: Vec::new(), force_gpu_only: false, ..with_large_queue(settings, args) }
}

/// Returns a configuration that runs on the GPU all operations except those that are disabled by
/// their own variable. An operation specified on the command line always runs on the GPU. A
/// fallback to the CPU is reported, and is not an error.
fn on_gpu(settings: &Settings, args: &BenchArgs) -> Config {
    let gpu = &settings.gpu;
    let selected = |operation: &Operation| {
        let own = match operation {
            Operation::FaceDetection => gpu.face_detection,
            Operation::FaceEmbedding => gpu.face_embedding,
            Operation::ImageProcessing => gpu.image_processing,
            Operation::ImageEnhancement => gpu.image_enhancement,
            Operation::QualityChecks => gpu.quality_checks,
        };
        own != Some(false) || args.operation == Selection::One(BenchTarget::Operation(*operation))
    };
    let operations = Operation::ALL.into_iter().filter(selected).collect();
    Config { gpu_operations: operations, force_gpu_only: false, ..with_large_queue(settings, args) }
}

/// Returns why none of the operations of `targets` runs on a GPU, or `None` if one does.
fn why_no_gpu(side: &Side, targets: &[BenchTarget]) -> Option<String> {
    let operations = side.analyzer.engine().operations();
    let mut reasons: Vec<String> = Vec::new();
    for target in targets {
        let about = match target {
            BenchTarget::Operation(operation) => std::slice::from_ref(operation),
            BenchTarget::Pipeline => target.uses(),
        };
        for operation in about {
            let Some(report) = operations.iter().find(|report| report.operation == operation.name()) else {
                continue;
            };
            if report.effective != "cpu" {
                return None;
            }
            let reason = report.reason.as_deref().unwrap_or("its variable selects the CPU");
            let line = format!("{}: {reason}", report.operation);
            if !reasons.contains(&line) {
                reasons.push(line);
            }
        }
    }
    Some(reasons.join("; "))
}

/// Measures batch sizes. On a GPU, each batch size has a separate engine. On the CPU, all steps use
/// the engine of `sides`.
pub(super) async fn batch_size(
    settings: &Settings,
    args: &BenchArgs,
    sides: &[Side],
    search: &BatchSearch<'_>,
) -> anyhow::Result<SearchReport> {
    let cpu = sides.iter().find(|_| !search.gpu);
    let bar = progress::images(search.sizes().len() as u64);
    let start = async |batch: usize| {
        bar.set_message(format!("batch {batch}"));
        bar.inc(1);
        if let Some(side) = cpu {
            return Ok(Ok(side.clone()));
        }
        let mut config = on_gpu(settings, args);
        config.gpu_batch_size = batch;
        let side = side(settings, config, true).await?;
        Ok(match why_no_gpu(&side, &[search.target()]) {
            None => smaller_batch(&side, batch).map_or(Ok(side), Err),
            Some(reason) => Err(reason),
        })
    };
    let found = search.run(start).await?;
    bar.finish_and_clear();
    Ok(found)
}

/// Returns the reason if a model of the engine runs batches, but smaller ones than `batch`, because
/// the GPU does not have enough memory.
fn smaller_batch(side: &Side, batch: usize) -> Option<String> {
    let models = side.analyzer.engine().report().models;
    let smaller = models.iter().find(|model| (2..batch).contains(&model.max_batch))?;
    Some(format!(
        "{}: out of memory on {}; the largest batch is {}",
        smaller.operation, smaller.device, smaller.max_batch
    ))
}

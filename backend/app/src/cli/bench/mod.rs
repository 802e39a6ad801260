//! Implements `bench`, which measures the speed of this machine without a database. Starts the
//! engines of the CPU run, of the GPU run and of each batch size.
mod args;
mod table;
pub(super) use self::args::BenchArgs;
use self::args::OperationSelection;
use super::Exit;
use crate::cli::options;
use crate::config::{Settings, cores};
use crate::decoder::open_decoder;
use crate::service::start_engine_with;
use crate::{output, telemetry};
use anyhow::{Context, bail};
use bench::{
    BatchSearch, BenchImages, BenchTarget, Counters, ImageSize, Plan, PlanReport, Process, Report,
    SearchReport, Side, System, VideoPlanReport, VideoReport, draw_svg, measure, measure_video,
};
use inference::{Config, GpuBackend, Operation};
use pipeline::{Analyzer, VideoOptions};

pub(super) async fn run(settings: &Settings, args: BenchArgs) -> anyhow::Result<Exit> {
    args.check()?;
    let process = Process {
        cores: cores(),
        cpu_seconds: telemetry::cpu_seconds,
        children_cpu_seconds: telemetry::children_cpu_seconds,
        counters: Counters::new(telemetry::init_metrics()?),
    };
    let (sides, mut notes) = start_sides(settings, &args).await?;
    if cfg!(debug_assertions) {
        notes.push("this is a debug build; its figures are not representative of a release build".to_owned());
    }
    if args.operation == OperationSelection::Video {
        return run_video(settings, &args, &sides, &process, notes).await;
    }
    let images = tokio::task::block_in_place(|| load_images(&args, settings))?;
    let plan = args.plan();

    let bar = output::image_bar((plan.targets.len() * images.len()) as u64);
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let results = measure(&plan, &sides, &images, &process, step).await?;
    bar.finish_and_clear();
    let auto_batch = if args.auto_batch {
        let search = BatchSearch {
            plan: &plan,
            images: &images[0],
            process: &process,
            gpu: sides.iter().any(|side| side.gpu),
            largest: settings.inference().gpu_batch_size,
            memory_limit: settings.gpu.memory_limit_gb * f64::from(1 << 30),
        };
        Some(search_batch_size(settings, &args, &sides, &search).await?)
    } else {
        None
    };
    let system = system_report(settings, &sides);
    let report = Report::new(results, auto_batch, plan_report(&args, &plan, &images), system, notes);
    write_report(&args, &report)?;
    let results =
        report.benchmark_results.values().flat_map(|sizes| sizes.values()).flat_map(|sides| sides.values());
    let (succeeded, failed) = results.fold((0, 0), |(s, f), result| (s + result.images, f + result.failed));
    Ok(Exit::from_counts(succeeded, failed))
}

async fn run_video(
    settings: &Settings,
    args: &BenchArgs,
    sides: &[Side],
    process: &Process,
    notes: Vec<String>,
) -> anyhow::Result<Exit> {
    let decoder = tokio::task::block_in_place(|| open_decoder(settings))?.decoder?;
    let options =
        VideoOptions { match_threshold: settings.service.match_threshold, ..VideoOptions::default() };
    let plan = args.video_plan(args.file.clone().unwrap_or_default(), options);
    let measurements = plan.samplings.len() * (1 + sides.len()) * (plan.warmup + plan.iterations);
    let bar = output::image_bar(measurements as u64);
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let (results, index) = measure_video(&plan, sides, &decoder, process, step).await?;
    bar.finish_and_clear();
    let report = VideoReport {
        benchmark_results: results,
        plan: VideoPlanReport::new(&plan, &index, &decoder),
        system: system_report(settings, sides),
        notes,
    };
    write_json_or(args, &report, || table::video_text(&report))?;
    let all = report.benchmark_results.values().flat_map(|samplings| samplings.values());
    let all = all.flat_map(|sides| sides.values());
    let (succeeded, failed) = all.fold((0, 0), |(s, f), side| (s + side.analyses, f + side.failed));
    Ok(Exit::from_counts(succeeded, failed))
}

fn load_images(args: &BenchArgs, settings: &Settings) -> anyhow::Result<Vec<BenchImages>> {
    let Some(folder) = &args.images else {
        let sizes = args.image_size.as_ref().map_or(&ImageSize::ALL[..], |sizes| &sizes.0);
        return Ok(sizes.iter().copied().map(BenchImages::drawn).collect());
    };
    let files = options::list_images(folder)?;
    let files = files.iter().map(|path| options::read_image(path)).collect::<Result<_, _>>()?;
    let given = BenchImages::of(files, &settings.image_limits());
    Ok(match &args.image_size {
        None => vec![given],
        Some(sizes) => sizes.0.iter().map(|size| given.scaled(*size)).collect(),
    })
}

fn plan_report(args: &BenchArgs, plan: &Plan, images: &[BenchImages]) -> PlanReport {
    let drawn = || "drawn".to_owned();
    PlanReport {
        batch_size: plan.batch_size,
        iterations: plan.iterations,
        warmup: plan.warmup,
        images: args.images.as_ref().map_or_else(drawn, |folder| folder.display().to_string()),
        images_per_size: images.iter().map(|images| images.files.len()).max().unwrap_or(0),
    }
}

fn system_report(settings: &Settings, sides: &[Side]) -> System {
    // The last run is the GPU run, if there is one.
    let engine = sides.last().map(|side| side.analyzer.engine());
    let report = engine.map(inference::Engine::report);
    let config = settings.inference();
    System {
        version: env!("CARGO_PKG_VERSION"),
        build: if cfg!(debug_assertions) { "debug" } else { "release" },
        platform: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        cores: cores(),
        cpu_sessions: if config.cpu_sessions == 0 { cores() } else { config.cpu_sessions },
        cpu_session_threads: config.cpu_session_threads,
        onnxruntime: report.as_ref().map(|report| report.runtime_version.clone()).unwrap_or_default(),
        backends: report.as_ref().map(|report| report.backends.clone()).unwrap_or_default(),
        model_pack: settings.models.pack.clone(),
        detector: engine.map(|engine| engine.detector().name.clone()).unwrap_or_default(),
        embedder: engine.map(|engine| engine.embedder().name.clone()).unwrap_or_default(),
        models: report.as_ref().map(|report| report.models.clone()).unwrap_or_default(),
        gpus: report.map(|report| report.devices).unwrap_or_default(),
        gpu_batch_size: config.gpu_batch_size,
        gpu_memory_limit_gb: config.memory_limit_gb,
    }
}

fn write_report(args: &BenchArgs, report: &Report) -> anyhow::Result<()> {
    if let Some(path) = &args.plot {
        let title = format!("facecrawl bench, {} images in flight", args.concurrent_images());
        std::fs::write(path, draw_svg(&report.benchmark_results, &title))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    write_json_or(args, report, || table::text(report))
}

/// Writes the report to the file of `--json`, and prints `text`. With `--json -`, prints the report
/// instead.
fn write_json_or(
    args: &BenchArgs,
    report: &impl serde::Serialize,
    text: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    match &args.json {
        Some(path) if path.as_os_str() == "-" => return output::print_json(report),
        Some(path) => {
            let json = serde_json::to_string_pretty(report)?;
            std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => {}
    }
    output::print_line(text())
}

/// Starts the sides that the flags request, the CPU first. Also returns notes for the reader of the
/// report.
async fn start_sides(settings: &Settings, args: &BenchArgs) -> anyhow::Result<(Vec<Side>, Vec<String>)> {
    let mut sides = Vec::new();
    let mut notes = Vec::new();
    if !args.gpu {
        sides.push(start_side(settings, cpu_config(settings, args), false).await?);
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
    let gpu = start_side(settings, gpu_config(settings, args), true).await?;
    match missing_gpu_reason(&gpu, &args.targets()) {
        None => sides.push(gpu),
        Some(reason) if args.gpu => bail!("there is no GPU to measure: {reason}"),
        Some(reason) => notes.push(format!("no GPU was measured: {reason}")),
    }
    Ok((sides, notes))
}

async fn start_side(settings: &Settings, config: Config, gpu: bool) -> anyhow::Result<Side> {
    let engine = start_engine_with(settings, config).await?;
    Ok(Side { gpu, analyzer: Analyzer::new(engine, crate::decoder::pipeline_config(settings)) })
}

/// Returns a configuration whose queue has room for every face of all concurrent images. The
/// benchmark measures speed, so no request may be rejected.
fn with_large_queue(settings: &Settings, args: &BenchArgs) -> Config {
    let config = settings.inference();
    let in_flight = args.concurrent_images().max(2 * config.gpu_batch_size);
    // A process loads one library, which both the CPU run and the GPU run use.
    let dylib_path = settings.onnx_runtime_library(!args.no_gpu);
    Config { queue_capacity: config.queue_capacity.max(64 * in_flight), dylib_path, ..config }
}

/// Returns a configuration that runs everything on the CPU, regardless of the variables.
fn cpu_config(settings: &Settings, args: &BenchArgs) -> Config {
    Config { gpu_operations: Vec::new(), force_gpu_only: false, ..with_large_queue(settings, args) }
}

/// Returns a configuration that runs on the GPU all operations except those that are disabled by
/// their own variable. An operation specified on the command line always runs on the GPU. A
/// fallback to the CPU is reported, and is not an error.
fn gpu_config(settings: &Settings, args: &BenchArgs) -> Config {
    let selected = |operation: &Operation| {
        settings.gpu.operation_variable(*operation) != Some(false)
            || args.operation == OperationSelection::One(BenchTarget::Operation(*operation))
    };
    let operations = Operation::ALL.into_iter().filter(selected).collect();
    Config { gpu_operations: operations, force_gpu_only: false, ..with_large_queue(settings, args) }
}

/// Returns why none of the operations of `targets` runs on a GPU, or `None` if one does.
fn missing_gpu_reason(side: &Side, targets: &[BenchTarget]) -> Option<String> {
    let operations = side.analyzer.engine().operations();
    let mut reasons: Vec<String> = Vec::new();
    for target in targets {
        let used_operations = match target {
            BenchTarget::Operation(operation) => std::slice::from_ref(operation),
            BenchTarget::Pipeline => target.operations(),
        };
        for operation in used_operations {
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
async fn search_batch_size(
    settings: &Settings,
    args: &BenchArgs,
    sides: &[Side],
    search: &BatchSearch<'_>,
) -> anyhow::Result<SearchReport> {
    let cpu = sides.iter().find(|_| !search.gpu);
    let bar = output::image_bar(search.sizes().len() as u64);
    let start = async |batch: usize| {
        bar.set_message(format!("batch {batch}"));
        bar.inc(1);
        if let Some(side) = cpu {
            return Ok(Ok(side.clone()));
        }
        let mut config = gpu_config(settings, args);
        config.gpu_batch_size = batch;
        let side = start_side(settings, config, true).await?;
        Ok(match missing_gpu_reason(&side, &[search.target()]) {
            None => smaller_batch_reason(&side, batch).map_or(Ok(side), Err),
            Some(reason) => Err(reason),
        })
    };
    let found = search.run(start).await?;
    bar.finish_and_clear();
    Ok(found)
}

/// Returns the reason if a model of the engine runs batches, but smaller ones than `batch`, because
/// the GPU does not have enough memory.
fn smaller_batch_reason(side: &Side, batch: usize) -> Option<String> {
    let models = side.analyzer.engine().report().models;
    let smaller = models.iter().find(|model| (2..batch).contains(&model.max_batch))?;
    Some(format!(
        "{}: out of memory on {}; the largest batch is {}",
        smaller.operation, smaller.device, smaller.max_batch
    ))
}

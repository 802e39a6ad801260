//! Implements `bench`, which measures the speed of this machine without a database.
mod args;
mod engines;
mod table;

pub(super) use self::args::BenchArgs;
use self::args::Selection;
use super::{Exit, image_folder};
use crate::config::{Settings, cores};
use crate::decoder::open_decoder;
use crate::output;
use crate::{progress, telemetry};
use anyhow::Context;
use bench::{
    BatchSearch, Counters, ImageSize, Pictures, Plan, PlanReport, Process, Report, Side, System,
    VideoPlanReport, VideoReport, measure, measure_video, svg,
};
use pipeline::VideoOptions;

pub(super) async fn run(settings: &Settings, args: BenchArgs) -> anyhow::Result<Exit> {
    args.check()?;
    let process = Process {
        cores: cores(),
        cpu_seconds: telemetry::cpu_seconds,
        children_cpu_seconds: telemetry::children_cpu_seconds,
        counters: Counters::new(telemetry::init_metrics()?),
    };
    let (sides, mut notes) = engines::start(settings, &args).await?;
    if cfg!(debug_assertions) {
        notes.push("this is a debug build; its figures are not representative of a release build".to_owned());
    }
    if args.operation == Selection::Video {
        return run_video(settings, &args, &sides, &process, notes).await;
    }
    let pictures = tokio::task::block_in_place(|| pictures(&args, settings))?;
    let plan = args.plan();

    let bar = progress::images((plan.targets.len() * pictures.len()) as u64);
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let results = measure(&plan, &sides, &pictures, &process, step).await?;
    bar.finish_and_clear();
    let auto_batch = if args.auto_batch {
        let search = BatchSearch {
            plan: &plan,
            pictures: &pictures[0],
            process: &process,
            gpu: sides.iter().any(|side| side.gpu),
            largest: settings.inference().gpu_batch_size,
            memory_limit: settings.gpu.memory_limit_gb * f64::from(1 << 30),
        };
        Some(engines::batch_size(settings, &args, &sides, &search).await?)
    } else {
        None
    };
    let system = system(settings, &sides);
    let report = Report::new(results, auto_batch, reported(&args, &plan, &pictures), system, notes);
    write(&args, &report)?;
    let all =
        report.benchmark_results.values().flat_map(|sizes| sizes.values()).flat_map(|sides| sides.values());
    let (succeeded, failed) = all.fold((0, 0), |(s, f), result| (s + result.images, f + result.failed));
    Ok(Exit::of(succeeded, failed))
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
    let bar = progress::images(measurements as u64);
    let step = |what: &str| {
        bar.set_message(what.to_owned());
        bar.inc(1);
    };
    let (results, index) = measure_video(&plan, sides, &decoder, process, step).await?;
    bar.finish_and_clear();
    let report = VideoReport {
        benchmark_results: results,
        plan: VideoPlanReport::new(&plan, &index, &decoder),
        system: system(settings, sides),
        notes,
    };
    write_json_or(args, &report, || table::video_text(&report))?;
    let all = report.benchmark_results.values().flat_map(|samplings| samplings.values());
    let all = all.flat_map(|sides| sides.values());
    let (succeeded, failed) = all.fold((0, 0), |(s, f), side| (s + side.analyses, f + side.failed));
    Ok(Exit::of(succeeded, failed))
}

fn pictures(args: &BenchArgs, settings: &Settings) -> anyhow::Result<Vec<Pictures>> {
    let Some(folder) = &args.images else {
        let sizes = args.image_size.as_ref().map_or(&ImageSize::ALL[..], |sizes| &sizes.0);
        return Ok(sizes.iter().copied().map(Pictures::drawn).collect());
    };
    let files = image_folder::list(folder)?;
    let files = files.iter().map(|path| image_folder::read(path)).collect::<Result<_, _>>()?;
    let own = Pictures::of(files, &settings.limits());
    Ok(match &args.image_size {
        None => vec![own],
        Some(sizes) => sizes.0.iter().map(|size| own.scaled(*size)).collect(),
    })
}

fn reported(args: &BenchArgs, plan: &Plan, pictures: &[Pictures]) -> PlanReport {
    let drawn = || "drawn".to_owned();
    PlanReport {
        batch_size: plan.batch_size,
        iterations: plan.iterations,
        warmup: plan.warmup,
        images: args.images.as_ref().map_or_else(drawn, |folder| folder.display().to_string()),
        pictures: pictures.iter().map(|pictures| pictures.files.len()).max().unwrap_or(0),
    }
}

fn system(settings: &Settings, sides: &[Side]) -> System {
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

fn write(args: &BenchArgs, report: &Report) -> anyhow::Result<()> {
    if let Some(path) = &args.plot {
        let title = format!("facecrawl bench, {} images in flight", args.in_flight());
        std::fs::write(path, svg(&report.benchmark_results, &title))
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
        Some(path) if path.as_os_str() == "-" => return output::json(report),
        Some(path) => {
            let json = serde_json::to_string_pretty(report)?;
            std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => {}
    }
    output::line(text())
}

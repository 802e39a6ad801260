//! Implements `bench`, which measures the speed of this machine without a database.
mod engines;
mod search;
mod table;

use super::{Exit, UsageError, image_folder};
use crate::config::{Settings, cores};
use crate::output;
use crate::{progress, telemetry};
use anyhow::Context;
use bench::{
    BatchSearch, BenchTarget, Counters, ImageSize, Pictures, Plan, PlanReport, Process, Report, Side, System,
    measure, svg,
};
use clap::{Args, ValueEnum};
use inference::Operation;
use std::path::{Path, PathBuf};

/// The arguments of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Operation to measure
    #[arg(long, value_enum, default_value = "all", value_name = "OPERATION", rename_all = "snake_case")]
    operation: OperationArg,
    /// Size of the images: small (320x240), medium (1280x720), large (3840x2160) or all [default:
    /// all; with --images, their original size]
    #[arg(long, value_enum, value_name = "SIZE")]
    image_size: Option<Sizes>,
    /// Measure only the GPU; fails if there is none [default: the CPU, and the GPU if there is one]
    #[arg(long, conflicts_with = "no_gpu")]
    gpu: bool,
    /// Measure only the CPU
    #[arg(long)]
    no_gpu: bool,
    /// Number of images that are processed concurrently
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch_size: u32,
    /// Number of measured iterations; each processes --batch-size images
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,
    /// Number of iterations before the measurement
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    warmup: u32,
    /// Folder of images to use instead of drawn ones
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
    /// Also determine the best GPU_BATCH_SIZE: 1, 2, 4, … up to the configured one
    #[arg(long)]
    auto_batch: bool,
    /// Write a trace of stages and device runs for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE.json")]
    profile: Option<PathBuf>,
    /// Write a chart of the throughput
    #[arg(long, value_name = "FILE.svg")]
    plot: Option<PathBuf>,
    /// Write the report as JSON; - prints it instead of the table
    #[arg(long, value_name = "FILE|-")]
    json: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum OperationArg {
    FaceDetection,
    FaceEmbedding,
    ImageProcessing,
    ImageEnhancement,
    QualityChecks,
    Pipeline,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sizes {
    Small,
    Medium,
    Large,
    All,
}

impl BenchArgs {
    /// Returns the path of the trace file. The trace starts before the command.
    pub(super) fn profile(&self) -> Option<&Path> {
        self.profile.as_deref()
    }

    fn targets(&self) -> Vec<BenchTarget> {
        let one = match self.operation {
            OperationArg::All => return BenchTarget::ALL.to_vec(),
            OperationArg::FaceDetection => BenchTarget::Operation(Operation::FaceDetection),
            OperationArg::FaceEmbedding => BenchTarget::Operation(Operation::FaceEmbedding),
            OperationArg::ImageProcessing => BenchTarget::Operation(Operation::ImageProcessing),
            OperationArg::ImageEnhancement => BenchTarget::Operation(Operation::ImageEnhancement),
            OperationArg::QualityChecks => BenchTarget::Operation(Operation::QualityChecks),
            OperationArg::Pipeline => BenchTarget::Pipeline,
        };
        vec![one]
    }

    fn sizes(&self) -> Option<Vec<ImageSize>> {
        match self.image_size? {
            Sizes::Small => Some(vec![ImageSize::Small]),
            Sizes::Medium => Some(vec![ImageSize::Medium]),
            Sizes::Large => Some(vec![ImageSize::Large]),
            Sizes::All => Some(ImageSize::ALL.to_vec()),
        }
    }

    fn plan(&self) -> Plan {
        Plan {
            targets: self.targets(),
            batch_size: self.batch_size as usize,
            iterations: self.iterations as usize,
            warmup: self.warmup as usize,
        }
    }

    /// Checks what can be checked before anything is measured.
    fn check(&self) -> Result<(), UsageError> {
        if let Some(plot) = &self.plot
            && plot.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("svg"))
        {
            return Err(UsageError(format!(
                "--plot {}: the name of the file must end in .svg",
                plot.display()
            )));
        }
        let folder =
            |path: &Path| path.parent().filter(|p| !p.as_os_str().is_empty()).is_none_or(Path::is_dir);
        let json = self.json.as_ref().filter(|path| path.as_os_str() != "-");
        for (flag, path) in [("--plot", &self.plot), ("--json", &json.cloned())] {
            if let Some(path) = path
                && !folder(path)
            {
                return Err(UsageError(format!("{flag} {}: its folder does not exist", path.display())));
            }
        }
        Ok(())
    }

    fn pictures(&self, settings: &Settings) -> anyhow::Result<Vec<Pictures>> {
        let Some(folder) = &self.images else {
            let sizes = self.sizes().unwrap_or_else(|| ImageSize::ALL.to_vec());
            return Ok(sizes.into_iter().map(Pictures::drawn).collect());
        };
        let files = image_folder::list(folder)?;
        let files = files.iter().map(|path| image_folder::read(path)).collect::<Result<_, _>>()?;
        let own = Pictures::of(files, &settings.limits());
        Ok(match self.sizes() {
            None => vec![own],
            Some(sizes) => sizes.into_iter().map(|size| own.scaled(size)).collect(),
        })
    }
}

pub(super) async fn run(settings: &Settings, args: BenchArgs) -> anyhow::Result<Exit> {
    args.check()?;
    let process = Process {
        cores: cores(),
        cpu_seconds: telemetry::cpu_seconds,
        counters: Counters::new(telemetry::init_metrics()?),
    };
    let (sides, mut notes) = engines::start(settings, &args).await?;
    let pictures = tokio::task::block_in_place(|| args.pictures(settings))?;
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
        Some(search::batch_size(settings, &args, &sides, &search).await?)
    } else {
        None
    };
    if cfg!(debug_assertions) {
        notes.push("this is a debug build; its figures are not representative of a release build".to_owned());
    }
    let system = system(settings, &sides);
    let report = Report::new(results, auto_batch, reported(&args, &pictures), system, notes);
    write(&args, &report)?;
    let all =
        report.benchmark_results.values().flat_map(|sizes| sizes.values()).flat_map(|sides| sides.values());
    let (succeeded, failed) = all.fold((0, 0), |(s, f), result| (s + result.images, f + result.failed));
    Ok(Exit::of(succeeded, failed))
}

/// Returns the plan in the form that the report contains.
fn reported(args: &BenchArgs, pictures: &[Pictures]) -> PlanReport {
    let drawn = || "drawn".to_owned();
    PlanReport {
        batch_size: args.batch_size as usize,
        iterations: args.iterations as usize,
        warmup: args.warmup as usize,
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
        let title = format!("facecrawl bench, {} images in flight", args.batch_size);
        std::fs::write(path, svg(&report.benchmark_results, &title))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    match &args.json {
        Some(path) if path.as_os_str() == "-" => return output::json(report),
        Some(path) => {
            let json = serde_json::to_string_pretty(report)?;
            std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
        }
        None => {}
    }
    output::line(table::text(report))
}

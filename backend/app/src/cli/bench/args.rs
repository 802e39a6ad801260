use crate::cli::UsageError;
use bench::{BenchTarget, ImageSize, Plan, VideoPlan};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use pipeline::VideoOptions;
use std::path::{Path, PathBuf};
use video::Sampling;

const NO_VIDEO_FILE: &str = "--operation video requires a video file: facecrawl bench --operation video FILE. In a checkout of \
                        the source, `cargo run --release -p facecrawl-testing --example draw -- film film.mp4 --width \
                        1920 --height 1080 --minutes 10` writes one";

/// The arguments of `bench`.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Video to measure with --operation video
    #[arg(value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Operation to measure; video is not part of all
    #[arg(long, default_value = "all", value_name = "OPERATION", value_parser = OperationSelection::parser())]
    pub(super) operation: OperationSelection,
    /// Size of the images: small (320x240), medium (1280x720), large (3840x2160) or all [default:
    /// all; with --images, their original size]
    #[arg(long, value_name = "SIZE", value_parser = Sizes::parser())]
    pub(super) image_size: Option<Sizes>,
    /// Measure only the GPU; fails if there is none [default: the CPU, and the GPU if there is one]
    #[arg(long, conflicts_with = "no_gpu")]
    pub(super) gpu: bool,
    /// Measure only the CPU
    #[arg(long)]
    pub(super) no_gpu: bool,
    /// Number of images that are processed concurrently [default: 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch_size: Option<u32>,
    /// Number of measured iterations; each processes --batch-size images, or the whole video
    /// [default: 10; with --operation video, 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: Option<u32>,
    /// Number of iterations before the measurement [default: 1; with --operation video, 0]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    warmup: Option<u32>,
    /// Which frames of the video are analysed: auto, keyframes, or fps=N; can be repeated [default:
    /// auto, keyframes and fps=5]
    #[arg(long, value_name = "SAMPLING")]
    sampling: Vec<Sampling>,
    /// Folder of images to use instead of drawn ones
    #[arg(long, value_name = "DIR")]
    pub(super) images: Option<PathBuf>,
    /// Also determine the best GPU_BATCH_SIZE: 1, 2, 4, … up to the configured one
    #[arg(long)]
    pub(super) auto_batch: bool,
    /// Write a trace of stages and device runs for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE.json")]
    profile: Option<PathBuf>,
    /// Write a chart of the throughput
    #[arg(long, value_name = "FILE.svg")]
    pub(super) plot: Option<PathBuf>,
    /// Write the report as JSON; - prints it instead of the table
    #[arg(long, value_name = "FILE|-")]
    pub(super) json: Option<PathBuf>,
}

/// The operations that `--operation` selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationSelection {
    One(BenchTarget),
    Video,
    All,
}

impl OperationSelection {
    fn parser() -> impl TypedValueParser<Value = Self> {
        let names = BenchTarget::ALL.map(BenchTarget::name).into_iter().chain(["video", "all"]);
        PossibleValuesParser::new(names).map(|name| {
            let one = BenchTarget::ALL.into_iter().find(|target| target.name() == name);
            one.map_or(if name == "video" { Self::Video } else { Self::All }, Self::One)
        })
    }
}

/// The image sizes that `--image-size` selects.
#[derive(Clone, Debug)]
pub(super) struct Sizes(pub(super) Vec<ImageSize>);

impl Sizes {
    fn parser() -> impl TypedValueParser<Value = Self> {
        let names = ImageSize::ALL.map(ImageSize::name).into_iter().chain(["all"]);
        PossibleValuesParser::new(names).map(|name| {
            Self(ImageSize::ALL.into_iter().filter(|size| name == "all" || name == size.name()).collect())
        })
    }
}

impl BenchArgs {
    /// Returns the path of the trace file. The trace starts before the command.
    pub(in crate::cli) fn profile(&self) -> Option<&Path> {
        self.profile.as_deref()
    }

    pub(super) fn targets(&self) -> Vec<BenchTarget> {
        match self.operation {
            OperationSelection::One(target) => vec![target],
            // Videos use the devices of the pipeline.
            OperationSelection::Video => vec![BenchTarget::Pipeline],
            OperationSelection::All => BenchTarget::ALL.to_vec(),
        }
    }

    pub(super) fn concurrent_images(&self) -> usize {
        self.batch_size.unwrap_or(8) as usize
    }

    pub(super) fn plan(&self) -> Plan {
        Plan {
            targets: self.targets(),
            batch_size: self.concurrent_images(),
            iterations: self.iterations.unwrap_or(10) as usize,
            warmup: self.warmup.unwrap_or(1) as usize,
        }
    }

    /// Returns the plan for the video `file`. `options` are those that all samplings share.
    pub(super) fn video_plan(&self, file: PathBuf, options: VideoOptions) -> VideoPlan {
        let default_samplings = || vec![Sampling::Auto, Sampling::Keyframes, Sampling::Fps(5.0)];
        let samplings = if self.sampling.is_empty() { default_samplings() } else { self.sampling.clone() };
        let (iterations, warmup) = (self.iterations.unwrap_or(3) as usize, self.warmup.unwrap_or(0) as usize);
        VideoPlan { file, samplings, options, iterations, warmup }
    }

    /// Checks that the options belong to the operation.
    fn check_operation(&self) -> Result<(), UsageError> {
        let image_options = [
            ("--image-size", self.image_size.is_some()),
            ("--images", self.images.is_some()),
            ("--batch-size", self.batch_size.is_some()),
            ("--auto-batch", self.auto_batch),
            ("--plot", self.plot.is_some()),
        ];
        let video_options = [("FILE", self.file.is_some()), ("--sampling", !self.sampling.is_empty())];
        if self.operation != OperationSelection::Video {
            let used = video_options.into_iter().find(|(_, used)| *used);
            return used.map_or(Ok(()), |(flag, _)| {
                Err(UsageError(format!("{flag} is only for --operation video")))
            });
        }
        if let Some((flag, _)) = image_options.into_iter().find(|(_, used)| *used) {
            return Err(UsageError(format!("{flag} is not for --operation video")));
        }
        match &self.file {
            None => Err(UsageError(NO_VIDEO_FILE.into())),
            Some(file) if !file.is_file() => Err(UsageError(format!("{}: no such file", file.display()))),
            Some(_) => Ok(()),
        }
    }

    /// Checks the options before anything is measured.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        self.check_operation()?;
        if let Some(plot) = &self.plot
            && plot.extension().is_none_or(|extension| !extension.eq_ignore_ascii_case("svg"))
        {
            return Err(UsageError(format!(
                "--plot {}: the name of the file must end in .svg",
                plot.display()
            )));
        }
        let has_folder =
            |path: &Path| path.parent().filter(|p| !p.as_os_str().is_empty()).is_none_or(Path::is_dir);
        let json = self.json.as_ref().filter(|path| path.as_os_str() != "-");
        for (flag, path) in [("--plot", &self.plot), ("--json", &json.cloned())] {
            if let Some(path) = path
                && !has_folder(path)
            {
                return Err(UsageError(format!("{flag} {}: its folder does not exist", path.display())));
            }
        }
        Ok(())
    }
}

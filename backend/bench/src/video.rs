//! Measures the analysis of a video file, and the decoding of the same frames alone.
mod report;
mod run;
mod side;
mod usage;

pub use report::{VideoPlanReport, VideoReport, VideoResults};
pub use side::VideoSide;

use crate::{Process, Side};
use anyhow::Context;
use pipeline::VideoOptions;
use run::{Runs, analyze, decode, seconds_of};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use video::{Decoder, Index, Sampling};

/// What is measured, and how often.
#[derive(Clone, Debug)]
pub struct VideoPlan {
    pub file: PathBuf,
    /// The samplings, in the order of the report.
    pub samplings: Vec<Sampling>,
    pub options: VideoOptions,
    /// Number of measured rounds; each analyses the whole file once with each sampling.
    pub iterations: usize,
    /// Number of rounds before the measurement.
    pub warmup: usize,
}

impl VideoPlan {
    fn open(&self) -> anyhow::Result<File> {
        File::open(&self.file).with_context(|| format!("cannot open {}", self.file.display()))
    }

    fn options_for(&self, sampling: Sampling) -> VideoOptions {
        VideoOptions { sampling, ..self.options.clone() }
    }
}

/// Measures every sampling in rounds. A round decodes the frames of a sampling without an analysis,
/// and analyses them on every side. The order changes between rounds, so that other load on the
/// machine affects everything equally. If `decoder` has GPUs, only the side of the GPU uses them.
/// `progress` is called with the name of the next measurement. Also returns what the file reports
/// about itself.
///
/// # Errors
/// Fails if the file cannot be opened or decoded. An analysis that fails later is not an error; it
/// lowers `success_rate`.
pub async fn measure_video(
    plan: &VideoPlan,
    sides: &[Side],
    decoder: &Decoder,
    process: &Process,
    mut progress: impl FnMut(&str),
) -> anyhow::Result<(VideoResults, Index)> {
    let file = plan.open()?;
    let on_cpu = decoder.without_gpus();
    let read = on_cpu.clone();
    // Reads the whole file, so that every later run finds it in the cache of the system.
    let index = tokio::task::spawn_blocking(move || read.index(&file)).await??;
    let mut measured: Vec<Runs> = plan.samplings.iter().map(|_| Runs::new(sides.len())).collect();
    for round in 0..plan.warmup + plan.iterations {
        let counts = round >= plan.warmup;
        let mut order: Vec<usize> = (0..plan.samplings.len()).collect();
        order.rotate_left(round % plan.samplings.len().max(1));
        for at in order {
            let options = plan.options_for(plan.samplings[at]);
            let name = name_of(options.sampling);
            progress(&format!("round {}, {name}, decoding", round + 1));
            let decoded = decode(plan.open()?, &on_cpu, &options, process).await?;
            for turn in 0..sides.len() {
                let number = (turn + round) % sides.len();
                let side = &sides[number];
                progress(&format!("round {}, {name}, {}", round + 1, side.key()));
                let decoder = if side.gpu { decoder } else { &on_cpu };
                let analyzed = analyze(&side.analyzer, plan.open()?, decoder, &options, process).await;
                if counts {
                    measured[at].add(number, analyzed, &decoded);
                }
            }
            if counts {
                measured[at].decoded.push(decoded);
            }
        }
    }
    let seconds = seconds_of(&index, &measured);
    let mut of_sampling = BTreeMap::new();
    for (sampling, runs) in plan.samplings.iter().zip(measured) {
        of_sampling.insert(name_of(*sampling), runs.report(sides, seconds));
    }
    Ok((VideoResults::from([("video".to_owned(), of_sampling)]), index))
}

/// Returns the name of a sampling, as the command line accepts it.
fn name_of(sampling: Sampling) -> String {
    match sampling {
        Sampling::Keyframes => "keyframes".into(),
        Sampling::Fps(fps) => format!("fps={fps}"),
        Sampling::Auto => "auto".into(),
    }
}

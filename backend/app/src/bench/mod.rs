//! Measures single operations and the whole pipeline from bytes to embeddings, on the CPU and on a
//! GPU.
//!
//! The measurements use the same code as the service: [`pipeline::Analyzer`] and
//! [`inference::Engine`]. `docs/reference/BENCHMARKS.md` describes the report.
mod analysis;
mod auto_batch;
mod batch_search;
mod bottleneck;
mod counters;
mod measure;
mod pictures;
mod plot;
mod process;
pub mod report;
mod spread;
mod work;

pub use analysis::gain;
pub use auto_batch::{AutoBatch, Step, recommend};
pub use batch_search::{BatchSearch, SearchReport};
pub use bottleneck::{Bottleneck, Facts, bottleneck};
pub use counters::Counters;
pub use pictures::{ImageSize, Pictures};
pub use plot::svg;
pub use process::Process;
pub use report::{Device, Gain, Report, SideReport, Summary, System};
pub use spread::Spread;
pub use work::Subject;

use measure::{Tally, round};
use pipeline::Analyzer;
use std::collections::BTreeMap;
use work::Work;

/// Number of rounds in which CPU and GPU alternate, so that other load on the machine affects both.
const ROUNDS: usize = 5;

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The operations, in the order of the report.
    pub subjects: Vec<Subject>,
    /// Number of images (or faces) in flight; also their number per iteration.
    pub batch_size: usize,
    /// Number of iterations that are measured.
    pub iterations: usize,
    /// Number of iterations before the measurement.
    pub warmup: usize,
}

/// One way to run the work: a separate engine.
#[derive(Clone)]
pub struct Side {
    /// Whether GPUs were requested for the engine.
    pub gpu: bool,
    /// The pipeline of this side.
    pub analyzer: Analyzer,
}

impl Side {
    /// Returns the key of this side in the report.
    pub fn key(&self) -> &'static str {
        if self.gpu { "gpu_true" } else { "gpu_false" }
    }
}

/// The results by operation, size and side.
pub type Results = BTreeMap<String, BTreeMap<String, BTreeMap<String, SideReport>>>;

/// Returns the results of every operation, size and side in the order of the documentation, not of
/// the alphabet.
pub fn ordered(results: &Results) -> Vec<(&str, &str, &str, &SideReport)> {
    let rank = |names: &[&str], name: &str| names.iter().position(|n| *n == name).unwrap_or(names.len());
    let operations = Subject::ALL.map(Subject::name);
    let sizes = ImageSize::ALL.map(ImageSize::name);
    let mut all = Vec::new();
    for (operation, of_size) in results {
        for (size, of_side) in of_size {
            all.extend(
                of_side
                    .iter()
                    .map(|(side, report)| (operation.as_str(), size.as_str(), side.as_str(), report)),
            );
        }
    }
    all.sort_by_key(|(operation, size, side, _)| (rank(&operations, operation), rank(&sizes, size), *side));
    all
}

/// Measures every operation on every size of `pictures`. Runs on the CPU and on the GPU alternate.
/// `progress` is called with the name of the next measurement.
///
/// # Errors
/// Fails if no image of a size can be used. An image that fails is not an error; it lowers
/// `success_rate`.
pub async fn measure(
    plan: &Plan,
    sides: &[Side],
    pictures: &[Pictures],
    process: &Process,
    mut progress: impl FnMut(&str),
) -> anyhow::Result<Results> {
    let mut results = Results::new();
    for pictures in pictures {
        for subject in &plan.subjects {
            progress(&format!("{} {}", subject.name(), pictures.size));
            let Some(first) = sides.first() else { continue };
            let work = Work::prepare(*subject, pictures, &first.analyzer).await?;
            let tallies = turns(plan, sides, &work, process).await;
            let of_size = results.entry(subject.name().to_owned()).or_default();
            let of_side = of_size.entry(pictures.size.clone()).or_default();
            for (side, tally) in sides.iter().zip(tallies) {
                of_side.insert(
                    side.key().to_owned(),
                    tally.report(side, *subject, plan.batch_size, process.cores),
                );
            }
        }
    }
    Ok(results)
}

/// Runs the warm-up, then rounds in which each side is measured. The order of the sides changes
/// between rounds.
async fn turns(plan: &Plan, sides: &[Side], work: &Work, process: &Process) -> Vec<Tally> {
    let run = async |side: &Side, iterations: usize| {
        let once = |index| work.once(&side.analyzer, index);
        round(once, iterations * plan.batch_size, plan.batch_size, process.cpu_seconds).await
    };
    for side in sides {
        run(side, plan.warmup).await;
    }
    let mut tallies: Vec<Tally> = sides.iter().map(|_| Tally::default()).collect();
    let rounds = if sides.len() > 1 { plan.iterations.min(ROUNDS) } else { 1 };
    for number in 0..rounds {
        // Distributes the iterations evenly: of 7 iterations in 5 rounds, two rounds have two.
        let share = plan.iterations * (number + 1) / rounds - plan.iterations * number / rounds;
        let mut order: Vec<usize> = (0..sides.len()).collect();
        order.rotate_left(number % sides.len());
        for index in order {
            let before = process.counters.read();
            let measured = run(&sides[index], share).await;
            tallies[index].add(measured, plan.batch_size, &before.until(&process.counters.read()));
        }
    }
    tallies
}

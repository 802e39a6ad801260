//! Measures each subject at each image size, on both sides in turn.
use crate::rounds::{Tally, round};
use crate::work::Work;
use crate::{BenchTarget, Pictures, Process, Results, Side};

/// Number of rounds in which CPU and GPU alternate, so that other load on the machine affects both.
const ROUNDS: usize = 5;

/// What is measured, and for how long.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The operations, in the order of the report.
    pub targets: Vec<BenchTarget>,
    /// Number of images (or faces) in flight, which is also the number of images per iteration.
    pub batch_size: usize,
    pub iterations: usize,
    /// Number of iterations before the measurement.
    pub warmup: usize,
}

/// Measures every operation at every size of `pictures`. Runs on the CPU and on the GPU alternate.
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
        for target in &plan.targets {
            progress(&format!("{} {}", target.name(), pictures.size));
            let Some(first) = sides.first() else { continue };
            let work = Work::prepare(*target, pictures, &first.analyzer).await?;
            let tallies = alternate(plan, sides, &work, process).await;
            let of_size = results.entry(target.name().to_owned()).or_default();
            let of_side = of_size.entry(pictures.size.clone()).or_default();
            for (side, tally) in sides.iter().zip(tallies) {
                of_side.insert(
                    side.key().to_owned(),
                    tally.report(side, *target, plan.batch_size, process.cores),
                );
            }
        }
    }
    Ok(results)
}

/// Runs the warm-up, then rounds in which each side is measured. The order of the sides changes
/// between rounds.
async fn alternate(plan: &Plan, sides: &[Side], work: &Work, process: &Process) -> Vec<Tally> {
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

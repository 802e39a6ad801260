//! Searches for the best batch size by measuring several.
use crate::{BenchImages, BenchTarget, Plan, Process, Side, measure};
use serde::Serialize;

/// A throughput of at least this share of the best one is treated as equally good. A larger batch
/// would use more memory and add latency without benefit.
const MIN_SHARE_OF_BEST: f64 = 0.97;

/// The measurement of one batch size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// `GPU_BATCH_SIZE` of this step; on the CPU, the number of concurrent images.
    pub batch: usize,
    /// Images per second; `null` if the step could not be measured.
    pub images_per_second: Option<f64>,
    /// GPU memory in use after the step, in bytes, if the driver reports it.
    pub gpu_memory_bytes: Option<u64>,
    /// The reason why the step could not be measured or is not recommended.
    pub reason: Option<String>,
}

/// All steps and the recommendation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AutoBatch {
    /// The steps, smallest batch first.
    pub steps: Vec<Step>,
    /// The smallest batch whose throughput is within 3 % of the best.
    pub recommended_batch: Option<usize>,
    /// The recommended batch as a value for `GPU_BATCH_SIZE`; `null` on the CPU, where each run
    /// contains one image.
    pub recommended_gpu_batch_size: Option<usize>,
    pub why: String,
}

/// Returns 1, 2, 4, … and `limit`.
fn batch_sizes(limit: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1_usize), |size| size.checked_mul(2));
    let mut sizes: Vec<usize> = powers.take_while(|size| *size < limit).collect();
    sizes.push(limit.max(1));
    sizes
}

/// Recommends one of the steps that have a throughput and no reason against them. `memory_limit` is
/// in bytes.
fn recommend(mut steps: Vec<Step>, gpu: bool, memory_limit: f64) -> AutoBatch {
    for step in &mut steps {
        if let (Some(used), None) = (step.gpu_memory_bytes, &step.reason)
            && gpu
            && used as f64 > memory_limit
        {
            step.reason =
                Some(format!("{used} bytes of GPU memory are in use, more than GPU_MEMORY_LIMIT_GB allows"));
        }
    }
    let usable = || {
        steps
            .iter()
            .filter(|step| step.reason.is_none())
            .filter_map(|s| Some((s.batch, s.images_per_second?)))
    };
    let best = usable().map(|(_, speed)| speed).fold(0.0, f64::max);
    let choice = usable().find(|(_, speed)| *speed > 0.0 && *speed >= best * MIN_SHARE_OF_BEST);
    let why = match choice {
        None => "no step could be measured".to_owned(),
        Some((batch, speed)) if gpu => {
            format!("a batch of {batch} reaches {speed:.1} images/s; the best of all steps is {best:.1}")
        }
        Some((batch, speed)) => format!(
            "{batch} images in flight reach {speed:.1} images/s; the best of all steps is {best:.1}; a run on the CPU always processes \
             one image, so GPU_BATCH_SIZE has no effect there"
        ),
    };
    let recommended_batch = choice.map(|(batch, _)| batch);
    AutoBatch { recommended_batch, recommended_gpu_batch_size: recommended_batch.filter(|_| gpu), steps, why }
}

/// The limits of a search and the inputs of its steps.
#[derive(Clone, Copy, Debug)]
pub struct BatchSearch<'a> {
    /// The preceding measurement. Each step measures about the same number of images.
    pub plan: &'a Plan,
    pub images: &'a BenchImages,
    pub process: &'a Process,
    pub gpu: bool,
    pub largest: usize,
    /// GPU memory in bytes that a recommended batch may use.
    pub memory_limit: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct SearchReport {
    pub operation: &'static str,
    pub image_size: String,
    /// `gpu_true` or `gpu_false`.
    pub side: &'static str,
    #[serde(flatten)]
    pub found: AutoBatch,
}

impl BatchSearch<'_> {
    /// Returns the measured target: the only target of the plan, or the pipeline if the plan has
    /// several targets.
    pub fn target(&self) -> BenchTarget {
        match self.plan.targets.as_slice() {
            [target] => *target,
            _ => BenchTarget::Pipeline,
        }
    }

    /// Returns the batch sizes, smallest first.
    pub fn sizes(&self) -> Vec<usize> {
        batch_sizes(self.largest)
    }

    /// Measures the batch sizes. `start` returns the side for a batch size, or the reason why that
    /// batch size cannot be measured.
    ///
    /// # Errors
    /// Fails if `start` fails or no image can be used.
    pub async fn run(
        &self,
        start: impl AsyncFn(usize) -> anyhow::Result<Result<Side, String>>,
    ) -> anyhow::Result<SearchReport> {
        let mut steps = Vec::new();
        for batch in self.sizes() {
            let step = match start(batch).await? {
                Ok(side) => self.measure_step(&side, batch).await?,
                Err(reason) => {
                    Step { batch, images_per_second: None, gpu_memory_bytes: None, reason: Some(reason) }
                }
            };
            let has_failed = step.images_per_second.is_none();
            steps.push(step);
            if has_failed {
                // If a batch does not fit in memory, a larger one does not fit either.
                break;
            }
        }
        Ok(SearchReport {
            operation: self.target().name(),
            image_size: self.images.size.clone(),
            side: if self.gpu { "gpu_true" } else { "gpu_false" },
            found: recommend(steps, self.gpu, self.memory_limit),
        })
    }

    async fn measure_step(&self, side: &Side, batch: usize) -> anyhow::Result<Step> {
        // With two batches in flight, the next batch is full while one runs.
        let in_flight = if self.gpu { 2 * batch } else { batch };
        let count = self.plan.batch_size * self.plan.iterations;
        let plan = Plan {
            targets: vec![self.target()],
            batch_size: in_flight,
            // Every step measures the same number of images, and the largest step measures several
            // batches.
            iterations: count.div_ceil(in_flight).max(3),
            warmup: self.plan.warmup,
        };
        let (sides, images) = (std::slice::from_ref(side), std::slice::from_ref(self.images));
        let results = measure(&plan, sides, images, self.process, |_| ()).await?;
        let mut reports = results.values().flat_map(|sizes| sizes.values()).flat_map(|sides| sides.values());
        let result = reports.next();
        let devices = side.analyzer.engine().report().devices;
        let reason = result.filter(|result| result.runtime_fallbacks > 0).map(|result| {
            format!("runs on the device failed, and {} requests ran on the CPU", result.runtime_fallbacks)
        });
        Ok(Step {
            batch,
            images_per_second: result.map(|result| result.mean_throughput),
            gpu_memory_bytes: devices.iter().filter_map(|device| device.memory_used).max(),
            reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(batch: usize, speed: Option<f64>, memory: u64, reason: Option<&str>) -> Step {
        Step {
            batch,
            images_per_second: speed,
            gpu_memory_bytes: Some(memory),
            reason: reason.map(str::to_owned),
        }
    }

    #[test]
    fn batch_sizes_double_up_to_limit() {
        assert_eq!(batch_sizes(1), [1]);
        assert_eq!(batch_sizes(24), [1, 2, 4, 8, 16, 24]);
        assert_eq!(batch_sizes(32), [1, 2, 4, 8, 16, 32]);
    }

    #[test]
    fn recommends_smallest_fitting_batch_near_best_throughput() {
        let steps = vec![
            step(1, Some(100.0), 1, None),
            step(2, Some(198.0), 1, None),
            step(4, Some(200.0), 1, None),
            step(8, Some(900.0), 10, None),
            step(16, None, 0, Some("out of memory")),
        ];
        let found = recommend(steps.clone(), true, 5.0);
        assert_eq!(
            found.recommended_gpu_batch_size,
            Some(2),
            "8 does not fit in memory, and 4 is less than 3 % faster"
        );
        assert!(
            found.steps[3].reason.as_deref().is_some_and(|reason| reason.contains("GPU_MEMORY_LIMIT_GB"))
        );
        let cpu = recommend(steps, false, 0.0);
        assert_eq!((cpu.recommended_batch, cpu.recommended_gpu_batch_size), (Some(8), None));
        let empty = recommend(vec![step(1, None, 0, Some("out of memory"))], true, 5.0);
        assert_eq!(empty.recommended_batch, None);
    }
}

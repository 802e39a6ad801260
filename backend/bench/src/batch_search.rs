//! Searches for the best batch size by measuring several.
use crate::{AutoBatch, BenchTarget, Pictures, Plan, Process, Side, Step, auto_batch, measure, recommend};
use serde::Serialize;

/// The limits of a search, and what each of its steps measures.
#[derive(Clone, Copy, Debug)]
pub struct BatchSearch<'a> {
    /// The preceding measurement. Each step measures about the same number of images.
    pub plan: &'a Plan,
    /// The images of every step.
    pub pictures: &'a Pictures,
    /// The process that runs the steps.
    pub process: &'a Process,
    /// Whether the steps run on a GPU.
    pub gpu: bool,
    /// The largest batch.
    pub largest: usize,
    /// GPU memory in bytes that a recommended batch may use.
    pub memory_limit: f64,
}

/// The result of a search.
#[derive(Clone, Debug, Serialize)]
pub struct SearchReport {
    /// The operation.
    pub operation: &'static str,
    /// The image size.
    pub image_size: String,
    /// `gpu_true` or `gpu_false`.
    pub side: &'static str,
    /// The steps and the recommendation.
    #[serde(flatten)]
    pub found: AutoBatch,
}

impl BatchSearch<'_> {
    /// Returns what is measured, which is the only subject of the plan, or the pipeline if the plan
    /// has several subjects.
    pub fn target(&self) -> BenchTarget {
        match self.plan.targets.as_slice() {
            [one] => *one,
            _ => BenchTarget::Pipeline,
        }
    }

    /// Returns the batch sizes, smallest first.
    pub fn sizes(&self) -> Vec<usize> {
        auto_batch::sizes(self.largest)
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
                Ok(side) => self.step(&side, batch).await?,
                Err(reason) => {
                    Step { batch, images_per_second: None, gpu_memory_bytes: None, reason: Some(reason) }
                }
            };
            let failed = step.images_per_second.is_none();
            steps.push(step);
            if failed {
                // If a batch does not fit in memory, a larger one does not fit either.
                break;
            }
        }
        Ok(SearchReport {
            operation: self.target().name(),
            image_size: self.pictures.size.clone(),
            side: if self.gpu { "gpu_true" } else { "gpu_false" },
            found: recommend(steps, self.gpu, self.memory_limit),
        })
    }

    async fn step(&self, side: &Side, batch: usize) -> anyhow::Result<Step> {
        // With two batches in flight, the next batch is full while one runs.
        let in_flight = if self.gpu { 2 * batch } else { batch };
        let images = self.plan.batch_size * self.plan.iterations;
        let plan = Plan {
            targets: vec![self.target()],
            batch_size: in_flight,
            // Every step measures the same number of images, and the largest step measures several
            // batches.
            iterations: images.div_ceil(in_flight).max(3),
            warmup: self.plan.warmup,
        };
        let (sides, pictures) = (std::slice::from_ref(side), std::slice::from_ref(self.pictures));
        let results = measure(&plan, sides, pictures, self.process, |_| ()).await?;
        let mut all = results.values().flat_map(|sizes| sizes.values()).flat_map(|sides| sides.values());
        let result = all.next();
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

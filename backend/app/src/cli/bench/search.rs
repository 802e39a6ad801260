//! Implements `--auto-batch`.
use super::{BenchArgs, engines};
use crate::bench::{Auto, Pictures, Plan, Process, Side, Step, Subject, batch_sizes, measure, recommend};
use crate::config::Settings;
use crate::progress;

/// Measures batch sizes with `pictures`, on the GPU if there is one.
pub(super) async fn batch_size(
    settings: &Settings,
    args: &BenchArgs,
    plan: &Plan,
    sides: &[Side],
    pictures: &Pictures,
    process: &Process,
) -> anyhow::Result<Auto> {
    let subject = match plan.subjects.as_slice() {
        [one] => *one,
        _ => Subject::Pipeline,
    };
    let gpu = sides.iter().find(|side| side.gpu);
    let cpu = sides.iter().find(|side| !side.gpu);
    let sizes = batch_sizes(settings.inference().gpu_batch_size);
    let bar = progress::images(sizes.len() as u64);
    let mut steps = Vec::new();
    for batch in sizes {
        bar.set_message(format!("batch {batch}"));
        bar.inc(1);
        let step = match (gpu, cpu) {
            (None, Some(side)) => one(side, plan, subject, batch, batch, pictures, process).await?,
            _ => {
                let mut config = engines::on_gpu(settings, args);
                config.gpu_batch_size = batch;
                let side = engines::side(settings, config, true).await?;
                match engines::absent(&side, &[subject]) {
                    // With two batches in flight, the next batch is full while one runs.
                    None => one(&side, plan, subject, batch, 2 * batch, pictures, process).await?,
                    reason => Step { batch, images_per_second: None, gpu_memory_bytes: None, reason },
                }
            }
        };
        let failed = step.images_per_second.is_none();
        steps.push(step);
        if failed {
            // If a batch does not fit in memory, a larger one does not fit either.
            break;
        }
    }
    bar.finish_and_clear();
    let limit = settings.gpu.memory_limit_gb * f64::from(1 << 30);
    Ok(Auto {
        operation: subject.name(),
        image_size: pictures.size.clone(),
        side: if gpu.is_some() { "gpu_true" } else { "gpu_false" },
        found: recommend(steps, gpu.is_some(), limit),
    })
}

async fn one(
    side: &Side,
    plan: &Plan,
    subject: Subject,
    batch: usize,
    in_flight: usize,
    pictures: &Pictures,
    process: &Process,
) -> anyhow::Result<Step> {
    let images = plan.batch_size * plan.iterations;
    let plan = Plan {
        subjects: vec![subject],
        batch_size: in_flight,
        // The same number of images in every step, and several batches in the largest step.
        iterations: images.div_ceil(in_flight).max(3),
        warmup: plan.warmup,
    };
    let sides = std::slice::from_ref(side);
    let results = measure(&plan, sides, std::slice::from_ref(pictures), process, |_| ()).await?;
    let result = results.values().flat_map(|sizes| sizes.values()).flat_map(|sides| sides.values()).next();
    let devices = side.analyzer.engine().report().devices;
    let reason = result.filter(|result| result.runtime_fallbacks > 0).map(|result| {
        format!("runs on the device failed, and the CPU answered {} requests", result.runtime_fallbacks)
    });
    Ok(Step {
        batch,
        images_per_second: result.map(|result| result.mean_throughput),
        gpu_memory_bytes: devices.iter().filter_map(|device| device.memory_used).max(),
        reason,
    })
}

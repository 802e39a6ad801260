//! Implements `--auto-batch`.
use super::{BenchArgs, engines};
use crate::config::Settings;
use crate::progress;
use bench::{BatchSearch, SearchReport, Side};

/// Measures batch sizes. On a GPU, each batch size has a separate engine. On the CPU, all steps use
/// the engine of `sides`.
pub(super) async fn batch_size(
    settings: &Settings,
    args: &BenchArgs,
    sides: &[Side],
    search: &BatchSearch<'_>,
) -> anyhow::Result<SearchReport> {
    let cpu = sides.iter().find(|_| !search.gpu);
    let bar = progress::images(search.sizes().len() as u64);
    let start = async |batch: usize| {
        bar.set_message(format!("batch {batch}"));
        bar.inc(1);
        if let Some(side) = cpu {
            return Ok(Ok(side.clone()));
        }
        let mut config = engines::on_gpu(settings, args);
        config.gpu_batch_size = batch;
        let side = engines::side(settings, config, true).await?;
        Ok(match engines::why_no_gpu(&side, &[search.target()]) {
            None => smaller_batch(&side, batch).map_or(Ok(side), Err),
            Some(reason) => Err(reason),
        })
    };
    let found = search.run(start).await?;
    bar.finish_and_clear();
    Ok(found)
}

/// Returns the reason if a model of the engine runs batches, but smaller ones than `batch`, because
/// the GPU does not have enough memory.
fn smaller_batch(side: &Side, batch: usize) -> Option<String> {
    let models = side.analyzer.engine().report().models;
    let smaller = models.iter().find(|model| (2..batch).contains(&model.max_batch))?;
    Some(format!(
        "{}: out of memory on {}; the largest batch is {}",
        smaller.operation, smaller.device, smaller.max_batch
    ))
}

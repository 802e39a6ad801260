//! One run: writes requests into a tensor, runs the device, reads results from its outputs.
use super::Entry;
use crate::backend::{Backend, BackendError, BatchView, OutputView};
use crate::models::Model;
use crate::trace::RUN;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Batch sizes. A run is padded to the next size, so that a device compiles or tunes only a few
/// shapes. Each size costs time at start, and memory.
const BUCKETS: [usize; 3] = [1, 8, 32];
/// Maximum number of values of an input buffer that is kept between runs: a 2560x2560 canvas.
const KEPT_VALUES: usize = 3 * 2560 * 2560;

/// Returns the batch sizes up to and including `max_batch`.
pub(crate) fn buckets(max_batch: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = BUCKETS.into_iter().filter(|size| *size < max_batch).collect();
    let mut last = 32;
    while last * 2 < max_batch {
        last *= 2;
        sizes.push(last);
    }
    sizes.push(max_batch.max(1));
    sizes
}

/// Returns the smallest batch size that fits `count` entries.
pub(super) fn bucket(buckets: &[usize], count: usize) -> usize {
    buckets.iter().copied().find(|size| *size >= count).unwrap_or(count)
}

/// The result of a run: one result per entry, or the reason why the whole batch failed.
pub(super) type BatchResult<M> = Result<Vec<Result<<M as Model>::Output, String>>, BackendError>;

/// The values of a batch, one item after the other.
#[derive(Default)]
pub(super) struct Tensor {
    values: Vec<f32>,
}

impl Tensor {
    /// Writes `entry` as item `index`. A panic in the model's code is returned as the error.
    pub(super) fn write<M: Model>(
        &mut self,
        model: &M,
        index: usize,
        entry: &Entry<M>,
    ) -> Result<(), String> {
        let length: usize = entry.shape.iter().product();
        let slot = self.range(index * length, (index + 1) * length);
        catch_unwind(AssertUnwindSafe(|| model.write(&entry.input, slot))).map_err(|panic| panicked(&*panic))
    }

    /// Returns the values `from..to`. Only new memory is zeroed; the caller overwrites the rest.
    fn range(&mut self, from: usize, to: usize) -> &mut [f32] {
        self.values.resize(self.values.len().max(to), 0.0);
        &mut self.values[from..to]
    }

    /// Frees the memory of an exceptionally large batch.
    pub(super) fn shrink(&mut self) {
        if self.values.capacity() > KEPT_VALUES {
            self.values = Vec::new();
        }
    }
}

/// Writes entries of one shape and runs them. `tensor` is scratch space.
pub(super) fn write_and_run<M: Model>(
    model: &M,
    backend: &mut dyn Backend,
    tensor: &mut Tensor,
    buckets: &[usize],
    part: &[Entry<M>],
) -> BatchResult<M> {
    let _run = span(model, backend, buckets, part).entered();
    if backend.takes_images() {
        return catch_panics(|| super::images::run(model, backend, buckets, part));
    }
    let preparing = tracing::trace_span!(target: RUN, "prepare").entered();
    for (index, entry) in part.iter().enumerate() {
        tensor.write(model, index, entry).map_err(BackendError::Failed)?;
    }
    drop(preparing);
    catch_panics(|| run(model, backend, tensor, buckets, part))
}

/// Runs entries that are already written. If the model's code or the backend panics, only these
/// entries fail.
pub(super) fn run_written<M: Model>(
    model: &M,
    backend: &mut dyn Backend,
    tensor: &mut Tensor,
    buckets: &[usize],
    part: &[Entry<M>],
) -> BatchResult<M> {
    let _run = span(model, backend, buckets, part).entered();
    catch_panics(|| run(model, backend, tensor, buckets, part))
}

fn span<M: Model>(model: &M, backend: &dyn Backend, buckets: &[usize], part: &[Entry<M>]) -> tracing::Span {
    let (label, batch) = (model.operation().name(), bucket(buckets, part.len()));
    tracing::trace_span!(target: RUN, "run", label, device = backend.device(), requests = part.len(), batch)
}

fn catch_panics<T>(run: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| Err(BackendError::Failed(panicked(&*panic))))
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the run panicked: {}", text.unwrap_or("no message"))
}

fn run<M: Model>(
    model: &M,
    backend: &mut dyn Backend,
    tensor: &mut Tensor,
    buckets: &[usize],
    part: &[Entry<M>],
) -> BatchResult<M> {
    let [channels, height, width] = part[0].shape;
    let items = bucket(buckets, part.len());
    let length = channels * height * width;
    tensor.range(part.len() * length, items * length).fill(0.0);
    let data = tensor.range(0, items * length);
    let batch = BatchView { shape: [items, channels, height, width], data };
    collect(model, part, items, |read| backend.run(batch, read))
}

/// Runs a batch of `items` on the device and reads the entries' results from its outputs.
pub(super) fn collect<M: Model>(
    model: &M,
    part: &[Entry<M>],
    items: usize,
    device: impl FnOnce(&mut dyn FnMut(&[OutputView<'_>])) -> Result<(), BackendError>,
) -> BatchResult<M> {
    let mut results = Vec::with_capacity(part.len());
    let running = tracing::trace_span!(target: RUN, "device").entered();
    device(&mut |outputs| {
        let _reading = tracing::trace_span!(target: RUN, "read").entered();
        results.extend(
            part.iter().enumerate().map(|(index, entry)| model.read(&entry.input, outputs, index, items)),
        );
    })?;
    drop(running);
    if results.len() != part.len() {
        return Err(BackendError::Failed("the device returned no outputs".to_owned()));
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_end_with_the_largest_batch() {
        assert_eq!(buckets(1), [1]);
        assert_eq!(buckets(4), [1, 4]);
        assert_eq!(buckets(24), [1, 8, 24]);
        assert_eq!(buckets(32), [1, 8, 32]);
        assert_eq!(buckets(100), [1, 8, 32, 64, 100]);
    }
}

//! One run: requests written into a tensor, the device, results read out of its outputs.
use super::Entry;
use crate::backend::{Backend, BackendError, BatchView, OutputView};
use crate::models::Model;
use crate::trace::RUN;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Sizes of batches: a run is padded to the next one, so that a device compiles or tunes for few shapes.
const BUCKETS: [usize; 5] = [1, 4, 8, 16, 32];
/// An input buffer above this many values is given back after use (a 2560x2560 canvas fits).
const KEPT_VALUES: usize = 3 * 2560 * 2560;

/// The bucket sizes up to `most`, which is one of them.
pub(crate) fn buckets(most: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = BUCKETS.into_iter().filter(|size| *size < most).collect();
    let mut last = 32;
    while last * 2 < most {
        last *= 2;
        sizes.push(last);
    }
    sizes.push(most.max(1));
    sizes
}

/// The smallest bucket that holds `count`.
pub(super) fn bucket(buckets: &[usize], count: usize) -> usize {
    buckets.iter().copied().find(|size| *size >= count).unwrap_or(count)
}

/// The result of a run: one result per entry, or the reason why the whole batch failed.
pub(super) type Outcome<M> = Result<Vec<Result<<M as Model>::Output, String>>, BackendError>;

/// The values of a batch, item after item.
#[derive(Default)]
pub(super) struct Tensor {
    values: Vec<f32>,
}

impl Tensor {
    /// Writes `entry` as item `index`. A panic in the model's code is the error.
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

    /// Only growth is filled; what is there is overwritten.
    fn range(&mut self, from: usize, to: usize) -> &mut [f32] {
        self.values.resize(self.values.len().max(to), 0.0);
        &mut self.values[from..to]
    }

    /// Gives memory back that only an exceptional batch needed.
    pub(super) fn shrink(&mut self) {
        if self.values.capacity() > KEPT_VALUES {
            self.values = Vec::new();
        }
    }
}

/// Writes the entries and runs them. Entries of one shape; `tensor` is scratch space.
pub(super) fn attempt<M: Model>(
    model: &M,
    backend: &mut dyn Backend,
    tensor: &mut Tensor,
    buckets: &[usize],
    part: &[Entry<M>],
) -> Outcome<M> {
    let _run = span(model, backend, buckets, part).entered();
    if backend.takes_pictures() {
        return guarded(|| super::pictures::run(model, backend, buckets, part));
    }
    let preparing = tracing::trace_span!(target: RUN, "prepare").entered();
    for (index, entry) in part.iter().enumerate() {
        tensor.write(model, index, entry).map_err(BackendError::Failed)?;
    }
    drop(preparing);
    guarded(|| run(model, backend, tensor, buckets, part))
}

/// Runs entries that were written. A panic in the model's code or in the backend becomes a failure of these entries alone.
pub(super) fn execute<M: Model>(
    model: &M,
    backend: &mut dyn Backend,
    tensor: &mut Tensor,
    buckets: &[usize],
    part: &[Entry<M>],
) -> Outcome<M> {
    let _run = span(model, backend, buckets, part).entered();
    guarded(|| run(model, backend, tensor, buckets, part))
}

fn span<M: Model>(model: &M, backend: &dyn Backend, buckets: &[usize], part: &[Entry<M>]) -> tracing::Span {
    let (label, batch) = (model.operation().name(), bucket(buckets, part.len()));
    tracing::trace_span!(target: RUN, "run", label, device = backend.device(), requests = part.len(), batch)
}

fn guarded<T>(run: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
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
) -> Outcome<M> {
    let [channels, height, width] = part[0].shape;
    let items = bucket(buckets, part.len());
    let length = channels * height * width;
    tensor.range(part.len() * length, items * length).fill(0.0);
    let data = tensor.range(0, items * length);
    let batch = BatchView { shape: [items, channels, height, width], data };
    collect(model, part, items, |read| backend.run(batch, read))
}

/// Runs a batch of `items` on the device and reads the entries' results out of its outputs.
pub(super) fn collect<M: Model>(
    model: &M,
    part: &[Entry<M>],
    items: usize,
    device: impl FnOnce(&mut dyn FnMut(&[OutputView<'_>])) -> Result<(), BackendError>,
) -> Outcome<M> {
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
        return Err(BackendError::Failed("the device gave no outputs".to_owned()));
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
        assert_eq!(buckets(24), [1, 4, 8, 16, 24]);
        assert_eq!(buckets(32), [1, 4, 8, 16, 32]);
        assert_eq!(buckets(100), [1, 4, 8, 16, 32, 64, 100]);
    }
}

//! One run: writes requests into a tensor, runs the device, reads results from its outputs.
use super::Entry;
use crate::backend::{Backend, BackendError, BatchView, OutputReader, Outputs};
use crate::models::Model;
use crate::trace::RUN;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Batch sizes. A run is padded to the next size, so that a device compiles or tunes only a few
/// shapes. Each size increases the start time and the memory use.
const BATCH_SIZES: [usize; 3] = [1, 8, 32];
/// Maximum number of values of an input buffer that is kept between runs: a 2560x2560 canvas.
const MAX_KEPT_VALUES: usize = 3 * 2560 * 2560;

/// Returns the batch sizes up to and including `max_batch`.
pub(crate) fn batch_sizes(max_batch: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = BATCH_SIZES.into_iter().filter(|size| *size < max_batch).collect();
    let mut last = 32;
    while last * 2 < max_batch {
        last *= 2;
        sizes.push(last);
    }
    sizes.push(max_batch.max(1));
    sizes
}

/// Returns the smallest batch size that fits `count` entries.
pub(super) fn padded_batch_size(sizes: &[usize], count: usize) -> usize {
    sizes.iter().copied().find(|size| *size >= count).unwrap_or(count)
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
        catch_unwind(AssertUnwindSafe(|| model.write(&entry.input, slot)))
            .map_err(|panic| panic_message(&*panic))
    }

    /// Returns the values `from..to`. Only new memory is zeroed; the caller overwrites the rest.
    fn range(&mut self, from: usize, to: usize) -> &mut [f32] {
        self.values.resize(self.values.len().max(to), 0.0);
        &mut self.values[from..to]
    }

    /// Frees the memory of an exceptionally large batch.
    pub(super) fn shrink(&mut self) {
        if self.values.capacity() > MAX_KEPT_VALUES {
            self.values = Vec::new();
        }
    }
}

/// One run of entries of one shape on a device. If the model's code or the backend panics, only
/// these entries fail.
pub(super) struct Run<'a, M: Model> {
    pub(super) model: &'a M,
    pub(super) backend: &'a mut dyn Backend,
    pub(super) batch_sizes: &'a [usize],
    pub(super) entries: &'a [Entry<M>],
}

impl<M: Model> Run<'_, M> {
    /// Writes the entries into `tensor` and runs them.
    pub(super) fn write_and_run(self, tensor: &mut Tensor) -> BatchResult<M> {
        let _run = self.span().entered();
        if self.backend.accepts_images() {
            return catch_panics(|| self.run_images());
        }
        let preparing = tracing::trace_span!(target: RUN, "prepare").entered();
        for (index, entry) in self.entries.iter().enumerate() {
            tensor.write(self.model, index, entry).map_err(BackendError::Failed)?;
        }
        drop(preparing);
        catch_panics(|| self.run_tensor(tensor))
    }

    /// Runs entries that are already written into `tensor`.
    pub(super) fn run_written(self, tensor: &mut Tensor) -> BatchResult<M> {
        let _run = self.span().entered();
        catch_panics(|| self.run_tensor(tensor))
    }

    /// Returns the batch size of the run. It may exceed the number of entries.
    fn padded_size(&self) -> usize {
        padded_batch_size(self.batch_sizes, self.entries.len())
    }

    fn span(&self) -> tracing::Span {
        let (label, batch) = (self.model.operation().name(), self.padded_size());
        let (device, requests) = (self.backend.device(), self.entries.len());
        tracing::trace_span!(target: RUN, "run", label, device, requests, batch)
    }

    fn run_tensor(self, tensor: &mut Tensor) -> BatchResult<M> {
        let [channels, height, width] = self.entries[0].shape;
        let (items, length) = (self.padded_size(), channels * height * width);
        tensor.range(self.entries.len() * length, items * length).fill(0.0);
        let data = tensor.range(0, items * length);
        let batch = BatchView { shape: [items, channels, height, width], data };
        self.run_and_read(|backend, read| backend.run(batch, read))
    }

    /// Passes the image of every entry to the backend and reads the results.
    fn run_images(self) -> BatchResult<M> {
        let (model, items) = (self.model, self.padded_size());
        let images: Option<Vec<_>> =
            self.entries.iter().map(|entry| model.image_input(&entry.input)).collect();
        let images =
            images.ok_or_else(|| BackendError::Failed("the request contains no image".to_owned()))?;
        self.run_and_read(|backend, read| backend.run_images(&images, items, read))
    }

    /// Runs a batch on the device and reads the entries' results from its outputs.
    fn run_and_read(
        self,
        run: impl FnOnce(&mut dyn Backend, OutputReader<'_>) -> Result<(), BackendError>,
    ) -> BatchResult<M> {
        let items = self.padded_size();
        let Self { model, entries, backend, .. } = self;
        let mut results = Vec::with_capacity(entries.len());
        let running = tracing::trace_span!(target: RUN, "device").entered();
        run(backend, &mut |views| {
            let _reading = tracing::trace_span!(target: RUN, "read").entered();
            results.extend(
                entries
                    .iter()
                    .enumerate()
                    .map(|(index, entry)| model.read(&entry.input, Outputs { views, index, batch: items })),
            );
        })?;
        drop(running);
        if results.len() != entries.len() {
            return Err(BackendError::Failed("the device returned no outputs".to_owned()));
        }
        Ok(results)
    }
}

fn catch_panics<T>(run: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(BackendError::Failed(panic_message(&*panic))))
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("the run panicked: {}", text.unwrap_or("no message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_sizes_end_with_largest_batch() {
        assert_eq!(batch_sizes(1), [1]);
        assert_eq!(batch_sizes(4), [1, 4]);
        assert_eq!(batch_sizes(24), [1, 8, 24]);
        assert_eq!(batch_sizes(32), [1, 8, 32]);
        assert_eq!(batch_sizes(100), [1, 8, 32, 64, 100]);
    }
}

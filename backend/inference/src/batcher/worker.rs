//! A device thread.
use super::{Device, Entry, Shared};
use crate::backend::{Backend, BackendError, BatchView};
use crate::models::Model;
use crate::trace::RUN;
use crate::{RunError, Timed};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

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

/// The result of a run: one result per entry, or the reason why the whole batch failed.
type Outcome<M> = Result<Vec<Result<<M as Model>::Output, String>>, BackendError>;

pub(super) struct Worker<M: Model> {
    shared: Arc<Shared<M>>,
    device: Device,
    buckets: Vec<usize>,
    buffer: Vec<f32>,
    lost: bool,
}

impl<M: Model> Worker<M> {
    pub(super) fn new(shared: Arc<Shared<M>>, device: Device) -> Self {
        let buckets = buckets(shared.limits.max_batch);
        // Counted here and not on the thread, so that a batcher that has started is ready.
        shared.workers.fetch_add(1, Ordering::AcqRel);
        Self { shared, device, buckets, buffer: Vec::new(), lost: false }
    }

    /// Runs until the queue is closed and empty.
    pub(super) fn work(mut self) {
        while let Some(batch) = self.shared.queue.take(self.ceiling(), self.shared.limits.max_delay) {
            self.shared.show_depth(self.shared.queue.waiting());
            self.serve(batch);
        }
    }

    /// The largest batch that the device has memory for, as far as known.
    fn ceiling(&self) -> usize {
        self.buckets.last().copied().unwrap_or(1)
    }

    /// Answers every entry of `batch`.
    fn serve(&mut self, batch: Vec<Entry<M>>) {
        let mut parts = vec![batch];
        while let Some(part) = parts.pop() {
            let started = Instant::now();
            let outcome = if self.lost {
                Err(BackendError::DeviceLost("it was lost in an earlier run".to_owned()))
            } else {
                attempt(&self.shared.model, &mut *self.device.primary, &mut self.buffer, &self.buckets, &part)
            };
            match outcome {
                Ok(results) => self.answer(part, results, started),
                Err(BackendError::OutOfMemory(reason)) if part.len() > 1 => {
                    self.lower(part.len(), &reason);
                    let mut rest = part;
                    while !rest.is_empty() {
                        let tail = rest.split_off(rest.len().min(self.ceiling()));
                        parts.push(std::mem::replace(&mut rest, tail));
                    }
                    // The oldest are served first.
                    parts.reverse();
                }
                Err(error) => self.fall_back(part, &error, started),
            }
        }
        if self.buffer.capacity() > KEPT_VALUES {
            self.buffer = Vec::new();
        }
    }

    /// Never again tries a batch as large as the one of `failed` entries.
    fn lower(&mut self, failed: usize, reason: &str) {
        let tried = bucket(&self.buckets, failed);
        self.buckets.retain(|size| *size < tried);
        if self.buckets.is_empty() {
            self.buckets.push(1);
        }
        tracing::warn!(
            operation = self.shared.operation(),
            device = self.device.primary.device(),
            batch = tried,
            ceiling = self.ceiling(),
            reason,
            "the device has no memory for this batch; smaller batches from now on"
        );
    }

    /// Runs the entries one by one on the second device, or fails them.
    fn fall_back(&mut self, part: Vec<Entry<M>>, error: &BackendError, started: Instant) {
        let operation = self.shared.operation();
        if let BackendError::DeviceLost(reason) = error
            && !self.lost
        {
            self.lost = true;
            let reason = format!("{operation} lost {}: {reason}", self.device.primary.device());
            tracing::error!(
                operation,
                reason,
                "a device was lost; the service is not ready until it is restarted"
            );
            *self.shared.lost.lock() = Some(reason);
        }
        let Some(fallback) = &mut self.device.fallback else {
            let results = part.iter().map(|_| Err(error.to_string())).collect();
            return self.answer(part, results, started);
        };
        let provider = self.device.primary.device().split(':').next().unwrap_or_default().to_owned();
        metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation, "provider" => provider)
            .increment(part.len() as u64);
        tracing::warn!(
            operation,
            device = self.device.primary.device(),
            requests = part.len(),
            %error,
            "the run failed; it is repeated on the CPU"
        );
        for entry in part {
            let one = [entry];
            let outcome = attempt(&self.shared.model, &mut **fallback, &mut self.buffer, &[1], &one);
            let results = outcome.unwrap_or_else(|second| {
                vec![Err(format!("{error}; and on {}: {second}", fallback.device()))]
            });
            answer(&self.shared, one.into(), results, started);
        }
    }

    fn answer(&self, part: Vec<Entry<M>>, results: Vec<Result<M::Output, String>>, started: Instant) {
        answer(&self.shared, part, results, started);
    }
}

/// Tells the callers, and counts.
fn answer<M: Model>(
    shared: &Shared<M>,
    part: Vec<Entry<M>>,
    results: Vec<Result<M::Output, String>>,
    started: Instant,
) {
    let operation = shared.operation();
    let ran = started.elapsed();
    let size = part.len();
    metrics::histogram!("facecrawl_inference_run_seconds", "operation" => operation).record(ran);
    metrics::histogram!("facecrawl_inference_batch_size", "operation" => operation).record(size as f64);
    shared.note_pace(ran / u32::try_from(size).unwrap_or(1).max(1));
    for (entry, result) in part.into_iter().zip(results) {
        let queued: Duration = started.saturating_duration_since(entry.since);
        metrics::histogram!("facecrawl_inference_queue_seconds", "operation" => operation).record(queued);
        let reply = result
            .map(|output| Timed { output, queued, ran })
            .map_err(|reason| RunError::Failed { operation, reason });
        // A caller that left meanwhile needs no answer.
        let _ = entry.reply.send(reply);
    }
}

/// The smallest bucket that holds `count`.
fn bucket(buckets: &[usize], count: usize) -> usize {
    buckets.iter().copied().find(|size| *size >= count).unwrap_or(count)
}

/// One run. A panic in the model's code or in the backend becomes a failure of these entries alone.
fn attempt<M: Model>(
    model: &M,
    backend: &mut dyn Backend,
    buffer: &mut Vec<f32>,
    buckets: &[usize],
    part: &[Entry<M>],
) -> Outcome<M> {
    let guarded = AssertUnwindSafe(|| run(model, backend, buffer, buckets, part));
    catch_unwind(guarded).unwrap_or_else(|panic| {
        let what = panic
            .downcast_ref::<&str>()
            .map(|s| (*s).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        Err(BackendError::Failed(format!("the run panicked: {what}")))
    })
}

fn run<M: Model>(
    model: &M,
    backend: &mut dyn Backend,
    buffer: &mut Vec<f32>,
    buckets: &[usize],
    part: &[Entry<M>],
) -> Outcome<M> {
    let [channels, height, width] = part[0].shape;
    let items = bucket(buckets, part.len());
    let length = channels * height * width;
    // Only growth is filled; what is there is overwritten.
    buffer.resize(buffer.len().max(items * length), 0.0);
    let data = &mut buffer[..items * length];
    let operation = model.operation().name();
    let span = tracing::trace_span!(
        target: RUN, "run", label = operation, device = backend.device(), requests = part.len(), batch = items
    );
    let _run = span.entered();
    let preparing = tracing::trace_span!(target: RUN, "prepare").entered();
    for (entry, slot) in part.iter().zip(data.chunks_exact_mut(length)) {
        model.write(&entry.input, slot);
    }
    data[part.len() * length..].fill(0.0);
    drop(preparing);
    let mut results = Vec::with_capacity(part.len());
    let batch = BatchView { shape: [items, channels, height, width], data };
    let running = tracing::trace_span!(target: RUN, "device").entered();
    backend.run(batch, &mut |outputs| {
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

/// A thread that ends takes its part of the promise with it. When the last one goes while callers wait, they are told.
impl<M: Model> Drop for Worker<M> {
    fn drop(&mut self) {
        if self.shared.workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.queue.abandon();
        }
    }
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

//! The threads of one device. A [`Worker`] runs batches, splits those that fail, and uses the
//! fallback. With prefetch, a [`Preparer`] writes the next batch while a [`Runner`] runs the
//! current one on the device.
//!
//! The two threads of a device exchange two tensors. The preparer starts a batch and writes
//! requests into it as they arrive, until the batch is full or the device is ready. The runner runs
//! the batch. At most one batch is prepared in advance, so interactive requests overtake all
//! waiting work except that batch.
use super::queue::{DeviceReady, QueueItem as _};
use super::run::{BatchResult, Run, Tensor, bucket, buckets};
use super::{Device, Entry, Shared, Timed};
use crate::RunError;
use crate::backend::BackendError;
use crate::models::Model;
use crate::trace::RUN;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

pub(super) struct Worker<M: Model> {
    shared: Arc<Shared<M>>,
    device: Device,
    buckets: Vec<usize>,
    /// Current maximum batch size. It is lowered when the device runs out of memory.
    ceiling: Arc<AtomicUsize>,
    tensor: Tensor,
    lost: bool,
    /// Whether the worker has retired and is no longer counted.
    retired: bool,
}

/// Entries that run together.
struct Part<M: Model> {
    entries: Vec<Entry<M>>,
    /// Whether the part is half of a batch that failed.
    is_half: bool,
}

impl<M: Model> Worker<M> {
    pub(super) fn new(shared: Arc<Shared<M>>, device: Device) -> Self {
        let buckets = buckets(shared.limits.max_batch);
        // The worker is counted here instead of on the thread, so that a batcher is ready as soon
        // as it has started.
        shared.workers.fetch_add(1, Ordering::AcqRel);
        let ceiling = Arc::new(AtomicUsize::new(shared.limits.max_batch));
        Self { shared, device, buckets, ceiling, tensor: Tensor::default(), lost: false, retired: false }
    }

    /// Runs until the queue is closed and empty.
    pub(super) fn work(mut self) {
        while let Some(batch) = self.shared.queue.take(self.ceiling(), self.shared.limits.max_delay) {
            self.shared.record_queue_depth(self.shared.queue.waiting());
            self.serve(batch);
            if self.retire() {
                return;
            }
        }
    }

    fn ceiling(&self) -> usize {
        self.ceiling.load(Ordering::Acquire)
    }

    /// Returns whether the worker ends because its device is lost and other workers remain. If this
    /// worker continued, it would take requests that the others can run.
    fn retire(&mut self) -> bool {
        let decrement = |workers: usize| (workers > 1).then(|| workers - 1);
        self.retired = self.lost
            && self.shared.workers.fetch_update(Ordering::AcqRel, Ordering::Acquire, decrement).is_ok();
        self.retired
    }

    /// Runs the entries of `batch` and replies to all of them.
    fn serve(&mut self, batch: Vec<Entry<M>>) {
        let parts = self.split(batch, false);
        self.serve_parts(parts);
    }

    /// Runs `parts`, the last part first, and replies to all of their entries.
    fn serve_parts(&mut self, mut parts: Vec<Part<M>>) {
        while let Some(part) = parts.pop() {
            if part.entries.len() > self.ceiling() {
                parts.extend(self.split(part.entries, part.is_half));
                continue;
            }
            let started = Instant::now();
            let outcome = self.run_unless_lost(&part.entries, |run, tensor| run.write_and_run(tensor));
            parts.extend(self.handle_outcome(part, outcome, started));
        }
        self.tensor.shrink();
    }

    fn run_unless_lost(
        &mut self,
        entries: &[Entry<M>],
        run: impl FnOnce(Run<'_, M>, &mut Tensor) -> BatchResult<M>,
    ) -> BatchResult<M> {
        if self.lost {
            return Err(BackendError::DeviceLost("the device was lost in an earlier run".to_owned()));
        }
        let (model, backend) = (&self.shared.model, &mut *self.device.primary);
        run(Run { model, backend, buckets: &self.buckets, entries }, &mut self.tensor)
    }

    /// Handles the outcome of a run: sends the results, uses the fallback, or returns smaller parts
    /// to retry. The last part is retried first.
    fn handle_outcome(&mut self, part: Part<M>, outcome: BatchResult<M>, started: Instant) -> Vec<Part<M>> {
        let Part { mut entries, is_half } = part;
        match outcome {
            Ok(results) => self.send_results(entries, results, started),
            Err(BackendError::OutOfMemory(reason)) if entries.len() > 1 => {
                self.lower_ceiling(entries.len(), &reason);
                return self.split(entries, is_half);
            }
            // A single input may cause the failure. A batch is halved only once, so that a device
            // that fails on every input does not fail again at every size.
            Err(BackendError::Failed(reason)) if entries.len() > 1 && !is_half => {
                tracing::warn!(
                    operation = self.shared.operation(),
                    device = self.device.primary.device(),
                    requests = entries.len(),
                    reason,
                    "run failed; retrying in halves"
                );
                let second = entries.split_off(entries.len().div_ceil(2));
                return [second, entries].map(|entries| Part { entries, is_half: true }).into();
            }
            Err(error) => self.fall_back(entries, &error, started),
        }
        Vec::new()
    }

    /// Runs a batch that another thread wrote into `tensor`, and replies to all of its entries.
    /// `written` contains the error of that thread, if any.
    fn serve_written(&mut self, batch: Vec<Entry<M>>, tensor: &mut Tensor, written: Result<(), String>) {
        if batch.iter().all(|entry| entry.is_abandoned()) {
            return;
        }
        if batch.len() > self.ceiling() || written.is_err() {
            // The batch was written before the device ran out of memory, or one entry panics. In
            // both cases each part is written again.
            return self.serve(batch);
        }
        let started = Instant::now();
        let outcome = self.run_unless_lost(&batch, |run, _| run.run_written(tensor));
        let parts = self.handle_outcome(Part { entries: batch, is_half: false }, outcome, started);
        self.serve_parts(parts);
    }

    /// Splits a batch into parts that fit into the device's memory, the oldest last.
    fn split(&self, batch: Vec<Entry<M>>, is_half: bool) -> Vec<Part<M>> {
        let mut parts = Vec::new();
        let mut remaining = batch;
        while !remaining.is_empty() {
            let tail = remaining.split_off(remaining.len().min(self.ceiling()));
            parts.push(Part { entries: std::mem::replace(&mut remaining, tail), is_half });
        }
        parts.reverse();
        parts
    }

    /// Lowers the maximum batch size below the size that failed with `failed` entries.
    fn lower_ceiling(&mut self, failed: usize, reason: &str) {
        let failed_size = bucket(&self.buckets, failed);
        self.buckets.retain(|size| *size < failed_size);
        if self.buckets.is_empty() {
            self.buckets.push(1);
        }
        self.ceiling.store(self.buckets.last().copied().unwrap_or(1), Ordering::Release);
        tracing::warn!(
            operation = self.shared.operation(),
            device = self.device.primary.device(),
            batch = failed_size,
            ceiling = self.ceiling(),
            reason,
            "device out of memory; lowered the maximum batch size"
        );
    }

    /// Runs the entries one by one on the fallback, or replies to them with the error.
    fn fall_back(&mut self, part: Vec<Entry<M>>, error: &BackendError, started: Instant) {
        let operation = self.shared.operation();
        if let BackendError::DeviceLost(reason) = error
            && !self.lost
        {
            self.lost = true;
            let reason = format!("{operation} lost {}: {reason}", self.device.primary.device());
            tracing::error!(operation, reason, "device lost; the service is not ready until it is restarted");
            *self.shared.lost.lock() = Some(reason);
        }
        let Some(fallback) = &mut self.device.fallback else {
            let results = part.iter().map(|_| Err(error.to_string())).collect();
            return self.send_results(part, results, started);
        };
        let provider = self.device.primary.device().split(':').next().unwrap_or_default().to_owned();
        metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation, "provider" => provider)
            .increment(part.len() as u64);
        tracing::warn!(
            operation,
            device = self.device.primary.device(),
            requests = part.len(),
            %error,
            "run failed on the device; retrying on the CPU"
        );
        for entry in part {
            let single = [entry];
            let (model, backend) = (&self.shared.model, &mut **fallback);
            let run = Run { model, backend, buckets: &[1], entries: &single };
            let results = run.write_and_run(&mut self.tensor).unwrap_or_else(|fallback_error| {
                vec![Err(format!("{error}; and on {}: {fallback_error}", fallback.device()))]
            });
            send_results(&self.shared, single.into(), results, started);
        }
    }

    fn send_results(&self, part: Vec<Entry<M>>, results: Vec<Result<M::Output, String>>, started: Instant) {
        let device = self.device.primary.device();
        if device != "cpu" {
            let (images, good) = (part.len(), results.iter().filter(|result| result.is_ok()).count());
            tracing::debug!(
                operation = self.shared.operation(),
                device,
                seconds = started.elapsed().as_secs_f64(),
                "GPU batch processing completed: {images} images, {good} results"
            );
        }
        send_results(&self.shared, part, results, started);
    }
}

/// Records metrics and sends the results to the callers.
fn send_results<M: Model>(
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
    shared.record_run_time(ran / u32::try_from(size).unwrap_or(1).max(1));
    for (entry, result) in part.into_iter().zip(results) {
        let queued: Duration = started.saturating_duration_since(entry.queued_at);
        metrics::histogram!("facecrawl_inference_queue_seconds", "operation" => operation).record(queued);
        let reply = result
            .map(|output| Timed { output, queued, ran })
            .map_err(|reason| RunError::Failed { operation, reason });
        // The send fails if the caller dropped its future.
        let _ = entry.reply.send(reply);
    }
}

/// Drops all waiting requests when the last worker ends, so that their callers receive an error.
impl<M: Model> Drop for Worker<M> {
    fn drop(&mut self) {
        if !self.retired && self.shared.workers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.queue.abandon();
        }
    }
}

/// A batch whose entries are written into its tensor.
struct WrittenBatch<M: Model> {
    entries: Vec<Entry<M>>,
    tensor: Tensor,
    /// The panic message of the model's code, if it panicked while writing.
    write_result: Result<(), String>,
}

/// The part of a device's worker that takes entries from the queue and writes batches.
pub(super) struct Preparer<M: Model> {
    shared: Arc<Shared<M>>,
    ceiling: Arc<AtomicUsize>,
    device_ready: Arc<DeviceReady>,
    /// Unbuffered: `send` blocks until the runner receives the batch.
    written: SyncSender<WrittenBatch<M>>,
    used: Receiver<Tensor>,
}

/// The part of a device's worker that runs the batches of the preparer.
pub(super) struct Runner<M: Model> {
    worker: Worker<M>,
    device_ready: Arc<DeviceReady>,
    written: Receiver<WrittenBatch<M>>,
    used: Sender<Tensor>,
}

/// Splits a device's worker into its preparer and its runner.
pub(super) fn split<M: Model>(worker: Worker<M>) -> (Preparer<M>, Runner<M>) {
    let (written, batches) = sync_channel(0);
    let (used, free_tensors) = channel();
    let device_ready = Arc::new(DeviceReady::new(false));
    let preparer = Preparer {
        shared: worker.shared.clone(),
        ceiling: worker.ceiling.clone(),
        device_ready: device_ready.clone(),
        written,
        used: free_tensors,
    };
    (preparer, Runner { worker, device_ready, written: batches, used })
}

impl<M: Model> Preparer<M> {
    /// Prepares batches until the queue is closed and empty, or the runner has ended.
    pub(super) fn work(self) {
        let queue = &self.shared.queue;
        while let Some(entries) = queue.wait_for_first(self.max_batch(), &self.device_ready) {
            let batch = self.prepare(entries);
            self.shared.record_queue_depth(queue.waiting());
            if let Err(rejected) = self.written.send(batch) {
                // The device was lost while others remain, or the process is stopping.
                queue.put_back(rejected.0.entries);
                return;
            }
            queue.change(&self.device_ready, DeviceReady::receive_batch);
        }
    }

    fn max_batch(&self) -> usize {
        self.ceiling.load(Ordering::Acquire).max(1)
    }

    /// Writes `first`, then the entries that arrive while the device is busy or until `max_delay`
    /// after the first entry was queued.
    fn prepare(&self, first: Vec<Entry<M>>) -> WrittenBatch<M> {
        let (model, limits) = (&self.shared.model, &self.shared.limits);
        let (shape, until, max_batch) =
            (first[0].shape, first[0].queued_at + limits.max_delay, self.max_batch());
        let mut batch = WrittenBatch {
            entries: Vec::new(),
            tensor: self.used.try_recv().unwrap_or_default(),
            write_result: Ok(()),
        };
        batch.add(model, first);
        while batch.entries.len() < max_batch {
            let room = max_batch - batch.entries.len();
            let added = self.shared.queue.gather_more(shape, room, until, &self.device_ready);
            if added.is_empty() {
                break;
            }
            batch.add(model, added);
        }
        batch
    }
}

impl<M: Model> WrittenBatch<M> {
    fn add(&mut self, model: &M, entries: Vec<Entry<M>>) {
        let _preparing = tracing::trace_span!(target: RUN, "prepare").entered();
        for entry in entries {
            if self.write_result.is_ok() {
                self.write_result = self.tensor.write(model, self.entries.len(), &entry);
            }
            self.entries.push(entry);
        }
    }
}

impl<M: Model> Runner<M> {
    /// Runs batches until the preparer ends.
    pub(super) fn work(mut self) {
        loop {
            self.worker.shared.queue.change(&self.device_ready, DeviceReady::request_batch);
            let Ok(WrittenBatch { entries, mut tensor, write_result }) = self.written.recv() else { return };
            self.worker.serve_written(entries, &mut tensor, write_result);
            tensor.shrink();
            // The preparer may have ended.
            let _ = self.used.send(tensor);
            if self.worker.retire() {
                return;
            }
        }
    }
}

/// Notifies the preparer when the runner ends for any reason.
impl<M: Model> Drop for Runner<M> {
    fn drop(&mut self) {
        self.worker.shared.queue.change(&self.device_ready, DeviceReady::stop);
    }
}

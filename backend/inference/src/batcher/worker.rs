//! The threads of one device. A [`Worker`] runs batches, splits those that fail, and uses the
//! fallback. With prefetch, a [`Preparer`] writes the next batch while a [`Runner`] runs the
//! current one on the device.
//!
//! The two threads of a device exchange two tensors. The preparer starts a batch and writes
//! requests into it as they arrive, until the batch is full or the device is ready. The runner runs
//! the batch. At most one batch is prepared in advance, so interactive requests overtake all
//! waiting work except that batch.
use super::queue::{DeviceReady, Readiness};
use super::run::{BatchResult, Run, Tensor, batch_sizes, padded_batch_size};
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
    batch_sizes: Vec<usize>,
    /// Current maximum batch size. It is lowered when the device runs out of memory.
    max_batch_size: Arc<AtomicUsize>,
    tensor: Tensor,
    is_lost: bool,
    /// Whether the worker is no longer counted.
    is_retired: bool,
}

impl<M: Model> Worker<M> {
    pub(super) fn new(shared: Arc<Shared<M>>, device: Device) -> Self {
        let batch_sizes = batch_sizes(shared.limits.max_batch);
        // The worker is counted here instead of on the thread, so that a batcher is ready as soon
        // as it has started.
        shared.worker_count.fetch_add(1, Ordering::AcqRel);
        let max_batch_size = Arc::new(AtomicUsize::new(shared.limits.max_batch));
        let tensor = Tensor::default();
        Self { shared, device, batch_sizes, max_batch_size, tensor, is_lost: false, is_retired: false }
    }

    /// Runs until the queue is closed and empty.
    pub(super) fn work(mut self) {
        let device_ready = DeviceReady::new(Readiness { requested_batches: 1, is_stopped: false });
        loop {
            let (mut batch, max_delay) = (Vec::new(), self.shared.limits.max_delay);
            let add = |entries| batch.extend(entries);
            if !self.shared.queue.take(self.max_batch_size(), max_delay, &device_ready, add) {
                return;
            }
            self.shared.record_queue_depth(self.shared.queue.queue_depth());
            self.serve(batch, false);
            if self.retire_if_device_lost() {
                return;
            }
        }
    }

    fn max_batch_size(&self) -> usize {
        self.max_batch_size.load(Ordering::Acquire)
    }

    /// Retires the worker if its device is lost and other workers remain, because it would take
    /// requests that the others can run. Returns whether the worker must end.
    fn retire_if_device_lost(&mut self) -> bool {
        let decrement = |workers: usize| (workers > 1).then(|| workers - 1);
        self.is_retired = self.is_lost
            && self.shared.worker_count.fetch_update(Ordering::AcqRel, Ordering::Acquire, decrement).is_ok();
        self.is_retired
    }

    /// Runs the entries of `batch`, in parts that fit into the device's memory, and replies to all
    /// of them. `is_half`: the batch is half of one that failed.
    fn serve(&mut self, mut batch: Vec<Entry<M>>, is_half: bool) {
        while !batch.is_empty() {
            let rest = batch.split_off(batch.len().min(self.max_batch_size()));
            let part = std::mem::replace(&mut batch, rest);
            let started = Instant::now();
            let outcome = self.run_unless_lost(&part, |run, tensor| run.write_and_run(tensor));
            self.handle_outcome(part, is_half, outcome, started);
        }
        self.tensor.shrink();
    }

    fn run_unless_lost(
        &mut self,
        entries: &[Entry<M>],
        run: impl FnOnce(Run<'_, M>, &mut Tensor) -> BatchResult<M>,
    ) -> BatchResult<M> {
        if self.is_lost {
            return Err(BackendError::DeviceLost("the device was lost in an earlier run".to_owned()));
        }
        let (model, backend) = (&self.shared.model, &mut *self.device.primary);
        run(Run { model, backend, batch_sizes: &self.batch_sizes, entries }, &mut self.tensor)
    }

    /// Handles the outcome of a run: sends the results, uses the fallback, or retries smaller
    /// parts.
    fn handle_outcome(
        &mut self,
        mut entries: Vec<Entry<M>>,
        is_half: bool,
        outcome: BatchResult<M>,
        started: Instant,
    ) {
        match outcome {
            Ok(results) => self.send_results(entries, results, started),
            Err(BackendError::OutOfMemory(reason)) if entries.len() > 1 => {
                self.lower_max_batch_size(entries.len(), &reason);
                self.serve(entries, is_half);
            }
            // A single input may cause the failure. A batch is halved only once, so that a device
            // that fails on every input does not fail again at every size.
            Err(BackendError::Failed(reason)) if entries.len() > 1 && !is_half => {
                let (operation, device) = (self.shared.operation(), self.device.primary.device());
                let requests = entries.len();
                tracing::warn!(operation, device, requests, reason, "run failed; retrying in halves");
                let second = entries.split_off(entries.len().div_ceil(2));
                self.serve(entries, true);
                self.serve(second, true);
            }
            Err(error) => self.fall_back(entries, &error, started),
        }
    }

    /// Runs a batch that another thread wrote into `tensor`, and replies to all of its entries.
    fn serve_written(&mut self, batch: Vec<Entry<M>>, tensor: &mut Tensor, write_result: Result<(), String>) {
        if batch.iter().all(|entry| entry.is_abandoned()) {
            return;
        }
        if batch.len() > self.max_batch_size() || write_result.is_err() {
            // The batch was written before the device ran out of memory, or writing an entry
            // panicked. In both cases each part is written again.
            return self.serve(batch, false);
        }
        let started = Instant::now();
        let outcome = self.run_unless_lost(&batch, |run, _| run.run_written(tensor));
        self.handle_outcome(batch, false, outcome, started);
        self.tensor.shrink();
    }

    /// Lowers the maximum batch size below that of a batch of `entry_count` entries, which failed.
    fn lower_max_batch_size(&mut self, entry_count: usize, reason: &str) {
        let failed_size = padded_batch_size(&self.batch_sizes, entry_count);
        self.batch_sizes.retain(|size| *size < failed_size);
        if self.batch_sizes.is_empty() {
            self.batch_sizes.push(1);
        }
        self.max_batch_size.store(self.batch_sizes.last().copied().unwrap_or(1), Ordering::Release);
        let (operation, device) = (self.shared.operation(), self.device.primary.device());
        let (batch, ceiling) = (failed_size, self.max_batch_size());
        let message = "device out of memory; lowered the maximum batch size";
        tracing::warn!(operation, device, batch, ceiling, reason, "{message}");
    }

    /// Runs the entries one by one on the fallback, or replies to them with the error.
    fn fall_back(&mut self, part: Vec<Entry<M>>, error: &BackendError, started: Instant) {
        let operation = self.shared.operation();
        let device = self.device.primary.device();
        if let BackendError::DeviceLost(reason) = error
            && !self.is_lost
        {
            self.is_lost = true;
            let reason = format!("{operation} lost {device}: {reason}");
            tracing::error!(operation, reason, "device lost; the service is not ready until it is restarted");
            *self.shared.device_loss.lock() = Some(reason);
        }
        let Some(fallback) = &mut self.device.fallback else {
            let results = part.iter().map(|_| Err(error.to_string())).collect();
            return self.send_results(part, results, started);
        };
        let provider = device.split(':').next().unwrap_or_default().to_owned();
        metrics::counter!("facecrawl_ep_fallback_total", "operation" => operation, "provider" => provider)
            .increment(part.len() as u64);
        let (requests, message) = (part.len(), "run failed on the device; retrying on the CPU");
        tracing::warn!(operation, device, requests, %error, "{message}");
        for entry in part {
            let single = [entry];
            let (model, backend) = (&self.shared.model, &mut **fallback);
            let run = Run { model, backend, batch_sizes: &[1], entries: &single };
            let results = run.write_and_run(&mut self.tensor).unwrap_or_else(|fallback_error| {
                vec![Err(format!("{error}; and on {}: {fallback_error}", fallback.device()))]
            });
            send_results(&self.shared, single.into(), results, started);
        }
    }

    fn send_results(&self, part: Vec<Entry<M>>, results: Vec<Result<M::Output, String>>, started: Instant) {
        let device = self.device.primary.device();
        if device != "cpu" {
            let (images, result_count) = (part.len(), results.iter().filter(|result| result.is_ok()).count());
            tracing::debug!(
                operation = self.shared.operation(),
                device,
                seconds = started.elapsed().as_secs_f64(),
                "GPU batch processing completed: {images} images, {result_count} results"
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
        if !self.is_retired && self.shared.worker_count.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.queue.close_and_clear();
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
    max_batch_size: Arc<AtomicUsize>,
    device_ready: Arc<DeviceReady>,
    /// Unbuffered: `send` blocks until the runner receives the batch.
    batch_sender: SyncSender<WrittenBatch<M>>,
    tensor_receiver: Receiver<Tensor>,
}

/// The part of a device's worker that runs the batches of the preparer.
pub(super) struct Runner<M: Model> {
    worker: Worker<M>,
    device_ready: Arc<DeviceReady>,
    batch_receiver: Receiver<WrittenBatch<M>>,
    tensor_sender: Sender<Tensor>,
}

/// Splits a device's worker into its preparer and its runner.
pub(super) fn split<M: Model>(worker: Worker<M>) -> (Preparer<M>, Runner<M>) {
    let (batch_sender, batch_receiver) = sync_channel(0);
    let (tensor_sender, tensor_receiver) = channel();
    let device_ready = Arc::<DeviceReady>::default();
    let preparer = Preparer {
        shared: worker.shared.clone(),
        max_batch_size: worker.max_batch_size.clone(),
        device_ready: device_ready.clone(),
        batch_sender,
        tensor_receiver,
    };
    (preparer, Runner { worker, device_ready, batch_receiver, tensor_sender })
}

impl<M: Model> Preparer<M> {
    /// Prepares batches until the queue is closed and empty, or the runner has ended. Writes
    /// entries as they arrive.
    pub(super) fn work(self) {
        let Shared { model, queue, limits, .. } = &*self.shared;
        loop {
            let max_batch = self.max_batch_size.load(Ordering::Acquire).max(1);
            let mut batch =
                WrittenBatch { entries: Vec::new(), tensor: Tensor::default(), write_result: Ok(()) };
            let add = |entries| {
                if batch.entries.is_empty() {
                    batch.tensor = self.tensor_receiver.try_recv().unwrap_or_default();
                }
                batch.add(model, entries);
            };
            if !queue.take(max_batch, limits.max_delay, &self.device_ready, add) {
                return;
            }
            self.shared.record_queue_depth(queue.queue_depth());
            if let Err(rejected) = self.batch_sender.send(batch) {
                // The device was lost and other devices remain, or the process is stopping.
                queue.put_back(rejected.0.entries);
                return;
            }
            queue.update_signal(&self.device_ready, |device| device.requested_batches -= 1);
        }
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
            self.worker
                .shared
                .queue
                .update_signal(&self.device_ready, |device| device.requested_batches += 1);
            let Ok(WrittenBatch { entries, mut tensor, write_result }) = self.batch_receiver.recv() else {
                return;
            };
            self.worker.serve_written(entries, &mut tensor, write_result);
            tensor.shrink();
            // The preparer may have ended.
            let _ = self.tensor_sender.send(tensor);
            if self.worker.retire_if_device_lost() {
                return;
            }
        }
    }
}

/// Notifies the preparer when the runner ends.
impl<M: Model> Drop for Runner<M> {
    fn drop(&mut self) {
        self.worker.shared.queue.update_signal(&self.device_ready, |device| device.is_stopped = true);
    }
}

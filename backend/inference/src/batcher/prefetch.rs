//! Writes the next batch while the device runs the current one.
//!
//! Each device has two threads, which exchange two tensors. The preparer starts a batch and writes
//! requests into it as they arrive, until the batch is full or the device is ready. The runner runs
//! the batch. At most one batch is prepared in advance, so interactive requests overtake all
//! waiting work except that batch.
use super::queue::DeviceReady;
use super::run::Tensor;
use super::worker::Worker;
use super::{Entry, Shared};
use crate::models::Model;
use crate::trace::RUN;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

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
pub(super) fn pair<M: Model>(worker: Worker<M>) -> (Preparer<M>, Runner<M>) {
    let (written, to_run) = sync_channel(0);
    let (used, spare) = channel();
    let device_ready = Arc::new(DeviceReady::new(false));
    let preparer = Preparer {
        shared: worker.shared.clone(),
        ceiling: worker.ceiling.clone(),
        device_ready: device_ready.clone(),
        written,
        used: spare,
    };
    (preparer, Runner { worker, device_ready, written: to_run, used })
}

impl<M: Model> Preparer<M> {
    /// Prepares batches until the queue is closed and empty, or the runner has ended.
    pub(super) fn work(self) {
        let queue = &self.shared.queue;
        while let Some(entries) = queue.first(self.max_batch(), &self.device_ready) {
            let batch = self.prepare(entries);
            self.shared.record_queue_depth(queue.waiting());
            if let Err(refused) = self.written.send(batch) {
                // The device was lost while others remain, or the process is stopping.
                queue.put_back(refused.0.entries);
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
            let more =
                self.shared.queue.more(shape, max_batch - batch.entries.len(), until, &self.device_ready);
            if more.is_empty() {
                break;
            }
            batch.add(model, more);
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

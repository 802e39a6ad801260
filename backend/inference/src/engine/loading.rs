//! Measures the load of a model, for the log and the report.
use crate::backend::Placement;
use crate::devices::GpuDevice;
use crate::report::LoadedModel;
use crate::{Operation, devices};
use std::time::Instant;

pub(super) struct Loading<'a> {
    pub(super) operation: Operation,
    /// The model's file, or a description if there is no file.
    pub(super) file: &'a str,
    pub(super) bytes: usize,
    pub(super) sessions: usize,
    pub(super) max_batch: usize,
    pub(super) began: Instant,
    /// The GPU's state before the load.
    pub(super) before: Option<GpuDevice>,
}

impl Loading<'_> {
    /// Ends the measurement. Logs and returns the model, its placement, the time and the memory.
    pub(super) fn finish(self, placement: &Placement) -> LoadedModel {
        let after = devices::find(placement.provider, placement.device_id);
        let memory = |device: &Option<GpuDevice>| device.as_ref().and_then(|d| d.memory_used);
        let load = LoadedModel {
            operation: self.operation.name(),
            file: self.file.to_owned(),
            bytes: self.bytes as u64,
            device: placement.label(),
            provider: placement.provider.name(),
            precision: placement.precision(),
            sessions: self.sessions,
            max_batch: self.max_batch,
            seconds: self.began.elapsed().as_secs_f64(),
            memory_before: memory(&self.before),
            memory_after: memory(&after),
        };
        let megabytes = |bytes: Option<u64>| bytes.map(|bytes| (bytes as f64 / 1e5).round() / 10.0);
        let how = match placement.provider {
            provider if provider.on_cpu() => "model loaded and warmed up",
            _ => "model loaded with GPU acceleration and warmed up",
        };
        tracing::info!(
            operation = load.operation,
            file = load.file,
            megabytes = megabytes(Some(load.bytes)),
            seconds = (load.seconds * 1e3).round() / 1e3,
            device = load.device,
            device_name = after.as_ref().map(|device| device.name.as_str()),
            provider = load.provider,
            precision = load.precision,
            sessions = load.sessions,
            gpu_megabytes_before = megabytes(load.memory_before),
            gpu_megabytes_after = megabytes(load.memory_after),
            gpu_megabytes_total = megabytes(after.as_ref().and_then(|device| device.memory_total)),
            "{how}"
        );
        load
    }
}

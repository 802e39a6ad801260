//! Watches this process and the decoder's process during one run.
use super::memory::{MemorySample, children_resident, own_resident};
use super::threads::ThreadTimes;
use crate::Process;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two samples.
const PERIOD: Duration = Duration::from_millis(200);

/// What one run used.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// CPU seconds of this process, if the system reports them.
    pub(super) service: Option<f64>,
    /// CPU seconds of the decoder's processes.
    pub(super) decoder: Option<f64>,
    /// CPU seconds by the part of the work that a thread does.
    pub(super) parts: BTreeMap<&'static str, f64>,
    /// The memory at several times; empty if the system does not report it.
    pub(super) memory: Vec<MemorySample>,
}

/// A running measurement.
pub(super) struct Watch {
    position_us: Arc<AtomicI64>,
    ended: Arc<AtomicBool>,
    sampler: JoinHandle<(Vec<MemorySample>, BTreeMap<&'static str, f64>)>,
    started: Instant,
    service: Option<f64>,
    decoder: Option<f64>,
    process: Process,
}

impl Watch {
    /// Starts to measure.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(super) fn start(process: &Process) -> io::Result<Self> {
        let (position_us, ended) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicBool::new(false)));
        let (position, end) = (position_us.clone(), ended.clone());
        let sampler = std::thread::Builder::new().name("watch".into()).spawn(move || {
            let mut threads = ThreadTimes::start();
            let mut memory = Vec::new();
            loop {
                let stop = end.load(Ordering::Relaxed);
                threads.sample();
                if let Some(service) = own_resident() {
                    let at_us = position.load(Ordering::Relaxed);
                    memory.push(MemorySample { at_us, service, decoder: children_resident() });
                }
                if stop {
                    return (memory, threads.parts());
                }
                std::thread::park_timeout(PERIOD);
            }
        })?;
        Ok(Self {
            position_us,
            ended,
            sampler,
            started: Instant::now(),
            service: (process.cpu_seconds)(),
            decoder: (process.children_cpu_seconds)(),
            process: process.clone(),
        })
    }

    /// Sets the position in the video in microseconds, to which later samples belong.
    pub(super) fn at(&self, position_us: i64) {
        self.position_us.store(position_us, Ordering::Relaxed);
    }

    /// Ends the measurement. Returns the time since the start, and what was used.
    pub(super) fn stop(self) -> (Duration, Usage) {
        let took = self.started.elapsed();
        let since = |before: Option<f64>, now: Option<f64>| now.zip(before).map(|(now, then)| now - then);
        let service = since(self.service, (self.process.cpu_seconds)());
        let decoder = since(self.decoder, (self.process.children_cpu_seconds)());
        self.ended.store(true, Ordering::Relaxed);
        self.sampler.thread().unpark();
        let (memory, parts) = self.sampler.join().unwrap_or_default();
        (took, Usage { service, decoder, parts, memory })
    }
}

//! Moves requests from many callers to the device threads of one model.
//!
//! Every backend has its own operating-system thread. All threads of a model share one queue, so an
//! idle thread takes the next request, regardless of its device's speed. A CPU thread takes one
//! request at a time. A device that benefits from batches takes several waiting requests.
mod queue;
mod run;
mod worker;

pub(crate) use run::batch_sizes;

use crate::RunError;
use crate::backend::Backend;
use crate::fair_queue::Requester;
use crate::models::Model;
use parking_lot::Mutex;
use queue::{Queue, QueueError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use worker::{Worker, split};

/// The priority class of a request; interactive work runs first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// A person or an API caller waits for the result.
    Interactive,
    /// The request is part of a crawl or a batch job.
    Background,
}

#[derive(Clone, Copy, Debug)]
pub struct RequestOptions {
    pub priority: Priority,
    /// The caller for whom the request runs. Requesters of one priority are served in turn.
    pub requester: Requester,
    /// Time after which the result is not needed. A request that is still queued then is not run.
    pub deadline: Option<Instant>,
}

impl From<Priority> for RequestOptions {
    /// Returns options with the default requester and without a deadline.
    fn from(priority: Priority) -> Self {
        Self { priority, requester: Requester::default(), deadline: None }
    }
}

#[derive(Clone, Debug)]
pub struct Timed<T> {
    pub output: T,
    /// Time spent waiting for a session.
    pub queued: Duration,
    /// Duration of the run, including preparation of the tensor and decoding of the outputs.
    pub ran: Duration,
}

/// The result of a request.
pub type RunResult<T> = Result<Timed<T>, RunError>;

/// How a batcher forms batches.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of waiting requests.
    pub queue_capacity: usize,
    /// Maximum number of requests in one run; 1 for CPUs and for models with a fixed batch axis.
    pub max_batch: usize,
    /// Maximum time that the first request of a batch waits for other requests to join.
    pub max_delay: Duration,
    /// Whether the next batch is written while the current one runs. This helps devices that
    /// compute independently of the CPU; on a CPU it would only occupy a core. An interactive
    /// request that arrives later waits for the prepared batch.
    pub prefetch: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { queue_capacity: 256, max_batch: 1, max_delay: Duration::ZERO, prefetch: false }
    }
}

pub struct Device {
    pub primary: Box<dyn Backend>,
    /// The backend that runs requests when `primary` fails. If it is `None`, the requests fail.
    pub fallback: Option<Box<dyn Backend>>,
}

/// A model's queue and threads. Cloning is cheap; the threads end when the last clone is dropped.
pub struct Batcher<M: Model>(Arc<Threads<M>>);

impl<M: Model> Clone for Batcher<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Threads<M: Model> {
    shared: Arc<Shared<M>>,
    handles: Vec<JoinHandle<()>>,
}

struct Shared<M: Model> {
    model: M,
    queue: Queue<M>,
    limits: Limits,
    worker_count: AtomicUsize,
    /// Moving average of the run time per request, in nanoseconds.
    mean_run_time: AtomicU64,
    /// Why a device was lost; `None` while all devices work.
    device_loss: Mutex<Option<String>>,
}

struct Entry<M: Model> {
    input: M::Input,
    /// The input's shape; only entries of one shape share a batch.
    shape: [usize; 3],
    queued_at: Instant,
    options: RequestOptions,
    reply: oneshot::Sender<RunResult<M::Output>>,
}

impl<M: Model> Entry<M> {
    /// Returns whether the caller abandoned the request or its deadline has passed.
    fn is_abandoned(&self) -> bool {
        self.reply.is_closed() || self.options.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}

impl<M: Model> Batcher<M> {
    /// Starts one thread per device, or two with `prefetch`.
    pub fn start(model: M, devices: Vec<Device>, limits: Limits) -> std::io::Result<Self> {
        let limits = Limits { max_batch: limits.max_batch.max(1), ..limits };
        let shared = Arc::new(Shared {
            model,
            queue: Queue::new(limits.queue_capacity),
            limits,
            worker_count: AtomicUsize::new(0),
            mean_run_time: AtomicU64::new(0),
            device_loss: Mutex::new(None),
        });
        let mut threads = Threads { shared: shared.clone(), handles: Vec::with_capacity(devices.len()) };
        for (index, device) in devices.into_iter().enumerate() {
            let name = format!("{}-{index}", shared.model.operation().name());
            let worker = Worker::new(shared.clone(), device);
            let mut spawn_thread = |name: String, work: Box<dyn FnOnce() + Send>| {
                std::thread::Builder::new().name(name).spawn(work).map(|handle| threads.handles.push(handle))
            };
            if limits.prefetch {
                let (preparer, runner) = split(worker);
                spawn_thread(format!("{name}-prepare"), Box::new(move || preparer.work()))?;
                spawn_thread(name, Box::new(move || runner.work()))?;
            } else {
                spawn_thread(name, Box::new(move || worker.work()))?;
            }
        }
        Ok(Self(Arc::new(threads)))
    }

    fn shared(&self) -> &Shared<M> {
        &self.0.shared
    }

    /// Queues `input` as soon as there is room, and waits for its result. Dropping the future
    /// removes the request from the queue.
    ///
    /// # Errors
    /// Fails with [`RunError::DeadlineExceeded`] at the deadline, or immediately after it.
    pub async fn run(&self, input: M::Input, options: impl Into<RequestOptions>) -> RunResult<M::Output> {
        let options = options.into();
        let deadline_exceeded = || Err(RunError::DeadlineExceeded { operation: self.shared().operation() });
        let result = self.enqueue_and_wait(input, options);
        let Some(deadline) = options.deadline else { return result.await };
        if Instant::now() >= deadline {
            return deadline_exceeded();
        }
        match tokio::time::timeout_at(deadline.into(), result).await {
            // A worker drops an entry whose deadline has passed, without a reply.
            Ok(Err(RunError::Stopped)) if Instant::now() >= deadline => deadline_exceeded(),
            Ok(result) => result,
            Err(_) => deadline_exceeded(),
        }
    }

    async fn enqueue_and_wait(&self, input: M::Input, options: RequestOptions) -> RunResult<M::Output> {
        let queue = &self.shared().queue;
        let (reply, result) = oneshot::channel();
        let (shape, queued_at) = (self.shared().model.shape(&input), Instant::now());
        let entry = Entry { shape, input, queued_at, options, reply };
        // The engine is stopping if the queue is closed or a worker ends without a reply.
        let Ok(permit) = queue.reserve(options.priority).await else { return Err(RunError::Stopped) };
        let Ok(queue_depth) = queue.push(entry, permit) else { return Err(RunError::Stopped) };
        self.shared().record_queue_depth(queue_depth);
        result.await.unwrap_or(Err(RunError::Stopped))
    }

    /// Checks whether a request could be queued immediately, for callers that must not wait.
    ///
    /// # Errors
    /// Fails with [`RunError::Overloaded`] if the queue is full, and with [`RunError::Stopped`] if
    /// it is closed.
    pub fn check_queue_capacity(&self, priority: Priority) -> Result<(), RunError> {
        match self.shared().queue.try_reserve(priority) {
            Ok(_) => Ok(()),
            Err(QueueError::Closed) => Err(RunError::Stopped),
            Err(QueueError::Full(queue_depth)) => Err(RunError::Overloaded {
                operation: self.shared().operation(),
                retry_after: self.shared().retry_after(queue_depth),
            }),
        }
    }

    pub fn model(&self) -> &M {
        &self.shared().model
    }

    pub fn queue_depth(&self) -> usize {
        self.shared().queue.queue_depth()
    }

    /// Checks that no device was lost and that at least one thread is running.
    pub fn check_ready(&self) -> Result<(), String> {
        if let Some(reason) = &*self.shared().device_loss.lock() {
            return Err(reason.clone());
        }
        if self.shared().worker_count.load(Ordering::Acquire) == 0 {
            return Err(format!("all threads of {} have ended", self.shared().operation()));
        }
        Ok(())
    }
}

impl<M: Model> Shared<M> {
    fn operation(&self) -> &'static str {
        self.model.operation().name()
    }

    fn record_queue_depth(&self, queue_depth: usize) {
        metrics::gauge!("facecrawl_inference_queue_depth", "operation" => self.operation())
            .set(queue_depth as f64);
    }

    /// Updates the moving average of the time per request. The new run has a weight of one eighth.
    fn record_run_time(&self, per_request: Duration) {
        let new = u64::try_from(per_request.as_nanos()).unwrap_or(u64::MAX).max(1);
        let _ = self.mean_run_time.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            Some(if old == 0 { new } else { old / 8 * 7 + new / 8 })
        });
    }

    /// Estimates the time until a queue of `queue_depth` entries has room: 50 ms to 60 s.
    fn retry_after(&self, queue_depth: usize) -> Duration {
        let workers = self.worker_count.load(Ordering::Acquire).max(1) as u64;
        let mean_run_time = self.mean_run_time.load(Ordering::Relaxed);
        let estimate = Duration::from_nanos(mean_run_time.saturating_mul(queue_depth as u64) / workers);
        estimate.clamp(Duration::from_millis(50), Duration::from_secs(60))
    }
}

impl<M: Model> Drop for Threads<M> {
    /// Waits for the runs in progress, because the sessions must end before the process ends. No
    /// caller waits for a result at this point, because every caller holds a clone.
    fn drop(&mut self) {
        self.shared.queue.close();
        for handle in self.handles.drain(..) {
            // A worker catches its panics. An uncaught panic has no caller to report it to.
            let _ = handle.join();
        }
    }
}

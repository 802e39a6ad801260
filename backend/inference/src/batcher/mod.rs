//! Requests from many callers to the device threads of one model.
//!
//! Every backend has an operating-system thread of its own; all threads of a model take from one queue, so work goes to
//! whoever is free: the device with the least load is the one that asks next, whatever its speed. On a CPU a thread takes one
//! request at a time; on a device that likes batches it takes what waits.
mod pictures;
mod prefetch;
mod queue;
mod run;
mod worker;

pub(crate) use run::buckets;

use crate::backend::Backend;
use crate::engine::Lane;
use crate::fair_queue::Requester;
use crate::models::Model;
use crate::{RunError, Timed};
use parking_lot::Mutex;
use queue::{Queue, Refused, Waiting};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How a batcher gathers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests that may wait.
    pub queue_capacity: usize,
    /// Most requests in one run; 1 for CPUs and for models with a fixed batch axis.
    pub max_batch: usize,
    /// How long a request may wait for company.
    pub max_delay: Duration,
    /// Write the next batch while one runs. For devices that compute beside the CPU; a CPU would only lose a core to it. What
    /// is prepared is one batch ahead of interactive requests that come later.
    pub prefetch: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { queue_capacity: 256, max_batch: 1, max_delay: Duration::ZERO, prefetch: false }
    }
}

/// A device and what to do when it fails.
pub struct Device {
    /// Where runs go.
    pub primary: Box<dyn Backend>,
    /// Where they go when `primary` fails; without it the request fails.
    pub fallback: Option<Box<dyn Backend>>,
}

impl From<Box<dyn Backend>> for Device {
    fn from(primary: Box<dyn Backend>) -> Self {
        Self { primary, fallback: None }
    }
}

/// A model's queue and threads. Cheap to clone; the threads end when the last clone goes.
pub struct Batcher<M: Model> {
    shared: Arc<Shared<M>>,
    /// Dropped with the last clone.
    _threads: Arc<Threads<M>>,
}

impl<M: Model> Clone for Batcher<M> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), _threads: self._threads.clone() }
    }
}

struct Threads<M: Model> {
    shared: Arc<Shared<M>>,
    handles: Vec<JoinHandle<()>>,
}

struct Shared<M: Model> {
    model: M,
    queue: Queue<Entry<M>>,
    limits: Limits,
    workers: AtomicUsize,
    /// Recent run time per request in nanoseconds.
    pace: AtomicU64,
    /// Why the devices cannot be relied on any more.
    lost: Mutex<Option<String>>,
}

type Reply<M> = Result<Timed<<M as Model>::Output>, RunError>;

/// Sets how a request waits in the queue.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The priority class.
    pub lane: Lane,
    /// Whose requests take turns with those of others in the same lane.
    pub requester: Requester,
    /// Time after which nobody needs the answer. A request that still waits then is not run.
    pub deadline: Option<Instant>,
}

impl From<Lane> for Terms {
    /// Returns terms with the default requester and without a deadline.
    fn from(lane: Lane) -> Self {
        Self { lane, requester: Requester::default(), deadline: None }
    }
}

struct Entry<M: Model> {
    input: M::Input,
    shape: [usize; 3],
    since: Instant,
    terms: Terms,
    reply: oneshot::Sender<Reply<M>>,
}

impl<M: Model> Waiting for Entry<M> {
    fn shape(&self) -> [usize; 3] {
        self.shape
    }
    fn left(&self) -> bool {
        self.reply.is_closed() || self.terms.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
    fn since(&self) -> Instant {
        self.since
    }
    fn requester(&self) -> Requester {
        self.terms.requester
    }
}

impl<M: Model> Batcher<M> {
    /// Starts one thread per device.
    pub fn start(model: M, devices: Vec<Device>, limits: Limits) -> std::io::Result<Self> {
        let limits = Limits { max_batch: limits.max_batch.max(1), ..limits };
        let shared = Arc::new(Shared {
            model,
            queue: Queue::new(limits.queue_capacity),
            limits,
            workers: AtomicUsize::new(0),
            pace: AtomicU64::new(0),
            lost: Mutex::new(None),
        });
        let mut threads = Threads { shared: shared.clone(), handles: Vec::with_capacity(devices.len()) };
        for (index, device) in devices.into_iter().enumerate() {
            let name = format!("{}-{index}", shared.model.operation().name());
            let worker = worker::Worker::new(shared.clone(), device);
            let mut spawn = |name: String, work: Box<dyn FnOnce() + Send>| {
                std::thread::Builder::new().name(name).spawn(work).map(|handle| threads.handles.push(handle))
            };
            if limits.prefetch {
                let (preparer, worker) = prefetch::pair(worker);
                spawn(format!("{name}-prepare"), Box::new(move || preparer.work()))?;
                spawn(name, Box::new(move || worker.work()))?;
            } else {
                spawn(name, Box::new(move || worker.work()))?;
            }
        }
        Ok(Self { shared, _threads: Arc::new(threads) })
    }

    /// Queues `input`, as soon as there is room, and waits for its result. Dropping the future takes it out of the queue.
    ///
    /// # Errors
    /// Fails with [`RunError::DeadlineExceeded`] at the deadline of the terms, or at once if it has
    /// passed.
    pub async fn run(&self, input: M::Input, terms: impl Into<Terms>) -> Reply<M> {
        let terms = terms.into();
        let late = || Err(RunError::DeadlineExceeded { operation: self.shared.operation() });
        let since = Instant::now();
        let answer = self.answer(input, since, terms);
        let Some(deadline) = terms.deadline else { return answer.await };
        if since >= deadline {
            return late();
        }
        match tokio::time::timeout_at(deadline.into(), answer).await {
            // A worker that found it too late dropped it.
            Ok(Err(RunError::Stopped)) if Instant::now() >= deadline => late(),
            Ok(answer) => answer,
            Err(_) => late(),
        }
    }

    async fn answer(&self, input: M::Input, since: Instant, terms: Terms) -> Reply<M> {
        let queue = &self.shared.queue;
        let (reply, answer) = oneshot::channel();
        let entry = Entry { shape: self.shared.model.shape(&input), input, since, terms, reply };
        // A queue that takes no more, and a worker that goes away without an answer, are those of an engine that is stopping.
        let Ok(place) = queue.place(terms.lane).await else { return Err(RunError::Stopped) };
        let Ok(waiting) = queue.push(entry, terms.lane, place) else { return Err(RunError::Stopped) };
        self.shared.show_depth(waiting);
        answer.await.unwrap_or(Err(RunError::Stopped))
    }

    /// Whether a request would be queued at once, for callers who would rather be refused than wait.
    ///
    /// # Errors
    /// [`RunError::Overloaded`] where the queue is full, [`RunError::Stopped`] where it takes no more.
    pub fn check_room(&self, lane: Lane) -> Result<(), RunError> {
        match self.shared.queue.place_now(lane) {
            Ok(_) => Ok(()),
            Err(Refused::Closed) => Err(RunError::Stopped),
            Err(Refused::Full(waiting)) => Err(RunError::Overloaded {
                operation: self.shared.operation(),
                retry_after: self.shared.patience(waiting),
            }),
        }
    }

    /// The model.
    pub fn model(&self) -> &M {
        &self.shared.model
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.shared.queue.waiting()
    }

    /// Whether requests can be served as promised; the reason if not.
    pub fn ready(&self) -> Result<(), String> {
        if let Some(reason) = &*self.shared.lost.lock() {
            return Err(reason.clone());
        }
        if self.shared.workers.load(Ordering::Acquire) == 0 {
            return Err(format!("{} has no thread left", self.shared.operation()));
        }
        Ok(())
    }
}

impl<M: Model> Shared<M> {
    fn operation(&self) -> &'static str {
        self.model.operation().name()
    }

    fn show_depth(&self, waiting: usize) {
        metrics::gauge!("facecrawl_inference_queue_depth", "operation" => self.operation())
            .set(waiting as f64);
    }

    /// Remembers how long a request takes, newer runs more.
    fn note_pace(&self, per_request: Duration) {
        let new = u64::try_from(per_request.as_nanos()).unwrap_or(u64::MAX).max(1);
        let _ = self.pace.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| {
            Some(if old == 0 { new } else { old / 8 * 7 + new / 8 })
        });
    }

    /// When a queue of this length will have room again.
    fn patience(&self, waiting: usize) -> Duration {
        let workers = self.workers.load(Ordering::Acquire).max(1) as u64;
        let pace = self.pace.load(Ordering::Relaxed);
        let guess = Duration::from_nanos(pace.saturating_mul(waiting as u64) / workers);
        guess.clamp(Duration::from_millis(50), Duration::from_secs(60))
    }
}

impl<M: Model> Drop for Threads<M> {
    /// Nobody can wait any more: every caller holds a clone. Sessions must be gone before the process ends, so this waits
    /// for the runs under way.
    fn drop(&mut self) {
        self.shared.queue.close();
        for handle in self.handles.drain(..) {
            // A worker's panics are caught inside; should one escape, there is nobody left to tell.
            let _ = handle.join();
        }
    }
}

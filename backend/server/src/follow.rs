//! Polls crawls for event streams. A single task per crawl reads the crawl for all its streams.
//! `routes::crawls::events` sends the events.
use crate::auth::CallerId;
use crate::limit::{KeyedLimit, KeyedPermit};
use crate::{ApiError, Code, Config};
use metrics::{Gauge, describe_gauge, gauge};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::Store;
use store::crawls::{Crawl, CrawlProgress};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Time after which a caller with too many streams may try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Holds a crawl and its counts as stored. Convert it with `CrawlView::new` before it is sent in a
/// response. The conversion removes the fields that the caller may not see.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) crawl: Crawl,
    pub(crate) progress: CrawlProgress,
}

impl Snapshot {
    /// Loads the crawl with this id and its first seeds. Does not check whether a caller may see
    /// the crawl.
    pub(crate) async fn in_brief(store: &Store, id: Uuid) -> Result<Self, ApiError> {
        let crawl = store.crawl_in_brief(id).await?;
        let progress = store.crawl_progress(id).await?;
        Ok(Self { crawl, progress })
    }

    /// Returns whether the crawl has ended.
    pub(crate) fn is_over(&self) -> bool {
        !self.crawl.state.is_live()
    }
}

/// The result of one read of a crawl.
#[derive(Clone, Debug)]
pub(crate) enum CrawlRead {
    /// The crawl, and the time at which the read began.
    Found(Instant, Arc<Snapshot>),
    /// The crawl no longer exists.
    Gone,
}

/// The crawls that have event streams, and the callers of the streams.
pub(crate) struct CrawlFollowers {
    interval: Duration,
    max_streams: usize,
    streams: KeyedLimit<CallerId>,
    open: Gauge,
    shutdown: CancellationToken,
    inner: Arc<Inner>,
}

struct Inner {
    crawls: Mutex<HashMap<Uuid, Arc<watch::Sender<Option<CrawlRead>>>>>,
    followed: Gauge,
}

/// An open stream, which counts towards the limit of its caller.
pub(crate) struct Stream {
    open: Gauge,
    _permit: KeyedPermit<CallerId>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CrawlFollowers {
    pub(crate) fn new(config: &Config, shutdown: CancellationToken) -> Self {
        describe_gauge!("facecrawl_crawls_followed", "Number of crawls that are polled for event streams.");
        describe_gauge!("facecrawl_event_streams", "Number of open event streams.");
        let inner = Inner { crawls: Mutex::default(), followed: gauge!("facecrawl_crawls_followed") };
        let open = gauge!("facecrawl_event_streams");
        inner.followed.set(0.0);
        open.set(0.0);
        Self {
            interval: config.events_interval,
            max_streams: config.max_streams,
            streams: KeyedLimit::new(config.max_streams),
            open,
            shutdown,
            inner: Arc::new(inner),
        }
    }

    /// Counts a stream.
    ///
    /// # Errors
    /// Fails with 429 if the caller has the maximum number of streams.
    pub(crate) fn admit(&self, caller: CallerId) -> Result<Stream, ApiError> {
        let permit = self.streams.try_acquire(caller).ok_or_else(|| {
            let max = self.max_streams;
            let sentence = format!(
                "the caller already has {max} open event streams, the maximum per caller (MAX_EVENT_STREAMS)"
            );
            ApiError::new(Code::Overloaded, sentence).retry_after(RETRY_AFTER)
        })?;
        self.open.increment(1.0);
        Ok(Stream { open: self.open.clone(), _permit: permit })
    }

    /// Returns the results of all further reads of a crawl, including those without a change. The
    /// first read may have begun before this call.
    pub(crate) fn follow(&self, store: &Store, id: Uuid) -> watch::Receiver<Option<CrawlRead>> {
        let mut crawls = locked(&self.inner.crawls);
        if let Some(reads) = crawls.get(&id) {
            return reads.subscribe();
        }
        let (reads, receiver) = watch::channel(None);
        let reads = Arc::new(reads);
        crawls.insert(id, reads.clone());
        self.inner.followed.increment(1.0);
        let task =
            Task { id, store: store.clone(), reads, interval: self.interval, inner: self.inner.clone() };
        let shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => task.inner.forget(task.id, true),
                () = task.run() => true,
            }
        });
        receiver
    }
}

/// The task that reads one crawl.
struct Task {
    id: Uuid,
    store: Store,
    reads: Arc<watch::Sender<Option<CrawlRead>>>,
    interval: Duration,
    inner: Arc<Inner>,
}

impl Task {
    /// Reads the crawl until it has no streams. A failed read is repeated, because a short failure
    /// of the database should not end the streams.
    async fn run(&self) {
        loop {
            tokio::select! {
                () = self.reads.closed() => if self.inner.forget(self.id, false) { return },
                () = tokio::time::sleep(self.interval) => {}
            }
            let began = Instant::now();
            match Snapshot::in_brief(&self.store, self.id).await {
                Ok(crawl) => self.reads.send_replace(Some(CrawlRead::Found(began, Arc::new(crawl)))),
                Err(error) if error.code() == Code::NotFound => {
                    self.reads.send_replace(Some(CrawlRead::Gone))
                }
                Err(_) => continue,
            };
        }
    }
}

impl Inner {
    /// Removes a crawl, unless it has streams and `in_any_case` is false. Returns false if it was
    /// not removed.
    fn forget(&self, id: Uuid, in_any_case: bool) -> bool {
        let mut crawls = locked(&self.crawls);
        let is_followed = crawls.get(&id).is_some_and(|reads| reads.receiver_count() > 0);
        if is_followed && !in_any_case {
            return false;
        }
        if crawls.remove(&id).is_some() {
            self.followed.decrement(1.0);
        }
        true
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.open.decrement(1.0);
    }
}

//! Polls what event streams follow. A single task per item reads it for all its streams.
use crate::{Code, Config, Result};
use metrics::{Gauge, describe_gauge, gauge};
use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::Store;
use store::crawls::{Crawl, CrawlProgress};
use store::videos::Video;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub(crate) trait Followed: Send + Sync + Sized + 'static {
    /// Name and help of the gauge that counts the followed items.
    const GAUGE: &'static str;
    const HELP: &'static str;
    /// Loads the item with this id. Only the scope of `store` limits what a caller may see.
    fn read(store: &Store, id: Uuid) -> impl Future<Output = Result<Self>> + Send;
    fn is_over(&self) -> bool;
    /// Returns whether callers should be told of the difference from an earlier value.
    fn differs(&self, earlier: &Self) -> bool;
}

#[derive(Clone, Debug)]
pub(crate) enum Read<T> {
    /// The item, and the time at which the read began.
    Found(Instant, T),
    Gone,
}

type Reads<T> = Arc<watch::Sender<Option<Read<Arc<T>>>>>;

/// The items of one kind that have event streams.
pub(crate) struct Followers<T> {
    interval: Duration,
    shutdown: CancellationToken,
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    items: Mutex<HashMap<Uuid, Reads<T>>>,
    followed: Gauge,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Followed> Followers<T> {
    pub(crate) fn new(config: &Config, shutdown: CancellationToken) -> Self {
        describe_gauge!(T::GAUGE, T::HELP);
        let followed = gauge!(T::GAUGE);
        followed.set(0.0);
        let inner = Inner { items: Mutex::default(), followed };
        Self { interval: config.events_interval, shutdown, inner: Arc::new(inner) }
    }

    /// Returns the results of all further reads of an item, including those without a change. The
    /// first read may have begun before this call.
    pub(crate) fn follow(&self, store: &Store, id: Uuid) -> watch::Receiver<Option<Read<Arc<T>>>> {
        let mut items = locked(&self.inner.items);
        if let Some(reads) = items.get(&id) {
            return reads.subscribe();
        }
        let (reads, receiver) = watch::channel(None);
        let reads = Arc::new(reads);
        items.insert(id, reads.clone());
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

struct Task<T> {
    id: Uuid,
    store: Store,
    reads: Reads<T>,
    interval: Duration,
    inner: Arc<Inner<T>>,
}

impl<T: Followed> Task<T> {
    /// Reads the item until it has no streams. A failed read is repeated, because a short failure
    /// of the database should not end the streams.
    async fn run(&self) {
        loop {
            tokio::select! {
                () = self.reads.closed() => if self.inner.forget(self.id, false) { return },
                () = tokio::time::sleep(self.interval) => {}
            }
            let began = Instant::now();
            match T::read(&self.store, self.id).await {
                Ok(item) => self.reads.send_replace(Some(Read::Found(began, Arc::new(item)))),
                Err(error) if error.code() == Code::NotFound => self.reads.send_replace(Some(Read::Gone)),
                Err(_) => continue,
            };
        }
    }
}

impl<T> Inner<T> {
    /// Removes an item, unless it has streams and `in_any_case` is false. Returns false if it was
    /// not removed.
    fn forget(&self, id: Uuid, in_any_case: bool) -> bool {
        let mut items = locked(&self.items);
        let is_followed = items.get(&id).is_some_and(|reads| reads.receiver_count() > 0);
        if is_followed && !in_any_case {
            return false;
        }
        if items.remove(&id).is_some() {
            self.followed.decrement(1.0);
        }
        true
    }
}

/// Holds a crawl and its counts as stored. Convert it with `CrawlView::new` before it is sent in a
/// response. The conversion removes the fields that the caller may not see.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    pub(crate) crawl: Crawl,
    pub(crate) progress: CrawlProgress,
}

impl Followed for Snapshot {
    const GAUGE: &'static str = "facecrawl_crawls_followed";
    const HELP: &'static str = "Number of crawls that are polled for event streams.";

    /// Loads the crawl and its first seeds.
    async fn read(store: &Store, id: Uuid) -> Result<Self> {
        let crawl = store.crawls().get_brief(id).await?;
        let progress = store.crawls().progress(id).await?;
        Ok(Self { crawl, progress })
    }

    fn is_over(&self) -> bool {
        !self.crawl.state.is_live()
    }

    fn differs(&self, other: &Self) -> bool {
        self.crawl.state != other.crawl.state || self.progress != other.progress
    }
}

impl Followed for Video {
    const GAUGE: &'static str = "facecrawl_videos_followed";
    const HELP: &'static str = "Number of videos that are polled for event streams.";

    async fn read(store: &Store, id: Uuid) -> Result<Self> {
        Ok(store.videos().get(id).await?)
    }

    fn is_over(&self) -> bool {
        !self.state.is_live()
    }

    fn differs(&self, other: &Self) -> bool {
        let changing = |video: &Self| (video.state, video.checkpoint_us, video.frames, video.duration_us);
        changing(self) != changing(other)
    }
}

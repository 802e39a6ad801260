//! Polls the items that event streams follow. One task per item reads it for all its streams.
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

pub(crate) trait Followable: Send + Sync + Sized + 'static {
    /// Name and help of the gauge that counts the followed items.
    const GAUGE: &'static str;
    const HELP: &'static str;
    /// Loads the item with this id. Only the scope of `store` limits what a caller may see.
    fn load(store: &Store, id: Uuid) -> impl Future<Output = Result<Self>> + Send;
    fn has_ended(&self) -> bool;
    /// Returns whether the value has a difference from an earlier one that must be sent to callers.
    fn differs_from(&self, earlier: &Self) -> bool;
}

#[derive(Clone, Debug)]
pub(crate) enum Update<T> {
    /// The item, and the time at which the read began.
    Found(Instant, T),
    Deleted,
}

type UpdateSender<T> = Arc<watch::Sender<Option<Update<Arc<T>>>>>;

/// The items of one kind that have event streams.
pub(crate) struct Followers<T> {
    interval: Duration,
    shutdown: CancellationToken,
    inner: Arc<Inner<T>>,
}

struct Inner<T> {
    items: Mutex<HashMap<Uuid, UpdateSender<T>>>,
    item_gauge: Gauge,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Followable> Followers<T> {
    pub(crate) fn new(config: &Config, shutdown: CancellationToken) -> Self {
        describe_gauge!(T::GAUGE, T::HELP);
        let item_gauge = gauge!(T::GAUGE);
        item_gauge.set(0.0);
        let inner = Inner { items: Mutex::default(), item_gauge };
        Self { interval: config.events_interval, shutdown, inner: Arc::new(inner) }
    }

    /// Returns the results of all further reads of an item, including those without a change. The
    /// first read may have begun before this call.
    pub(crate) fn follow(&self, store: &Store, id: Uuid) -> watch::Receiver<Option<Update<Arc<T>>>> {
        let mut items = lock(&self.inner.items);
        if let Some(sender) = items.get(&id) {
            return sender.subscribe();
        }
        let (sender, receiver) = watch::channel(None);
        let sender = Arc::new(sender);
        items.insert(id, sender.clone());
        self.inner.item_gauge.increment(1.0);
        let task =
            Task { id, store: store.clone(), sender, interval: self.interval, inner: self.inner.clone() };
        let shutdown = self.shutdown.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => task.inner.remove(task.id, true),
                () = task.run() => true,
            }
        });
        receiver
    }
}

struct Task<T> {
    id: Uuid,
    store: Store,
    sender: UpdateSender<T>,
    interval: Duration,
    inner: Arc<Inner<T>>,
}

impl<T: Followable> Task<T> {
    /// Reads the item until it has no streams. A failed read is repeated, because a short failure
    /// of the database should not end the streams.
    async fn run(&self) {
        loop {
            tokio::select! {
                () = self.sender.closed() => if self.inner.remove(self.id, false) { return },
                () = tokio::time::sleep(self.interval) => {}
            }
            let started = Instant::now();
            match T::load(&self.store, self.id).await {
                Ok(item) => self.sender.send_replace(Some(Update::Found(started, Arc::new(item)))),
                Err(error) if error.code() == Code::NotFound => {
                    self.sender.send_replace(Some(Update::Deleted))
                }
                Err(_) => continue,
            };
        }
    }
}

impl<T> Inner<T> {
    /// Removes an item. An item with streams is removed only with `force`. Returns `false` if the
    /// item was not removed.
    fn remove(&self, id: Uuid, force: bool) -> bool {
        let mut items = lock(&self.items);
        let is_followed = items.get(&id).is_some_and(|sender| sender.receiver_count() > 0);
        if is_followed && !force {
            return false;
        }
        if items.remove(&id).is_some() {
            self.item_gauge.decrement(1.0);
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

impl Followable for Snapshot {
    const GAUGE: &'static str = "facecrawl_crawls_followed";
    const HELP: &'static str = "Number of crawls that are polled for event streams.";

    /// Loads the crawl and its first seeds.
    async fn load(store: &Store, id: Uuid) -> Result<Self> {
        let crawl = store.crawls().get_brief(id).await?;
        let progress = store.crawls().progress(id).await?;
        Ok(Self { crawl, progress })
    }

    fn has_ended(&self) -> bool {
        !self.crawl.state.is_live()
    }

    fn differs_from(&self, other: &Self) -> bool {
        self.crawl.state != other.crawl.state || self.progress != other.progress
    }
}

impl Followable for Video {
    const GAUGE: &'static str = "facecrawl_videos_followed";
    const HELP: &'static str = "Number of videos that are polled for event streams.";

    async fn load(store: &Store, id: Uuid) -> Result<Self> {
        Ok(store.videos().get(id).await?)
    }

    fn has_ended(&self) -> bool {
        !self.state.is_live()
    }

    fn differs_from(&self, other: &Self) -> bool {
        let changing = |video: &Self| (video.state, video.checkpoint_us, video.frames, video.duration_us);
        changing(self) != changing(other)
    }
}

/// The last number of an alert of a collection. All streams of a collection share one read of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AlertCount(pub(crate) i64);

impl Followable for AlertCount {
    const GAUGE: &'static str = "facecrawl_alerts_followed";
    const HELP: &'static str = "Number of collections that are polled for event streams of alerts.";

    async fn load(store: &Store, id: Uuid) -> Result<Self> {
        store.collections().by_id(id).await?;
        Ok(Self(store.alerts().last_sequence(id).await?))
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn differs_from(&self, earlier: &Self) -> bool {
        self.0 != earlier.0
    }
}

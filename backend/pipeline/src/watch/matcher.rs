//! Compares the new faces with the watchlists, in every worker process. The decision is in
//! `compare`, the deliveries are in `delivery`.
//!
//! Triggers write an entry for each new face in the transaction that stores it, and notify the
//! processes. One transaction claims entries, reads the version of the watchlists, compares, stores
//! the alerts and deletes the entries. `docs/explanation/WATCH.md`
//! describes why each match has exactly one alert.
use crate::watch::compare::compare;
use metrics::{counter, describe_counter, describe_histogram, histogram};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::watch::WatchListener;
use store::watch::matching::{NewFaceToCompare, WatchedFaces};
use store::watch::new_alerts::NewAlert;
use store::{Store, StoreError, Tx};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Number of faces of one transaction.
const BATCH: i64 = 256;
/// Time after which a process looks for new faces without a notification. A notification is lost
/// only while the connection that listens is broken.
const FALLBACK_INTERVAL: Duration = Duration::from_secs(5);
/// Wait before the faces of a collection are compared again if another transaction had locked them,
/// or after an error. Other collections are compared meanwhile.
const BUSY_WAIT: Duration = Duration::from_millis(50);
const ERROR_WAIT: Duration = Duration::from_secs(1);
/// Maximum number of collections that one query returns.
const COLLECTIONS: i64 = 100;
/// Number of transactions after which outdated lists are removed from memory, if new faces arrive
/// without a break.
const STEPS_PER_CHECK: usize = 32;
/// Maximum memory of the watched faces in a process, in bytes. With 512 components, two collections
/// with 50,000 watched faces each fit. One list is held even if it is larger.
const MAX_BYTES: usize = 256 << 20;

/// Compares new faces with watchlists. One per process is enough.
pub struct Matcher {
    store: Store,
    /// `MATCH_THRESHOLD`.
    threshold: Option<f32>,
    /// The watched faces of collections and models.
    lists: HashMap<(Uuid, i32), Arc<WatchedFaces>>,
    /// The collection of the last transaction. The next transaction is for the collection with the
    /// next higher id, so that no collection delays the others.
    last: Uuid,
    /// Collections that wait after an error, or for a lock.
    postponed: HashMap<Uuid, Instant>,
}

/// The result of one transaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// Number of entries that the transaction deleted.
    pub compared: usize,
    /// Number of entries that remain, because another transaction had locked a row.
    pub busy: usize,
    /// Number of alerts that were stored.
    pub alerts: usize,
}

impl Matcher {
    /// `threshold` is the minimum similarity that the service sets, if it sets one.
    pub fn new(store: Store, threshold: Option<f32>) -> Self {
        describe_counter!("facecrawl_watch_faces_total", "Number of new faces compared with watchlists.");
        describe_counter!("facecrawl_alerts_total", "Number of alerts, by the state of their delivery.");
        describe_histogram!(
            "facecrawl_watch_delay_seconds",
            "Time from the storing of a face to the comparison with watchlists."
        );
        Self { store, threshold, lists: HashMap::new(), last: Uuid::nil(), postponed: HashMap::new() }
    }

    /// Compares new faces until `shutdown` is cancelled.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let _stopped = shutdown.run_until_cancelled(self.run_forever()).await;
    }

    async fn run_forever(&mut self) {
        loop {
            let mut listener = match self.store.watchlists().listen().await {
                Ok(listener) => Some(listener),
                Err(error) => {
                    tracing::warn!(%error, "failed to listen for new faces; looking for them periodically");
                    None
                }
            };
            while self.run_once(listener.as_mut()).await {}
        }
    }

    /// Compares all new faces, and waits for the next ones. Returns `false` if the listener must be
    /// replaced.
    async fn run_once(&mut self, listener: Option<&mut WatchListener>) -> bool {
        let is_listening = listener.is_some();
        let mut steps = 0;
        loop {
            let collection = match self.next_collection().await {
                Ok(Some(collection)) => collection,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "failed to look for new faces; trying again");
                    tokio::time::sleep(ERROR_WAIT).await;
                    continue;
                }
            };
            let wait = match self.compare_collection(collection).await {
                Ok(Step { compared: 0, .. }) => Some(BUSY_WAIT),
                Ok(_) => None,
                Err(error) => {
                    tracing::warn!(%collection, %error, "failed to compare new faces with watchlists; trying again");
                    Some(ERROR_WAIT)
                }
            };
            if let Some(wait) = wait {
                self.postponed.insert(collection, Instant::now() + wait);
            }
            steps += 1;
            if steps % STEPS_PER_CHECK == 0 {
                self.check_lists().await;
            }
        }
        self.check_lists().await;
        let now = Instant::now();
        let next = self.postponed.values().map(|until| until.saturating_duration_since(now)).min();
        let interval = next.map_or(FALLBACK_INTERVAL, |next| next.min(FALLBACK_INTERVAL));
        let notified = async {
            match listener {
                Some(listener) => listener.wait().await,
                None => std::future::pending().await,
            }
        };
        match tokio::time::timeout(interval, notified).await {
            Ok(Ok(())) => true,
            Ok(Err(error)) => {
                tracing::warn!(%error, "lost the connection that listens for new faces");
                false
            }
            Err(_) => is_listening || next.is_some(),
        }
    }

    async fn check_lists(&mut self) {
        if let Err(error) = self.drop_outdated_lists().await {
            tracing::debug!(%error, "failed to read the versions of watchlists");
        }
    }

    /// Returns the collection whose new faces are compared next: the next one in the order of ids
    /// that has new faces and is not postponed.
    async fn next_collection(&mut self) -> Result<Option<Uuid>, StoreError> {
        let now = Instant::now();
        self.postponed.retain(|_, until| *until > now);
        let mut tx = self.store.begin().await?;
        let mut after = self.last;
        let mut may_wrap = after > Uuid::nil();
        loop {
            let watchlists = self.store.watchlists();
            let found = watchlists.collections_with_new_faces(tx.conn(), after, COLLECTIONS).await?;
            if let Some(next) = found.iter().find(|collection| !self.postponed.contains_key(collection)) {
                self.last = *next;
                return Ok(Some(*next));
            }
            after = match found.last() {
                Some(last) if found.len() as i64 >= COLLECTIONS => *last,
                _ if may_wrap => {
                    may_wrap = false;
                    Uuid::nil()
                }
                _ => return Ok(None),
            };
        }
    }

    /// Compares a batch of new faces of the next collection in one transaction.
    ///
    /// # Errors
    /// Fails if the database fails. The entries then remain, unless the commit succeeded.
    pub async fn step(&mut self) -> Result<Step, StoreError> {
        match self.next_collection().await? {
            Some(collection) => self.compare_collection(collection).await,
            None => Ok(Step::default()),
        }
    }

    async fn compare_collection(&mut self, collection: Uuid) -> Result<Step, StoreError> {
        let mut tx = self.store.begin().await?;
        let claimed = self.store.watchlists().claim(tx.conn(), collection, BATCH).await?;
        let mut step = Step { busy: claimed.busy, ..Step::default() };
        if claimed.faces.is_empty() && claimed.gone.is_empty() {
            return Ok(step);
        }
        let alerts = self.find_alerts(&mut tx, &claimed.faces).await?;
        let busy = self.store.watchlists().lock_parents(tx.conn(), &alerts).await?;
        let alerts: Vec<NewAlert> =
            alerts.into_iter().filter(|alert| !busy.contains(&alert.face_id)).collect();
        let compared: Vec<&NewFaceToCompare> =
            claimed.faces.iter().filter(|face| !busy.contains(&face.entry.face_id)).collect();
        let entries: Vec<i64> =
            compared.iter().map(|face| face.entry.id).chain(claimed.gone.iter().copied()).collect();
        let stored = self.store.watchlists().store_alerts(tx.conn(), &alerts, &entries).await?;
        let now = self.store.watchlists().clock(tx.conn()).await?;
        tx.commit().await?;
        counter!("facecrawl_watch_faces_total").increment(compared.len() as u64);
        let delay = histogram!("facecrawl_watch_delay_seconds");
        for face in &compared {
            delay.record((now - face.entry.stored_at).as_seconds_f64().max(0.0));
        }
        for alert in &stored {
            counter!("facecrawl_alerts_total", "delivery" => alert.delivery.as_str()).increment(1);
        }
        step.compared = entries.len();
        step.busy += busy.len();
        step.alerts = stored.len();
        Ok(step)
    }

    /// Compares the faces with the current watchlists of their collections.
    async fn find_alerts(
        &mut self,
        tx: &mut Tx,
        faces: &[NewFaceToCompare],
    ) -> Result<Vec<NewAlert>, StoreError> {
        let mut groups: BTreeMap<(Uuid, i32), Vec<NewFaceToCompare>> = BTreeMap::new();
        for face in faces {
            groups.entry((face.entry.collection_id, face.model_id)).or_default().push(face.clone());
        }
        let collections: Vec<Uuid> = groups.keys().map(|(collection, _)| *collection).collect();
        // This statement runs after the claim, so the versions include every change that was
        // committed before one of these faces.
        let versions = self.store.watchlists().versions(tx.conn(), &collections).await?;
        let mut alerts = Vec::new();
        // One list after the other, so that the memory is bounded.
        for (key, faces) in groups {
            let version = versions.get(&key.0).cloned().unwrap_or_default();
            let list = match self.lists.get(&key).filter(|list| list.version == version) {
                Some(list) => list.clone(),
                None => {
                    self.lists.remove(&key);
                    let list = self
                        .store
                        .watchlists()
                        .watched_faces(tx.conn(), key.0, key.1, version, self.threshold)
                        .await?;
                    self.insert_list(key, Arc::new(list))
                }
            };
            let compared = tokio::task::spawn_blocking(move || compare(&list, &faces)).await;
            alerts.extend(
                compared.map_err(|error| StoreError::Invalid(format!("the comparison failed: {error}")))?,
            );
        }
        Ok(alerts)
    }

    /// Keeps a list in memory. If all lists together are too large, only this one is kept.
    fn insert_list(&mut self, key: (Uuid, i32), list: Arc<WatchedFaces>) -> Arc<WatchedFaces> {
        let bytes: usize = self.lists.values().map(|list| list.bytes()).sum();
        if bytes + list.bytes() > MAX_BYTES {
            self.lists.clear();
        }
        self.lists.insert(key, list.clone());
        list
    }

    /// Removes outdated lists from memory, so that it contains no erased embedding. Shortens long
    /// versions.
    async fn drop_outdated_lists(&mut self) -> Result<(), StoreError> {
        if self.lists.is_empty() {
            return Ok(());
        }
        for ((collection, _), list) in &self.lists {
            self.store.watchlists().compact_changes(*collection, &list.version).await?;
        }
        let collections: Vec<Uuid> = self.lists.keys().map(|(collection, _)| *collection).collect();
        let mut tx = self.store.begin().await?;
        let versions = self.store.watchlists().versions(tx.conn(), &collections).await?;
        self.lists.retain(|(collection, _), list| versions.get(collection) == Some(&list.version));
        Ok(())
    }
}

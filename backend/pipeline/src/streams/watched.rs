//! Compares faces in memory with the watchlists of a collection, before anything is stored.
use crate::watch::compare::{Candidate, Verdict, verdicts};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use store::watch::matching::{NewFaceToCompare, OutboxEntry, WatchVersion, WatchedFaces};
use store::{Store, StoreError};
use time::OffsetDateTime;
use uuid::Uuid;
use vision::QualityReport;

/// Minimum time between two reads of the watchlists. A change takes effect after at most this time.
const REFRESH_INTERVAL: Duration = Duration::from_secs(1);

/// The comparison of one face.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Comparison {
    /// The watchlists that the face matches.
    pub(crate) matches: Vec<WatchlistMatch>,
    /// The watchlists that report the face because it resembles nobody on them.
    pub(crate) unknown_to: Vec<Uuid>,
    /// The watchlists that report unknown faces and know this one.
    pub(crate) known_to: Vec<Uuid>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct WatchlistMatch {
    pub(crate) watchlist: Uuid,
    /// The cosine similarity to the most similar watched face, minus the threshold of the
    /// watchlist.
    pub(crate) margin: f32,
}

/// The watched faces of the collections of a process, which its cameras share.
pub(crate) type SharedLists = Arc<Mutex<HashMap<Uuid, Weak<WatchedFaces>>>>;

/// The watched faces of one collection, for one camera.
pub(crate) struct WatchedPeople {
    store: Store,
    shared: SharedLists,
    collection: Uuid,
    model: i32,
    /// `MATCH_THRESHOLD`.
    threshold: Option<f32>,
    list: Arc<WatchedFaces>,
    read_at: Option<Instant>,
}

impl WatchedPeople {
    pub(crate) fn new(
        store: Store,
        shared: SharedLists,
        (collection, model): (Uuid, i32),
        threshold: Option<f32>,
    ) -> Self {
        Self { store, shared, collection, model, threshold, list: Arc::default(), read_at: None }
    }

    /// Reads the watchlists again if they have changed.
    async fn refresh(&mut self) -> Result<(), StoreError> {
        if self.read_at.is_some_and(|read_at| read_at.elapsed() < REFRESH_INTERVAL) {
            return Ok(());
        }
        let now = Instant::now();
        let mut tx = self.store.begin().await?;
        let watchlists = self.store.watchlists();
        let mut versions = watchlists.versions(tx.conn(), &[self.collection]).await?;
        let version = versions.remove(&self.collection).unwrap_or_default();
        if self.read_at.is_none() || version != self.list.version {
            // Drop the old list first: if the read fails, it must not keep embeddings that were
            // erased.
            self.list = Arc::default();
            self.list = match self.shared_list(&version) {
                Some(list) => list,
                None => {
                    let (collection, model, threshold) = (self.collection, self.model, self.threshold);
                    let list =
                        watchlists.watched_faces(tx.conn(), collection, model, version, threshold).await?;
                    let list = Arc::new(list);
                    self.shared.lock().insert(collection, Arc::downgrade(&list));
                    list
                }
            };
        }
        self.read_at = Some(now);
        Ok(())
    }

    /// Returns the list that another camera of the collection has read, if it is current.
    fn shared_list(&self, version: &WatchVersion) -> Option<Arc<WatchedFaces>> {
        let list = self.shared.lock().get(&self.collection)?.upgrade()?;
        (list.version == *version).then_some(list)
    }

    /// Removes the watched faces from memory.
    pub(crate) fn forget(&mut self) {
        self.list = Arc::default();
        self.read_at = None;
    }

    /// Compares faces, each with its embedding and quality, with the current watchlists.
    pub(crate) async fn compare(
        &mut self,
        faces: &[(&[f32], Option<&QualityReport>)],
    ) -> Result<Vec<Comparison>, StoreError> {
        self.refresh().await?;
        let mut comparisons = vec![Comparison::default(); faces.len()];
        if faces.is_empty() || self.list.watchlists.is_empty() {
            return Ok(comparisons);
        }
        let stored_at = OffsetDateTime::now_utc();
        let face = |(embedding, quality): &(&[f32], Option<&QualityReport>)| NewFaceToCompare {
            entry: OutboxEntry {
                // Later than the creation of each watchlist.
                id: i64::MAX,
                // It equals no watched face.
                face_id: Uuid::nil(),
                collection_id: self.collection,
                stored_at,
            },
            model_id: self.model,
            embedding: embedding.to_vec(),
            passed: quality.is_none_or(|quality| quality.passed),
            quality: quality.and_then(|quality| serde_json::to_value(quality).ok()),
            enrolled_as: None,
            track_id: None,
            is_brief: false,
        };
        let faces: Vec<NewFaceToCompare> = faces.iter().map(face).collect();
        let list = self.list.clone();
        let compared = tokio::task::spawn_blocking(move || verdicts(&list, &faces)).await;
        let compared =
            compared.map_err(|error| StoreError::Invalid(format!("the comparison failed: {error}")))?;
        for (comparison, verdicts) in comparisons.iter_mut().zip(compared) {
            for (index, verdict) in verdicts {
                let watchlist = &self.list.watchlists[index];
                match verdict {
                    Verdict::Match(Candidate { similarity, .. }) => {
                        let margin = similarity - watchlist.threshold;
                        comparison.matches.push(WatchlistMatch { watchlist: watchlist.id, margin });
                    }
                    Verdict::Unknown => comparison.unknown_to.push(watchlist.id),
                    Verdict::Known => comparison.known_to.push(watchlist.id),
                }
            }
        }
        Ok(comparisons)
    }
}

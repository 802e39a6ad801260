//! Periodic maintenance of the stored data: deletes expired images and crawls, unused hosts, and
//! blobs that no row refers to. Crawls are repaired in `crawls::control`.

use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde_json::json;
use std::time::{Duration, Instant};
use store::blobs::deletions::MAX_REPORTED_KEYS;
use store::keys::audit::{Action, Actor, AuditEntry};
use store::{Blobs, Store, StoreError};
use time::OffsetDateTime;

/// Interval between two maintenance runs, across all processes.
const INTERVAL: Duration = Duration::from_secs(3600);
/// Minimum age of a blob that the sweep deletes. An image with a younger blob may be incomplete.
pub const GRACE: Duration = Duration::from_secs(3600);
/// Number of blobs that one query looks up.
const CHUNK: usize = 500;
/// Hosts that have received no request for this time are deleted. Their data is out of date by
/// then: a robots.txt and a learned pace are valid for one day.
const HOST_RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);
/// Interval between two deletions of unused hosts, which read every host.
const HOSTS_INTERVAL: Duration = Duration::from_secs(24 * 3600);
/// Maximum time for which one maintenance run moves files of earlier releases.
const MAX_MOVE_TIME: Duration = Duration::from_secs(600);
const FILES_PER_MOVE: i64 = 200;

/// Maintains the store and the blobs. Cloning it is cheap.
#[derive(Clone)]
pub struct Maintenance {
    store: Store,
    blobs: Blobs,
}

/// The numbers of rows that retention deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Expiry {
    pub images: u64,
    /// Number of faces of these images.
    pub faces: u64,
    /// Number of records of videos.
    pub videos: u64,
    /// Number of crawl records.
    pub crawls: u64,
    /// Number of alerts about faces that are kept.
    pub alerts: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SweepReport {
    /// Number of blobs in the blob store.
    pub blobs: u64,
    /// Number of blobs without a row that are older than the grace period.
    pub orphans: u64,
    /// Number of deleted blobs: orphans, and blobs left over from erasures.
    pub removed: u64,
    /// Number of incomplete files that killed processes left. They are not blobs.
    pub abandoned: u64,
    /// Number of missing blobs: a row refers to them, but the blob store does not contain them.
    /// `None` if the caller did not request it.
    pub missing: Option<u64>,
    /// Keys of the missing blobs, at most 20.
    pub missing_keys: Vec<String>,
}

impl Maintenance {
    pub fn new(store: Store, blobs: Blobs) -> Self {
        Self { store, blobs }
    }

    /// Runs the maintenance that is due, unless another process has claimed it.
    ///
    /// # Errors
    /// Fails if the store fails. The next run continues where this one ended.
    pub async fn run_due(&self) -> Result<(), StoreError> {
        if !self.store.retention().claim_maintenance("upkeep", INTERVAL).await? {
            return Ok(());
        }
        let expiry = self.expire().await?;
        self.end_watchlists().await?;
        self.expire_recordings().await?;
        if self.store.retention().claim_maintenance("hosts", HOSTS_INTERVAL).await? {
            let forgotten = self.delete_unused_hosts().await?;
            tracing::info!(forgotten, "deleted unused hosts");
        }
        let swept = self.sweep(GRACE, false, false).await?;
        let moved = self.move_separate_files().await?;
        tracing::info!(
            images = expiry.images,
            videos = expiry.videos,
            crawls = expiry.crawls,
            alerts = expiry.alerts,
            orphans = swept.orphans,
            removed = swept.removed,
            abandoned = swept.abandoned,
            moved,
            "maintenance finished"
        );
        Ok(())
    }

    /// Deletes content that is older than the retention period of its collection.
    ///
    /// # Errors
    /// Fails if the store fails. Earlier deletions are kept.
    pub async fn expire(&self) -> Result<Expiry, StoreError> {
        let mut expiry = Expiry::default();
        for collection in self.store.retention().collections().await? {
            loop {
                let mut tx = self.store.begin().await?;
                let expired = self.store.retention().expire_step(tx.conn(), collection).await?;
                if expired.is_empty() {
                    break;
                }
                if expired.images + expired.videos + expired.crawls + expired.alerts > 0 {
                    let entry = AuditEntry {
                        action: Action::Expire,
                        collection_id: Some(collection),
                        actor: Actor::default(),
                        detail: json!({"images": expired.images, "faces": expired.faces, "videos": expired.videos,
                                       "crawls": expired.crawls, "alerts": expired.alerts}),
                    };
                    self.store.audit().record(tx.conn(), &entry).await?;
                }
                tx.commit().await?;
                self.store.blobs().delete(&self.blobs, &expired.blobs).await?;
                expiry.images += expired.images;
                expiry.faces += expired.faces;
                expiry.videos += expired.videos;
                expiry.crawls += expired.crawls;
                expiry.alerts += expired.alerts;
            }
        }
        Ok(expiry)
    }

    /// Deletes what is stored of cameras and is older than the retention of the camera. Returns the
    /// number of deleted images.
    ///
    /// # Errors
    /// Fails if the store fails. Earlier deletions are kept.
    pub async fn expire_recordings(&self) -> Result<u64, StoreError> {
        let streams = self.store.streams();
        let mut images = 0;
        for collection in streams.collections_with_expired_recordings().await? {
            loop {
                let mut tx = self.store.begin().await?;
                let expired = streams.expire_recordings(tx.conn(), collection).await?;
                if expired.images + expired.videos == 0 {
                    break;
                }
                let entry = AuditEntry {
                    action: Action::Expire,
                    collection_id: Some(collection),
                    actor: Actor::default(),
                    detail: json!({"images": expired.images, "videos": expired.videos, "streams": true}),
                };
                self.store.audit().record(tx.conn(), &entry).await?;
                tx.commit().await?;
                self.store.blobs().delete(&self.blobs, &expired.blobs).await?;
                images += expired.images;
            }
        }
        Ok(images)
    }

    /// Ends the watchlists that have expired. Returns their number.
    ///
    /// # Errors
    /// Fails if the store fails. Then no watchlist is ended.
    pub async fn end_watchlists(&self) -> Result<u64, StoreError> {
        let mut tx = self.store.begin().await?;
        let ended = self.store.watchlists().end_expired(tx.conn()).await?;
        for (watchlist, collection) in &ended {
            let entry = AuditEntry {
                action: Action::EndWatchlist,
                collection_id: Some(*collection),
                actor: Actor::default(),
                detail: json!({"watchlist_id": watchlist}),
            };
            self.store.audit().record(tx.conn(), &entry).await?;
        }
        tx.commit().await?;
        Ok(ended.len() as u64)
    }

    /// Deletes hosts that received no request for a week, and delays of collections that have
    /// ended. Returns the number of hosts.
    ///
    /// # Errors
    /// Fails if the store fails. Earlier deletions are kept.
    pub async fn delete_unused_hosts(&self) -> Result<u64, StoreError> {
        self.store.hosts().prune_delays().await?;
        let (mut after, mut deleted) = (None, 0);
        loop {
            let (last, pruned) = self.store.hosts().prune(after.as_deref(), HOST_RETENTION).await?;
            deleted += pruned;
            after = last;
            if after.is_none() {
                return Ok(deleted);
            }
        }
    }

    /// Moves files that an earlier release stored as separate blobs into one blob for each image.
    /// Returns the number of images. Ends after ten minutes; the next run continues.
    async fn move_separate_files(&self) -> Result<u64, StoreError> {
        let (started, mut moved, mut after) = (Instant::now(), 0, String::new());
        while started.elapsed() < MAX_MOVE_TIME {
            let (images, last) =
                self.store.blobs().move_separate_files(&self.blobs, &after, FILES_PER_MOVE).await?;
            moved += images;
            match last {
                Some(last) => after = last,
                None => break,
            }
        }
        Ok(moved)
    }

    /// Deletes incomplete files that killed processes left. Call it when a process starts: such
    /// files can be large.
    ///
    /// # Errors
    /// Fails if the blob store fails.
    pub async fn remove_abandoned(&self) -> Result<u64, StoreError> {
        self.blobs.remove_abandoned(OffsetDateTime::now_utc() - GRACE, false).await
    }

    /// Deletes blobs left over from erasures, blobs older than `grace` that no row refers to, and
    /// incomplete files that killed processes left. With `count_missing`, also counts the blobs
    /// that a row refers to and the blob store does not contain. With `dry_run`, deletes nothing.
    ///
    /// # Errors
    /// Fails if the database or the blob store fails.
    pub async fn sweep(
        &self,
        grace: Duration,
        count_missing: bool,
        dry_run: bool,
    ) -> Result<SweepReport, StoreError> {
        let mut swept = SweepReport::default();
        if !dry_run {
            swept.removed += self.store.blobs().delete_pending(&self.blobs).await?;
        }
        // A blob is deleted only if it is older than `grace` by the clock of the database and by
        // the clock of this process. Otherwise, a clock that is ahead could delete a blob that is
        // still being stored.
        let cutoff = self.store.clock().await?.min(OffsetDateTime::now_utc()) - grace;
        swept.abandoned = self.blobs.remove_abandoned(cutoff, dry_run).await?;
        let mut chunks = self.blobs.list().try_chunks(CHUNK);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| error.1)?;
            swept.blobs += chunk.len() as u64;
            let keys = chunk.into_iter().filter(|blob| blob.modified < cutoff).map(|blob| blob.key).collect();
            let mut tx = self.store.begin().await?;
            let orphans = self.store.blobs().orphans(tx.conn(), keys).await?;
            swept.orphans += orphans.len() as u64;
            if dry_run || orphans.is_empty() {
                continue;
            }
            // The orphans are recorded for deletion like the blobs of a deleted row. If an image is
            // being stored with one of these blobs, the blob is therefore kept.
            self.store.blobs().record_deletions(tx.conn(), orphans.clone()).await?;
            tx.commit().await?;
            swept.removed += self.store.blobs().delete(&self.blobs, &orphans).await?;
        }
        if count_missing {
            self.count_missing(&mut swept).await?;
        }
        Ok(swept)
    }

    async fn count_missing(&self, swept: &mut SweepReport) -> Result<(), StoreError> {
        let (mut count, mut after) = (0, String::new());
        loop {
            let keys = self.store.blobs().keys(&after, CHUNK as i64).await?;
            let Some(last) = keys.last() else { break };
            after.clone_from(last);
            let checked = futures::stream::iter(keys)
                .map(async |key| Ok::<_, StoreError>((self.blobs.exists(&key).await?, key)))
                .buffered(16)
                .try_collect::<Vec<_>>()
                .await?;
            for (_, key) in checked.into_iter().filter(|(exists, _)| !exists) {
                count += 1;
                if swept.missing_keys.len() < MAX_REPORTED_KEYS {
                    swept.missing_keys.push(key);
                }
            }
        }
        swept.missing = Some(count);
        Ok(())
    }
}

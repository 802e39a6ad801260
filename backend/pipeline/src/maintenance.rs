//! What is done from time to time whether somebody asks or not: what has expired goes, and so do blobs that nothing names.

use futures::{StreamExt, TryStreamExt};
use serde::Serialize;
use serde_json::json;
use std::time::Duration;
use store::audit::{Action, AuditEntry};
use store::{Blobs, Store, StoreError};
use time::OffsetDateTime;

/// Time between two turns, of all processes together.
const EVERY: Duration = Duration::from_secs(3600);
/// A blob that is younger may belong to a picture that is being stored.
pub const GRACE: Duration = Duration::from_secs(3600);
/// Blobs that are looked up in one go.
const CHUNK: usize = 500;
/// What is known of a host that no crawl asked for so long is worth nothing: robots.txt is fetched anew after a day, and pace is today's.
const HOSTS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Time between two prunings of hosts, which look at every host.
const HOSTS_EVERY: Duration = Duration::from_secs(24 * 3600);
/// Keys of missing blobs that are told.
const TOLD: usize = 20;

/// Looks after what is stored; cheap to clone.
#[derive(Clone)]
pub struct Maintenance {
    store: Store,
    blobs: Blobs,
}

/// What retention took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Expiry {
    /// Images, with their faces.
    pub images: u64,
    /// Faces.
    pub faces: u64,
    /// Records of crawls.
    pub crawls: u64,
}

/// What a sweep found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Swept {
    /// Blobs in the store.
    pub blobs: u64,
    /// Blobs without a row, older than an hour.
    pub orphans: u64,
    /// Blobs that were removed: orphans, and what erasures had left over.
    pub removed: u64,
    /// Blobs that a row names and that are not there; `None` when it was not asked for.
    pub missing: Option<u64>,
    /// Keys of some of them.
    pub missing_keys: Vec<String>,
}

impl Maintenance {
    /// On a store and its blobs.
    pub fn new(store: Store, blobs: Blobs) -> Self {
        Self { store, blobs }
    }

    /// Does what is due, if it is this process's turn.
    ///
    /// # Errors
    /// Those of the store; the next turn goes on where this one ended.
    pub async fn turn(&self) -> Result<(), StoreError> {
        if !self.store.claim_maintenance("upkeep", EVERY).await? {
            return Ok(());
        }
        let expiry = self.expire().await?;
        if self.store.claim_maintenance("hosts", HOSTS_EVERY).await? {
            let forgotten = self.forget_hosts().await?;
            tracing::info!(forgotten, "forgot hosts that no crawl asks any more");
        }
        let swept = self.sweep(GRACE, false, false).await?;
        tracing::info!(
            images = expiry.images,
            crawls = expiry.crawls,
            orphans = swept.orphans,
            removed = swept.removed,
            "looked after what is stored"
        );
        Ok(())
    }

    /// Erases what its collection keeps no longer.
    ///
    /// # Errors
    /// Those of the store; what was erased until then stays so.
    pub async fn expire(&self) -> Result<Expiry, StoreError> {
        let mut expiry = Expiry::default();
        for collection in self.store.collections_with_retention().await? {
            loop {
                let mut tx = self.store.begin().await?;
                let expired = self.store.expire_some(tx.conn(), collection).await?;
                if expired.is_empty() {
                    break;
                }
                if expired.images + expired.crawls > 0 {
                    let entry = AuditEntry {
                        action: Action::Expire,
                        collection_id: Some(collection),
                        key_id: None,
                        request_id: None,
                        detail: json!({"images": expired.images, "faces": expired.faces, "crawls": expired.crawls}),
                    };
                    self.store.audit(tx.conn(), &entry).await?;
                }
                tx.commit().await?;
                self.store.drop_blobs(&self.blobs, &expired.blobs).await?;
                expiry.images += expired.images;
                expiry.faces += expired.faces;
                expiry.crawls += expired.crawls;
            }
        }
        Ok(expiry)
    }

    /// Deletes hosts that no crawl has requested for a week, and delays of collections that have
    /// ended. Returns the number of hosts.
    ///
    /// # Errors
    /// Those of the store; what was forgotten until then stays so.
    pub async fn forget_hosts(&self) -> Result<u64, StoreError> {
        self.store.prune_host_delays().await?;
        let (mut after, mut forgotten) = (None, 0);
        loop {
            let (last, pruned) = self.store.prune_hosts(after.as_deref(), HOSTS_KEPT).await?;
            forgotten += pruned;
            after = last;
            if after.is_none() {
                return Ok(forgotten);
            }
        }
    }

    /// Removes what erasures have left over and blobs that no row names and that are older than `grace`; with `missing` also counts the
    /// blobs that rows name and that are not there. A `dry_run` only looks.
    ///
    /// # Errors
    /// Those of the database and the blob store.
    pub async fn sweep(&self, grace: Duration, missing: bool, dry_run: bool) -> Result<Swept, StoreError> {
        let mut swept = Swept::default();
        if !dry_run {
            swept.removed += self.store.delete_pending_blobs(&self.blobs).await?;
        }
        let before = OffsetDateTime::now_utc() - grace;
        let mut chunks = self.blobs.list().try_chunks(CHUNK);
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|error| error.1)?;
            swept.blobs += chunk.len() as u64;
            let old = chunk.into_iter().filter(|blob| blob.modified < before).map(|blob| blob.key).collect();
            let mut tx = self.store.begin().await?;
            let orphans = self.store.orphans(tx.conn(), old).await?;
            swept.orphans += orphans.len() as u64;
            if dry_run || orphans.is_empty() {
                continue;
            }
            // Condemned like the blobs of a deleted row, so that a picture which writes one of them in this moment keeps it.
            self.store.condemn_blobs(tx.conn(), orphans.clone()).await?;
            tx.commit().await?;
            swept.removed += self.store.drop_blobs(&self.blobs, &orphans).await?;
        }
        if missing {
            self.count_missing(&mut swept).await?;
        }
        Ok(swept)
    }

    async fn count_missing(&self, swept: &mut Swept) -> Result<(), StoreError> {
        let (mut count, mut after) = (0, String::new());
        loop {
            let keys = self.store.blob_keys(&after, CHUNK as i64).await?;
            let Some(last) = keys.last() else { break };
            after.clone_from(last);
            let looked = futures::stream::iter(keys)
                .map(async |key| Ok::<_, StoreError>((self.blobs.exists(&key).await?, key)))
                .buffered(16)
                .try_collect::<Vec<_>>()
                .await?;
            for (_, key) in looked.into_iter().filter(|(there, _)| !there) {
                count += 1;
                if swept.missing_keys.len() < TOLD {
                    swept.missing_keys.push(key);
                }
            }
        }
        swept.missing = Some(count);
        Ok(())
    }
}

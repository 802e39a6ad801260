//! Handles `erase_collection`: erases the contents of a deleted collection piece by piece. The
//! statements are in the store.
use crate::Crawls;
use crate::domain::jobs::CollectionDeletion;
use crate::domain::{ChangeError, CrawlError, TIME_SLICE, TimeSlice, jobs};
use queue::{Claim, ClaimedJob, Handler, Queue, QueueError, RunEnd};
use serde_json::json;
use std::time::Duration;
use store::keys::audit::{Action, Actor, AuditEntry};
use store::{Blobs, Store, StoreError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Wait before the next attempt if a row was added while the last piece was erased.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// The handler of `erase_collection`. If the process is killed at any point, the next attempt
/// continues: finished pieces are committed, and the rest still exists.
pub(crate) struct EraseCollection {
    store: Store,
    queue: Queue,
    crawls: Crawls,
    blobs: Blobs,
}

impl EraseCollection {
    pub(crate) fn new(store: Store, queue: Queue, crawls: Crawls, blobs: Blobs) -> Self {
        Self { store, queue, crawls, blobs }
    }

    /// Cancels the crawls that could still store content.
    async fn cancel_crawls(&self, collection: Uuid) -> Result<(), CrawlError> {
        for crawl in self.store.collections().crawls_to_cancel(collection).await? {
            match self.crawls.cancel(crawl).await {
                // The crawl ended at the same moment.
                Err(CrawlError::Store(StoreError::Conflict(_) | StoreError::NotFound { .. })) => {}
                cancelled => drop(cancelled?),
            }
        }
        Ok(())
    }

    /// Erases one piece. Returns whether the collection is completely deleted.
    async fn erase_piece(&self, collection: Uuid, claim: Claim) -> Result<PieceOutcome, ChangeError> {
        let mut tx = self.store.begin().await?;
        let mut erased = self.store.collections().erase_step(tx.conn(), collection).await?;
        if erased.is_done {
            // The audit entry states that no blobs remain, so earlier ones are deleted first. The
            // transaction must not wait for this.
            drop(tx);
            self.store.blobs().delete_pending(&self.blobs).await?;
            tx = self.store.begin().await?;
            erased = self.store.collections().erase_step(tx.conn(), collection).await?;
        }
        if erased.is_done && erased.rows > 0 {
            let entry = AuditEntry {
                action: Action::EraseCollection,
                collection_id: Some(collection),
                actor: Actor::default(),
                detail: json!({}),
            };
            self.store.audit().record(tx.conn(), &entry).await?;
        }
        if erased.rows > 0 {
            self.queue.record_progress(tx.conn(), claim).await?;
        }
        tx.commit().await?;
        self.store.blobs().delete(&self.blobs, &erased.blobs).await?;
        tracing::debug!(%collection, rows = erased.rows, blobs = erased.blobs.len(), "erased a piece of a collection");
        Ok(match (erased.is_done, erased.rows > 0) {
            (true, _) => PieceOutcome::Last,
            (false, true) => PieceOutcome::More,
            (false, false) => PieceOutcome::Blocked,
        })
    }
}

enum PieceOutcome {
    Last,
    More,
    /// A row was added in the meantime, or a crawl is running.
    Blocked,
}

#[async_trait::async_trait]
impl Handler for EraseCollection {
    async fn run(&self, job: ClaimedJob, cancel: CancellationToken) -> RunEnd {
        let collection = match jobs::parse::<CollectionDeletion>(&job.payload) {
            Ok(deletion) => deletion.collection_id,
            Err(error) => return RunEnd::Discard(error),
        };
        if let Err(error) = self.cancel_crawls(collection).await {
            return RunEnd::Retry(error.to_string(), None);
        }
        let time_slice = TimeSlice::new(&self.queue, &job, TIME_SLICE);
        loop {
            if cancel.is_cancelled() || time_slice.is_over().await {
                return RunEnd::Snooze(Duration::ZERO);
            }
            match self.erase_piece(collection, job.claim).await {
                Ok(PieceOutcome::Last) => break,
                Ok(PieceOutcome::More) => {}
                Ok(PieceOutcome::Blocked) => return RunEnd::Snooze(RETRY_WAIT),
                Err(ChangeError::Queue(QueueError::Stale(_))) => return RunEnd::Stale,
                Err(error) => return RunEnd::Retry(error.to_string(), None),
            }
        }
        tracing::info!(%collection, "erased a deleted collection");
        RunEnd::Done
    }
}

//! Repeats, in a database restored from a backup, the deletions that were made after the backup.
//! The store reads the deletion log.

use crate::domain::jobs::erase_collection_job;
use crate::domain::{ChangeError, forget_jobs};
use queue::Queue;
use serde::Serialize;
use serde_json::json;
use store::Store;
use store::erasures::deletion_log::Entry;
use store::keys::audit::{Action, Actor, AuditEntry};
use uuid::Uuid;

/// Numbers of rows that were deleted again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reapplied {
    /// Number of faces, including those of deleted images.
    pub faces: u64,
    /// Number of completely deleted images.
    pub images: u64,
    pub subjects: u64,
    pub videos: u64,
    /// Number of pages and image URLs whose addresses were erased.
    pub addresses: u64,
    /// Number of collections. A worker erases their contents.
    pub collections: u64,
}

/// Imports a deletion log (`store.erasures().import_deletion_log`) and repeats its deletions in
/// small transactions. If the process is killed, it can be called again.
/// `store.blobs().delete_pending` deletes the blobs whose rows were deleted.
///
/// # Errors
/// Fails if the store or the queue fails. Earlier deletions are kept.
pub async fn reapply(
    store: &Store,
    queue: &Queue,
    deletion_log: Vec<Entry>,
) -> Result<Reapplied, ChangeError> {
    store.erasures().import_deletion_log(deletion_log).await?;
    let mut total = Reapplied::default();
    for collection in store.erasures().restored_deleted_collections().await? {
        let mut tx = store.begin().await?;
        queue.enqueue(tx.conn(), &[erase_collection_job(collection)]).await?;
        store.collections().mark_deleted(tx.conn(), collection).await?;
        store
            .audit()
            .record(tx.conn(), &audit_entry(collection, Reapplied { collections: 1, ..Reapplied::default() }))
            .await?;
        tx.commit().await?;
        total.collections += 1;
    }
    for collection in store.collections().list().await? {
        loop {
            let mut tx = store.begin().await?;
            let erased = store.erasures().reapply(tx.conn(), collection.id).await?;
            if erased.is_empty() {
                break;
            }
            forget_jobs(queue, &mut tx, &erased.jobs).await?;
            let (faces, images, subjects) = (erased.faces, erased.images, erased.subjects);
            let (videos, addresses) = (erased.videos, erased.addresses);
            let piece = Reapplied { faces, images, subjects, videos, addresses, collections: 0 };
            store.audit().record(tx.conn(), &audit_entry(collection.id, piece)).await?;
            tx.commit().await?;
            total.faces += faces;
            total.images += images;
            total.subjects += subjects;
            total.videos += videos;
            total.addresses += addresses;
        }
    }
    Ok(total)
}

fn audit_entry(collection: Uuid, deletions: Reapplied) -> AuditEntry<'static> {
    AuditEntry {
        action: Action::EraseAgain,
        collection_id: Some(collection),
        actor: Actor::default(),
        detail: json!(deletions),
    }
}

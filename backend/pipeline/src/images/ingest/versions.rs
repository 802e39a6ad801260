//! Records in the audit log which smaller versions of an image a larger one replaced. A published
//! file must not cause the deletion of stored faces, so a version that does not show the same
//! people replaces no image.

use super::{Ingest, dedupe};
use crate::images::ingest::dedupe::Candidate;
use serde_json::json;
use store::keys::audit::{Action, AuditEntry};
use store::{StoreError, Tx};
use uuid::Uuid;
use vision::Frame;

/// Which smaller versions a larger one replaced.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Versions {
    pub(super) replaced: Vec<Uuid>,
    /// Smaller images that show some of the same people and are kept.
    pub(super) kept: Vec<Uuid>,
    /// Number of faces of the replaced images.
    faces: usize,
    /// Number of faces of the kept images that the larger version does not contain.
    not_shown: usize,
}

impl Versions {
    /// Adds the candidates that are clearly smaller than `frame`, show at least one of the same
    /// people, and are kept because they also show others.
    pub(super) fn add_kept(&mut self, frame: &Frame, candidates: &[Candidate<'_>]) {
        let shares = |one: &&Candidate<'_>| one.people.shared > 0 && one.people.missing > 0;
        for one in candidates.iter().filter(shares) {
            if dedupe::is_clearly_larger(frame, one.image) {
                self.kept.push(one.image.id);
                self.not_shown += one.people.missing;
            }
        }
    }

    /// Adds the candidates `images`, which are replaced.
    pub(super) fn add_replaced(&mut self, images: Vec<Uuid>, candidates: &[Candidate<'_>]) {
        let replaced = candidates.iter().filter(|one| images.contains(&one.image.id));
        self.faces += replaced.map(|one| one.people.shared).sum::<usize>();
        self.replaced.extend(images);
    }
}

impl Ingest {
    /// Records in the audit log whether `image` replaced its smaller versions.
    pub(super) async fn audit_versions(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        image: Uuid,
        versions: &Versions,
    ) -> Result<(), StoreError> {
        let Versions { replaced, kept, faces, not_shown } = versions;
        let mut records = Vec::new();
        if !replaced.is_empty() {
            records.push((Action::Supersede, json!({"by": image, "images": replaced, "faces": faces})));
        }
        if !kept.is_empty() {
            let detail = json!({"larger": image, "kept": kept, "faces_not_shown": not_shown});
            records.push((Action::KeepBesideLarger, detail));
        }
        for (action, detail) in records {
            let entry = AuditEntry {
                action,
                collection_id: Some(collection),
                key_id: None,
                request_id: None,
                detail,
            };
            self.inner.store.audit(tx.conn(), &entry).await?;
        }
        Ok(())
    }
}

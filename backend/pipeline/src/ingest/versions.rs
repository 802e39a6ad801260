//! Decides whether a larger version of stored images contains all their faces and therefore
//! replaces them. A version without some of the faces, because a face was painted over or replaced,
//! replaces no image. A published file must not cause the deletion of stored faces.

use super::{Ingest, Inner};
use crate::{Analysis, AnalyzedFace};
use serde_json::json;
use std::collections::BTreeSet;
use store::audit::{Action, AuditEntry};
use store::{OlderFace, StoreError, Tx};
use uuid::Uuid;
use vision::Rect;

/// Minimum intersection over union of two boxes at the same place, both as fractions of the size of
/// their image. It is lower than for two boxes of one file, because a version can be cropped by a
/// few percent of its sides.
const SAME_PLACE_IOU: f32 = 0.4;

/// Which smaller versions are replaced.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Versions {
    /// Images whose faces are all in the larger version, which replaces them.
    pub(super) replaced: Vec<Uuid>,
    pub(super) kept: Vec<Uuid>,
    /// Number of faces of the replaced images.
    faces: usize,
    /// Number of faces that the larger version does not contain.
    not_shown: usize,
}

impl Ingest {
    /// Divides smaller versions into those whose faces the analysed image contains, and the others.
    /// The caller must hold locks on them.
    pub(super) async fn versions(
        &self,
        tx: &mut Tx,
        smaller: &[Uuid],
        analysis: &Analysis,
    ) -> Result<Versions, StoreError> {
        let Inner { store, model_id, analyzer, .. } = &*self.inner;
        let older = store.faces_to_replace(tx.conn(), smaller).await?;
        let threshold = analyzer.engine().embedder().match_threshold;
        let (width, height) = (analysis.frame.width() as f32, analysis.frame.height() as f32);
        let new_faces = analysis.faces.iter().filter_map(|face| VersionFace::of(face, (width, height)));
        let new_faces: Vec<VersionFace<'_>> = new_faces.collect();
        let mut missing = BTreeSet::new();
        let mut versions = Versions::default();
        for image in smaller {
            let mut free: Vec<&VersionFace<'_>> = new_faces.iter().collect();
            for face in older.iter().filter(|face| face.image_id == *image) {
                // A face with another model's embedding cannot be compared, so its image is kept.
                let same = free.iter().position(|candidate| {
                    face.model_id == *model_id && candidate.is_same_face(face, threshold)
                });
                match same {
                    Some(at) => {
                        free.swap_remove(at);
                    }
                    None => {
                        missing.insert(*image);
                        versions.not_shown += 1;
                    }
                }
            }
        }
        (versions.kept, versions.replaced) =
            smaller.iter().copied().partition(|image| missing.contains(image));
        versions.faces = older.iter().filter(|face| versions.replaced.contains(&face.image_id)).count();
        Ok(versions)
    }

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

/// A face in the larger version.
struct VersionFace<'a> {
    /// The bounding box as fractions of the image size.
    region: Rect,
    embedding: &'a [f32],
}

impl<'a> VersionFace<'a> {
    /// Returns `None` for a face without an embedding, because it is not stored.
    fn of(face: &'a AnalyzedFace, (width, height): (f32, f32)) -> Option<Self> {
        let Rect { x, y, width: w, height: h } = face.detection.bbox;
        let region = Rect { x: x / width, y: y / height, width: w / width, height: h / height };
        Some(Self { region, embedding: face.embedding.as_ref()?.as_slice() })
    }

    /// Returns `true` if this is the older face: if it is at the same place and has at least the
    /// minimum similarity of a match. Both embeddings have length 1.
    fn is_same_face(&self, older: &OlderFace, threshold: f32) -> bool {
        let [x, y, width, height] = older.region;
        let cosine: f32 = self.embedding.iter().zip(&older.embedding).map(|(a, b)| a * b).sum();
        self.region.iou(&Rect { x, y, width, height }) >= SAME_PLACE_IOU && cosine >= threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_face_is_the_same_at_the_same_place_with_a_similar_embedding() {
        let new_face =
            VersionFace { region: Rect { x: 0.2, y: 0.2, width: 0.2, height: 0.2 }, embedding: &[1.0, 0.0] };
        let older = |x: f32, cosine: f32| OlderFace {
            image_id: Uuid::nil(),
            model_id: 1,
            region: [x, 0.2, 0.2, 0.2],
            embedding: vec![cosine, (1.0 - cosine * cosine).sqrt()],
        };
        // If one box is shifted by 0.0857, the intersection over union is 0.4.
        for (x, cosine, same) in
            [(0.2, 1.0, true), (0.285, 1.0, true), (0.287, 1.0, false), (0.2, 0.37, true), (0.2, 0.35, false)]
        {
            assert_eq!(new_face.is_same_face(&older(x, cosine), 0.36), same, "{x} {cosine}");
        }
    }
}

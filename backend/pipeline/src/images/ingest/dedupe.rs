//! Decides how an image relates to its near-duplicates among the stored images, and records in the
//! audit log which smaller versions a larger one replaced.
//!
//! Two images are near-duplicates if their perceptual hashes are near and they show the same people
//! at the same places. Perceptual hashes alone do not suffice: badges, posters and studio portraits
//! of different people can differ in a small part of the image only.
//!
//! - A stored face and a face of the incoming image are the same if their boxes overlap, both as
//!   fractions of their image, and their embeddings have the similarity of a match.
//! - Embeddings of different models cannot be compared, so such faces are different.
//! - A face of the incoming image that does not meet the quality profile gets an embedding for the
//!   comparison only ([`super::Ingest::find_duplicate`]). It may match a stored face. If it
//!   matches none, it is ignored, because it will not be stored.
//! - Two images without stored faces show the same people: nobody.
//!
//! A published file must not cause the deletion of stored faces, so a version that does not show
//! the same people replaces no image.
use super::Ingest;
use crate::Analysis;
use inference::Embedding;
use serde_json::json;
use store::images::Image;
use store::keys::audit::{Action, AuditEntry};
use store::{StoreError, StoredFace, Tx};
use uuid::Uuid;
use vision::{Frame, PerceptualHashes, Rect};

/// Minimum ratio of pixel counts (numerator, denominator) at which a version is clearly larger.
const CLEARLY_LARGER: (u64, u64) = (3, 2);

/// How an image relates to the stored ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// No stored image is a near-duplicate.
    New,
    /// The image is a duplicate of this stored one.
    Duplicate(Uuid),
    /// The image has at least 1.5 times the pixels of each of these, and replaces them.
    Supersedes(Vec<Uuid>),
}

/// A stored image whose perceptual hashes are near those of the incoming image.
pub(super) struct NearImage<'a> {
    pub(super) image: &'a Image,
    pub(super) people: Comparison,
}

/// Returns the candidates whose perceptual hashes are near.
pub(super) fn near<'a>(hashes: &PerceptualHashes, candidates: &'a [Image]) -> Vec<&'a Image> {
    let hashes_of = |image: &Image| {
        Some(PerceptualHashes {
            p: image.phash?.cast_unsigned(),
            d: image.dhash?.cast_unsigned(),
            a: image.ahash?.cast_unsigned(),
        })
    };
    let is_near = |image: &&Image| hashes_of(image).is_some_and(|stored| hashes.is_near(&stored));
    candidates.iter().filter(is_near).collect()
}

/// Returns the relation to the candidates. Only those that show the same people count. `enrolled`
/// lists the candidates that contain an enrolled face. They are never replaced.
///
/// If several images are near-duplicates, the largest one represents them, and among equally large
/// ones the oldest. All versions of an image therefore have the same representative.
pub(super) fn relation(frame: &Frame, candidates: &[NearImage<'_>], enrolled: &[Uuid]) -> Relation {
    let order = |image: &&&Image| (pixels(image), std::cmp::Reverse(image.id));
    let same: Vec<&Image> =
        candidates.iter().filter(|one| one.people.is_same()).map(|one| one.image).collect();
    let keeps_faces =
        candidates.iter().filter(|one| one.people.is_same()).all(|one| one.people.unstored == 0);
    if let Some(kept) = same.iter().filter(|image| enrolled.contains(&image.id)).max_by_key(order) {
        return Relation::Duplicate(kept.id);
    }
    match same.iter().max_by_key(order) {
        None => Relation::New,
        // A version replaces others only if it stores every face of theirs.
        Some(largest) if is_clearly_larger(frame, largest) && keeps_faces => {
            Relation::Supersedes(same.iter().map(|image| image.id).collect())
        }
        Some(largest) => Relation::Duplicate(largest.id),
    }
}

/// Returns `true` if the frame has at least 1.5 times the pixels of the image.
pub(super) fn is_clearly_larger(frame: &Frame, image: &Image) -> bool {
    let own = u64::from(frame.width()) * u64::from(frame.height());
    let (times, of) = CLEARLY_LARGER;
    own * of >= pixels(image) * times
}

fn pixels(image: &Image) -> u64 {
    u64::from(image.width.unsigned_abs()) * u64::from(image.height.unsigned_abs())
}

/// Minimum intersection over union of two boxes at the same place, both as fractions of the size of
/// their image. It is lower than for two boxes of one file, because a version can be cropped by a
/// few percent of its sides.
const SAME_PLACE_IOU: f32 = 0.4;

/// How the people of two images compare. The default compares two images without faces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Number of faces that both images show.
    pub(super) shared: usize,
    /// The part of `shared` that is not to be stored from the incoming image.
    pub(super) unstored: usize,
    /// Number of faces of the stored image that the incoming image does not show.
    pub(super) missing: usize,
    /// Number of faces of the incoming image that are to be stored and are not in the stored image.
    pub(super) added: usize,
}

impl Comparison {
    pub(super) fn is_same(self) -> bool {
        self.missing == 0 && self.added == 0
    }
}

/// The faces of an incoming image that can be compared.
#[derive(Debug, Default)]
pub(crate) struct ShownFaces {
    faces: Vec<ShownFace>,
    /// Whether some faces have no embedding yet, because no stored image was near.
    pub(super) lacks_embeddings: bool,
}

#[derive(Debug)]
struct ShownFace {
    /// The bounding box as fractions of the image size.
    region: Rect,
    embedding: Embedding,
    /// Whether the face is to be stored.
    is_stored: bool,
}

impl ShownFaces {
    /// Returns the faces of an analysis. `extra` has an embedding for some of those that have none;
    /// it is empty or has one item for each face.
    pub(super) fn of(analysis: &Analysis, extra: &[Option<Embedding>]) -> Self {
        let (width, height) = (analysis.frame.width() as f32, analysis.frame.height() as f32);
        let shown = analysis.faces.iter().enumerate().filter_map(|(at, face)| {
            let Rect { x, y, width: w, height: h } = face.detection.bbox;
            let region = Rect { x: x / width, y: y / height, width: w / width, height: h / height };
            let own = face.embedding.as_ref();
            let embedding = own.or_else(|| extra.get(at)?.as_ref())?.clone();
            Some(ShownFace { region, embedding, is_stored: own.is_some() })
        });
        Self { faces: shown.collect(), lacks_embeddings: false }
    }

    /// Compares with the faces of one stored image. `model_id` is the embedding model of the
    /// incoming faces, and `threshold` the minimum cosine of a match.
    pub(super) fn compare<'a>(
        &self,
        stored: impl IntoIterator<Item = &'a StoredFace>,
        model_id: i32,
        threshold: f32,
    ) -> Comparison {
        let mut free: Vec<&ShownFace> = self.faces.iter().collect();
        let (mut shared, mut unstored, mut missing) = (0, 0, 0);
        for face in stored {
            let is_same = |shown: &&ShownFace| face.model_id == model_id && shown.shows(face, threshold);
            match free.iter().position(is_same) {
                Some(at) => {
                    unstored += usize::from(!free.swap_remove(at).is_stored);
                    shared += 1;
                }
                None => missing += 1,
            }
        }
        let added = free.iter().filter(|face| face.is_stored).count();
        Comparison { shared, unstored, missing, added }
    }
}

impl ShownFace {
    /// Returns `true` if this is the stored face: if it is at the same place and has at least the
    /// minimum similarity of a match. Both embeddings have length 1.
    fn shows(&self, stored: &StoredFace, threshold: f32) -> bool {
        let [x, y, width, height] = stored.region;
        self.region.iou(&Rect { x, y, width, height }) >= SAME_PLACE_IOU
            && self.embedding.similarity_to(&stored.embedding).is_some_and(|cosine| cosine >= threshold)
    }
}

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
    pub(super) fn add_kept(&mut self, frame: &Frame, candidates: &[NearImage<'_>]) {
        let shares = |one: &&NearImage<'_>| one.people.shared > 0 && one.people.missing > 0;
        for one in candidates.iter().filter(shares) {
            if is_clearly_larger(frame, one.image) {
                self.kept.push(one.image.id);
                self.not_shown += one.people.missing;
            }
        }
    }

    /// Adds the candidates `images`, which are replaced.
    pub(super) fn add_replaced(&mut self, images: Vec<Uuid>, candidates: &[NearImage<'_>]) {
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
            self.inner.store.audit().record(tx.conn(), &entry).await?;
        }
        Ok(())
    }
}

/// How an analysed image relates to the stored images.
pub(super) enum Nearness {
    Related {
        relation: Relation,
        /// The smaller versions that the image replaces or is stored beside.
        versions: Versions,
    },
    /// Another transaction stored a near image in the meantime. The [`ShownFaces`] lack embeddings
    /// that the comparison with it needs.
    Unknown,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn stored(id: u128, width: i32, height: i32) -> Image {
        Image {
            id: Uuid::from_u128(id),
            collection_id: Uuid::nil(),
            collection: String::new(),
            sha256: Vec::new(),
            phash: Some(0),
            dhash: Some(0),
            ahash: Some(0),
            width,
            height,
            format: String::new(),
            bytes: 0,
            rotation: 0,
            face_count: 0,
            thumbnail_key: None,
            created_at: time::OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn classifies_image_as_new_duplicate_or_superseding() {
        let (small, same, large) = (stored(2, 100, 100), stored(1, 100, 100), stored(3, 200, 100));
        let id = Uuid::from_u128;
        let of = |width, height| Frame::filled(width, height, [0; 3]);
        let judge = |width, height, near: &[&Image], enrolled: &[Uuid]| {
            let same = near.iter().map(|image| NearImage { image, people: Comparison::default() });
            relation(&of(width, height), &same.collect::<Vec<_>>(), enrolled)
        };
        assert_eq!(judge(100, 100, &[], &[]), Relation::New);
        assert_eq!(judge(149, 100, &[&small], &[]), Relation::Duplicate(id(2)));
        assert_eq!(judge(150, 100, &[&small], &[]), Relation::Supersedes(vec![id(2)]));
        assert_eq!(
            judge(100, 100, &[&small, &same], &[]),
            Relation::Duplicate(id(1)),
            "the oldest of equals"
        );
        assert_eq!(judge(290, 100, &[&small, &large], &[]), Relation::Duplicate(id(3)));
        assert_eq!(judge(300, 100, &[&small, &large], &[]), Relation::Supersedes(vec![id(2), id(3)]));
        assert_eq!(judge(300, 100, &[&small, &large], &[id(2)]), Relation::Duplicate(id(2)));
    }

    #[test]
    fn larger_image_with_unstored_face_is_duplicate() {
        let stored = stored(1, 100, 100);
        let people = Comparison { shared: 2, unstored: 1, ..Comparison::default() };
        let candidates = [NearImage { image: &stored, people }];
        let relation = relation(&Frame::filled(500, 500, [0; 3]), &candidates, &[]);
        assert_eq!(relation, Relation::Duplicate(stored.id));
    }

    #[test]
    fn image_of_different_people_is_new_at_any_size() {
        let stored = stored(1, 100, 100);
        for people in [
            Comparison { shared: 1, missing: 1, ..Comparison::default() },
            Comparison { shared: 1, added: 1, ..Comparison::default() },
            Comparison { missing: 1, added: 1, ..Comparison::default() },
        ] {
            for side in [50, 100, 500] {
                let candidates = [NearImage { image: &stored, people }];
                let relation = relation(&Frame::filled(side, side, [0; 3]), &candidates, &[stored.id]);
                assert_eq!(relation, Relation::New, "{people:?} {side}");
            }
        }
    }

    const MODEL: i32 = 1;
    const THRESHOLD: f32 = 0.36;

    fn shown(x: f32, is_stored: bool) -> ShownFace {
        let region = Rect { x, y: 0.2, width: 0.2, height: 0.2 };
        ShownFace { region, embedding: Embedding::from_raw(vec![1.0, 0.0]).unwrap(), is_stored }
    }

    fn stored_face(x: f32, cosine: f32) -> StoredFace {
        StoredFace {
            image_id: Uuid::nil(),
            model_id: MODEL,
            region: [x, 0.2, 0.2, 0.2],
            embedding: vec![cosine, (1.0 - cosine * cosine).sqrt()],
        }
    }

    #[test]
    fn face_matches_by_position_and_embedding() {
        // If one box is shifted by 0.0857, the intersection over union is 0.4.
        for (x, cosine, same) in
            [(0.2, 1.0, true), (0.285, 1.0, true), (0.287, 1.0, false), (0.2, 0.37, true), (0.2, 0.35, false)]
        {
            assert_eq!(shown(0.2, true).shows(&stored_face(x, cosine), THRESHOLD), same, "{x} {cosine}");
        }
    }

    #[test]
    fn images_match_if_every_face_has_counterpart() {
        let compare = |shown: Vec<ShownFace>, stored: &[StoredFace]| {
            let faces = ShownFaces { faces: shown, lacks_embeddings: false };
            faces.compare(stored, MODEL, THRESHOLD)
        };
        let two = || vec![shown(0.1, true), shown(0.6, true)];
        assert!(compare(two(), &[stored_face(0.6, 1.0), stored_face(0.1, 1.0)]).is_same());
        assert!(compare(Vec::new(), &[]).is_same());
        let other_person = compare(two(), &[stored_face(0.6, 0.1), stored_face(0.1, 1.0)]);
        assert_eq!(other_person, Comparison { shared: 1, unstored: 0, missing: 1, added: 1 });
        let one_more = compare(two(), &[stored_face(0.1, 1.0)]);
        assert_eq!(one_more, Comparison { shared: 1, unstored: 0, missing: 0, added: 1 });
        let one_fewer = compare(vec![shown(0.1, true)], &[stored_face(0.1, 1.0), stored_face(0.6, 1.0)]);
        assert_eq!(one_fewer, Comparison { shared: 1, unstored: 0, missing: 1, added: 0 });
        // One face is not two people.
        let twice = compare(vec![shown(0.1, true)], &[stored_face(0.1, 1.0), stored_face(0.1, 1.0)]);
        assert_eq!(twice, Comparison { shared: 1, unstored: 0, missing: 1, added: 0 });
        assert!(!compare(two(), &[]).is_same(), "an image without faces is not one with faces");
        let of_another_model = StoredFace { model_id: MODEL + 1, ..stored_face(0.1, 1.0) };
        assert!(!compare(vec![shown(0.1, true)], &[of_another_model]).is_same());
    }

    #[test]
    fn low_quality_faces_are_optional_in_comparison() {
        let faces = ShownFaces { faces: vec![shown(0.1, true), shown(0.6, false)], lacks_embeddings: false };
        for stored in [vec![stored_face(0.1, 1.0)], vec![stored_face(0.1, 1.0), stored_face(0.6, 1.0)]] {
            assert!(faces.compare(&stored, MODEL, THRESHOLD).is_same());
        }
        assert!(!faces.compare(&[stored_face(0.1, 1.0), stored_face(0.6, 0.1)], MODEL, THRESHOLD).is_same());
    }
}

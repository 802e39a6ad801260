//! Decides how an image relates to its near-duplicates among the stored images, and records in the
//! audit log which smaller versions a larger one replaced.
//!
//! Two images are near-duplicates if their perceptual hashes are near and they show the same people
//! at the same places. Perceptual hashes alone do not suffice: badges, posters and studio portraits
//! of different people can differ in a small part of the image only.
//!
//! Two faces are the same if their boxes overlap, both as fractions of their image, and their
//! embeddings have the similarity of a match. Embeddings of different models cannot be compared. A
//! face of the incoming image that does not meet the quality profile, and is not stored, may match
//! a stored face. Two images without stored faces count as images of the same people.
//!
//! A published file must not cause the deletion of stored faces, so a version that does not show
//! the same people replaces no image.
use super::{Ingest, IngestError};
use crate::images::face_store::FaceStore;
use crate::{Analysis, AnalyzeOptions};
use inference::{Embedding, Priority};
use serde_json::json;
use store::images::Image;
use store::keys::audit::{Action, Actor, AuditEntry};
use store::{StoreError, StoredFace, Tx};
use uuid::Uuid;
use vision::{Frame, PerceptualHashes, Rect};

/// Minimum ratio of pixel counts (numerator, denominator) at which a version is clearly larger.
const CLEARLY_LARGER: (u64, u64) = (3, 2);

/// The relation of an image to the stored images.
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
struct NearImage<'a> {
    image: &'a Image,
    people: Comparison,
}

/// Returns the candidates whose perceptual hashes are near.
fn near_images<'a>(hashes: &PerceptualHashes, candidates: &'a [Image]) -> Vec<&'a Image> {
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

/// Returns the relation to the candidates. Ignores candidates that do not show the same people.
/// `enrolled` lists the candidates that contain an enrolled face. They are never replaced.
///
/// If several images are near-duplicates, the largest one represents them, and among equally large
/// ones the oldest. All versions of an image therefore have the same representative.
fn classify(frame: &Frame, candidates: &[NearImage<'_>], enrolled: &[Uuid]) -> Relation {
    let order = |image: &&&Image| (pixel_count(image), std::cmp::Reverse(image.id));
    let same_people: Vec<&Image> =
        candidates.iter().filter(|near| near.people.is_same()).map(|near| near.image).collect();
    let keeps_faces =
        candidates.iter().filter(|near| near.people.is_same()).all(|near| near.people.unstored == 0);
    if let Some(kept) = same_people.iter().filter(|image| enrolled.contains(&image.id)).max_by_key(order) {
        return Relation::Duplicate(kept.id);
    }
    match same_people.iter().max_by_key(order) {
        None => Relation::New,
        // A version replaces others only if it stores every face that they contain.
        Some(largest) if is_clearly_larger(frame, largest) && keeps_faces => {
            Relation::Supersedes(same_people.iter().map(|image| image.id).collect())
        }
        Some(largest) => Relation::Duplicate(largest.id),
    }
}

/// Returns `true` if the frame has at least 1.5 times the pixels of the image.
fn is_clearly_larger(frame: &Frame, image: &Image) -> bool {
    let frame_pixels = u64::from(frame.width()) * u64::from(frame.height());
    let (factor, divisor) = CLEARLY_LARGER;
    frame_pixels * divisor >= pixel_count(image) * factor
}

fn pixel_count(image: &Image) -> u64 {
    u64::from(image.width.unsigned_abs()) * u64::from(image.height.unsigned_abs())
}

/// Minimum intersection over union of two boxes at the same place, both as fractions of the size of
/// their image. It is lower than for two boxes of one file, because a version can be cropped by a
/// few percent of its sides.
const SAME_PLACE_IOU: f32 = 0.4;

/// The comparison of the people in two images. The default is that of two images without faces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Comparison {
    /// Number of faces that both images show.
    shared: usize,
    /// Number of the shared faces that the incoming image would not store.
    unstored: usize,
    /// Number of faces of the stored image that the incoming image does not show.
    missing: usize,
    /// Number of faces that the incoming image would store and the stored image does not show.
    added: usize,
}

impl Comparison {
    fn is_same(self) -> bool {
        self.missing == 0 && self.added == 0
    }
}

/// The faces of an incoming image that can be compared.
#[derive(Debug, Default)]
pub(crate) struct ShownFaces {
    faces: Vec<ShownFace>,
    /// Whether some faces have no embedding yet, because no stored image was near.
    lacks_embeddings: bool,
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
    fn new(analysis: &Analysis, extra: &[Option<Embedding>]) -> Self {
        let (width, height) = (analysis.frame.width() as f32, analysis.frame.height() as f32);
        let shown = analysis.faces.iter().enumerate().filter_map(|(at, face)| {
            let Rect { x, y, width: w, height: h } = face.detection.bbox;
            let region = Rect { x: x / width, y: y / height, width: w / width, height: h / height };
            let embedded = face.embedding.as_ref();
            let embedding = embedded.or_else(|| extra.get(at)?.as_ref())?.clone();
            Some(ShownFace { region, embedding, is_stored: embedded.is_some() })
        });
        Self { faces: shown.collect(), lacks_embeddings: false }
    }

    /// Returns the faces of an analysis, without computing missing embeddings.
    pub(super) fn without_extra_embeddings(analysis: &Analysis, options: &AnalyzeOptions) -> Self {
        let lacks_embeddings =
            options.passed_only && analysis.faces.iter().any(|face| face.embedding.is_none());
        Self { lacks_embeddings, ..Self::new(analysis, &[]) }
    }

    /// Compares these faces with the faces of one stored image. `model_id` is the embedding model
    /// of the incoming faces, and `threshold` the minimum cosine of a match.
    fn compare<'a>(
        &self,
        stored: impl IntoIterator<Item = &'a StoredFace>,
        model_id: i32,
        threshold: f32,
    ) -> Comparison {
        let mut unmatched: Vec<&ShownFace> = self.faces.iter().collect();
        let (mut shared, mut unstored, mut missing) = (0, 0, 0);
        for face in stored {
            let is_same = |shown: &&ShownFace| face.model_id == model_id && shown.is_face(face, threshold);
            match unmatched.iter().position(is_same) {
                Some(at) => {
                    unstored += usize::from(!unmatched.swap_remove(at).is_stored);
                    shared += 1;
                }
                None => missing += 1,
            }
        }
        let added = unmatched.iter().filter(|face| face.is_stored).count();
        Comparison { shared, unstored, missing, added }
    }
}

impl ShownFace {
    /// Returns `true` if this is the stored face: it is at the same place and has at least the
    /// minimum similarity of a match. Both embeddings have length 1.
    fn is_face(&self, stored: &StoredFace, threshold: f32) -> bool {
        let [x, y, width, height] = stored.region;
        self.region.iou(&Rect { x, y, width, height }) >= SAME_PLACE_IOU
            && self.embedding.similarity_to(&stored.embedding).is_some_and(|cosine| cosine >= threshold)
    }
}

/// The smaller versions of an image that a larger one replaced or left unchanged.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Versions {
    pub(super) replaced: Vec<Uuid>,
    /// Smaller images that show some of the same people and are kept.
    kept: Vec<Uuid>,
    /// Number of faces of the replaced images.
    faces: usize,
    /// Number of faces of the kept images that the larger version does not contain.
    not_shown: usize,
}

impl Versions {
    /// Adds the candidates that are clearly smaller than `frame`, show at least one of the same
    /// people, and are kept because they also show others.
    fn add_kept(&mut self, frame: &Frame, candidates: &[NearImage<'_>]) {
        let shows_some = |near: &&NearImage<'_>| near.people.shared > 0 && near.people.missing > 0;
        for near in candidates.iter().filter(shows_some) {
            if is_clearly_larger(frame, near.image) {
                self.kept.push(near.image.id);
                self.not_shown += near.people.missing;
            }
        }
    }

    /// Adds the candidates `images`, which are replaced.
    fn add_replaced(&mut self, images: Vec<Uuid>, candidates: &[NearImage<'_>]) {
        let replaced = candidates.iter().filter(|near| images.contains(&near.image.id));
        self.faces += replaced.map(|near| near.people.shared).sum::<usize>();
        self.replaced.extend(images);
    }
}

/// The result of comparing an image with the stored images.
pub(super) enum RelationLookup {
    Found {
        relation: Relation,
        /// The smaller versions that the image replaces or is stored beside.
        versions: Versions,
    },
    /// Another transaction stored a near image in the meantime. The [`ShownFaces`] lack embeddings
    /// that the comparison with it needs.
    LacksEmbeddings,
}

/// Maximum number of stored faces that are compared at a time. An image alone can have more.
const FACES_AT_A_TIME: i32 = 1_000;

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
            let entry =
                AuditEntry { action, collection_id: Some(collection), actor: Actor::default(), detail };
            self.faces.store.audit().record(tx.conn(), &entry).await?;
        }
        Ok(())
    }

    /// Returns the faces of an analysed image for comparisons with stored images, and whether the
    /// image is a duplicate. Acquires no locks.
    ///
    /// Images with near hashes are only candidates; their faces are compared. For this comparison,
    /// faces that do not meet the quality profile get an embedding too.
    pub(super) async fn find_duplicate(
        &self,
        collection: Uuid,
        analysis: &Analysis,
        options: &AnalyzeOptions,
    ) -> Result<(ShownFaces, bool), IngestError> {
        let store = &self.faces.store;
        let (p, d) = signed_hashes(&analysis.hashes);
        let candidates = store.images().near_candidates(store.pool(), collection, p, d).await?;
        let near = near_images(&analysis.hashes, &candidates);
        let shown = ShownFaces::without_extra_embeddings(analysis, options);
        if near.is_empty() {
            return Ok((shown, false));
        }
        let extra =
            if shown.lacks_embeddings { self.missing_embeddings(analysis).await? } else { Vec::new() };
        let shown = ShownFaces::new(analysis, &extra);
        let mut tx = store.begin().await?;
        let (relation, _) = self.relation_to(&mut tx, analysis, &shown, &near).await?;
        Ok((shown, matches!(relation, Relation::Duplicate(_))))
    }

    /// Returns embeddings of the faces without one, in the order of the faces.
    async fn missing_embeddings(&self, analysis: &Analysis) -> Result<Vec<Option<Embedding>>, IngestError> {
        let lacking = analysis.faces.iter().enumerate().filter(|(_, face)| face.embedding.is_none());
        let (indices, chips): (Vec<usize>, Vec<_>) =
            lacking.filter_map(|(at, face)| Some((at, face.chip.clone()?))).unzip();
        let computed = self.faces.analyzer.embed_chips(chips, Priority::Background).await?;
        let mut embeddings = vec![None; analysis.faces.len()];
        for (at, embedding) in indices.into_iter().zip(computed) {
            embeddings[at] = embedding;
        }
        Ok(embeddings)
    }

    /// Returns the relation of an image to the stored images. Waits for all transactions that are
    /// about to store a near image. Without this wait, two versions of one image that are processed
    /// at the same time would both be stored.
    ///
    /// The images in the result are locked until the end of the transaction.
    pub(super) async fn find_relation_locked(
        &self,
        tx: &mut Tx,
        collection: Uuid,
        analysis: &Analysis,
        shown: &ShownFaces,
    ) -> Result<RelationLookup, StoreError> {
        let store = &self.faces.store;
        let hashes = &analysis.hashes;
        let (p, d) = signed_hashes(hashes);
        store.images().lock_near_keys(tx.conn(), &near_lock_keys(collection, hashes)).await?;
        for _ in 0..super::MAX_ATTEMPTS {
            let candidates = store.images().near_candidates(tx.conn(), collection, p, d).await?;
            let near = near_images(hashes, &candidates);
            if shown.lacks_embeddings && !near.is_empty() {
                return Ok(RelationLookup::LacksEmbeddings);
            }
            let (relation, versions) = self.relation_to(tx, analysis, shown, &near).await?;
            let locked = match &relation {
                Relation::New => return Ok(RelationLookup::Found { relation, versions }),
                Relation::Duplicate(image) => store.images().lock(tx.conn(), *image).await?,
                Relation::Supersedes(images) => store.images().lock_to_replace(tx.conn(), images).await?,
            };
            // Faces can be deleted or get other embeddings until their image is locked.
            if locked && self.relation_to(tx, analysis, shown, &near).await?.0 == relation {
                return Ok(RelationLookup::Found { relation, versions });
            }
        }
        Err(StoreError::Conflict("near duplicates of the image are replaced repeatedly; try again".into()))
    }

    /// Returns the relation of an image to the stored images in `near`, whose hashes are near.
    async fn relation_to(
        &self,
        tx: &mut Tx,
        analysis: &Analysis,
        shown: &ShownFaces,
        near: &[&Image],
    ) -> Result<(Relation, Versions), StoreError> {
        let candidates = self.compare_people(tx, shown, near).await?;
        let same = candidates.iter().filter(|near| near.people.is_same());
        let ids: Vec<Uuid> = same.map(|near| near.image.id).collect();
        let enrolled = self.faces.store.images().images_with_subjects(tx.conn(), &ids).await?;
        let relation = classify(&analysis.frame, &candidates, &enrolled);
        let mut versions = Versions::default();
        if let Relation::Supersedes(images) = &relation {
            versions.add_replaced(images.clone(), &candidates);
        }
        versions.add_kept(&analysis.frame, &candidates);
        Ok((relation, versions))
    }

    /// Compares the faces of an image with those of each image in `near`.
    async fn compare_people<'a>(
        &self,
        tx: &mut Tx,
        shown: &ShownFaces,
        near: &[&'a Image],
    ) -> Result<Vec<NearImage<'a>>, StoreError> {
        let FaceStore { store, model_id, analyzer, .. } = &self.faces;
        let threshold = analyzer.engine().embedder().match_threshold;
        let mut candidates = Vec::with_capacity(near.len());
        let mut remaining = near;
        while !remaining.is_empty() {
            let mut faces_so_far = 0;
            let fits = |image: &&&Image| {
                let is_first = faces_so_far == 0;
                faces_so_far += image.face_count;
                is_first || faces_so_far <= FACES_AT_A_TIME
            };
            let (group, rest) = remaining.split_at(remaining.iter().take_while(fits).count().max(1));
            let ids: Vec<Uuid> =
                group.iter().filter(|image| image.face_count > 0).map(|image| image.id).collect();
            let faces = match ids.is_empty() {
                true => Vec::new(),
                false => store.images().faces_of_images(tx.conn(), &ids).await?,
            };
            for image in group {
                let image_faces = faces.iter().filter(|face: &&StoredFace| face.image_id == image.id);
                let people: Comparison = shown.compare(image_faces, *model_id, threshold);
                candidates.push(NearImage { image, people });
            }
            remaining = rest;
        }
        Ok(candidates)
    }
}

/// Returns the DCT and gradient hashes as Postgres stores them.
fn signed_hashes(hashes: &PerceptualHashes) -> (i64, i64) {
    (hashes.p.cast_signed(), hashes.d.cast_signed())
}

/// Returns lock keys such that two near images share at least one: the eight bytes of the DCT hash,
/// each with its position. Hashes that differ in fewer than eight bits have an equal byte.
/// Unrelated images sometimes share a lock, which causes only a short wait.
pub(super) fn near_lock_keys(collection: Uuid, hashes: &PerceptualHashes) -> Vec<i64> {
    let (high, low) = collection.as_u64_pair();
    let base = (high ^ low.rotate_left(32)) & !0xFFFF;
    let byte = |index: u64| (hashes.p >> (index * 8)) & 0xFF;
    (0..8_u64).map(|index| (base | (index << 8) | byte(index)).cast_signed()).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use store::blobs::parts::ImageParts;

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
            parts: ImageParts::default(),
            created_at: time::OffsetDateTime::UNIX_EPOCH,
        }
    }

    #[test]
    fn classifies_image_as_new_duplicate_or_superseding() {
        let (small, same, large) = (stored(2, 100, 100), stored(1, 100, 100), stored(3, 200, 100));
        let id = Uuid::from_u128;
        let frame = |width, height| Frame::filled(width, height, [0; 3]);
        let relate = |width, height, near: &[&Image], enrolled: &[Uuid]| {
            let same = near.iter().map(|image| NearImage { image, people: Comparison::default() });
            classify(&frame(width, height), &same.collect::<Vec<_>>(), enrolled)
        };
        assert_eq!(relate(100, 100, &[], &[]), Relation::New);
        assert_eq!(relate(149, 100, &[&small], &[]), Relation::Duplicate(id(2)));
        assert_eq!(relate(150, 100, &[&small], &[]), Relation::Supersedes(vec![id(2)]));
        assert_eq!(
            relate(100, 100, &[&small, &same], &[]),
            Relation::Duplicate(id(1)),
            "the oldest of two images of equal size"
        );
        assert_eq!(relate(290, 100, &[&small, &large], &[]), Relation::Duplicate(id(3)));
        assert_eq!(relate(300, 100, &[&small, &large], &[]), Relation::Supersedes(vec![id(2), id(3)]));
        assert_eq!(relate(300, 100, &[&small, &large], &[id(2)]), Relation::Duplicate(id(2)));
    }

    #[test]
    fn larger_image_with_unstored_face_is_duplicate() {
        let stored = stored(1, 100, 100);
        let people = Comparison { shared: 2, unstored: 1, ..Comparison::default() };
        let candidates = [NearImage { image: &stored, people }];
        let relation = classify(&Frame::filled(500, 500, [0; 3]), &candidates, &[]);
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
                let relation = classify(&Frame::filled(side, side, [0; 3]), &candidates, &[stored.id]);
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
            assert_eq!(shown(0.2, true).is_face(&stored_face(x, cosine), THRESHOLD), same, "{x} {cosine}");
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
        assert!(!compare(two(), &[]).is_same(), "the image without faces does not show the same people");
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

    #[test]
    fn near_hashes_share_lock_key_within_collection() {
        let hashes = |p| PerceptualHashes { p, d: 0, a: 0 };
        let (first, second) = (Uuid::now_v7(), Uuid::now_v7());
        let a: HashSet<i64> = near_lock_keys(first, &hashes(0x0123_4567_89AB_CDEF)).into_iter().collect();
        // Seven bytes have one flipped bit each.
        let near: HashSet<i64> =
            near_lock_keys(first, &hashes(0x0123_4567_89AB_CDEF ^ 0x0001_0101_0101_0101))
                .into_iter()
                .collect();
        assert_eq!(a.intersection(&near).count(), 1);
        let in_second: HashSet<i64> =
            near_lock_keys(second, &hashes(0x0123_4567_89AB_CDEF)).into_iter().collect();
        assert_eq!(a.intersection(&in_second).count(), 0);
    }
}

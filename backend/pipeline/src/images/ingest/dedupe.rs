//! Decides how an image relates to its near-duplicates among the stored images. This module does
//! not read the store.
//!
//! Two images are near-duplicates if their perceptual hashes are near and they show the same people
//! ([`super::same_people`]). Perceptual hashes alone do not suffice: badges, posters and studio
//! portraits of different people can differ in a small part of the image only.

use super::same_people::Comparison;
use store::images::Image;
use uuid::Uuid;
use vision::{Frame, PerceptualHashes};

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
pub(super) struct Candidate<'a> {
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
pub(super) fn relation(frame: &Frame, candidates: &[Candidate<'_>], enrolled: &[Uuid]) -> Relation {
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

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_picture_is_new_or_adds_nothing_or_takes_the_place() {
        let (small, same, large) = (stored(2, 100, 100), stored(1, 100, 100), stored(3, 200, 100));
        let id = Uuid::from_u128;
        let of = |width, height| Frame::filled(width, height, [0; 3]);
        let judge = |width, height, near: &[&Image], enrolled: &[Uuid]| {
            let same = near.iter().map(|image| Candidate { image, people: Comparison::default() });
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
    fn a_larger_version_that_would_not_store_a_face_replaces_nothing() {
        let stored = stored(1, 100, 100);
        let people = Comparison { shared: 2, unstored: 1, ..Comparison::default() };
        let candidates = [Candidate { image: &stored, people }];
        let relation = relation(&Frame::filled(500, 500, [0; 3]), &candidates, &[]);
        assert_eq!(relation, Relation::Duplicate(stored.id));
    }

    #[test]
    fn a_picture_of_other_people_is_new_at_any_size() {
        let stored = stored(1, 100, 100);
        for people in [
            Comparison { shared: 1, missing: 1, ..Comparison::default() },
            Comparison { shared: 1, added: 1, ..Comparison::default() },
            Comparison { missing: 1, added: 1, ..Comparison::default() },
        ] {
            for side in [50, 100, 500] {
                let candidates = [Candidate { image: &stored, people }];
                let relation = relation(&Frame::filled(side, side, [0; 3]), &candidates, &[stored.id]);
                assert_eq!(relation, Relation::New, "{people:?} {side}");
            }
        }
    }
}

//! Compares the faces of an incoming image with those of a stored image: whether both show the same
//! people at the same places.
//!
//! - A stored face and a face of the incoming image are the same if their boxes overlap, both as
//!   fractions of their image, and their embeddings have the similarity of a match.
//! - Embeddings of different models cannot be compared, so such faces are different.
//! - A face of the incoming image that does not meet the quality profile gets an embedding for the
//!   comparison only ([`super::Ingest::find_duplicate`]). It may match a stored face. If it
//!   matches none, it is ignored, because it will not be stored.
//! - Two images without stored faces show the same people: nobody.

use crate::Analysis;
use inference::Embedding;
use store::StoredFace;
use vision::Rect;

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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const MODEL: i32 = 1;
    const THRESHOLD: f32 = 0.36;

    fn shown(x: f32, is_stored: bool) -> ShownFace {
        let region = Rect { x, y: 0.2, width: 0.2, height: 0.2 };
        ShownFace { region, embedding: Embedding::from_raw(vec![1.0, 0.0]).unwrap(), is_stored }
    }

    fn stored(x: f32, cosine: f32) -> StoredFace {
        StoredFace {
            image_id: Uuid::nil(),
            model_id: MODEL,
            region: [x, 0.2, 0.2, 0.2],
            embedding: vec![cosine, (1.0 - cosine * cosine).sqrt()],
        }
    }

    #[test]
    fn a_face_is_the_same_at_the_same_place_with_a_similar_embedding() {
        // If one box is shifted by 0.0857, the intersection over union is 0.4.
        for (x, cosine, same) in
            [(0.2, 1.0, true), (0.285, 1.0, true), (0.287, 1.0, false), (0.2, 0.37, true), (0.2, 0.35, false)]
        {
            assert_eq!(shown(0.2, true).shows(&stored(x, cosine), THRESHOLD), same, "{x} {cosine}");
        }
    }

    #[test]
    fn images_show_the_same_people_if_every_face_has_its_counterpart() {
        let compare = |shown: Vec<ShownFace>, stored: &[StoredFace]| {
            let faces = ShownFaces { faces: shown, lacks_embeddings: false };
            faces.compare(stored, MODEL, THRESHOLD)
        };
        let two = || vec![shown(0.1, true), shown(0.6, true)];
        assert!(compare(two(), &[stored(0.6, 1.0), stored(0.1, 1.0)]).is_same());
        assert!(compare(Vec::new(), &[]).is_same());
        let other_person = compare(two(), &[stored(0.6, 0.1), stored(0.1, 1.0)]);
        assert_eq!(other_person, Comparison { shared: 1, unstored: 0, missing: 1, added: 1 });
        let one_more = compare(two(), &[stored(0.1, 1.0)]);
        assert_eq!(one_more, Comparison { shared: 1, unstored: 0, missing: 0, added: 1 });
        let one_fewer = compare(vec![shown(0.1, true)], &[stored(0.1, 1.0), stored(0.6, 1.0)]);
        assert_eq!(one_fewer, Comparison { shared: 1, unstored: 0, missing: 1, added: 0 });
        // One face is not two people.
        let twice = compare(vec![shown(0.1, true)], &[stored(0.1, 1.0), stored(0.1, 1.0)]);
        assert_eq!(twice, Comparison { shared: 1, unstored: 0, missing: 1, added: 0 });
        assert!(!compare(two(), &[]).is_same(), "an image without faces is not one with faces");
        let of_another_model = StoredFace { model_id: MODEL + 1, ..stored(0.1, 1.0) };
        assert!(!compare(vec![shown(0.1, true)], &[of_another_model]).is_same());
    }

    #[test]
    fn a_face_of_poor_quality_can_be_a_stored_one_and_need_not_be() {
        let faces = ShownFaces { faces: vec![shown(0.1, true), shown(0.6, false)], lacks_embeddings: false };
        for stored in [vec![stored(0.1, 1.0)], vec![stored(0.1, 1.0), stored(0.6, 1.0)]] {
            assert!(faces.compare(&stored, MODEL, THRESHOLD).is_same());
        }
        assert!(!faces.compare(&[stored(0.1, 1.0), stored(0.6, 0.1)], MODEL, THRESHOLD).is_same());
    }
}

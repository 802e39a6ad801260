//! Cuts the pictures that are stored of a face out of its frame.

use super::result::ShotPictures;
use std::sync::Arc;
use store::faces::CROP_MARGIN;
use vision::crop::{face_crop_alone, rotate, thumbnail};
use vision::{Detection, Frame, Rect, cover_in_chip};

/// Longer side of a crop in pixels. It bounds the memory for the candidates of open tracks.
const CROP_SIDE: u32 = 256;
/// Margin around other faces that is covered, as a fraction of the larger side of their box.
const COVER_MARGIN: f32 = 0.3;

/// What was cut out of a frame for a face that may become a best shot.
#[derive(Debug)]
pub(super) struct Cut {
    crop: Arc<Frame>,
    /// The boxes of the other faces of the frame.
    others: Vec<Rect>,
}

impl Cut {
    /// Cuts the face `at` out of a frame with these faces. `rotation` is the clockwise rotation of
    /// the frame in degrees that makes them upright.
    pub(super) fn of(frame: &Frame, faces: &[Rect], at: usize, rotation: u32) -> Self {
        let others: Vec<Rect> =
            faces.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, bbox)| *bbox).collect();
        let crop = face_crop_alone(frame, &faces[at], CROP_MARGIN, &others, COVER_MARGIN);
        let crop = thumbnail(&crop, CROP_SIDE);
        Self { crop: Arc::new(if rotation == 0 { crop } else { rotate(&crop, rotation) }), others }
    }

    /// Returns the memory that it takes.
    pub(super) fn bytes(&self) -> usize {
        self.crop.data().len() + self.others.len() * size_of::<Rect>()
    }

    /// Returns the pictures to store. `chip` is the aligned face.
    pub(super) fn into_pictures(self, chip: &Frame, face: &Detection) -> ShotPictures {
        let mut chip = chip.clone();
        cover_in_chip(&mut chip, &face.landmarks, &face.bbox, &self.others, COVER_MARGIN);
        ShotPictures { chip: Arc::new(chip), crop: self.crop }
    }
}

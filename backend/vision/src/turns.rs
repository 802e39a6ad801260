//! Compares a face at four rotations.
//!
//! Detectors also find faces that are upside down or rotated by 90 degrees. For such a face, they
//! often return the landmarks of an upright face, so that landmarks do not determine the rotation.
//! The score does: it is highest at the rotation at which the face is upright
//! (docs/measurements/DETECTION.md#rotated-faces). [`RotationScores::canvas`] draws the
//! surroundings of a face at all four rotations on one canvas, so that one run of a detector
//! compares them. This module does not run the detector.

use crate::{Detection, Frame, Letterbox, Rect, View, crop};

/// The clockwise rotations in degrees, in the order of the cells: left to right, top to bottom.
const ROTATIONS: [u32; 4] = [0, 90, 180, 270];
/// Side of a cell of the canvas in pixels.
const CELL: u32 = 96;
/// Longer side of the face in its cell, in pixels.
const FACE_SIDE: f32 = 56.0;

/// The best score of a detector, 0..1, for each rotation of the surroundings of a face. It is 0 for
/// a rotation at which the detector finds no face.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RotationScores([f32; 4]);

impl RotationScores {
    /// Side in pixels of the square canvas.
    pub const CANVAS: u32 = 2 * CELL;

    /// Draws the surroundings of `bbox` (image coordinates) at the four rotations.
    pub fn canvas(frame: &Frame, bbox: &Rect) -> Frame {
        let scale = FACE_SIDE / bbox.width.max(bbox.height).max(1.0);
        let around = View::around((frame.width(), frame.height()), bbox, (CELL, CELL), f64::from(scale));
        // The face determines the scale, so a small image may be smaller than the cell.
        let side = |pixels: u32| ((pixels as f32 * scale).round() as u32).clamp(1, CELL);
        let content = (side(around.region.width), side(around.region.height));
        let cell = Letterbox { scale, canvas: (CELL, CELL), content };
        let cell = if around.is_whole() { cell.draw(frame) } else { cell.draw(&around.crop(frame)) };
        let mut canvas = Frame::filled(Self::CANVAS, Self::CANVAS, [0; 3]);
        let (row, whole_row) = (CELL as usize * 3, Self::CANVAS as usize * 3);
        for (index, degrees) in ROTATIONS.into_iter().enumerate() {
            let rotated = crop::rotate(&cell, degrees);
            let left = index % 2 * row;
            let rows = canvas.data_mut().chunks_exact_mut(whole_row).skip(index / 2 * CELL as usize);
            for (to, from) in rows.zip(rotated.data().chunks_exact(row)) {
                to[left..left + row].copy_from_slice(from);
            }
        }
        canvas
    }

    /// Returns the scores from the faces that a detector found on the canvas.
    pub fn from_detections(detections: &[Detection]) -> Self {
        let mut scores = [0.0_f32; 4];
        for face in detections {
            let cell = |start: f32, length: f32| usize::from(start + length / 2.0 >= CELL as f32);
            let bbox = &face.bbox;
            let score = &mut scores[cell(bbox.x, bbox.width) + 2 * cell(bbox.y, bbox.height)];
            *score = score.max(face.det_score);
        }
        Self(scores)
    }

    /// Returns the clockwise rotation in degrees with the highest score, and the score. If scores
    /// are equal, the smaller rotation is preferred.
    pub fn best(&self) -> (u32, f32) {
        self.best_with_min_score(|_| 0.0).unwrap_or_default()
    }

    /// Works like [`Self::best`], but ignores rotations whose score is below their minimum score.
    pub fn best_with_min_score(&self, min_score: impl Fn(u32) -> f32) -> Option<(u32, f32)> {
        let pairs = ROTATIONS.into_iter().zip(self.0);
        let pairs = pairs.filter(|(rotation, score)| *score >= min_score(*rotation));
        pairs.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }

    /// Returns the roll of the face in the image at `rotation`, in degrees clockwise (-90..=180).
    /// Returns `None` if the face is upright there, or if the detector finds no face at any
    /// rotation.
    pub fn roll_at(&self, rotation: u32) -> Option<f32> {
        let index = ROTATIONS.iter().position(|degrees| *degrees == rotation).unwrap_or(0);
        let (best, score) = self.best();
        (score > self.0[index]).then(|| match (best + 360 - rotation) % 360 {
            90 => -90.0,
            180 => 180.0,
            _ => 90.0,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Point;

    fn face(x: f32, y: f32, det_score: f32) -> Detection {
        let bbox = Rect { x, y, width: 56.0, height: 56.0 };
        Detection { bbox, det_score, landmarks: [Point { x, y }; 5] }
    }

    #[test]
    fn each_cell_shows_same_area_at_its_rotation() {
        let mut frame = Frame::filled(200, 160, [40; 3]);
        // The upper half of the face is bright.
        for y in 50..80 {
            for x in 70..130 {
                let index = (y * 200 + x) * 3;
                frame.data_mut()[index..index + 3].copy_from_slice(&[250; 3]);
            }
        }
        let bbox = Rect { x: 70.0, y: 50.0, width: 60.0, height: 60.0 };
        let canvas = RotationScores::canvas(&frame, &bbox);
        assert_eq!((canvas.width(), canvas.height()), (192, 192));
        // The centre of a cell, and the offset from it to the bright half.
        for (x, y, dx, dy) in [(48, 48, 0, -14), (144, 48, 14, 0), (48, 144, 0, 14), (144, 144, -14, 0)] {
            let level = |sign: i32| canvas.pixel((x + sign * dx) as u32, (y + sign * dy) as u32)[0];
            assert!(level(1) > 200 && level(-1) < 60, "{x},{y}: {} {}", level(1), level(-1));
        }
    }

    #[test]
    fn best_rotation_must_reach_its_minimum_score() {
        let scores = RotationScores([0.4, 0.5, 0.0, 0.0]);
        assert_eq!(scores.best(), (90, 0.5));
        let min_score = |rotation| if rotation == 0 { 0.36 } else { 0.6 };
        assert_eq!(scores.best_with_min_score(min_score), Some((0, 0.4)));
        assert_eq!(RotationScores([0.3, 0.5, 0.0, 0.0]).best_with_min_score(min_score), None);
    }

    #[test]
    fn rotation_canvas_accepts_any_box() {
        let frame = Frame::filled(9, 5, [90; 3]);
        for (x, y, side) in [(0.0, 0.0, 9.0), (-50.0, 90.0, 3.0), (2.0, 2.0, 0.0), (1.0, 1.0, 1e9)] {
            let canvas = RotationScores::canvas(&frame, &Rect { x, y, width: side, height: side });
            assert_eq!(canvas.width(), RotationScores::CANVAS);
        }
    }

    #[test]
    fn rotation_with_best_score_determines_face_roll() {
        let faces = [face(20.0, 20.0, 0.8), face(20.0, 110.0, 0.9), face(22.0, 112.0, 0.7)];
        let scores = RotationScores::from_detections(&faces);
        assert_eq!(scores.best(), (180, 0.9));
        assert_eq!(scores.roll_at(0), Some(180.0));
        assert_eq!(scores.roll_at(90), Some(-90.0));
        assert_eq!(scores.roll_at(180), None);
        assert_eq!(scores.roll_at(270), Some(90.0));
        let no_face = RotationScores::from_detections(&[]);
        assert_eq!((no_face.best(), no_face.roll_at(90)), ((0, 0.0), None));
    }
}

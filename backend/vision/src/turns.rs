//! Compares a face at four rotations.
//!
//! Detectors also find faces that are upside down or lie on their side. They then often return
//! landmarks in the arrangement of an upright face, so that the landmarks alone do not tell how the
//! face is turned. The score does: on equal canvases it is highest at the rotation at which the
//! face is upright (docs/measurements/DETECTION.md#rotated-faces). [`TurnScores::canvas`] draws
//! the surroundings of a face at all four rotations on one canvas, so that one run of a detector
//! compares them. This module does not run the detector.

use crate::{Detection, Frame, Letterbox, Rect, View, crop};

/// The clockwise rotations in degrees, in the order of the tiles: left to right, top to bottom.
const TURNS: [u32; 4] = [0, 90, 180, 270];
/// Side of a tile in pixels.
const TILE: u32 = 96;
/// Longer side of the face in its tile, in pixels.
const FACE: f32 = 56.0;

/// The best score of a detector, 0..1, for each rotation of the surroundings of a face. It is 0 for
/// a rotation at which the detector finds no face.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TurnScores([f32; 4]);

impl TurnScores {
    /// Side in pixels of the square canvas.
    pub const CANVAS: u32 = 2 * TILE;

    /// Draws the surroundings of `bbox` (image coordinates) at the four rotations.
    pub fn canvas(frame: &Frame, bbox: &Rect) -> Frame {
        let scale = FACE / bbox.width.max(bbox.height).max(1.0);
        let around = View::around((frame.width(), frame.height()), bbox, (TILE, TILE), f64::from(scale));
        // The scale is that of the face. A small image is not enlarged to fill the tile.
        let side = |pixels: u32| ((pixels as f32 * scale).round() as u32).clamp(1, TILE);
        let content = (side(around.region.width), side(around.region.height));
        let tile = Letterbox { scale, canvas: (TILE, TILE), content };
        let tile = if around.is_whole() { tile.draw(frame) } else { tile.draw(&around.crop(frame)) };
        let mut canvas = Frame::filled(Self::CANVAS, Self::CANVAS, [0; 3]);
        let (row, whole_row) = (TILE as usize * 3, Self::CANVAS as usize * 3);
        for (at, degrees) in TURNS.into_iter().enumerate() {
            let turned = crop::rotate(&tile, degrees);
            let left = at % 2 * row;
            let rows = canvas.data_mut().chunks_exact_mut(whole_row).skip(at / 2 * TILE as usize);
            for (to, from) in rows.zip(turned.data().chunks_exact(row)) {
                to[left..left + row].copy_from_slice(from);
            }
        }
        canvas
    }

    /// Returns the scores from the faces that a detector found on the canvas.
    pub fn of(found: &[Detection]) -> Self {
        let mut scores = [0.0_f32; 4];
        for face in found {
            let tile = |start: f32, length: f32| usize::from(start + length / 2.0 >= TILE as f32);
            let bbox = &face.bbox;
            let score = &mut scores[tile(bbox.x, bbox.width) + 2 * tile(bbox.y, bbox.height)];
            *score = score.max(face.det_score);
        }
        Self(scores)
    }

    /// Returns the clockwise rotation in degrees with the highest score, and the score. If scores
    /// are equal, the smaller rotation is preferred.
    pub fn best(&self) -> (u32, f32) {
        self.best_from(|_| 0.0).unwrap_or_default()
    }

    /// Works like [`Self::best`], but considers only rotations with at least their minimum score.
    pub fn best_from(&self, min_score: impl Fn(u32) -> f32) -> Option<(u32, f32)> {
        let pairs = TURNS.into_iter().zip(self.0).filter(|(rotation, score)| *score >= min_score(*rotation));
        pairs.reduce(|best, next| if next.1 > best.1 { next } else { best })
    }

    /// Returns the roll in degrees (clockwise, -90..=180) of the face if the best rotation is not
    /// `rotation`, relative to the image at `rotation`. Returns `None` if the face is upright
    /// there, or if the detector finds no face at any rotation.
    pub fn roll_at(&self, rotation: u32) -> Option<f32> {
        let at = TURNS.iter().position(|turn| *turn == rotation).unwrap_or(0);
        let (best, score) = self.best();
        (score > self.0[at]).then(|| match (best + 360 - rotation) % 360 {
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
    fn each_tile_shows_same_area_at_its_rotation() {
        let mut frame = Frame::filled(200, 160, [40; 3]);
        // The upper half of the face is bright.
        for y in 50..80 {
            for x in 70..130 {
                let at = (y * 200 + x) * 3;
                frame.data_mut()[at..at + 3].copy_from_slice(&[250; 3]);
            }
        }
        let bbox = Rect { x: 70.0, y: 50.0, width: 60.0, height: 60.0 };
        let canvas = TurnScores::canvas(&frame, &bbox);
        assert_eq!((canvas.width(), canvas.height()), (192, 192));
        // The middle of a tile, and a step of 14 pixels to the side that is bright there.
        for (x, y, dx, dy) in [(48, 48, 0, -14), (144, 48, 14, 0), (48, 144, 0, 14), (144, 144, -14, 0)] {
            let at = |sign: i32| canvas.pixel((x + sign * dx) as u32, (y + sign * dy) as u32)[0];
            assert!(at(1) > 200 && at(-1) < 60, "{x},{y}: {} {}", at(1), at(-1));
        }
    }

    #[test]
    fn best_rotation_must_reach_its_minimum_score() {
        let scores = TurnScores([0.4, 0.5, 0.0, 0.0]);
        assert_eq!(scores.best(), (90, 0.5));
        let min_score = |rotation| if rotation == 0 { 0.36 } else { 0.6 };
        assert_eq!(scores.best_from(min_score), Some((0, 0.4)));
        assert_eq!(TurnScores([0.3, 0.5, 0.0, 0.0]).best_from(min_score), None);
    }

    #[test]
    fn rotation_canvas_accepts_any_box() {
        let frame = Frame::filled(9, 5, [90; 3]);
        for (x, y, side) in [(0.0, 0.0, 9.0), (-50.0, 90.0, 3.0), (2.0, 2.0, 0.0), (1.0, 1.0, 1e9)] {
            let canvas = TurnScores::canvas(&frame, &Rect { x, y, width: side, height: side });
            assert_eq!(canvas.width(), TurnScores::CANVAS);
        }
    }

    #[test]
    fn best_tile_determines_face_roll() {
        let scores = TurnScores::of(&[face(20.0, 20.0, 0.8), face(20.0, 110.0, 0.9), face(22.0, 112.0, 0.7)]);
        assert_eq!(scores.best(), (180, 0.9));
        assert_eq!(scores.roll_at(0), Some(180.0));
        assert_eq!(scores.roll_at(90), Some(-90.0));
        assert_eq!(scores.roll_at(180), None);
        assert_eq!(scores.roll_at(270), Some(90.0));
        let nothing = TurnScores::of(&[]);
        assert_eq!((nothing.best(), nothing.roll_at(90)), ((0, 0.0), None));
    }
}

//! Determines the rotation at which the faces of an image are upright.
//!
//! A detector also finds faces that are not upright, with lower scores. [`Rotate::Auto`] therefore
//! compares the best boxes at the four rotations, unless the score of a face is so high that it is
//! certainly upright. The comparison of one box takes one run on a small canvas. The whole image is
//! searched at another rotation only if the comparison shows a face there. An image without a box
//! needs no comparison: background work does not search it again, and interactive work searches it
//! at every rotation. In a first look, the comparison replaces the enlargement of faint boxes.

use super::{CLEAR_SHARE, Search, Timings, ViewDetections};
use crate::domain::Rotate;
use crate::images::analyze::AnalyzeError;
use vision::quality::pose;
use vision::{Detection, TurnScores, keep_best, nms};

/// Maximum number of boxes of one image that are compared, best first.
const MAX_COMPARED: usize = 3;
/// Maximum roll in degrees, to either side, of the landmarks of a face that is certainly upright.
const MAX_UPRIGHT_ROLL: f32 = 45.0;

impl Search<'_> {
    /// Returns the clockwise rotation in degrees at which the faces are upright: that with the
    /// highest score of a box. Returns `None` if no box shows a face at any rotation.
    pub(super) async fn turn(
        &self,
        found: &ViewDetections,
        timings: &mut Timings,
        views: &mut usize,
    ) -> Result<Option<u32>, AnalyzeError> {
        let upright_score = self.analyzer.upright_score();
        let is_upright = |face: &Detection| {
            face.det_score >= upright_score && pose::estimate(&face.landmarks).roll.abs() <= MAX_UPRIGHT_ROLL
        };
        if self.rotate == Rotate::Off || found.detections.iter().any(is_upright) {
            return Ok(Some(0));
        }
        let mut boxes = [found.detections.as_slice(), &found.signs].concat();
        keep_best(&mut boxes, super::MAX_VIEW_FACES);
        let mut boxes = nms(boxes, self.analyzer.engine().detector().nms_iou);
        boxes.truncate(MAX_COMPARED);
        self.turn_of(&boxes, false, timings, views).await
    }

    /// Compares boxes one by one, best first. Returns the rotation with the highest score, or
    /// `None` if no box shows a face. With `first_shown`, stops at the first box that shows a face.
    pub(super) async fn turn_of(
        &self,
        boxes: &[Detection],
        first_shown: bool,
        timings: &mut Timings,
        views: &mut usize,
    ) -> Result<Option<u32>, AnalyzeError> {
        let mut best: Option<(u32, f32)> = None;
        for face in boxes {
            *views += 1;
            let compared = self.analyzer.turn_scores(self.frame, vec![face.bbox], self.priority).await?;
            timings.queue += compared.queued;
            timings.detect += compared.ran;
            let scores: Option<&TurnScores> = compared.output.first();
            let next = scores.and_then(|scores| scores.best_from(|rotation| self.min_shown(rotation)));
            if let Some(next) = next.filter(|next| best.is_none_or(|best| next.1 > best.1)) {
                best = Some(next);
                if first_shown {
                    break;
                }
            }
        }
        Ok(best.map(|(rotation, _)| rotation))
    }

    /// Returns the minimum score that shows a face at a rotation. At 0, a box that is almost a face
    /// is enough, as in a search without rotations. At another rotation, it must be a face: the
    /// image is searched a second time, and in images without a face, that would find nothing.
    fn min_shown(&self, rotation: u32) -> f32 {
        let min_score = self.looks_with().info().min_score;
        if rotation == 0 { min_score * CLEAR_SHARE } else { min_score }
    }
}

//! Determines how faces are turned, with a detector that compares their surroundings at four
//! rotations ([`TurnScores`]).

use super::faces::{AlignedFace, Source, run_model};
use super::{AnalyzeError, Analyzer, Timings};
use inference::{Priority, Timed, trace};
use std::sync::Arc;
use vision::{Frame, Letterbox, Profile, Rect, TurnScores};

/// A face is upright if its score exceeds the detector's own `min_score` by this value. Of faces
/// that are not upright, YuNet gives at most 0.904 and SCRFD 2.5G at most 0.794; the values are
/// 0.91 and 0.81. In photographs, a quarter of the upright faces that meet the profile `standard`
/// have a lower score (docs/measurements/DETECTION.md#rotated-faces).
const UPRIGHT_MARGIN: f32 = 0.31;
/// Minimum score of a box in the comparison. Only the best box of each rotation counts.
const MIN_SCORE: f32 = 0.05;

impl Analyzer {
    /// Returns the `det_score` from which a face with upright landmarks is upright.
    pub(super) fn upright_score(&self) -> f32 {
        self.engine().faces().info().min_score + UPRIGHT_MARGIN
    }

    /// Returns the scores of each box (coordinates of `pixels`) at the four rotations.
    pub(super) async fn turn_scores(
        &self,
        pixels: &Arc<Frame>,
        boxes: Vec<Rect>,
        priority: Priority,
    ) -> Result<Timed<Vec<TurnScores>>, AnalyzeError> {
        let pixels = pixels.clone();
        let drawn = self
            .cpu()
            .run(move || {
                let _span = tracing::trace_span!(target: trace::RUN, "turns", faces = boxes.len()).entered();
                boxes.iter().map(|bbox| Arc::new(TurnScores::canvas(&pixels, bbox))).collect::<Vec<_>>()
            })
            .await?;
        let detector = self.engine().first_look();
        let side = (TurnScores::CANVAS, TurnScores::CANVAS);
        let canvas = detector.info().fixed_size.unwrap_or(side);
        let letterbox = detector.adapt_letterbox(Letterbox { canvas, ..Letterbox::identity(side) });
        let compared =
            run_model(drawn.output, |canvas| detector.detect(canvas, letterbox, MIN_SCORE, priority)).await?;
        let scores = compared.output.into_iter().map(|found| TurnScores::of(&found.unwrap_or_default()));
        Ok(Timed {
            output: scores.collect(),
            queued: drawn.queued + compared.queued,
            ran: drawn.ran + compared.ran,
        })
    }

    /// Corrects the roll of faces whose landmarks are upright although the faces are not. Only
    /// faces that could be used otherwise and are not certainly upright are compared.
    pub(super) async fn correct_rolls(
        &self,
        source: &Source,
        faces: &mut [AlignedFace],
        profile: Profile,
        priority: Priority,
        timings: &mut Timings,
    ) -> Result<(), AnalyzeError> {
        let upright_score = self.upright_score();
        // The limits of `strict` are at least as narrow.
        let is_usable = |face: &AlignedFace| {
            let quality = face.face.quality.as_ref();
            quality.is_some_and(|quality| quality.unmet_limits(Profile::Standard).is_empty())
        };
        let mut uncertain: Vec<&mut AlignedFace> = faces
            .iter_mut()
            .filter(|face| face.face.detection.det_score < upright_score && is_usable(face))
            .collect();
        if uncertain.is_empty() {
            return Ok(());
        }
        let boxes = uncertain.iter().map(|face| source.scaled(&face.face.detection.bbox)).collect();
        let compared = self.turn_scores(&source.pixels, boxes, priority).await?;
        timings.queue += compared.queued;
        timings.quality += compared.ran;
        for (face, scores) in uncertain.iter_mut().zip(compared.output) {
            if let (Some(roll), Some(quality)) = (scores.roll_at(source.rotation), &mut face.face.quality) {
                quality.correct_roll(roll, profile);
            }
        }
        Ok(())
    }
}

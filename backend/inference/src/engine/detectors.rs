//! The detectors of an engine: the detector of faces and, if the pack has one, a cheaper detector
//! for first looks.
use super::{DetectorInfo, Engine, unfit};
use crate::batcher::{Batcher, Priority, Timed};
use crate::models::{DetectionRequest, DetectorModel};
use crate::{Operation, RunError};
use std::sync::Arc;
use vision::{Detection, Frame, Letterbox};

pub(super) struct LoadedDetector {
    pub(super) batcher: Batcher<DetectorModel>,
    pub(super) info: DetectorInfo,
    /// Whether the detector runs faster on a smaller canvas.
    pub(super) trims_canvases: bool,
}

#[derive(Clone, Copy)]
pub struct Detector<'a> {
    pub(super) engine: &'a Engine,
    pub(super) loaded: &'a LoadedDetector,
}

impl<'a> Detector<'a> {
    pub fn info(&self) -> &'a DetectorInfo {
        &self.loaded.info
    }

    /// Detects faces in an image of any size, placed on a canvas by `letterbox`. Returns those with
    /// `det_score >= min_score` (0..1), in canvas pixels, after NMS, best first. The sides of the
    /// canvas are multiples of 32 (of 128 for SCRFD with five levels), or the detector's fixed
    /// size. Dropping the future cancels the request.
    ///
    /// If [`Engine::detects_frames`], the image's bytes are copied to the device once. Otherwise
    /// the session's thread draws the canvas.
    ///
    /// # Errors
    /// Fails with [`RunError::Failed`] if `min_score` or the size of the canvas is not allowed, and
    /// with the errors of the queue.
    pub async fn detect(
        &self,
        frame: Arc<Frame>,
        letterbox: Letterbox,
        min_score: f32,
        priority: Priority,
    ) -> Result<Timed<Vec<Detection>>, RunError> {
        if !(0.0..=1.0).contains(&min_score) {
            return Err(unfit(
                Operation::FaceDetection,
                format!("min_score is {min_score}; it must be from 0 to 1"),
            ));
        }
        let batcher = &self.loaded.batcher;
        batcher.model().check(letterbox.canvas).map_err(|reason| unfit(Operation::FaceDetection, reason))?;
        let request = DetectionRequest { frame, letterbox, min_score };
        batcher.run(request, self.engine.terms(priority)).await
    }

    /// Adapts a letterbox to the detector's device ([`crate::DetectionCanvas`]). On the CPU, a
    /// detector of any size uses a canvas without the black border, which is a third of the canvas
    /// for a 3:2 image. On a device, the canvas keeps its size: only canvases of equal size share a
    /// batch, and each new size may have to be compiled.
    #[must_use]
    pub fn adapt_letterbox(&self, letterbox: Letterbox) -> Letterbox {
        if self.trims_canvases() {
            letterbox.trimmed(self.loaded.batcher.model().alignment())
        } else {
            letterbox
        }
    }

    /// Returns whether the detector accepts canvases of any size without extra cost. If so,
    /// [`Self::adapt_letterbox`] removes the black border.
    pub fn trims_canvases(&self) -> bool {
        self.loaded.trims_canvases
    }
}

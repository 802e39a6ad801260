//! Searches an image of low resolution a second time, in an enhanced copy of it. The enhancement
//! itself is in [`vision::enhance`].

use super::options::Settings;
use super::search::Found;
use super::{AnalyzeError, Analyzer, Enhance, Timings};
use crate::domain::Rotate;
use inference::Priority;
use std::sync::Arc;
use vision::enhance::LOW_SIDE;
use vision::{Detection, Enhanced, Frame, Letterbox};

pub(super) struct SearchOutcome {
    /// The faces, in coordinates of the original image.
    pub(super) found: Found,
    /// The image in which the faces were found: the original or the enhanced one. Face crops are
    /// cut from it: a face that is only detected on enhanced pixels is only recognised on them.
    pub(super) pixels: Arc<Frame>,
    /// Pixels of the enhanced image per pixel of the original; `None` if the faces were found on
    /// the original.
    pub(super) enhancement_scale: Option<f32>,
}

impl Analyzer {
    /// Detects faces. If the image is small, no face is reliable and `enhance` allows it, detects
    /// again on the enhanced image and returns the result with the better total score.
    pub(super) async fn detect_with_enhancement(
        &self,
        frame: &Arc<Frame>,
        settings: &Settings,
        (rotate, enhance): (Rotate, Enhance),
        priority: Priority,
        timings: &mut Timings,
    ) -> Result<SearchOutcome, AnalyzeError> {
        let mut found = self.detect(frame, settings, rotate, priority, timings).await?;
        let reliable = found.detections.iter().any(|face| face.det_score >= self.reliable_score());
        let low = frame.width().min(frame.height()) < LOW_SIDE;
        if enhance == Enhance::Off || reliable || !low {
            return Ok(SearchOutcome { found, pixels: frame.clone(), enhancement_scale: None });
        }
        let enhanced = self.pixels().enhance(frame.clone(), priority).await?;
        timings.queue += enhanced.queued;
        timings.detect += enhanced.ran;
        let Enhanced { frame: pixels, scale } = enhanced.output;
        let pixels = Arc::new(pixels);
        let mut second = self.detect(&pixels, settings, rotate, priority, timings).await?;
        found.views += second.views;
        second.views = found.views;
        if total(&second.detections) <= total(&found.detections) {
            return Ok(SearchOutcome { found, pixels: frame.clone(), enhancement_scale: None });
        }
        let size = (frame.width(), frame.height());
        let back = Letterbox { scale, canvas: size, content: size };
        for detection in &mut second.detections {
            *detection = back.restore(detection);
        }
        Ok(SearchOutcome { found: second, pixels, enhancement_scale: Some(scale) })
    }
}

fn total(detections: &[Detection]) -> f32 {
    detections.iter().map(|face| face.det_score).sum()
}

//! A second look at pictures of low resolution.

use super::options::Settings;
use super::search::Found;
use super::{AnalyzeError, Analyzer, Enhance, Rotate, Timings};
use inference::Lane;
use std::sync::Arc;
use vision::enhance::LOW_SIDE;
use vision::{Detection, Enhanced, Frame, Letterbox};

/// `det_score` from which a face is no weak one: the usual threshold for a face that is certain.
const WEAK: f32 = 0.8;

/// What is known after all looks.
pub(super) struct Looked {
    /// In coordinates of the picture.
    pub(super) found: Found,
    /// The picture that the faces were found on: chips are cut from it, since a face that only shows on enhanced pixels can only
    /// be recognised on them.
    pub(super) pixels: Arc<Frame>,
    /// Its pixels per pixel of the picture, if it is the enhanced one.
    pub(super) enhancement_scale: Option<f32>,
}

impl Analyzer {
    /// Detects, and detects again on the enhanced picture where the first look is poor, the picture small and the caller wants it;
    /// whichever has the better total score is taken.
    pub(super) async fn look(
        &self,
        frame: &Arc<Frame>,
        settings: &Settings,
        (rotate, enhance): (Rotate, Enhance),
        lane: Lane,
        timings: &mut Timings,
    ) -> Result<Looked, AnalyzeError> {
        let mut found = self.detect(frame, settings, rotate, lane, timings).await?;
        let strong = found.detections.iter().any(|face| face.det_score >= WEAK);
        let low = frame.width().min(frame.height()) < LOW_SIDE;
        if enhance == Enhance::Off || strong || !low {
            return Ok(Looked { found, pixels: frame.clone(), enhancement_scale: None });
        }
        let enhanced = self.pixels().enhance(frame.clone(), lane).await?;
        timings.queue += enhanced.queued;
        timings.detect += enhanced.ran;
        let Enhanced { frame: pixels, scale } = enhanced.output;
        let pixels = Arc::new(pixels);
        let mut second = self.detect(&pixels, settings, rotate, lane, timings).await?;
        found.views += second.views;
        second.views = found.views;
        if total(&second.detections) <= total(&found.detections) {
            return Ok(Looked { found, pixels: frame.clone(), enhancement_scale: None });
        }
        let size = (frame.width(), frame.height());
        let back = Letterbox { scale, canvas: size, content: size };
        for detection in &mut second.detections {
            *detection = back.restore(detection);
        }
        Ok(Looked { found: second, pixels, enhancement_scale: Some(scale) })
    }
}

fn total(detections: &[Detection]) -> f32 {
    detections.iter().map(|face| face.det_score).sum()
}

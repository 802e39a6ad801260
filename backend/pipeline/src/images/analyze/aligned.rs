//! Analyses face crops that the caller has already aligned. No detector runs here.

use super::faces::{AlignedFace, FoundFaces};
use super::{Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer};
use bytes::Bytes;
use inference::Priority;
use vision::{ARCFACE_TEMPLATE, CHIP, Detection, Rect};

impl Analyzer {
    /// Assesses and embeds an image that is already an aligned face crop: 112x112 pixels, with eyes
    /// and mouth at the positions of the ArcFace template. The result contains one face. Its box
    /// covers the whole image and its `det_score` is 1.
    ///
    /// The size and the pose of the face in its original image are unknown, so the quality measures
    /// `size` and `pose` have no meaning.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Option`] if the image is not 112x112 pixels, and otherwise with
    /// other variants of [`AnalyzeError`].
    pub async fn analyze_aligned(
        &self,
        bytes: Bytes,
        options: &AnalyzeOptions,
        priority: Priority,
    ) -> Result<Analysis, AnalyzeError> {
        let settings = self.settings(options)?;
        let mut decoded = self.decode(bytes, priority).await?;
        let frame = decoded.frame.clone();
        let size = (frame.width(), frame.height());
        if size != (CHIP, CHIP) {
            return Err(AnalyzeError::Option(format!(
                "aligned: the image has {}x{} pixels; an aligned crop must have {CHIP}x{CHIP}",
                size.0, size.1
            )));
        }
        let side = CHIP as f32;
        let detection = Detection {
            bbox: Rect { x: 0.0, y: 0.0, width: side, height: side },
            det_score: 1.0,
            landmarks: ARCFACE_TEMPLATE,
        };
        let chip = frame.clone();
        let assessed = self
            .cpu()
            .run(move || vision::quality::assess(&chip, &detection, size, settings.profile))
            .await?;
        decoded.timings.quality = assessed.ran;
        decoded.timings.queue += assessed.queued;
        let face = AnalyzedFace { detection, quality: Some(assessed.output), embedding: None, chip: None };
        let mut faces = vec![AlignedFace { chip: frame, face }];
        if self.engine().scorer().is_some() {
            self.score(&mut faces, priority, &mut decoded.timings).await?;
        }
        self.embed(faces.iter_mut(), priority, &mut decoded.timings).await?;
        let faces = faces.into_iter().map(|face| face.into_result(options)).collect();
        Ok(decoded.into_analysis(FoundFaces { rotation: 0, enhancement_scale: None, views: 0, faces }))
    }
}

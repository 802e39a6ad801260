//! A face that was cut out and aligned elsewhere: nothing is looked for in it.

use super::faces::{CHIP, Cut};
use super::{Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, Picture, Timings};
use bytes::Bytes;
use inference::Lane;
use vision::{ARCFACE_TEMPLATE, Detection, Rect};

impl Analyzer {
    /// Judges and embeds a picture that is an aligned chip already: 112x112 pixels, eyes and mouth where the ArcFace template has them. Its one face
    /// fills it, with a `det_score` of 1. Size and pose of the face in the picture that it was cut from are not known, so the measures `size` and
    /// `pose` say nothing.
    ///
    /// # Errors
    /// [`AnalyzeError`]; `Option` for a picture of another size.
    pub async fn analyze_aligned(
        &self,
        bytes: Bytes,
        options: &AnalyzeOptions,
        lane: Lane,
    ) -> Result<Analysis, AnalyzeError> {
        let settings = self.settings(options)?;
        let Picture { frame, format, sha256, hashes, bytes, mut timings, started } =
            self.decode(bytes, lane).await?;
        let size = (frame.width(), frame.height());
        if size != (CHIP, CHIP) {
            return Err(AnalyzeError::Option(format!(
                "aligned: the picture has {}x{} pixels; an aligned crop has {CHIP}x{CHIP}",
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
        let judged = self
            .cpu()
            .run(move || vision::quality::assess(&chip, &detection, size, settings.profile))
            .await?;
        timings = Timings { quality: judged.ran, queue: timings.queue + judged.queued, ..timings };
        let face = AnalyzedFace { detection, quality: Some(judged.output), embedding: None, chip: None };
        let mut faces = vec![Cut { chip: frame.clone(), face }];
        if self.engine().scorer().is_some() {
            self.score(&mut faces, lane, &mut timings).await?;
        }
        self.embed(faces.iter_mut(), lane, &mut timings).await?;
        timings.total = started.elapsed();
        Ok(Analysis {
            frame,
            format,
            sha256,
            hashes,
            bytes,
            rotation: 0,
            enhancement_scale: None,
            views: 0,
            faces: faces.into_iter().map(|cut| cut.done(options)).collect(),
            timings,
        })
    }
}

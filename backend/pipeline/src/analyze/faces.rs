//! The second stage: pixels to faces.

use super::enhanced::Looked;
use super::options::Settings;
use super::{Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, Picture, Rotate, Timings, turn};
use futures::StreamExt;
use inference::{Embedding, Lane, RunError, Timed, trace};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use vision::{Detection, Frame, Letterbox, Point, QualityReport, crop};

/// Side of an aligned chip in pixels.
const CHIP: u32 = 112;
/// Chips of one picture that wait for the embedder at once: enough to fill a batch, few enough that a crowd does not fill the queue alone.
const EMBEDS_IN_FLIGHT: usize = 32;

/// `det_score` from which an upright face settles that a picture is upright. Detectors also find a turned face now and then, with a lower score, a box that
/// is off and landmarks that are wrong: of one portrait turned by 0, 90, 180 and 270 degrees YuNet says 0.94, nothing, 0.87 and 0.83, and SCRFD 2.5G
/// 0.81, 0.69, nothing and 0.59. So finding something is not enough.
const CONVINCING: f32 = 0.9;

/// What was found on a canvas, and the clockwise turn of the image that it was found at.
pub(super) struct Found {
    pub(super) detections: Vec<Detection>,
    pub(super) rotation: u32,
}

impl Analyzer {
    /// Finds, aligns, judges and embeds the faces of a decoded picture.
    ///
    /// # Errors
    /// [`AnalyzeError::Option`] and [`AnalyzeError::Run`].
    pub async fn find_faces(
        &self,
        picture: Picture,
        options: &AnalyzeOptions,
        lane: Lane,
    ) -> Result<Analysis, AnalyzeError> {
        let settings = self.settings(options)?;
        let Picture { frame, format, sha256, hashes, bytes, mut timings, started } = picture;
        let Looked { found: Found { mut detections, rotation }, pixels, enhancement_scale } = self
            .look(&frame, &settings, (options.rotate, options.enhance), lane, &mut timings)
            .instrument(tracing::trace_span!(target: trace::STAGE, "detect"))
            .await?;
        detections.sort_by(|a, b| b.det_score.total_cmp(&a.det_score));
        detections.truncate(settings.max_faces);
        let quality = options.quality.then_some(settings.profile);
        let source = (pixels, enhancement_scale.unwrap_or(1.0));
        let size = (frame.width(), frame.height());
        let mut faces = self
            .align(source, size, detections, rotation, quality, &mut timings)
            .instrument(tracing::trace_span!(target: trace::STAGE, "align"))
            .await?;
        if options.embeddings {
            self.embed(&mut faces, lane, &mut timings)
                .instrument(tracing::trace_span!(target: trace::STAGE, "embed"))
                .await?;
        }
        timings.total = started.elapsed();
        timings.record();
        Ok(Analysis { frame, format, sha256, hashes, bytes, rotation, enhancement_scale, faces, timings })
    }

    /// Detects upright and, where that was asked for and gave nothing convincing, turned; the turn with the best total score wins, upright ahead of equals.
    ///
    /// It is the canvas that is turned, not the image: the same pixels at a fraction of the work. A canvas that is not square can only be turned
    /// by 180 degrees, because its model takes no other shape.
    pub(super) async fn detect(
        &self,
        frame: &Arc<Frame>,
        settings: &Settings,
        rotate: Rotate,
        lane: Lane,
        timings: &mut Timings,
    ) -> Result<Found, AnalyzeError> {
        let letterbox = Letterbox::fit((frame.width(), frame.height()), settings.canvas);
        let source = frame.clone();
        let drawn = self
            .cpu()
            .run(move || {
                let _span = tracing::trace_span!(target: trace::RUN, "letterbox").entered();
                Arc::new(letterbox.draw(&source))
            })
            .await?;
        timings.queue += drawn.queued;
        timings.letterbox += drawn.ran;
        let canvas = drawn.output;

        let upright = self.detect_canvas(canvas.clone(), settings.min_score, lane, timings).await?;
        let mut best = Found { detections: upright, rotation: 0 };
        if rotate == Rotate::Auto && best.detections.iter().all(|d| d.det_score < CONVINCING) {
            let square = settings.canvas.0 == settings.canvas.1;
            for degrees in [90, 180, 270] {
                if degrees == 180 || square {
                    let found = self.detect_turned(&canvas, degrees, settings, lane, timings).await?;
                    if total_score(&found) > total_score(&best.detections) {
                        best = Found { detections: found, rotation: degrees };
                    }
                }
            }
        }
        for detection in &mut best.detections {
            *detection = letterbox.restore(&turn::back(detection, settings.canvas, best.rotation));
        }
        Ok(best)
    }

    async fn detect_turned(
        &self,
        canvas: &Arc<Frame>,
        degrees: u32,
        settings: &Settings,
        lane: Lane,
        timings: &mut Timings,
    ) -> Result<Vec<Detection>, AnalyzeError> {
        let source = canvas.clone();
        let turned = self.cpu().run(move || Arc::new(crop::rotate(&source, degrees))).await?;
        timings.queue += turned.queued;
        timings.letterbox += turned.ran;
        Ok(self.detect_canvas(turned.output, settings.min_score, lane, timings).await?)
    }

    async fn detect_canvas(
        &self,
        canvas: Arc<Frame>,
        min_score: f32,
        lane: Lane,
        timings: &mut Timings,
    ) -> Result<Vec<Detection>, RunError> {
        let timed = self.engine().detect(canvas, min_score, lane).await?;
        timings.queue += timed.queued;
        timings.detect += timed.ran;
        Ok(timed.output)
    }

    /// Cuts the chips and judges them. `pixels` are at `scale` to the picture of `size`, whose coordinates the detections have: the
    /// picture itself at 1, or the enhanced one. A face whose landmarks coincide has no alignment and is dropped.
    async fn align(
        &self,
        (pixels, scale): (Arc<Frame>, f32),
        size: (u32, u32),
        detections: Vec<Detection>,
        rotation: u32,
        quality: Option<vision::Profile>,
        timings: &mut Timings,
    ) -> Result<Vec<AnalyzedFace>, AnalyzeError> {
        if detections.is_empty() {
            return Ok(Vec::new());
        }
        let ran = self
            .cpu()
            .run(move || {
                let span =
                    tracing::trace_span!(target: trace::RUN, "align and judge", faces = detections.len());
                let _span = span.entered();
                let (mut aligning, mut judging) = (Duration::ZERO, Duration::ZERO);
                let faces: Vec<AnalyzedFace> = detections
                    .into_iter()
                    .filter_map(|detection| {
                        let started = Instant::now();
                        // The landmarks name the subject's right eye first, so the fit itself turns the chip upright.
                        let landmarks = detection.landmarks.map(|p| Point { x: p.x * scale, y: p.y * scale });
                        let chip = vision::norm_crop(&pixels, &landmarks, CHIP);
                        aligning += started.elapsed();
                        let chip = chip?;
                        let started = Instant::now();
                        let quality =
                            quality.map(|profile| judge(&chip, &detection, size, rotation, profile));
                        judging += started.elapsed();
                        Some(AnalyzedFace { detection, quality, embedding: None, chip: Arc::new(chip) })
                    })
                    .collect();
                (faces, aligning, judging)
            })
            .await?;
        let (faces, aligning, judging) = ran.output;
        timings.queue += ran.queued;
        timings.align += aligning;
        timings.quality += judging;
        Ok(faces)
    }

    /// Embeds all faces, concurrently. What is waiting is the wait for the first session: from then on the picture's own faces queue behind each other.
    async fn embed(
        &self,
        faces: &mut [AnalyzedFace],
        lane: Lane,
        timings: &mut Timings,
    ) -> Result<(), AnalyzeError> {
        let started = Instant::now();
        let mut waited: Option<Duration> = None;
        let chips: Vec<Arc<Frame>> = faces.iter().map(|face| face.chip.clone()).collect();
        let mut embedded =
            futures::stream::iter(chips.into_iter().map(|chip| self.engine().embed(chip, lane)))
                .buffered(EMBEDS_IN_FLIGHT);
        for face in faces {
            let result = embedded.next().await.expect("one answer per face");
            if let Some((embedding, queued)) = embedding_of(result)? {
                face.embedding = Some(embedding);
                waited = Some(waited.map_or(queued, |least| least.min(queued)));
            }
        }
        let queued = waited.unwrap_or_default().min(started.elapsed());
        timings.queue += queued;
        timings.embed += started.elapsed() - queued;
        Ok(())
    }
}

/// A chip that the model has nothing to say about leaves its face without embedding; every other failure is the picture's.
fn embedding_of(
    result: Result<Timed<Embedding>, RunError>,
) -> Result<Option<(Embedding, Duration)>, RunError> {
    match result {
        Ok(timed) => Ok(Some((timed.output, timed.queued))),
        Err(error) if error.is_empty_output() => {
            tracing::warn!(%error, "a face stays without embedding");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Judges the face as it looks once the picture is turned upright; otherwise every face of a turned picture would be a bad pose.
fn judge(
    chip: &Frame,
    detection: &Detection,
    size: (u32, u32),
    rotation: u32,
    profile: vision::Profile,
) -> QualityReport {
    let upright = turn::forward(detection, size, rotation);
    vision::quality::assess(chip, &upright, turn::turned_size(size, rotation), profile)
}

fn total_score(detections: &[Detection]) -> f32 {
    detections.iter().map(|d| d.det_score).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_model_is_never_taken_for_a_face_without_embedding() {
        let failed = RunError::Failed { operation: "face_embedding", reason: "out of memory".into() };
        assert!(embedding_of(Err(failed)).is_err());
        assert!(embedding_of(Err(RunError::Stopped)).is_err());
    }
}

//! The second stage: pixels to faces.

use super::options::Settings;
use super::{Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, Picture, Rotate, Timings, turn};
use futures::StreamExt;
use inference::{Embedding, Lane, RunError};
use std::sync::Arc;
use std::time::{Duration, Instant};
use vision::{Detection, Frame, Letterbox, QualityReport, crop};

/// Side of an aligned chip in pixels.
const CHIP: u32 = 112;
/// Chips of one picture that wait for the embedder at once: enough to fill a batch, few enough that a crowd does not fill the queue alone.
const EMBEDS_IN_FLIGHT: usize = 32;

/// What was found on the canvas, in image coordinates.
struct Found {
    detections: Vec<Detection>,
    rotation: u32,
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
        let Found { mut detections, rotation } =
            self.detect(&frame, &settings, options.rotate, lane, &mut timings).await?;
        detections.sort_by(|a, b| b.det_score.total_cmp(&a.det_score));
        detections.truncate(settings.max_faces);
        let quality = options.quality.then_some(settings.profile);
        let mut faces = self.align(&frame, detections, rotation, quality, &mut timings).await?;
        if options.embeddings {
            self.embed(&mut faces, lane, &mut timings).await?;
        }
        timings.total = started.elapsed();
        timings.record();
        Ok(Analysis { frame, format, sha256, hashes, bytes, rotation, faces, timings })
    }

    /// Detects upright, and turned when nothing is there and that was asked for.
    ///
    /// It is the canvas that is turned, not the image: the same pixels at a fraction of the work. A canvas that is not square can only be turned
    /// by 180 degrees, because its model takes no other shape.
    async fn detect(
        &self,
        frame: &Arc<Frame>,
        settings: &Settings,
        rotate: Rotate,
        lane: Lane,
        timings: &mut Timings,
    ) -> Result<Found, AnalyzeError> {
        let letterbox = Letterbox::fit((frame.width(), frame.height()), settings.canvas);
        let source = frame.clone();
        let drawn = self.cpu().run(move || Arc::new(letterbox.draw(&source))).await?;
        timings.queue += drawn.queued;
        timings.detect += drawn.ran;
        let canvas = drawn.output;

        let upright = self.detect_canvas(canvas.clone(), settings.min_score, lane, timings).await?;
        if !upright.is_empty() || rotate == Rotate::Off {
            let detections = upright.iter().map(|d| letterbox.restore(d)).collect();
            return Ok(Found { detections, rotation: 0 });
        }

        let square = settings.canvas.0 == settings.canvas.1;
        let mut best = Found { detections: Vec::new(), rotation: 0 };
        for degrees in [90, 180, 270] {
            if degrees != 180 && !square {
                continue;
            }
            let source = canvas.clone();
            let turned = self.cpu().run(move || Arc::new(crop::rotate(&source, degrees))).await?;
            timings.queue += turned.queued;
            timings.detect += turned.ran;
            let found = self.detect_canvas(turned.output, settings.min_score, lane, timings).await?;
            if total_score(&found) > total_score(&best.detections) {
                best = Found { detections: found, rotation: degrees };
            }
        }
        let rotation = best.rotation;
        let detections = best
            .detections
            .iter()
            .map(|d| letterbox.restore(&turn::back(d, settings.canvas, rotation)))
            .collect();
        Ok(Found { detections, rotation })
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

    /// Cuts the chips from the original pixels and judges them. A face whose landmarks coincide has no alignment and is dropped.
    async fn align(
        &self,
        frame: &Arc<Frame>,
        detections: Vec<Detection>,
        rotation: u32,
        quality: Option<vision::Profile>,
        timings: &mut Timings,
    ) -> Result<Vec<AnalyzedFace>, AnalyzeError> {
        if detections.is_empty() {
            return Ok(Vec::new());
        }
        let frame = frame.clone();
        let ran = self
            .cpu()
            .run(move || {
                let (mut aligning, mut judging) = (Duration::ZERO, Duration::ZERO);
                let size = (frame.width(), frame.height());
                let faces: Vec<AnalyzedFace> = detections
                    .into_iter()
                    .filter_map(|detection| {
                        let started = Instant::now();
                        // The landmarks name the subject's right eye first, so the fit itself turns the chip upright.
                        let chip = vision::norm_crop(&frame, &detection.landmarks, CHIP);
                        aligning += started.elapsed();
                        let chip = chip?;
                        let started = Instant::now();
                        let quality = quality.map(|profile| judge(&chip, &detection, size, rotation, profile));
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

/// A chip that the model has nothing to say about (a zero vector) leaves its face without embedding; everything else is the picture's failure.
fn embedding_of(
    result: Result<inference::engine::Timed<Embedding>, RunError>,
) -> Result<Option<(Embedding, Duration)>, RunError> {
    result.map(|timed| Some((timed.output, timed.queued)))
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

//! The second stage of an analysis: from pixels to faces with quality and embeddings. The search
//! for faces is in [`super::search`].
use super::search::DetectedFaces;
use super::{Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, DecodedImage, Run, Timings};
use crate::images::analyze::pixels;
use crate::images::analyze::search::SearchResult;
use bytes::Bytes;
use futures::StreamExt;
use inference::{Embedding, Priority, RunError, Timed, trace};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use vision::quality::Measure;
use vision::{
    ARCFACE_TEMPLATE, CHIP_SIDE, Detection, Frame, Letterbox, Point, Profile, QualityReport, Rect,
    RotationScores,
};

/// Maximum number of face crops of one image in a model's queue at a time. They fill a batch, and
/// the limit prevents a single image of a crowd from filling the queue.
const CHIPS_IN_FLIGHT: usize = 32;
/// Number of faces that are cut in one step. A face crop takes 38 kB and an image of a crowd
/// contains hundreds of faces, so they are processed in groups to bound the memory.
const GROUP: usize = 2 * CHIPS_IN_FLIGHT;

/// The faces of an image, and how they were found; see [`Analysis`].
struct FoundFaces {
    rotation: u32,
    enhancement_scale: Option<f32>,
    views: usize,
    faces: Vec<AnalyzedFace>,
}

impl DecodedImage {
    /// Returns the analysis of the image. Its total time ends now.
    fn into_analysis(self, found: FoundFaces, timings: Timings) -> Analysis {
        let Self { frame, format, sha256, hashes, bytes, started, .. } = self;
        let FoundFaces { rotation, enhancement_scale, views, faces } = found;
        let timings = Timings { total: started.elapsed(), ..timings };
        Analysis { frame, format, sha256, hashes, bytes, rotation, enhancement_scale, views, faces, timings }
    }
}

/// A face and its aligned crop, as one model passes it to the next.
struct AlignedFace {
    chip: Arc<Frame>,
    /// The face; its `chip` is `None`.
    face: AnalyzedFace,
}

impl AlignedFace {
    /// Returns the face for the result, with its crop if the options request it.
    fn into_result(self, options: &AnalyzeOptions) -> AnalyzedFace {
        AnalyzedFace { chip: options.chips.then_some(self.chip), ..self.face }
    }
}

impl Analyzer {
    /// Finds, aligns, assesses and embeds the faces of a decoded image.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Option`], [`AnalyzeError::Run`] or [`AnalyzeError::Panicked`].
    pub async fn find_faces(
        &self,
        decoded: DecodedImage,
        options: &AnalyzeOptions,
        priority: Priority,
    ) -> Result<Analysis, AnalyzeError> {
        let mut run = self.begin_run(options, priority, decoded.timings)?;
        if priority == Priority::Interactive {
            self.engine().check_queue_capacity(priority)?;
        }
        let found = run.find_faces(&decoded.frame).await?;
        let analysis = decoded.into_analysis(found, run.timings);
        analysis.timings.record();
        Ok(analysis)
    }

    /// Finds, aligns, assesses and embeds the faces of a frame of a video. Also returns the
    /// clockwise rotation of the frame in degrees that makes them upright. The caller holds the
    /// memory of the pixels.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Option`], [`AnalyzeError::Run`] or [`AnalyzeError::Panicked`].
    pub(crate) async fn find_faces_of_frame(
        &self,
        frame: &Arc<Frame>,
        options: &AnalyzeOptions,
        priority: Priority,
    ) -> Result<(Vec<AnalyzedFace>, u32), AnalyzeError> {
        let found = self.begin_run(options, priority, Timings::default())?.find_faces(frame).await?;
        Ok((found.faces, found.rotation))
    }

    /// Returns the embeddings of aligned face crops, `None` where none could be computed.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Run`].
    pub(crate) async fn embed_chips(
        &self,
        chips: Vec<Arc<Frame>>,
        priority: Priority,
    ) -> Result<Vec<Option<Embedding>>, AnalyzeError> {
        Ok(run_model(chips, |chip| self.engine().embed(chip, priority)).await?.output)
    }
}

impl Run<'_> {
    async fn find_faces(&mut self, frame: &Arc<Frame>) -> Result<FoundFaces, AnalyzeError> {
        let (options, settings) = (self.options, self.settings);
        let SearchResult {
            found: DetectedFaces { mut detections, rotation, views },
            pixels,
            enhancement_scale,
        } = self
            .detect_with_enhancement(frame)
            .instrument(tracing::trace_span!(target: trace::STAGE, "detect"))
            .await?;
        detections.truncate(settings.max_faces);
        let source = Source {
            pixels,
            scale: enhancement_scale.unwrap_or(1.0),
            size: (frame.width(), frame.height()),
            rotation,
        };
        let mut faces = Vec::with_capacity(detections.len());
        for group in detections.chunks(GROUP) {
            let profile = options.quality.then_some(settings.profile);
            let mut aligned = self
                .align(source.clone(), group.to_vec(), profile)
                .instrument(tracing::trace_span!(target: trace::STAGE, "align"))
                .await?;
            if let Some(profile) = profile {
                self.correct_rolls(&source, &mut aligned, profile)
                    .instrument(tracing::trace_span!(target: trace::STAGE, "quality"))
                    .await?;
            }
            if options.quality && self.analyzer.engine().scorer().is_some() {
                self.score(&mut aligned)
                    .instrument(tracing::trace_span!(target: trace::STAGE, "quality"))
                    .await?;
            }
            if options.embeddings {
                let meets_profile =
                    |face: &AnalyzedFace| face.quality.as_ref().is_none_or(|quality| quality.passed);
                let to_embed =
                    aligned.iter_mut().filter(|aligned| !options.passed_only || meets_profile(&aligned.face));
                self.embed(to_embed.collect())
                    .instrument(tracing::trace_span!(target: trace::STAGE, "embed"))
                    .await?;
            }
            faces.extend(aligned.into_iter().map(|aligned| aligned.into_result(options)));
        }
        Ok(FoundFaces { rotation, enhancement_scale, views, faces })
    }

    /// Cuts the face crops and assesses them if there is a `profile`. A face whose landmarks
    /// coincide, or that lies outside the image, is dropped. The boxes of the results lie inside
    /// the image.
    async fn align(
        &mut self,
        source: Source,
        detections: Vec<Detection>,
        profile: Option<Profile>,
    ) -> Result<Vec<AlignedFace>, AnalyzeError> {
        let ran = self
            .analyzer
            .cpu()
            .run(move || {
                let span =
                    tracing::trace_span!(target: trace::RUN, "align and judge", faces = detections.len());
                let _span = span.entered();
                let (mut aligning, mut assessing) = (Duration::ZERO, Duration::ZERO);
                let faces: Vec<AlignedFace> = detections
                    .into_iter()
                    .filter_map(|detection| {
                        let started = Instant::now();
                        let chip = source.cut_chip(&detection);
                        aligning += started.elapsed();
                        let chip = chip?;
                        let bbox = detection.bbox.clip_to(source.size)?;
                        let started = Instant::now();
                        let quality = profile.map(|profile| source.assess(&chip, &detection, profile));
                        assessing += started.elapsed();
                        // The quality is assessed before this, because it contains the share of the
                        // detector's box that is inside the image.
                        let detection = Detection { bbox, ..detection };
                        let face = AnalyzedFace { detection, quality, embedding: None, chip: None };
                        Some(AlignedFace { chip: Arc::new(chip), face })
                    })
                    .collect();
                (faces, aligning, assessing)
            })
            .await?;
        let (faces, aligning, assessing) = ran.output;
        self.timings.queue += ran.queued;
        self.timings.align += aligning;
        self.timings.quality += assessing;
        Ok(faces)
    }

    /// Adds the learned quality score to the assessed faces. The caller checks that a model for it
    /// is installed.
    async fn score(&mut self, faces: &mut [AlignedFace]) -> Result<(), AnalyzeError> {
        let Self { analyzer, priority, .. } = *self;
        let chips = faces.iter().map(|face| face.chip.clone()).collect();
        let ran = run_model(chips, |chip| analyzer.engine().score(chip, priority)).await?;
        for (face, score) in faces.iter_mut().zip(ran.output) {
            if let Some(quality) = &mut face.face.quality {
                quality.learned = score.map(Measure::learned);
            }
        }
        self.timings.queue += ran.queued;
        self.timings.quality += ran.ran;
        Ok(())
    }

    async fn embed(&mut self, faces: Vec<&mut AlignedFace>) -> Result<(), AnalyzeError> {
        let Self { analyzer, priority, .. } = *self;
        let chips = faces.iter().map(|face| face.chip.clone()).collect();
        let ran = run_model(chips, |chip| analyzer.engine().embed(chip, priority)).await?;
        for (face, embedding) in faces.into_iter().zip(ran.output) {
            face.face.embedding = embedding;
        }
        self.timings.queue += ran.queued;
        self.timings.embed += ran.ran;
        Ok(())
    }
}

/// Runs a model on face crops concurrently. Only the shortest wait is counted as time in the queue,
/// because the other crops wait for crops of the same image.
async fn run_model<T, F>(
    chips: Vec<Arc<Frame>>,
    model: impl Fn(Arc<Frame>) -> F,
) -> Result<Timed<Vec<Option<T>>>, RunError>
where
    F: Future<Output = Result<Timed<T>, RunError>>,
{
    let started = Instant::now();
    let mut waited: Option<Duration> = None;
    let mut output = Vec::with_capacity(chips.len());
    let mut results = futures::stream::iter(chips.into_iter().map(model)).buffered(CHIPS_IN_FLIGHT);
    while let Some(result) = results.next().await {
        let face_output = model_output(result)?;
        if let Some((_, queued)) = &face_output {
            waited = Some(waited.map_or(*queued, |shortest| shortest.min(*queued)));
        }
        output.push(face_output.map(|(output, _)| output));
    }
    let queued = waited.unwrap_or_default().min(started.elapsed());
    Ok(Timed { output, queued, ran: started.elapsed() - queued })
}

/// Returns the model's output for one face crop, or `None` if the model ran and its output was
/// empty. Every other failure is an error of the whole image.
fn model_output<T>(result: Result<Timed<T>, RunError>) -> Result<Option<(T, Duration)>, RunError> {
    match result {
        Ok(timed) => Ok(Some((timed.output, timed.queued))),
        Err(error) if error.is_empty_output() => {
            tracing::warn!(%error, "model returned no output for a face");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The image from which face crops are cut.
#[derive(Clone)]
struct Source {
    /// The original image or the enhanced one.
    pixels: Arc<Frame>,
    /// Pixels of `pixels` per pixel of the original image, whose coordinates detections have.
    scale: f32,
    /// Size (width, height) of the original image.
    size: (u32, u32),
    /// Clockwise rotation in degrees that makes the faces upright.
    rotation: u32,
}

impl Source {
    /// Converts a box of the original image to coordinates of `pixels`.
    fn to_pixels(&self, bbox: &Rect) -> Rect {
        let [x, y, width, height] = [bbox.x, bbox.y, bbox.width, bbox.height].map(|v| v * self.scale);
        Rect { x, y, width, height }
    }

    /// Cuts an aligned face crop. Returns `None` if the landmarks coincide. The landmarks start
    /// with the person's right eye, so the alignment itself makes the crop upright.
    fn cut_chip(&self, detection: &Detection) -> Option<Frame> {
        let landmarks = detection.landmarks.map(|p| Point { x: p.x * self.scale, y: p.y * self.scale });
        vision::norm_crop(&self.pixels, &landmarks, CHIP_SIDE)
    }

    /// Assesses the face upright. Otherwise every face of a rotated image would have a bad pose.
    fn assess(&self, chip: &Frame, detection: &Detection, profile: Profile) -> QualityReport {
        let upright = pixels::rotate(detection, self.size, self.rotation);
        vision::quality::assess(chip, &upright, pixels::rotated_size(self.size, self.rotation), profile)
    }
}

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
        self.resolve_options(options)?;
        let decoded = self.decode(bytes, priority).await?;
        let mut run = self.begin_run(options, priority, decoded.timings)?;
        let frame = decoded.frame.clone();
        let size = (frame.width(), frame.height());
        if size != (CHIP_SIDE, CHIP_SIDE) {
            return Err(AnalyzeError::Option(format!(
                "aligned: the image has {}x{} pixels; an aligned crop must have {CHIP_SIDE}x{CHIP_SIDE}",
                size.0, size.1
            )));
        }
        let side = CHIP_SIDE as f32;
        let detection = Detection {
            bbox: Rect { x: 0.0, y: 0.0, width: side, height: side },
            det_score: 1.0,
            landmarks: ARCFACE_TEMPLATE,
        };
        let (chip, profile) = (frame.clone(), run.settings.profile);
        let assess = move || vision::quality::assess(&chip, &detection, size, profile);
        let assessed = self.cpu().run(assess).await?;
        run.timings.quality = assessed.ran;
        run.timings.queue += assessed.queued;
        let face = AnalyzedFace { detection, quality: Some(assessed.output), embedding: None, chip: None };
        let mut faces = vec![AlignedFace { chip: frame, face }];
        if self.engine().scorer().is_some() {
            run.score(&mut faces).await?;
        }
        run.embed(faces.iter_mut().collect()).await?;
        let faces = faces.into_iter().map(|face| face.into_result(options)).collect();
        let found = FoundFaces { rotation: 0, enhancement_scale: None, views: 0, faces };
        Ok(decoded.into_analysis(found, run.timings))
    }
}

/// A face is upright if its score exceeds the detector's own `min_score` by this value. The minimum
/// scores are then 0.91 for YuNet and 0.81 for SCRFD 2.5G. Faces that are not upright get scores up
/// to 0.904 and 0.794. In photographs, a quarter of the upright faces that meet the profile
/// `standard` have a lower score (docs/measurements/DETECTION.md#rotated-faces).
const UPRIGHT_MARGIN: f32 = 0.31;
/// Minimum score of a box in the comparison. Only the best box of each rotation counts.
const MIN_SCORE: f32 = 0.05;

impl Analyzer {
    /// Returns the minimum `det_score` at which a face with upright landmarks is upright.
    pub(super) fn upright_score(&self) -> f32 {
        self.engine().face_detector().info().min_score + UPRIGHT_MARGIN
    }

    /// Returns the scores of each box (coordinates of `pixels`) at the four rotations.
    pub(super) async fn rotation_scores(
        &self,
        pixels: &Arc<Frame>,
        boxes: Vec<Rect>,
        priority: Priority,
    ) -> Result<Timed<Vec<RotationScores>>, AnalyzeError> {
        let pixels = pixels.clone();
        let drawn = self
            .cpu()
            .run(move || {
                let _span = tracing::trace_span!(target: trace::RUN, "turns", faces = boxes.len()).entered();
                boxes.iter().map(|bbox| Arc::new(RotationScores::canvas(&pixels, bbox))).collect::<Vec<_>>()
            })
            .await?;
        let detector = self.engine().first_look_detector();
        let side = (RotationScores::CANVAS, RotationScores::CANVAS);
        let canvas = detector.info().fixed_size.unwrap_or(side);
        let letterbox = detector.adapt_letterbox(Letterbox { canvas, ..Letterbox::identity(side) });
        let compared =
            run_model(drawn.output, |canvas| detector.detect(canvas, letterbox, MIN_SCORE, priority)).await?;
        let scores = compared
            .output
            .into_iter()
            .map(|found| RotationScores::from_detections(&found.unwrap_or_default()));
        Ok(Timed {
            output: scores.collect(),
            queued: drawn.queued + compared.queued,
            ran: drawn.ran + compared.ran,
        })
    }
}

impl Run<'_> {
    /// Corrects the roll of faces whose landmarks are upright although the faces are not. Compares
    /// only faces that meet all other limits and whose score leaves it open whether they are
    /// upright.
    async fn correct_rolls(
        &mut self,
        source: &Source,
        faces: &mut [AlignedFace],
        profile: Profile,
    ) -> Result<(), AnalyzeError> {
        let upright_score = self.analyzer.upright_score();
        // A face that misses a limit of `standard` also misses one of `strict`.
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
        let boxes = uncertain.iter().map(|face| source.to_pixels(&face.face.detection.bbox)).collect();
        let compared = self.analyzer.rotation_scores(&source.pixels, boxes, self.priority).await?;
        self.timings.queue += compared.queued;
        self.timings.quality += compared.ran;
        for (face, scores) in uncertain.iter_mut().zip(compared.output) {
            if let (Some(roll), Some(quality)) = (scores.roll_at(source.rotation), &mut face.face.quality) {
                quality.correct_roll(roll, profile);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_failure_is_not_reported_as_missing_result() {
        let failed = RunError::Failed { operation: "face_embedding", reason: "out of memory".into() };
        assert!(model_output::<f32>(Err(failed)).is_err());
        assert!(model_output::<f32>(Err(RunError::Stopped)).is_err());
    }
}

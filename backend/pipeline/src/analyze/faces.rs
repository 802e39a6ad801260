//! The second stage: pixels to faces.

use super::enhanced::Looked;
use super::search::Found;
use super::{Analysis, AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, Picture, Timings, turn};
use futures::StreamExt;
use inference::{Lane, RunError, Timed, trace};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument;
use vision::quality::Measure;
use vision::{Detection, Frame, Point, QualityReport};

/// Side of an aligned chip in pixels.
pub(super) const CHIP: u32 = 112;
/// Chips of one picture that wait for a model at once: enough to fill a batch, few enough that a crowd does not fill the queue alone.
const CHIPS_IN_FLIGHT: usize = 32;
/// Faces that are cut out at once. A chip has 38 kB and a crowd has hundreds of faces: those of a picture in work are not held all together.
const GROUP: usize = 2 * CHIPS_IN_FLIGHT;

/// A face on its way through the models.
pub(super) struct Cut {
    pub(super) chip: Arc<Frame>,
    /// Without its chip.
    pub(super) face: AnalyzedFace,
}

impl Cut {
    /// The face as it is answered.
    pub(super) fn done(self, options: &AnalyzeOptions) -> AnalyzedFace {
        AnalyzedFace { chip: options.chips.then_some(self.chip), ..self.face }
    }
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
        if lane == Lane::Interactive {
            self.engine().check_room(lane)?;
        }
        let Picture { frame, format, sha256, hashes, bytes, mut timings, started } = picture;
        let Looked { found: Found { mut detections, rotation, views }, pixels, enhancement_scale } = self
            .look(&frame, &settings, (options.rotate, options.enhance), lane, &mut timings)
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
            let mut cut = self
                .align(source.clone(), group.to_vec(), profile, &mut timings)
                .instrument(tracing::trace_span!(target: trace::STAGE, "align"))
                .await?;
            if options.quality && self.engine().scorer().is_some() {
                self.score(&mut cut, lane, &mut timings)
                    .instrument(tracing::trace_span!(target: trace::STAGE, "quality"))
                    .await?;
            }
            if options.embeddings {
                let passes = |face: &AnalyzedFace| face.quality.as_ref().is_none_or(|quality| quality.passed);
                let wanted = cut.iter_mut().filter(|cut| !options.passed_only || passes(&cut.face));
                self.embed(wanted, lane, &mut timings)
                    .instrument(tracing::trace_span!(target: trace::STAGE, "embed"))
                    .await?;
            }
            faces.extend(cut.into_iter().map(|cut| cut.done(options)));
        }
        timings.total = started.elapsed();
        timings.record();
        Ok(Analysis {
            frame,
            format,
            sha256,
            hashes,
            bytes,
            rotation,
            enhancement_scale,
            views,
            faces,
            timings,
        })
    }

    /// Cuts the chips and judges them, by `profile` if there is one. A face whose landmarks coincide has no alignment and is dropped.
    async fn align(
        &self,
        source: Source,
        detections: Vec<Detection>,
        profile: Option<vision::Profile>,
        timings: &mut Timings,
    ) -> Result<Vec<Cut>, AnalyzeError> {
        let ran = self
            .cpu()
            .run(move || {
                let span =
                    tracing::trace_span!(target: trace::RUN, "align and judge", faces = detections.len());
                let _span = span.entered();
                let (mut aligning, mut judging) = (Duration::ZERO, Duration::ZERO);
                let faces: Vec<Cut> = detections
                    .into_iter()
                    .filter_map(|detection| {
                        let started = Instant::now();
                        let chip = source.chip(&detection);
                        aligning += started.elapsed();
                        let chip = chip?;
                        let started = Instant::now();
                        let quality = profile.map(|profile| source.judge(&chip, &detection, profile));
                        judging += started.elapsed();
                        let face = AnalyzedFace { detection, quality, embedding: None, chip: None };
                        Some(Cut { chip: Arc::new(chip), face })
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

    /// Adds the learned score to the faces that are judged, where a model for it is installed.
    pub(super) async fn score(
        &self,
        faces: &mut [Cut],
        lane: Lane,
        timings: &mut Timings,
    ) -> Result<(), AnalyzeError> {
        let chips = faces.iter().map(|cut| cut.chip.clone()).collect();
        let asked = ask(chips, |chip| self.engine().score(chip, lane)).await?;
        for (cut, score) in faces.iter_mut().zip(asked.output) {
            if let Some(quality) = &mut cut.face.quality {
                quality.learned = score.map(Measure::learned);
            }
        }
        timings.queue += asked.queued;
        timings.quality += asked.ran;
        Ok(())
    }

    pub(super) async fn embed<'a>(
        &self,
        faces: impl Iterator<Item = &'a mut Cut>,
        lane: Lane,
        timings: &mut Timings,
    ) -> Result<(), AnalyzeError> {
        let faces: Vec<&mut Cut> = faces.collect();
        let chips = faces.iter().map(|cut| cut.chip.clone()).collect();
        let asked = ask(chips, |chip| self.engine().embed(chip, lane)).await?;
        for (cut, embedding) in faces.into_iter().zip(asked.output) {
            cut.face.embedding = embedding;
        }
        timings.queue += asked.queued;
        timings.embed += asked.ran;
        Ok(())
    }
}

/// Shows chips to a model, concurrently. What is waiting is the wait for the first session: from then on the picture's own
/// faces queue behind each other.
async fn ask<T, F>(
    chips: Vec<Arc<Frame>>,
    model: impl Fn(Arc<Frame>) -> F,
) -> Result<Timed<Vec<Option<T>>>, RunError>
where
    F: Future<Output = Result<Timed<T>, RunError>>,
{
    let started = Instant::now();
    let mut waited: Option<Duration> = None;
    let mut output = Vec::with_capacity(chips.len());
    let mut answers = futures::stream::iter(chips.into_iter().map(model)).buffered(CHIPS_IN_FLIGHT);
    while let Some(result) = answers.next().await {
        let answer = answer_of(result)?;
        if let Some((_, queued)) = &answer {
            waited = Some(waited.map_or(*queued, |least| least.min(*queued)));
        }
        output.push(answer.map(|(said, _)| said));
    }
    let queued = waited.unwrap_or_default().min(started.elapsed());
    Ok(Timed { output, queued, ran: started.elapsed() - queued })
}

/// A chip that the model has nothing to say about leaves its face without an answer; every other failure is the picture's.
fn answer_of<T>(result: Result<Timed<T>, RunError>) -> Result<Option<(T, Duration)>, RunError> {
    match result {
        Ok(timed) => Ok(Some((timed.output, timed.queued))),
        Err(error) if error.is_empty_output() => {
            tracing::warn!(%error, "a face stays without the model's answer");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What chips are cut from.
#[derive(Clone)]
struct Source {
    /// The picture itself, or the enhanced one.
    pixels: Arc<Frame>,
    /// Its pixels per pixel of the picture, whose coordinates the detections have.
    scale: f32,
    /// The picture's own size.
    size: (u32, u32),
    /// Clockwise turn that makes the faces upright.
    rotation: u32,
}

impl Source {
    /// The landmarks name the subject's right eye first, so the fit itself turns the chip upright.
    fn chip(&self, detection: &Detection) -> Option<Frame> {
        let landmarks = detection.landmarks.map(|p| Point { x: p.x * self.scale, y: p.y * self.scale });
        vision::norm_crop(&self.pixels, &landmarks, CHIP)
    }

    /// Judges the face as it looks once the picture is turned upright; otherwise every face of a turned picture would be a bad pose.
    fn judge(&self, chip: &Frame, detection: &Detection, profile: vision::Profile) -> QualityReport {
        let upright = turn::forward(detection, self.size, self.rotation);
        vision::quality::assess(chip, &upright, turn::turned_size(self.size, self.rotation), profile)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_model_is_never_taken_for_a_face_without_an_answer() {
        let failed = RunError::Failed { operation: "face_embedding", reason: "out of memory".into() };
        assert!(answer_of::<f32>(Err(failed)).is_err());
        assert!(answer_of::<f32>(Err(RunError::Stopped)).is_err());
    }
}

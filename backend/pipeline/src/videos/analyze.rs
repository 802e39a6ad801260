//! Analyses one video: finds the faces of selected frames, joins them into tracks, and numbers the
//! people. Frames come from the crate `video`, tracks from `tracking`. This module stores nothing.

mod ahead;
mod error;
mod frames;
mod parts;
mod pictures;
mod plan;
mod result;
mod run;
mod steps;
mod tracks;

pub use error::VideoAnalyzeError;
pub use parts::{Resume, VideoPart};
pub use result::{FrameFace, FrameFaces, ShotPictures, TrackFace, VideoAnalysis, VideoEnd, VideoTrack};

use crate::domain::{Rotate, VideoRequest};
use crate::images::analyze::{AnalyzeOptions, AnalyzedFace, Analyzer, MIN_SCORE_FLOOR, Passes};
use frames::{ReadState, Source};
use inference::Priority;
use parts::Boundaries;
use pictures::Cut;
use plan::{FirstLooks, Plan, Planned};
use run::Run;
use std::fs::File;
use std::sync::Arc;
use std::time::Instant;
use tracking::people::{Appearance, number_people};
use tracks::TrackCollector;
use video::{Decoder, Index, Sampling, sampling};
use vision::{Frame, Profile, Rect};

/// Maximum number of frames of one video that are analysed.
pub const MAX_FRAMES: u64 = 100_000;
/// Maximum number of faces of one frame; the best ones are kept.
const MAX_FRAME_FACES: usize = 500;
/// Default of [`VideoOptions::max_picture_bytes`]. Candidates for the best shots of 500 faces of 64
/// pixels take 200 MB.
const MAX_PICTURE_BYTES: u64 = 256 << 20;
/// Longest time between two frames for which faces are tracked by position. Between frames that are
/// farther apart, faces are recognised by their embeddings.
const DENSE_GAP_US: i64 = 250_000;

#[derive(Clone, Debug)]
pub struct VideoOptions {
    pub sampling: Sampling,
    /// Longest time without a look of [`Sampling::Auto`], in microseconds.
    pub max_gap_us: i64,
    /// Whether [`Sampling::Auto`] looks closer where faces are. Other samplings ignore it.
    pub refine: bool,
    /// Minimum similarity of two faces of one person; `None` means that of the model.
    pub match_threshold: Option<f32>,
    /// Minimum `det_score` of a face that starts a track; `None` means the detector's default.
    pub min_score: Option<f32>,
    pub passes: Passes,
    /// Whether the best shots have pictures that can be stored.
    pub pictures: bool,
    /// The quality profile that faces must meet; `None` means that of the service.
    pub quality_profile: Option<Profile>,
    /// Whether to search frames for faces that are not upright. Each frame is decided separately.
    pub rotate: Rotate,
    /// Memory for the pictures of faces that may become best shots, in bytes. A part that needs
    /// more ends early.
    pub max_picture_bytes: u64,
}

impl Default for VideoOptions {
    fn default() -> Self {
        Self {
            sampling: Sampling::Auto,
            max_gap_us: sampling::MAX_GAP_US,
            refine: false,
            match_threshold: None,
            min_score: None,
            passes: Passes::Single,
            pictures: false,
            quality_profile: None,
            rotate: Rotate::Off,
            max_picture_bytes: MAX_PICTURE_BYTES,
        }
    }
}

impl From<VideoRequest> for VideoOptions {
    fn from(request: VideoRequest) -> Self {
        Self {
            sampling: request.sampling,
            max_gap_us: i64::from(request.max_gap_ms) * 1_000,
            refine: request.refine,
            rotate: request.rotate,
            ..Self::default()
        }
    }
}

impl VideoOptions {
    /// Returns the longest time, in microseconds, by which a face is visible before the start of
    /// its track or after its end. `None` if the distance between analysed frames has no limit.
    fn tolerance_us(&self) -> Option<i64> {
        sampling::tolerance_us(self.sampling, self.max_gap_us, self.refine)
    }

    /// Returns the options for the frames. If frames are `dense`, faces are embedded only if they
    /// become best shots, so their crops are needed.
    fn of_frames(&self, high_score: f32, dense: bool) -> AnalyzeOptions {
        AnalyzeOptions {
            // A face with a low score can continue a track.
            min_score: Some(if dense { low_score(high_score) } else { high_score }),
            max_faces: Some(MAX_FRAME_FACES),
            embeddings: !dense,
            passed_only: true,
            chips: dense || self.pictures,
            quality_profile: self.quality_profile,
            rotate: self.rotate,
            passes: Some(self.passes),
            ..AnalyzeOptions::default()
        }
    }
}

/// Returns the minimum score of a face that can continue a track: half of that of a face that can
/// start one. See [`tracking::Config`] for the difference from ByteTrack.
fn low_score(high_score: f32) -> f32 {
    (high_score / 2.0).max(MIN_SCORE_FLOOR)
}

/// Receives what is found while the analysis runs.
pub trait VideoProgress: Send {
    /// The keyframes are known; analysis begins.
    fn opened(&mut self, index: &Index);
    /// A frame was analysed. Frames arrive in order.
    fn frame(&mut self, frame: FrameFaces<'_>);
}

/// Ignores the progress.
impl VideoProgress for () {
    fn opened(&mut self, _: &Index) {}
    fn frame(&mut self, _: FrameFaces<'_>) {}
}

/// Receives the parts of an analysis, and can end it with an error of its own.
#[async_trait::async_trait]
pub trait VideoParts: Send {
    /// The errors of the analysis and of the receiver.
    type Error: From<VideoAnalyzeError> + Send;
    /// The keyframes are known; analysis begins.
    async fn opened(&mut self, index: &Index) -> Result<(), Self::Error>;
    /// A frame was analysed. Frames arrive in order.
    fn frame(&mut self, frame: FrameFaces<'_>);
    /// A part is complete. Parts arrive in order, also parts without tracks.
    async fn part(&mut self, part: VideoPart) -> Result<(), Self::Error>;
}

impl Analyzer {
    /// Analyses a video. If the future is dropped, the decoder ends at once.
    ///
    /// # Errors
    /// Fails with [`VideoAnalyzeError`]. A video that is damaged or cut off is analysed as far as
    /// it can be read, and the result contains the reason.
    pub async fn analyze_video(
        &self,
        decoder: &Decoder,
        file: File,
        options: &VideoOptions,
        priority: Priority,
        progress: &mut dyn VideoProgress,
    ) -> Result<VideoAnalysis, VideoAnalyzeError> {
        let mut all = AllTracks { progress, tracks: Vec::new() };
        let end = self.analyze_parts(decoder, file, options, priority, None, &mut all).await?;
        let mut tracks = all.tracks;
        let appearances = tracks.iter().map(VideoTrack::appearance).collect();
        let numbers = self.number_people(appearances, options.match_threshold).await?;
        let people = numbers.iter().flatten().max().copied().unwrap_or(0);
        for (track, person) in tracks.iter_mut().zip(numbers) {
            track.person = person;
        }
        let VideoEnd { index, frames, last_us, damage, indexing, total } = end;
        let tolerance_us = options.tolerance_us();
        Ok(VideoAnalysis { index, frames, last_us, tolerance_us, tracks, people, damage, indexing, total })
    }

    /// Analyses a video part by part; see [`VideoPart`]. With `resume`, the analysis continues
    /// after an earlier part.
    ///
    /// A few frames per core are in memory at a time. They are counted against the budget for
    /// decoded images by the size that the file reports. A stream whose frames grow later can
    /// exceed it, up to the decoder's limit for one frame. The memory of the process that decodes
    /// is counted against a budget of its own.
    ///
    /// # Errors
    /// Fails with the errors of [`Self::analyze_video`] and of `parts`.
    pub async fn analyze_parts<P: VideoParts>(
        &self,
        decoder: &Decoder,
        file: File,
        options: &VideoOptions,
        priority: Priority,
        resume: Option<Resume>,
        parts: &mut P,
    ) -> Result<VideoEnd, P::Error> {
        let started = Instant::now();
        let high_score =
            options.min_score.unwrap_or_else(|| self.engine().detector().min_score.max(MIN_SCORE_FLOOR));
        self.settings(&options.of_frames(high_score, false)).map_err(VideoAnalyzeError::from)?;
        let (index, file) = frames::index(decoder.clone(), file).await.map_err(VideoAnalyzeError::from)?;
        let mut plan = Plan::new(&index, options, resume.map(|resume| resume.after_us))?;
        parts.opened(&index).await?;
        let indexing = started.elapsed();

        // The process for the frames starts later, so nothing large is held during this wait.
        let _decoder = self
            .reserve_decoder(decoder.memory_bytes(&index), priority)
            .await
            .map_err(VideoAnalyzeError::from)?;
        let concurrency = std::thread::available_parallelism().map_or(1, usize::from) + 1;
        let bytes = u64::from(index.width) * u64::from(index.height) * 3;
        let in_memory = (concurrency + frames::BUFFERS) as u64;
        let reserved = bytes * in_memory + plan.bytes();
        let _memory = self.reserve(reserved, priority).await.map_err(VideoAnalyzeError::from)?;

        let source = Source { decoder: decoder.clone(), file: Arc::new(file), index: Arc::new(index) };
        let numbers = resume.map_or(0, |resume| resume.tracks);
        let mut run = Run {
            analyzer: self,
            options,
            frame_options: options.of_frames(high_score, plan.is_dense),
            high_score,
            priority,
            concurrency,
            tracks: TrackCollector::new(self, options, high_score, priority, numbers),
            boundaries: Boundaries::default(),
            count: resume.map_or(0, |resume| resume.frames),
            last_us: None,
        };
        let mut state = ReadState::new(resume.is_some(), None);
        let after_us = plan.after_us();
        while let Some(planned) = plan.next() {
            let steps = match planned {
                Planned::Steps(steps) => steps,
                Planned::Block(blocks, block) => {
                    let looks = FirstLooks {
                        analyzer: self,
                        source: &source,
                        min_score: low_score(high_score),
                        options,
                        priority,
                        concurrency,
                        frames: run.count,
                    };
                    looks.steps(blocks, &block, after_us, &mut state).await?
                }
            };
            let can_continue = !state.ended;
            state = run.analyze(&source, steps, state, parts).await?;
            if state.ended || !can_continue {
                break;
            }
        }
        run.end(parts).await?;
        let (count, last_us) = (run.count, run.last_us);
        let index = Arc::try_unwrap(source.index).unwrap_or_else(|index| (*index).clone());
        let damage = state.damage.or(index.damage.clone());
        Ok(VideoEnd { index, frames: count, last_us, damage, indexing, total: started.elapsed() })
    }

    /// Cuts the pictures of the faces that may become best shots, if they are to be stored.
    async fn cut_pictures(
        &self,
        frame: &Arc<Frame>,
        (faces, rotation): (Vec<AnalyzedFace>, u32),
        wanted: bool,
        high_score: f32,
    ) -> Result<Vec<FrameFace>, VideoAnalyzeError> {
        if !wanted || faces.is_empty() {
            return Ok(faces.into_iter().map(|face| FrameFace { face, cut: None }).collect());
        }
        let frame = frame.clone();
        let cut = self.cpu().run(move || {
            let boxes: Vec<Rect> = faces.iter().map(|face| face.detection.bbox).collect();
            let of = |(at, face): (usize, AnalyzedFace)| {
                let may_be_best = face.quality.is_some() && face.detection.det_score >= high_score;
                let cut = may_be_best.then(|| Cut::of(&frame, &boxes, at, rotation));
                FrameFace { face, cut }
            };
            faces.into_iter().enumerate().map(of).collect()
        });
        Ok(cut.await?.output)
    }

    /// Returns the number of the person of each appearance, from 1; `None` if there is no
    /// embedding. `match_threshold` is that of the analysis.
    ///
    /// # Errors
    /// Fails with [`VideoAnalyzeError::TooManyTracks`].
    pub(crate) async fn number_people(
        &self,
        appearances: Vec<Appearance>,
        match_threshold: Option<f32>,
    ) -> Result<Vec<Option<u32>>, VideoAnalyzeError> {
        let model = self.engine().embedder();
        // Groups of tracks need a higher threshold: one wrong link joins all tracks of two people.
        let threshold = crate::people::clusters::default_threshold(
            match_threshold.unwrap_or(model.match_threshold),
            model.cluster_margin,
        );
        // This can take seconds, so it runs on the thread pool.
        let numbered = self.cpu().run(move || number_people(&appearances, threshold)).await?;
        let numbers = numbered.output.map_err(|_| VideoAnalyzeError::TooManyTracks)?;
        Ok(numbers.into_iter().map(|number| number.map(|number| number + 1)).collect())
    }
}

/// Collects the tracks of all parts.
struct AllTracks<'a> {
    progress: &'a mut dyn VideoProgress,
    tracks: Vec<VideoTrack>,
}

#[async_trait::async_trait]
impl VideoParts for AllTracks<'_> {
    type Error = VideoAnalyzeError;

    async fn opened(&mut self, index: &Index) -> Result<(), VideoAnalyzeError> {
        self.progress.opened(index);
        Ok(())
    }

    fn frame(&mut self, frame: FrameFaces<'_>) {
        self.progress.frame(frame);
    }

    async fn part(&mut self, part: VideoPart) -> Result<(), VideoAnalyzeError> {
        self.tracks.extend(part.tracks);
        Ok(())
    }
}

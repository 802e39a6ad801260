//! Analyses one video: finds the faces of selected frames, joins them into tracks, and numbers the
//! people. Frames come from the crate `video`, tracks from `tracking`. This module stores nothing.
mod frames;
mod plan;
mod tracks;
use crate::admission::budget::BudgetExhausted;
use crate::domain::{Rotate, VideoRequest, default_merge_threshold};
use crate::images::analyze::{AnalyzeError, AnalyzeOptions, AnalyzedFace, Analyzer, MIN_SCORE_FLOOR, Passes};
use domain::{Reason, Unprocessed};
use frames::{ReadState, Source};
use inference::Priority;
use plan::{Boundaries, Plan, Planned, Run};
pub use plan::{Resume, VideoPart};
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::faces::CROP_MARGIN;
use tracking::TimedBox;
use tracking::people::Appearance;
use tracks::TrackCollector;
use video::{Damage, Decoder, Index, Sampling, VideoError, sampling};
use vision::crop::{face_crop_covering_others, rotate, thumbnail};
use vision::{Detection, Frame, Profile, Rect, cover_in_chip};

/// Maximum number of frames of one video that are analysed.
pub const MAX_FRAMES: u64 = 100_000;
/// Maximum number of faces of one frame; the best ones are kept.
const MAX_FRAME_FACES: usize = 500;
/// Default of [`VideoOptions::max_image_bytes`]. Candidates for the best shots of 500 faces of 64
/// pixels take 200 MB.
const MAX_IMAGE_BYTES: u64 = 256 << 20;
/// Longest time between two frames for which faces are tracked by position. Between frames that are
/// farther apart, faces are recognised by their embeddings.
const DENSE_GAP_US: i64 = 250_000;

#[derive(Clone, Debug)]
pub struct VideoOptions {
    pub sampling: Sampling,
    /// Maximum time between two frames that [`Sampling::Auto`] analyses, in microseconds.
    pub max_gap_us: i64,
    /// Whether [`Sampling::Auto`] adds closer looks. Other samplings ignore it.
    pub refine: bool,
    /// Minimum similarity of two faces of one person; `None` means the threshold of the model.
    pub match_threshold: Option<f32>,
    /// Minimum `det_score` of a face that starts a track; `None` means the detector's default.
    pub min_score: Option<f32>,
    pub passes: Passes,
    /// Whether the best shots have images that can be stored.
    pub images: bool,
    /// The quality profile that faces must meet; `None` means the profile of the service.
    pub quality_profile: Option<Profile>,
    /// Whether to search frames for faces that are not upright. Each frame is decided separately.
    pub rotate: Rotate,
    /// Memory for the images of possible best shots, in bytes. A part that needs more ends early.
    pub max_image_bytes: u64,
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
            images: false,
            quality_profile: None,
            rotate: Rotate::Off,
            max_image_bytes: MAX_IMAGE_BYTES,
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
    /// Returns the maximum time, in microseconds, for which a face can be visible before the start
    /// or after the end of its track. Returns `None` if the distance between analysed frames has no
    /// limit.
    fn tolerance_us(&self) -> Option<i64> {
        sampling::tolerance_us(self.sampling, self.max_gap_us, self.refine)
    }
}

/// Receives the progress of an analysis.
pub trait VideoProgress: Send {
    /// The keyframes are known; analysis begins.
    fn on_open(&mut self, index: &Index);
    /// A frame was analysed. Frames arrive in order.
    fn on_frame(&mut self, frame: FrameFaces<'_>);
}

/// Ignores the progress.
impl VideoProgress for () {
    fn on_open(&mut self, _: &Index) {}
    fn on_frame(&mut self, _: FrameFaces<'_>) {}
}

/// Receives the parts of an analysis, and can end it with its own error.
#[async_trait::async_trait]
pub trait VideoParts: Send {
    /// The errors of the analysis and of the receiver.
    type Error: From<VideoAnalyzeError> + Send;
    /// The keyframes are known; analysis begins.
    async fn on_open(&mut self, index: &Index) -> Result<(), Self::Error>;
    /// A frame was analysed. Frames arrive in order.
    fn on_frame(&mut self, frame: FrameFaces<'_>);
    /// A part is complete. Parts arrive in order, also parts without tracks.
    async fn on_part(&mut self, part: VideoPart) -> Result<(), Self::Error>;
}

/// Analyses videos.
#[derive(Clone, Copy)]
pub struct VideoAnalyzer<'a> {
    pub analyzer: &'a Analyzer,
    pub decoder: &'a Decoder,
    pub options: &'a VideoOptions,
    pub priority: Priority,
}

impl VideoAnalyzer<'_> {
    /// Analyses a video. If the future is dropped, the decoder ends immediately.
    ///
    /// # Errors
    /// Fails with [`VideoAnalyzeError`]. A video that is damaged or cut off is analysed as far as
    /// it can be read, and the result contains the reason.
    pub async fn analyze(
        &self,
        file: File,
        progress: &mut dyn VideoProgress,
    ) -> Result<VideoAnalysis, VideoAnalyzeError> {
        let mut collected = CollectedTracks { progress, tracks: Vec::new() };
        let end = self.analyze_parts(file, None, &mut collected).await?;
        let mut tracks = collected.tracks;
        let appearances = tracks.iter().map(VideoTrack::appearance).collect();
        let numbers = number_people(self.analyzer, appearances, self.options.match_threshold).await?;
        let people = numbers.iter().flatten().max().copied().unwrap_or(0);
        for (track, person) in tracks.iter_mut().zip(numbers) {
            track.person = person;
        }
        let VideoSummary { index, frames, last_us, damage, indexing, total } = end;
        let tolerance_us = self.options.tolerance_us();
        Ok(VideoAnalysis { index, frames, last_us, tolerance_us, tracks, people, damage, indexing, total })
    }

    /// Analyses a video part by part; see [`VideoPart`]. With `resume`, the analysis continues
    /// after an earlier part.
    ///
    /// A few frames per core are in memory at a time. They are counted against the budget for
    /// decoded images by the size that the file reports. A stream whose frames grow later can
    /// exceed it, up to the decoder's limit for one frame. The memory of the process that decodes
    /// is counted against a separate budget.
    ///
    /// # Errors
    /// Fails with the errors of [`Self::analyze`] and of `parts`.
    pub async fn analyze_parts<P: VideoParts>(
        &self,
        file: File,
        resume: Option<Resume>,
        parts: &mut P,
    ) -> Result<VideoSummary, P::Error> {
        let Self { analyzer, decoder, options, priority } = *self;
        let started = Instant::now();
        analyzer.resolve_options(&self.frame_options(false)).map_err(VideoAnalyzeError::from)?;
        let (index, file) = frames::index(decoder.clone(), file).await.map_err(VideoAnalyzeError::from)?;
        let mut plan = Plan::new(&index, options, resume.map(|resume| resume.after_us))?;
        parts.on_open(&index).await?;
        let indexing = started.elapsed();

        // The process that decodes frames starts later, so this wait holds no large memory.
        let (memory, deadline) = (analyzer.memory(), analyzer.engine().deadline());
        let bytes = decoder.memory_bytes(&index);
        let reserved = memory.decoders.acquire(bytes, priority, deadline).await;
        let _decoder = reserved.map_err(VideoAnalyzeError::from)?;
        let concurrency = std::thread::available_parallelism().map_or(1, usize::from) + 1;
        let frame_bytes = u64::from(index.width) * u64::from(index.height) * 3;
        let bytes = frame_bytes * (concurrency + frames::BUFFERS) as u64 + plan.memory_bytes();
        let reserved = memory.images.acquire(bytes, priority, deadline).await;
        let _memory = reserved.map_err(VideoAnalyzeError::from)?;

        let source = Source { decoder: decoder.clone(), file: Arc::new(file), index: Arc::new(index) };
        let last_track = resume.map_or(0, |resume| resume.tracks);
        let mut run = Run {
            video: self,
            frame_options: self.frame_options(plan.is_dense),
            concurrency,
            tracks: TrackCollector::new(self, last_track),
            boundaries: Boundaries::default(),
            count: resume.map_or(0, |resume| resume.frames),
            last_us: None,
        };
        let mut state = ReadState { has_frames: resume.is_some(), ..ReadState::default() };
        let after_us = plan.after_us();
        while let Some(planned) = plan.next() {
            let steps = match planned {
                Planned::Steps(steps) => steps,
                Planned::Block(blocks, block) => {
                    run.first_pass(&source, blocks, &block, after_us, &mut state).await?
                }
            };
            let can_continue = !state.has_ended;
            state = run.analyze(&source, steps, state, parts).await?;
            if state.has_ended || !can_continue {
                break;
            }
        }
        run.end(parts).await?;
        let (count, last_us) = (run.count, run.last_us);
        let index = Arc::try_unwrap(source.index).unwrap_or_else(|index| (*index).clone());
        let damage = state.damage.or(index.damage.clone());
        Ok(VideoSummary { index, frames: count, last_us, damage, indexing, total: started.elapsed() })
    }

    /// Returns the minimum score of a face that can start a track.
    fn min_start_score(&self) -> f32 {
        let default = || self.analyzer.engine().detector().min_score.max(MIN_SCORE_FLOOR);
        self.options.min_score.unwrap_or_else(default)
    }

    /// Returns the minimum score of a face that can continue a track: half of the minimum score for
    /// a start. See [`tracking::Config`] for the difference from ByteTrack.
    fn min_continue_score(&self) -> f32 {
        (self.min_start_score() / 2.0).max(MIN_SCORE_FLOOR)
    }

    /// Returns the options for the frames. If `is_dense` is `true`, faces are embedded only if they
    /// become best shots, so their crops are needed.
    fn frame_options(&self, is_dense: bool) -> AnalyzeOptions {
        AnalyzeOptions {
            // A face with a low score can continue a track.
            min_score: Some(if is_dense { self.min_continue_score() } else { self.min_start_score() }),
            max_faces: Some(MAX_FRAME_FACES),
            embeddings: !is_dense,
            passed_only: true,
            chips: is_dense || self.options.images,
            quality_profile: self.options.quality_profile,
            rotate: self.options.rotate,
            passes: Some(self.options.passes),
            ..AnalyzeOptions::default()
        }
    }

    /// Cuts the images of the faces that may become best shots, if they are to be stored.
    async fn cut_chips(
        &self,
        frame: &Arc<Frame>,
        (faces, rotation): (Vec<AnalyzedFace>, u32),
    ) -> Result<Vec<FrameFace>, VideoAnalyzeError> {
        if !self.options.images || faces.is_empty() {
            return Ok(faces.into_iter().map(|face| FrameFace { face, crop: None }).collect());
        }
        let (frame, high_score) = (frame.clone(), self.min_start_score());
        let cut = move || {
            let boxes: Vec<Rect> = faces.iter().map(|face| face.detection.bbox).collect();
            let frame_face = |(at, face): (usize, AnalyzedFace)| {
                let may_be_best = face.quality.is_some() && face.detection.det_score >= high_score;
                let crop = may_be_best.then(|| ShotCrop::new(&frame, &boxes, at, rotation));
                FrameFace { face, crop }
            };
            faces.into_iter().enumerate().map(frame_face).collect()
        };
        Ok(self.analyzer.cpu().run(cut).await?.output)
    }
}

/// Returns the number of the person of each appearance, from 1, or `None` without an embedding.
/// `match_threshold` is the threshold of the analysis.
///
/// # Errors
/// Fails with [`VideoAnalyzeError::TooManyTracks`].
pub(crate) async fn number_people(
    analyzer: &Analyzer,
    appearances: Vec<Appearance>,
    match_threshold: Option<f32>,
) -> Result<Vec<Option<u32>>, VideoAnalyzeError> {
    let model = analyzer.engine().embedder();
    // Groups of tracks need a higher threshold: one wrong link joins all tracks of two people.
    let threshold =
        default_merge_threshold(match_threshold.unwrap_or(model.match_threshold), model.cluster_margin);
    // This can take seconds, so it runs on the thread pool.
    let number = move || tracking::people::number_people(&appearances, threshold);
    let numbered = analyzer.cpu().run(number).await?;
    let numbers = numbered.output.map_err(|_| VideoAnalyzeError::TooManyTracks)?;
    Ok(numbers.into_iter().map(|number| number.map(|number| number + 1)).collect())
}

struct CollectedTracks<'a> {
    progress: &'a mut dyn VideoProgress,
    tracks: Vec<VideoTrack>,
}

#[async_trait::async_trait]
impl VideoParts for CollectedTracks<'_> {
    type Error = VideoAnalyzeError;

    async fn on_open(&mut self, index: &Index) -> Result<(), VideoAnalyzeError> {
        self.progress.on_open(index);
        Ok(())
    }

    fn on_frame(&mut self, frame: FrameFaces<'_>) {
        self.progress.on_frame(frame);
    }

    async fn on_part(&mut self, part: VideoPart) -> Result<(), VideoAnalyzeError> {
        self.tracks.extend(part.tracks);
        Ok(())
    }
}

#[derive(Debug, thiserror::Error)]
pub enum VideoAnalyzeError {
    /// The file is not a usable video, or the decoder failed.
    #[error(transparent)]
    Video(#[from] VideoError),
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
    #[error("more than {MAX_FRAMES} frames would be analysed; use fewer frames a second, or keyframes")]
    TooManyFrames,
    /// The video has too many faces that cannot be joined.
    #[error("the video has more than {} tracks of faces", tracking::people::MAX_TRACKS)]
    TooManyTracks,
}

impl From<BudgetExhausted> for VideoAnalyzeError {
    fn from(error: BudgetExhausted) -> Self {
        Self::Analyze(error.into())
    }
}

impl VideoAnalyzeError {
    /// Returns `Skipped` if the file is not a video that can be read here, and `Failed` if it is
    /// damaged or the analysis failed.
    pub fn state(&self) -> Unprocessed {
        match self {
            Self::Analyze(error) => error.state(),
            Self::TooManyFrames | Self::TooManyTracks => Unprocessed::Skipped,
            Self::Video(_) => match self.reason() {
                Reason::NotAVideo | Reason::UnsupportedCodec | Reason::VideoTooLarge => Unprocessed::Skipped,
                _ => Unprocessed::Failed,
            },
        }
    }

    /// Returns the reason that users and ledgers see.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Analyze(error) => error.reason(),
            Self::TooManyFrames | Self::TooManyTracks => Reason::VideoTooLarge,
            Self::Video(error) => match error {
                VideoError::NotAVideo | VideoError::NoVideoStream => Reason::NotAVideo,
                VideoError::Codec => Reason::UnsupportedCodec,
                VideoError::TooLong { .. } | VideoError::TooManyPixels { .. } | VideoError::CpuLimit(_) => {
                    Reason::VideoTooLarge
                }
                VideoError::Undecodable(_) | VideoError::Stalled(_) | VideoError::Output(_) => {
                    Reason::CorruptVideo
                }
                VideoError::Unavailable(_)
                | VideoError::GpuOnly(_)
                | VideoError::GpuFailed(_)
                | VideoError::Io(_)
                | VideoError::Killed
                | VideoError::Cancelled => Reason::VideoUnavailable,
            },
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct FrameFaces<'a> {
    pub at_us: i64,
    /// Width and height of the frame as a player shows it, in pixels.
    pub size: (u32, u32),
    /// The faces, best score first. Faces with a low score can only continue a track.
    pub faces: &'a [FrameFace],
}

#[derive(Debug)]
pub struct FrameFace {
    /// The face, in pixels of the frame as a player shows it.
    pub face: AnalyzedFace,
    /// The crop, if the face may become a best shot and is to be stored.
    crop: Option<ShotCrop>,
}

#[derive(Clone, Debug)]
pub struct VideoAnalysis {
    pub index: Index,
    /// Number of frames that were analysed.
    pub frames: u64,
    /// Time of the last frame that was analysed; `None` if there was none.
    pub last_us: Option<i64>,
    /// Maximum time, in microseconds, for which a face can be visible before the start or after the
    /// end of its track. `None` if the distance between analysed frames has no limit.
    pub tolerance_us: Option<i64>,
    /// The tracks in order of their start.
    pub tracks: Vec<VideoTrack>,
    /// Number of people, without tracks of unknown people.
    pub people: u32,
    /// The reason why the video ended early or lacks frames.
    pub damage: Option<Damage>,
    /// Time until the keyframes were known.
    pub indexing: Duration,
    pub total: Duration,
}

/// A face in successive frames of one shot.
#[derive(Clone, Debug)]
pub struct VideoTrack {
    /// Number of the track, from 1, in order of the start.
    pub number: u32,
    /// Number of the person, from 1, in order of the first appearance. `None` if no face of the
    /// track meets the quality profile, so that the person is unknown.
    pub person: Option<u32>,
    /// Time of the first frame.
    pub started_us: i64,
    /// Time of the last frame.
    pub ended_us: i64,
    /// Number of frames with the face.
    pub samples: u32,
    /// The boxes in pixels of the frame as a player shows it, in order of time. In a long track,
    /// boxes that can be computed from their neighbours are omitted.
    pub boxes: Vec<TimedBox>,
    /// The best shots, best quality first.
    pub faces: Vec<TrackFace>,
}

impl VideoTrack {
    fn appearance(&self) -> Appearance {
        let embeddings = self.faces.iter().filter_map(|shot| shot.face.embedding.as_ref());
        Appearance {
            started_us: self.started_us,
            ended_us: self.ended_us,
            embeddings: embeddings.map(|embedding| Arc::from(embedding.as_slice())).collect(),
        }
    }
}

/// A best shot of a track.
#[derive(Clone, Debug)]
pub struct TrackFace {
    pub at_us: i64,
    /// The face, in pixels of the frame as a player shows it. It has a quality report, and an
    /// embedding if it meets the quality profile.
    pub face: AnalyzedFace,
    /// The images to store, if they were requested.
    pub images: Option<ShotImages>,
}

/// The images of a best shot. Other faces in them are covered, so that the erasure of one person
/// does not affect the images of another.
#[derive(Clone, Debug)]
pub struct ShotImages {
    /// The aligned face, 112x112 pixels.
    pub chip: Arc<Frame>,
    /// The face with a margin. The longer side has at most 256 pixels.
    pub crop: Arc<Frame>,
}

/// The result of an analysis in parts. The end of the record of a stored video is a
/// [`store::videos::VideoEnd`].
#[derive(Clone, Debug)]
pub struct VideoSummary {
    pub index: Index,
    /// Number of frames that were analysed, including frames before a resumption.
    pub frames: u64,
    /// Time of the last frame that was analysed; `None` if there was none.
    pub last_us: Option<i64>,
    /// The reason why the video ended early or lacks frames.
    pub damage: Option<Damage>,
    /// Time until the keyframes were known.
    pub indexing: Duration,
    pub total: Duration,
}

/// Longer side of a crop in pixels. It bounds the memory for the candidates of open tracks.
const CROP_SIDE: u32 = 256;
/// Margin around other faces that is covered, as a fraction of the larger side of their box.
const COVER_MARGIN: f32 = 0.3;

/// The crop of a face that may become a best shot.
#[derive(Debug)]
pub(crate) struct ShotCrop {
    crop: Arc<Frame>,
    /// The boxes of the other faces of the frame.
    others: Vec<Rect>,
}

impl ShotCrop {
    /// Cuts face number `at` out of a frame with these faces. `rotation` is the clockwise rotation
    /// of the frame in degrees that makes them upright.
    pub(crate) fn new(frame: &Frame, faces: &[Rect], at: usize, rotation: u32) -> Self {
        let others: Vec<Rect> =
            faces.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, bbox)| *bbox).collect();
        let crop = face_crop_covering_others(frame, &faces[at], CROP_MARGIN, &others, COVER_MARGIN);
        let crop = thumbnail(&crop, CROP_SIDE);
        Self { crop: Arc::new(if rotation == 0 { crop } else { rotate(&crop, rotation) }), others }
    }

    fn bytes(&self) -> usize {
        self.crop.data().len() + self.others.len() * size_of::<Rect>()
    }

    /// Returns the images to store. `chip` is the aligned face.
    pub(crate) fn into_images(self, chip: &Frame, face: &Detection) -> ShotImages {
        let mut chip = chip.clone();
        cover_in_chip(&mut chip, &face.landmarks, &face.bbox, &self.others, COVER_MARGIN);
        ShotImages { chip: Arc::new(chip), crop: self.crop }
    }
}

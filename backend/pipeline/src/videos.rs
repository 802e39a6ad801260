//! Analyses one video: finds the faces of selected frames, joins them into tracks, and numbers the
//! people.
//!
//! Frames come from the crate `video`, tracks from the crate `tracking`. This module stores
//! nothing.

mod error;
mod frames;
mod result;
mod tracks;

pub use error::VideoAnalyzeError;
pub use result::{FrameFaces, TrackFace, VideoAnalysis, VideoTrack};

use crate::analyze::{AnalyzeOptions, AnalyzedFace, Analyzer, MIN_SCORE_FLOOR, Passes};
use frames::{ReadFrame, Reader};
use futures::StreamExt;
use inference::Priority;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracks::TrackCollector;
use video::{Decoder, Index, Sampling, sampling};

/// Maximum number of frames of one video that are analysed.
pub const MAX_FRAMES: u64 = 100_000;
/// Maximum number of faces of one frame; the best ones are kept.
const MAX_FRAME_FACES: usize = 500;
/// Longest time between two frames for which faces are tracked by position. Between frames that are
/// farther apart, faces are recognised by their embeddings.
const DENSE_GAP_US: i64 = 250_000;

/// The options of one analysis.
#[derive(Clone, Debug)]
pub struct VideoOptions {
    /// Which frames are analysed.
    pub sampling: Sampling,
    /// Longest time without a look of [`Sampling::Auto`], in microseconds.
    pub max_gap_us: i64,
    /// Minimum similarity of two faces of one person; `None` means that of the model.
    pub match_threshold: Option<f32>,
    /// Minimum `det_score` of a face that starts a track; `None` means the detector's default.
    pub min_score: Option<f32>,
    /// Which views of a frame the detector processes.
    pub passes: Passes,
}

impl Default for VideoOptions {
    fn default() -> Self {
        Self {
            sampling: Sampling::Auto,
            max_gap_us: sampling::MAX_GAP_US,
            match_threshold: None,
            min_score: None,
            passes: Passes::Single,
        }
    }
}

impl VideoOptions {
    /// Returns whether faces are followed by their positions.
    fn is_dense(&self) -> bool {
        matches!(self.sampling, Sampling::Fps(fps) if fps * DENSE_GAP_US as f64 >= 1e6)
    }

    /// Returns the options for the frames. Faces of dense frames are embedded only if they become
    /// best shots, so their crops are needed.
    fn of_frames(&self, high_score: f32) -> AnalyzeOptions {
        let dense = self.is_dense();
        AnalyzeOptions {
            // A face with a low score can continue a track.
            min_score: Some(if dense { low_score(high_score) } else { high_score }),
            max_faces: Some(MAX_FRAME_FACES),
            embeddings: !dense,
            passed_only: true,
            chips: dense,
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

impl Analyzer {
    /// Analyses a video. If the future is dropped, the decoder ends when it has read the next frame
    /// or, before the first frame, the list of keyframes.
    ///
    /// A few frames per core are in memory at a time. They are counted against the budget for
    /// decoded images by the size that the file reports. A stream whose frames grow later can
    /// exceed it, up to the decoder's limit for one frame.
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
        let started = Instant::now();
        let high_score =
            options.min_score.unwrap_or_else(|| self.engine().detector().min_score.max(MIN_SCORE_FLOOR));
        let frame_options = options.of_frames(high_score);
        self.settings(&frame_options)?;
        let (index, file) = frames::index(decoder.clone(), file).await?;
        check_frames(&index, options)?;
        progress.opened(&index);
        let indexed = started.elapsed();

        let concurrency = std::thread::available_parallelism().map_or(1, usize::from) + 1;
        let bytes = u64::from(index.width) * u64::from(index.height) * 3;
        let in_memory = (concurrency + frames::QUEUE + 1) as u64;
        let _memory = self.reserve(bytes * in_memory, priority).await?;

        let segments = sampling::plan(&index, options.sampling, options.max_gap_us);
        let mut reader =
            Reader::start(decoder.clone(), file, index.clone(), segments).map_err(video::VideoError::Io)?;
        let recycle = reader.recycler();
        let mut tracks = TrackCollector::new(self, options, high_score, priority);
        let mut count = 0;
        {
            let found = reader.frames().map(|read| async {
                let ReadFrame { at_us, frame, cut } = read?;
                let frame = Arc::new(frame);
                let faces = self.find_faces_of_frame(&frame, &frame_options, priority).await?;
                // Nothing else holds the pixels now, so the decoder can use the memory again.
                if let Ok(frame) = Arc::try_unwrap(frame) {
                    recycle.give(frame);
                }
                Ok::<_, VideoAnalyzeError>((at_us, faces, cut))
            });
            let mut found = std::pin::pin!(found.buffered(concurrency));
            while let Some(next) = found.next().await {
                let (at_us, faces, cut): (i64, Vec<AnalyzedFace>, bool) = next?;
                count += 1;
                if count > MAX_FRAMES {
                    return Err(VideoAnalyzeError::TooManyFrames);
                }
                progress.frame(FrameFaces { at_us, faces: &faces });
                tracks.add(at_us, faces, cut).await?;
            }
        }
        let (tracks, people) = tracks.finish().await?;
        Ok(VideoAnalysis {
            damage: reader.damage().or(index.damage.clone()),
            index,
            frames: count,
            tracks,
            people,
            indexing: indexed,
            total: started.elapsed(),
        })
    }
}

/// Rejects a video of which too many frames would be analysed, as far as its duration is known.
fn check_frames(index: &Index, options: &VideoOptions) -> Result<(), VideoAnalyzeError> {
    let (Some(duration), Sampling::Fps(fps)) = (index.duration_us, options.sampling) else { return Ok(()) };
    let seconds = Duration::from_micros(duration.unsigned_abs()).as_secs_f64();
    if seconds * fps > MAX_FRAMES as f64 { Err(VideoAnalyzeError::TooManyFrames) } else { Ok(()) }
}

//! Selects the frames of a video to analyse (all steps at once, or by block after a first pass),
//! analyses them, and divides the video into parts.
//!
//! Nothing continues from one part to the next except the numbers of tracks and people, so the
//! analysis can be stored after each part and resumed there. Where a part ends depends only on its
//! own frames. An analysis that is resumed therefore finds the same tracks as one that was not
//! interrupted.
use super::frames::{Content, ReadFrame, ReadState, Reader, Source};
use super::tracks::TrackCollector;
use super::{DENSE_GAP_US, FrameFaces, MAX_FRAME_FACES, MAX_FRAMES, VideoTrack};
use super::{VideoAnalyzeError, VideoAnalyzer, VideoOptions, VideoParts};
use crate::images::analyze::AnalyzeOptions;
use crate::videos::analyze::frames::{AnalyzedFrame, KnownFrame, PrefetchedFrames, Step, remaining};
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use video::refine::{Block, Blocks, FirstPassFrame, MAX_FIRST_PASS_FRAMES, RefinePlan};
use video::shots::{CutDetector, ReducedFrame};
use video::{Index, Sampling, Segment, VideoError, refine, sampling};

/// The steps that are not read yet.
pub(super) struct Plan {
    /// Whether faces are followed by their positions.
    pub(super) is_dense: bool,
    /// Frames after this time have not been analysed yet; `None` if none has been analysed.
    after_us: Option<i64>,
    remaining: Remaining,
}

enum Remaining {
    Steps(Option<Vec<Segment>>),
    /// The number of blocks that were taken.
    Blocks(Blocks, usize),
}

pub(super) enum Planned<'a> {
    /// The last steps.
    Steps(Vec<Step>),
    /// A block, whose steps depend on a first pass.
    Block(&'a Blocks, Block),
}

impl Plan {
    /// Returns the plan for a video. `after_us` is the time after which it continues.
    ///
    /// # Errors
    /// Fails if too many frames would be analysed, as far as the duration is known.
    pub(super) fn new(
        index: &Index,
        options: &VideoOptions,
        after_us: Option<i64>,
    ) -> Result<Self, VideoAnalyzeError> {
        let VideoOptions { sampling, max_gap_us, refine, .. } = *options;
        let with_density = |fps: f64| (fps, fps * DENSE_GAP_US as f64 >= 1e6);
        let planned = || Remaining::Steps(Some(sampling::plan(index, sampling, max_gap_us)));
        let ((fps, is_dense), remaining) = match sampling {
            Sampling::Fps(rate) => (with_density(rate), planned()),
            Sampling::Auto if refine => match refine::refine(index, max_gap_us) {
                RefinePlan::Sparse(segments) => (with_density(0.0), Remaining::Steps(Some(segments))),
                RefinePlan::Everywhere(segment) => {
                    (with_density(1e6 / segment.cell_us as f64), Remaining::Steps(Some(vec![segment])))
                }
                // Longer gaps occur only between frames without a face.
                RefinePlan::Blocks(blocks) => ((0.0, true), Remaining::Blocks(blocks, 0)),
            },
            Sampling::Auto | Sampling::Keyframes => (with_density(0.0), planned()),
        };
        let duration = Duration::from_micros(index.duration_us.unwrap_or(0).unsigned_abs());
        if duration.as_secs_f64() * fps > MAX_FRAMES as f64 {
            return Err(VideoAnalyzeError::TooManyFrames);
        }
        Ok(Self { is_dense, after_us, remaining })
    }

    pub(super) fn next(&mut self) -> Option<Planned<'_>> {
        match &mut self.remaining {
            Remaining::Steps(segments) => {
                let steps = segments.take()?.into_iter().map(Step::Decode).collect();
                Some(Planned::Steps(steps_after(steps, self.after_us)))
            }
            Remaining::Blocks(blocks, taken) => {
                let is_later = |block: &&Block| self.after_us.is_none_or(|after_us| block.to_us > after_us);
                let later = blocks.blocks().iter().enumerate().skip(*taken);
                let (at, block) =
                    later.map(|(at, block)| (at, *block)).find(|(_, block)| is_later(&block))?;
                *taken = at + 1;
                Some(Planned::Block(blocks, block))
            }
        }
    }

    /// Returns the memory for the reduced frames of a first pass, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        match self.remaining {
            Remaining::Steps(_) => 0,
            Remaining::Blocks(..) => MAX_FIRST_PASS_FRAMES.unsigned_abs() * ReducedFrame::BYTES,
        }
    }

    pub(super) fn after_us(&self) -> Option<i64> {
        self.after_us
    }
}

fn steps_after(steps: Vec<Step>, after_us: Option<i64>) -> Vec<Step> {
    match after_us {
        Some(after_us) => remaining(steps, after_us),
        None => steps,
    }
}

pub(super) struct Run<'a> {
    pub(super) video: &'a VideoAnalyzer<'a>,
    pub(super) frame_options: AnalyzeOptions,
    /// Number of frames that are analysed at the same time.
    pub(super) concurrency: usize,
    pub(super) tracks: TrackCollector<'a>,
    pub(super) boundaries: Boundaries,
    /// Number of frames that were analysed.
    pub(super) count: u64,
    pub(super) last_us: Option<i64>,
}

impl Run<'_> {
    /// Analyses the sparse frames of a block, and returns the steps of the block. Damage is
    /// recorded in `state`.
    ///
    /// # Errors
    /// Fails if a frame cannot be analysed, or if there are too many.
    pub(super) async fn first_pass(
        &self,
        source: &Source,
        blocks: &Blocks,
        block: &Block,
        after_us: Option<i64>,
        state: &mut ReadState,
    ) -> Result<Vec<Step>, VideoAnalyzeError> {
        let steps = blocks.first_pass(block).into_iter().map(Step::Decode).collect();
        let initial_state = ReadState { has_ended: false, ..state.clone() };
        let mut reader = Reader::start(source, steps, block.to_us, initial_state)
            .map_err(|error| VideoAnalyzeError::from(VideoError::Io(error)))?;
        let (mut first_pass, mut frames, mut count) = (Vec::new(), Vec::new(), self.count);
        let VideoAnalyzer { analyzer, options, priority, .. } = *self.video;
        let options = AnalyzeOptions {
            min_score: Some(self.video.min_continue_score()),
            max_faces: Some(MAX_FRAME_FACES),
            embeddings: false,
            quality: false,
            rotate: options.rotate,
            passes: Some(options.passes),
            ..AnalyzeOptions::default()
        };
        {
            let recycler = reader.recycler();
            let analyzed = reader.frames().map(|read| async {
                let ReadFrame { at_us, content, reduced } = read?;
                let Content::Pixels(frame) = content else {
                    return Err(VideoError::Output("a first pass without pixels").into());
                };
                let size = (frame.width(), frame.height());
                let frame = Arc::new(frame);
                let (faces, _) = analyzer.find_faces_of_frame(&frame, &options, priority).await?;
                if let Ok(frame) = Arc::try_unwrap(frame) {
                    recycler.recycle(frame);
                }
                Ok::<_, VideoAnalyzeError>((!faces.is_empty(), KnownFrame { at_us, size, reduced }))
            });
            let mut analyzed = std::pin::pin!(analyzed.buffered(self.concurrency));
            while let Some(next) = analyzed.next().await {
                let (has_face, frame) = next?;
                first_pass.push(FirstPassFrame { at_us: frame.at_us, has_face });
                // Its frames count as analysed frames, unless an earlier run counted them.
                count += u64::from(after_us.is_none_or(|after_us| frame.at_us > after_us));
                frames.push(Some(frame));
                if count > MAX_FRAMES {
                    return Err(VideoAnalyzeError::TooManyFrames);
                }
            }
        }
        // Frames of a first pass are not analysed yet, so `has_frames` does not change.
        let ReadState { damage, has_ended, .. } = reader.into_state();
        (state.damage, state.has_ended) = (damage, has_ended);
        let steps =
            blocks.steps(&source.index, block, &first_pass).into_iter().filter_map(|step| match step {
                refine::Step::FirstPassFrame(number) => frames.get_mut(number)?.take().map(Step::Known),
                refine::Step::CloserLooks(segment) => Some(Step::Decode(segment)),
            });
        Ok(steps_after(steps.collect(), after_us))
    }

    /// Analyses the frames of the steps. Returns the state with which the next reader continues.
    pub(super) async fn analyze<P: VideoParts>(
        &mut self,
        source: &Source,
        steps: Vec<Step>,
        state: ReadState,
        parts: &mut P,
    ) -> Result<ReadState, P::Error> {
        let mut reader = Reader::start(source, steps, i64::MAX, state)
            .map_err(|error| VideoAnalyzeError::from(video::VideoError::Io(error)))?;
        let recycler = reader.recycler();
        let (video, frame_options) = (self.video, self.frame_options.clone());
        {
            let analyzed = reader.frames().map(|read| async {
                let ReadFrame { at_us, content, reduced } = read?;
                let frame = match content {
                    Content::Pixels(frame) => Arc::new(frame),
                    Content::NoFace(size) => {
                        return Ok(AnalyzedFrame { at_us, size, faces: Vec::new(), reduced });
                    }
                };
                let size = (frame.width(), frame.height());
                let analyzed =
                    video.analyzer.find_faces_of_frame(&frame, &frame_options, video.priority).await?;
                let faces = video.cut_chips(&frame, analyzed).await?;
                // The decoder can reuse the memory.
                if let Ok(frame) = Arc::try_unwrap(frame) {
                    recycler.recycle(frame);
                }
                Ok(AnalyzedFrame { at_us, size, faces, reduced })
            });
            let analyzed = std::pin::pin!(analyzed.buffered(self.concurrency));
            let mut analyzed = PrefetchedFrames::new(analyzed);
            while let Some(next) = analyzed.next().await {
                let AnalyzedFrame { at_us, size, faces, reduced } = next?;
                let boundary = self.boundaries.next(at_us, reduced, self.tracks.is_full());
                if boundary.is_new_part
                    && let Some(part) = self.take_part().await?
                {
                    analyzed.prefetch_during(parts.on_part(part)).await?;
                }
                self.count += 1;
                if self.count > MAX_FRAMES {
                    return Err(VideoAnalyzeError::TooManyFrames.into());
                }
                parts.on_frame(FrameFaces { at_us, size, faces: &faces });
                self.tracks.add(at_us, faces, boundary.is_new_shot).await?;
                self.last_us = Some(at_us);
            }
        }
        Ok(reader.into_state())
    }

    pub(super) async fn end<P: VideoParts>(&mut self, parts: &mut P) -> Result<(), P::Error> {
        match self.take_part().await? {
            Some(part) => parts.on_part(part).await,
            None => Ok(()),
        }
    }

    /// Ends all tracks. Returns the part since the last one, or `None` before the first frame.
    async fn take_part(&mut self) -> Result<Option<VideoPart>, VideoAnalyzeError> {
        let Some(until_us) = self.last_us else { return Ok(None) };
        let tracks = self.tracks.end_part().await?;
        Ok(Some(VideoPart { until_us, frames: self.count, tracks }))
    }
}

/// After this time or number of frames, a part ends at the next cut, where all tracks end anyway.
const PART_MIN_US: i64 = 30_000_000;
const PART_MIN_FRAMES: u32 = 300;
/// Maximum length of a part. All tracks end with it. A job yields to a video of another collection
/// only at the end of a part, so a part with many frames must not take minutes.
const PART_MAX_US: i64 = 60_000_000;
const PART_MAX_FRAMES: u32 = 600;

#[derive(Debug, Default)]
struct PartClock {
    /// Time of the first frame of the part.
    started_us: Option<i64>,
    /// Number of frames of the part.
    frames: u32,
}

impl PartClock {
    /// Returns `true` if a frame begins a new part. `is_cut` means that it begins a new shot, and
    /// `is_full` that the previous part must end. The first frame does not begin a new part.
    fn begins_part(&mut self, at_us: i64, is_cut: bool, is_full: bool) -> bool {
        let length = at_us.saturating_sub(*self.started_us.get_or_insert(at_us));
        let (us, frames) =
            if is_cut { (PART_MIN_US, PART_MIN_FRAMES) } else { (PART_MAX_US, PART_MAX_FRAMES) };
        let begins = is_full || length >= us || self.frames >= frames;
        if begins {
            *self = Self { started_us: Some(at_us), frames: 0 };
        }
        self.frames += 1;
        begins
    }
}

#[derive(Debug, Default)]
pub(super) struct Boundaries {
    cuts: CutDetector,
    parts: PartClock,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Boundary {
    pub(super) is_new_shot: bool,
    pub(super) is_new_part: bool,
}

impl Boundaries {
    /// Returns whether the next frame begins a shot or a part. `is_full` means that the previous
    /// part must end.
    pub(super) fn next(&mut self, at_us: i64, frame: ReducedFrame, is_full: bool) -> Boundary {
        let is_new_shot = self.cuts.is_cut(at_us, frame);
        let is_new_part = self.parts.begins_part(at_us, is_new_shot, is_full);
        if is_new_part {
            // An analysis that is resumed here has no earlier frames.
            self.cuts.restart();
        }
        Boundary { is_new_shot, is_new_part }
    }
}

/// The tracks of one part.
#[derive(Clone, Debug)]
pub struct VideoPart {
    /// Time of the last frame of the part in microseconds.
    pub until_us: i64,
    /// Number of frames that were analysed up to then.
    pub frames: u64,
    /// The tracks in order of their start. The people are not numbered yet.
    pub tracks: Vec<VideoTrack>,
}

/// The position at which an analysis continues: after the last stored part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resume {
    /// Time of the last frame of the part in microseconds.
    pub after_us: i64,
    /// Number of frames that were analysed up to then.
    pub frames: u64,
    /// Highest number of a track.
    pub tracks: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_parts_at_cuts_from_30_to_60_seconds() {
        let mut clock = PartClock::default();
        let second = 1_000_000;
        let cuts = [20, 31, 40, 70];
        let starts: Vec<i64> = (0..200)
            .filter(|at| clock.begins_part(5_000_000 + at * second, cuts.contains(at), *at == 80))
            .collect();
        // The part that began at 70 s is full after 10 s.
        assert_eq!(starts, [31, 70, 80, 140]);
    }

    #[test]
    fn splits_parts_at_cuts_from_300_to_600_frames() {
        let mut clock = PartClock::default();
        let cuts = [200, 350, 700];
        let starts: Vec<i64> = (0..2_000)
            .filter(|frame| clock.begins_part(frame * 33_333, cuts.contains(frame), false))
            .collect();
        assert_eq!(starts, [350, 700, 1_300, 1_900]);
    }
}

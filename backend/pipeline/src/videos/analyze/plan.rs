//! Plans which frames of a video are analysed (all steps at once, or by block after a first look),
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
use crate::videos::analyze::frames::{Ahead, AnalyzedFrame, KnownFrame, Step, remaining};
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use video::refine::{Block, Blocks, FirstLook, MAX_FIRST_LOOKS, Refined};
use video::shots::{CutDetector, ReducedFrame};
use video::{Index, Sampling, Segment, VideoError, refine, sampling};

/// The steps that are not read yet.
pub(super) struct Plan {
    /// Whether faces are followed by their positions.
    pub(super) is_dense: bool,
    /// Frames after this time have not been analysed yet; `None` if none has been analysed.
    after_us: Option<i64>,
    rest: Rest,
}

enum Rest {
    Steps(Option<Vec<Segment>>),
    /// The number of blocks that were taken.
    Blocks(Blocks, usize),
}

pub(super) enum Planned<'a> {
    /// The last steps.
    Steps(Vec<Step>),
    /// A block, whose steps depend on a first look.
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
        let fps = |fps: f64| (fps, fps * DENSE_GAP_US as f64 >= 1e6);
        let planned = || Rest::Steps(Some(sampling::plan(index, sampling, max_gap_us)));
        let ((fps, is_dense), rest) = match sampling {
            Sampling::Fps(rate) => (fps(rate), planned()),
            Sampling::Auto if refine => match refine::refine(index, max_gap_us) {
                Refined::Sparse(segments) => (fps(0.0), Rest::Steps(Some(segments))),
                Refined::Everywhere(segment) => {
                    (fps(1e6 / segment.cell_us as f64), Rest::Steps(Some(vec![segment])))
                }
                // Longer gaps occur only between frames without a face.
                Refined::Blocks(blocks) => ((0.0, true), Rest::Blocks(blocks, 0)),
            },
            Sampling::Auto | Sampling::Keyframes => (fps(0.0), planned()),
        };
        let duration = Duration::from_micros(index.duration_us.unwrap_or(0).unsigned_abs());
        if duration.as_secs_f64() * fps > MAX_FRAMES as f64 {
            return Err(VideoAnalyzeError::TooManyFrames);
        }
        Ok(Self { is_dense, after_us, rest })
    }

    pub(super) fn next(&mut self) -> Option<Planned<'_>> {
        match &mut self.rest {
            Rest::Steps(segments) => {
                let steps = segments.take()?.into_iter().map(Step::Decode).collect();
                Some(Planned::Steps(rest_after(steps, self.after_us)))
            }
            Rest::Blocks(blocks, taken) => {
                let is_later = |block: &&Block| self.after_us.is_none_or(|after_us| block.to_us > after_us);
                let later = blocks.blocks().iter().enumerate().skip(*taken);
                let (at, block) =
                    later.map(|(at, block)| (at, *block)).find(|(_, block)| is_later(&block))?;
                *taken = at + 1;
                Some(Planned::Block(blocks, block))
            }
        }
    }

    /// Returns the memory for what is kept of the frames of a first look, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        match self.rest {
            Rest::Steps(_) => 0,
            Rest::Blocks(..) => MAX_FIRST_LOOKS.unsigned_abs() * ReducedFrame::BYTES,
        }
    }

    pub(super) fn after_us(&self) -> Option<i64> {
        self.after_us
    }
}

fn rest_after(steps: Vec<Step>, after_us: Option<i64>) -> Vec<Step> {
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
    /// Looks at the sparse frames of a block, and returns its steps. Damage is recorded in `state`.
    ///
    /// # Errors
    /// Fails if a frame cannot be analysed, or if there are too many.
    pub(super) async fn first_look(
        &self,
        source: &Source,
        blocks: &Blocks,
        block: &Block,
        after_us: Option<i64>,
        state: &mut ReadState,
    ) -> Result<Vec<Step>, VideoAnalyzeError> {
        let steps = blocks.first_looks(block).into_iter().map(Step::Decode).collect();
        let before = ReadState { ended: false, ..state.clone() };
        let mut reader = Reader::start(source, steps, block.to_us, before)
            .map_err(|error| VideoAnalyzeError::from(VideoError::Io(error)))?;
        let (mut looks, mut frames, mut count) = (Vec::new(), Vec::new(), self.count);
        let VideoAnalyzer { analyzer, options, priority, .. } = *self.video;
        let options = AnalyzeOptions {
            min_score: Some(self.video.low_score()),
            max_faces: Some(MAX_FRAME_FACES),
            embeddings: false,
            quality: false,
            rotate: options.rotate,
            passes: Some(options.passes),
            ..AnalyzeOptions::default()
        };
        {
            let recycle = reader.recycler();
            let looked = reader.frames().map(|read| async {
                let ReadFrame { at_us, content, reduced } = read?;
                let Content::Pixels(frame) = content else {
                    return Err(VideoError::Output("a first look without pixels").into());
                };
                let size = (frame.width(), frame.height());
                let frame = Arc::new(frame);
                let (faces, _) = analyzer.find_faces_of_frame(&frame, &options, priority).await?;
                if let Ok(frame) = Arc::try_unwrap(frame) {
                    recycle.give(frame);
                }
                Ok::<_, VideoAnalyzeError>((!faces.is_empty(), KnownFrame { at_us, size, reduced }))
            });
            let mut looked = std::pin::pin!(looked.buffered(self.concurrency));
            while let Some(next) = looked.next().await {
                let (has_face, frame) = next?;
                looks.push(FirstLook { at_us: frame.at_us, has_face });
                // First looks count as analysed frames, unless an earlier run counted them.
                count += u64::from(after_us.is_none_or(|after_us| frame.at_us > after_us));
                frames.push(Some(frame));
                if count > MAX_FRAMES {
                    return Err(VideoAnalyzeError::TooManyFrames);
                }
            }
        }
        // Frames of a first look are not analysed yet, so `any` remains as it is.
        let ReadState { damage, ended, .. } = reader.end();
        (state.damage, state.ended) = (damage, ended);
        let steps = blocks.steps(&source.index, block, &looks).into_iter().filter_map(|step| match step {
            refine::Step::Seen(at) => frames.get_mut(at)?.take().map(Step::Known),
            refine::Step::Closer(segment) => Some(Step::Decode(segment)),
        });
        Ok(rest_after(steps.collect(), after_us))
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
        let recycle = reader.recycler();
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
                // Nothing else holds the pixels now, so the decoder can use the memory again.
                if let Ok(frame) = Arc::try_unwrap(frame) {
                    recycle.give(frame);
                }
                Ok(AnalyzedFrame { at_us, size, faces, reduced })
            });
            let analyzed = std::pin::pin!(analyzed.buffered(self.concurrency));
            let mut analyzed = Ahead::new(analyzed);
            while let Some(next) = analyzed.next().await {
                let AnalyzedFrame { at_us, size, faces, reduced } = next?;
                let begins = self.boundaries.next(at_us, reduced, self.tracks.is_full());
                if begins.part
                    && let Some(part) = self.take_part().await?
                {
                    analyzed.during(parts.part(part)).await?;
                }
                self.count += 1;
                if self.count > MAX_FRAMES {
                    return Err(VideoAnalyzeError::TooManyFrames.into());
                }
                parts.frame(FrameFaces { at_us, size, faces: &faces });
                self.tracks.add(at_us, faces, begins.shot).await?;
                self.last_us = Some(at_us);
            }
        }
        Ok(reader.end())
    }

    pub(super) async fn end<P: VideoParts>(&mut self, parts: &mut P) -> Result<(), P::Error> {
        match self.take_part().await? {
            Some(part) => parts.part(part).await,
            None => Ok(()),
        }
    }

    /// Ends all tracks. Returns what was found since the last part; `None` before any frame.
    async fn take_part(&mut self) -> Result<Option<VideoPart>, VideoAnalyzeError> {
        let Some(until_us) = self.last_us else { return Ok(None) };
        let tracks = self.tracks.end_part().await?;
        Ok(Some(VideoPart { until_us, frames: self.count, tracks }))
    }
}

/// After this time or number of frames, a part ends at the next cut, where all tracks end anyway.
const PART_MIN_US: i64 = 30_000_000;
const PART_MIN_FRAMES: u32 = 300;
/// Longest part. All tracks end with it. A video lets one of another collection continue only at
/// the end of a part, so a part with many frames must not take minutes.
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
    /// Returns whether a frame begins a new part. `cut` is whether it begins a new shot, and `full`
    /// is whether the part before must end. The first frame does not begin a new part.
    fn begins(&mut self, at_us: i64, cut: bool, full: bool) -> bool {
        let length = at_us.saturating_sub(*self.started_us.get_or_insert(at_us));
        let (us, frames) = if cut { (PART_MIN_US, PART_MIN_FRAMES) } else { (PART_MAX_US, PART_MAX_FRAMES) };
        let begins = full || length >= us || self.frames >= frames;
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
    pub(super) shot: bool,
    pub(super) part: bool,
}

impl Boundaries {
    /// Returns what begins with the next frame. `full` is whether the part before must end.
    pub(super) fn next(&mut self, at_us: i64, frame: ReducedFrame, full: bool) -> Boundary {
        let shot = self.cuts.is_cut(at_us, frame);
        let part = self.parts.begins(at_us, shot, full);
        if part {
            // An analysis that is resumed here does not know the frames before.
            self.cuts.restart();
        }
        Boundary { shot, part }
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

/// Where an analysis continues: after the last part that was stored.
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
            .filter(|at| clock.begins(5_000_000 + at * second, cuts.contains(at), *at == 80))
            .collect();
        // The part that began at 70 s is full after 10 s.
        assert_eq!(starts, [31, 70, 80, 140]);
    }

    #[test]
    fn splits_parts_at_cuts_from_300_to_600_frames() {
        let mut clock = PartClock::default();
        let cuts = [200, 350, 700];
        let starts: Vec<i64> =
            (0..2_000).filter(|frame| clock.begins(frame * 33_333, cuts.contains(frame), false)).collect();
        assert_eq!(starts, [350, 700, 1_300, 1_900]);
    }
}

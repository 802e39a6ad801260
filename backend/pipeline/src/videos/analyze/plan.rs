//! Plans which frames of a video are analysed: all steps at once, or by block after a first look.

use super::frames::{Content, ReadFrame, ReadState, Reader, Source};
use super::steps::{KnownFrame, Step, remaining};
use super::{DENSE_GAP_US, MAX_FRAME_FACES, MAX_FRAMES, VideoAnalyzeError, VideoOptions};
use crate::images::analyze::{AnalyzeOptions, Analyzer};
use futures::StreamExt;
use inference::Priority;
use std::sync::Arc;
use std::time::Duration;
use video::refine::{self, Block, Blocks, FirstLook, MAX_FIRST_LOOKS, Refined};
use video::shots::ReducedFrame;
use video::{Index, Sampling, Segment, VideoError, sampling};

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

    /// Returns what is read next, or `None` at the end of the video.
    pub(super) fn next(&mut self) -> Option<Planned<'_>> {
        match &mut self.rest {
            Rest::Steps(segments) => {
                let steps = segments.take()?.into_iter().map(Step::Decode).collect();
                Some(Planned::Steps(rest_after(steps, self.after_us)))
            }
            Rest::Blocks(blocks, taken) => {
                let is_left = |block: &&Block| self.after_us.is_none_or(|after_us| block.to_us > after_us);
                let left = blocks.blocks().iter().enumerate().skip(*taken);
                let (at, block) = left.map(|(at, block)| (at, *block)).find(|(_, block)| is_left(&block))?;
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

/// A first look at a block.
pub(super) struct FirstLooks<'a> {
    pub(super) analyzer: &'a Analyzer,
    pub(super) source: &'a Source,
    pub(super) min_score: f32,
    pub(super) options: &'a VideoOptions,
    pub(super) priority: Priority,
    /// Number of frames that are analysed at the same time.
    pub(super) concurrency: usize,
    /// Number of frames that were analysed before.
    pub(super) frames: u64,
}

impl FirstLooks<'_> {
    /// Looks at the sparse frames of a block, and returns its steps. Damage is recorded in `state`.
    ///
    /// # Errors
    /// Fails if a frame cannot be analysed, or if there are too many.
    pub(super) async fn steps(
        &self,
        blocks: &Blocks,
        block: &Block,
        after_us: Option<i64>,
        state: &mut ReadState,
    ) -> Result<Vec<Step>, VideoAnalyzeError> {
        let steps = blocks.first_looks(block).into_iter().map(Step::Decode).collect();
        let before = ReadState::new(state.any, state.damage.clone());
        let mut reader = Reader::start(self.source, steps, block.to_us, before)
            .map_err(|error| VideoAnalyzeError::from(VideoError::Io(error)))?;
        let (mut looks, mut frames, mut count) = (Vec::new(), Vec::new(), self.frames);
        let options = AnalyzeOptions {
            min_score: Some(self.min_score),
            max_faces: Some(MAX_FRAME_FACES),
            embeddings: false,
            quality: false,
            rotate: self.options.rotate,
            passes: Some(self.options.passes),
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
                let (faces, _) = self.analyzer.find_faces_of_frame(&frame, &options, self.priority).await?;
                if let Ok(frame) = Arc::try_unwrap(frame) {
                    recycle.give(frame);
                }
                Ok::<_, VideoAnalyzeError>((!faces.is_empty(), KnownFrame { at_us, size, reduced }))
            });
            let mut looked = std::pin::pin!(looked.buffered(self.concurrency));
            while let Some(next) = looked.next().await {
                let (has_face, frame) = next?;
                looks.push(FirstLook { at_us: frame.at_us, has_face });
                // First looks count as analysed frames, unless they were counted before an
                // interruption.
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
        let steps =
            blocks.steps(&self.source.index, block, &looks).into_iter().filter_map(|step| match step {
                refine::Step::Seen(at) => frames.get_mut(at)?.take().map(Step::Known),
                refine::Step::Closer(segment) => Some(Step::Decode(segment)),
            });
        Ok(rest_after(steps.collect(), after_us))
    }
}

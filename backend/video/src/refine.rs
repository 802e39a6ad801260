//! Plans closer looks: a first pass over few frames finds the faces, and more frames are analysed
//! around them. All functions are pure functions of the index and of the results of the first pass.
//!
//! The video is divided into blocks, and each block is planned separately. An interrupted analysis
//! therefore repeats the first pass of only one block to compute the same plan again.

use crate::index::{Index, Timeline};
use crate::sampling::{
    self, FrameSet, MAX_CLOSER_GAP_US, PROCESS_START_US, Sampling, Segment, Selection, decoding_us,
    whole_video,
};

/// Shortest length of a block in microseconds. A block ends where decoding can start, so blocks are
/// longer where keyframes are far apart.
const BLOCK_US: i64 = 60_000_000;
/// Maximum number of blocks, apart from the last one. The blocks of long videos are longer.
pub const MAX_BLOCKS: usize = 1_000;
/// Maximum number of frames in the first pass of a block. It limits the memory for their data.
pub const MAX_FIRST_PASS_FRAMES: i64 = 1_000;
/// Maximum number of segments with closer looks in one block. Each one needs a process.
pub const MAX_CLOSER_SEGMENTS: usize = 8;
/// Maximum number of listed times of one segment. It limits the length of an argument.
const MAX_LISTED: usize = 1_500;
/// Maximum number of cells in the longest gap. It limits the search for a divisor.
const MAX_CELLS: i64 = 1_000;
/// Mean time between two frames, in microseconds, above which closer looks add no frames.
const MAX_FRAME_US: i64 = 500_000;
/// Time for analysing a frame without faces, in microseconds.
const ANALYSIS_US: i64 = 15_000;

/// The way in which a video is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RefinePlan {
    /// The segments of [`Sampling::Auto`], without closer looks, because the video has few frames.
    Sparse(Vec<Segment>),
    /// Closer looks everywhere. A first pass would take as long, because decoding must start at the
    /// beginning of the file, or because keyframes are very far apart.
    Everywhere(Segment),
    /// A first pass of each block, and then closer looks where faces are.
    Blocks(Blocks),
}

/// A video that is read block by block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The segments of the first pass: those of [`Sampling::Auto`].
    plan: Vec<Segment>,
    max_gap_us: i64,
    blocks: Vec<Block>,
}

/// A part of a video that is planned separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Start in microseconds, inclusive.
    pub from_us: i64,
    /// End in microseconds, exclusive; `i64::MAX` for the end of the file.
    pub to_us: i64,
}

/// The result for a frame of the first pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstPassFrame {
    /// Time of the frame in microseconds.
    pub at_us: i64,
    pub has_face: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frame of the first pass with this index. It has no face, and is not decoded again.
    FirstPassFrame(usize),
    CloserLooks(Segment),
}

/// Returns how a video is read with closer looks. `max_gap_us` is the longest time without an
/// analysed frame.
pub fn refine(index: &Index, max_gap_us: i64) -> RefinePlan {
    let plan = sampling::plan(index, Sampling::Auto, max_gap_us);
    if index.frame_us > MAX_FRAME_US {
        return RefinePlan::Sparse(plan);
    }
    let refine_everywhere = || {
        let mut segments =
            sampling::with_last_frame(vec![whole_video(FrameSet::All, cell_length(max_gap_us))], index);
        segments.pop().map_or_else(|| RefinePlan::Sparse(Vec::new()), RefinePlan::Everywhere)
    };
    if index.timeline == Timeline::Continued {
        return refine_everywhere();
    }
    let blocks = blocks(index, &plan);
    // If only keyframes are decoded, the first pass selects up to two of them in the longest gap.
    let max_frames = |block: &Block| {
        let length_us = block.to_us.min(index.end_us).saturating_sub(block.from_us);
        length_us.saturating_mul(2) / max_gap_us.max(1)
    };
    if blocks.iter().any(|block| max_frames(block) > MAX_FIRST_PASS_FRAMES) {
        return refine_everywhere();
    }
    RefinePlan::Blocks(Blocks { plan, max_gap_us, blocks })
}

impl Blocks {
    /// Returns the blocks in order. They do not overlap and cover the whole video.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns the segments of the first pass from the start of a block to the end of the video.
    /// The reader must stop after the first frame of the next block. The plan of this block needs
    /// that frame: if it contains a face, the time before it gets closer looks too.
    pub fn first_pass(&self, block: &Block) -> Vec<Segment> {
        let from_us = block.from_us;
        let remaining = self.plan.iter().filter(|segment| segment.to_us > from_us).cloned();
        let segments = remaining.map(|segment| match segment.decoded {
            _ if segment.from_us >= from_us => segment,
            FrameSet::All => Segment { from_us, last_us: Some(from_us - 1), ..segment },
            // The first keyframe is selected, regardless of earlier selections.
            FrameSet::Keyframes => Segment { from_us, ..segment },
        });
        segments.collect()
    }

    /// Returns the steps of a block in order of time. Between a frame with a face and its
    /// neighbours in the first pass, the steps contain a frame for each [`MAX_CLOSER_GAP_US`], if
    /// the video has one. All frames of the first pass are among the steps.
    ///
    /// `frames` contains the first pass of the block and, if any, the first frame of the next
    /// block.
    pub fn steps(&self, index: &Index, block: &Block, frames: &[FirstPassFrame]) -> Vec<Step> {
        let mut ranges = self.join_ranges(index, face_ranges(block, frames)).into_iter().peekable();
        let (mut steps, mut covered_us) = (Vec::new(), i64::MIN);
        for (number, frame) in frames.iter().enumerate().filter(|(_, frame)| frame.at_us < block.to_us) {
            while let Some(range) = ranges.next_if(|range| range.from_us <= frame.at_us) {
                covered_us = range.to_us;
                steps.push(Step::CloserLooks(self.segment(&range, frames)));
            }
            if frame.at_us >= covered_us {
                steps.push(Step::FirstPassFrame(number));
            }
        }
        steps.extend(ranges.map(|range| Step::CloserLooks(self.segment(&range, frames))));
        steps
    }

    /// Joins two neighbouring ranges if decoding and analysing the time between them is faster than
    /// starting another process, or if there are more than [`MAX_CLOSER_SEGMENTS`].
    fn join_ranges(&self, index: &Index, ranges: Vec<Block>) -> Vec<Block> {
        let saved_us = |pair: &[Block]| {
            let (end, next) = (pair[0].to_us, pair[1].from_us);
            let gap_us = next.saturating_sub(end);
            let frames = gap_us / cell_length(self.max_gap_us);
            let through_us = decoding_us(index, gap_us).saturating_add(frames.saturating_mul(ANALYSIS_US));
            let start_us =
                PROCESS_START_US.saturating_add(decoding_us(index, next - index.keyframe_before(next)));
            through_us.saturating_sub(start_us)
        };
        let saved: Vec<i64> = ranges.windows(2).map(saved_us).collect();
        let mut order: Vec<usize> = (0..saved.len()).filter(|gap| saved[*gap] > 0).collect();
        order.sort_by_key(|gap| std::cmp::Reverse(saved[*gap]));
        order.truncate(MAX_CLOSER_SEGMENTS - 1);
        let mut merged: Vec<Block> = Vec::with_capacity(order.len() + 1);
        for (number, range) in ranges.into_iter().enumerate() {
            match merged.last_mut() {
                Some(last) if !order.contains(&(number - 1)) => last.to_us = range.to_us,
                _ => merged.push(range),
            }
        }
        merged
    }

    /// Returns the segment with closer looks in a range. The frames of the first pass are listed,
    /// except frames that are the first of their cells and are therefore decoded anyway.
    fn segment(&self, range: &Block, frames: &[FirstPassFrame]) -> Segment {
        let Block { from_us, to_us } = *range;
        let cell_us = cell_length(self.max_gap_us);
        let is_divisor = self.max_gap_us % cell_us == 0;
        let part_of = |at_us: i64| self.plan.partition_point(|segment| segment.to_us <= at_us);
        let is_first_of_cell = |number: usize| {
            let at_us = frames[number].at_us;
            let part = part_of(at_us);
            // The first frame of a segment may be at any position in its cell.
            let is_first = number.checked_sub(1).is_none_or(|before| part_of(frames[before].at_us) != part);
            let in_cell = |part: &Segment| part.decoded == FrameSet::All && !part.listed_us.contains(&at_us);
            is_divisor && !is_first && self.plan.get(part).is_some_and(in_cell)
        };
        let in_range = (0..frames.len()).filter(|number| (from_us..to_us).contains(&frames[*number].at_us));
        let listed_times =
            in_range.filter(|number| !is_first_of_cell(*number)).map(|number| frames[number].at_us);
        Segment {
            from_us,
            to_us,
            listed_us: listed_times.take(MAX_LISTED).collect(),
            last_us: (from_us > 0).then(|| from_us - 1),
            ..whole_video(FrameSet::All, cell_us)
        }
    }
}

/// Returns the length of the cells of closer looks: at most [`MAX_CLOSER_GAP_US`], and a divisor of
/// `max_gap_us` if there is one.
fn cell_length(max_gap_us: i64) -> i64 {
    let max_gap_us = max_gap_us.max(1);
    let min_count = max_gap_us.saturating_add(MAX_CLOSER_GAP_US - 1) / MAX_CLOSER_GAP_US;
    let divides = |count: &i64| max_gap_us % count == 0;
    let count = (min_count..=min_count.saturating_mul(2).min(MAX_CELLS)).find(divides);
    count.map_or(MAX_CLOSER_GAP_US.min(max_gap_us), |count| max_gap_us / count)
}

/// Returns the blocks of a video. The first pass of a block does not depend on earlier blocks.
fn blocks(index: &Index, plan: &[Segment]) -> Vec<Block> {
    let least_us = BLOCK_US.max(index.end_us / MAX_BLOCKS as i64 + 1);
    let mut blocks = Vec::new();
    let mut from_us = 0;
    for start in plan.iter().flat_map(|segment| block_starts(index, segment)) {
        if start.saturating_sub(from_us) >= least_us {
            blocks.push(Block { from_us, to_us: start });
            from_us = start;
        }
    }
    blocks.push(Block { from_us, to_us: i64::MAX });
    blocks
}

/// Returns where blocks can start in a segment.
fn block_starts(index: &Index, segment: &Segment) -> Vec<i64> {
    let first = index.keyframes_us.partition_point(|at| *at < segment.from_us);
    let keyframes = index.keyframes_us[first..].iter().copied().take_while(|at| *at < segment.to_us);
    let cell_us = segment.cell_us.max(1);
    // Cells are counted with a tolerance of a millisecond.
    let cell_of = |at: i64| at.saturating_add(1_000).div_euclid(cell_us);
    match segment.decoded {
        // The first cell that begins after a keyframe.
        FrameSet::All => {
            let starts = keyframes.map(|at| {
                let is_first = cell_of(at - 1) < cell_of(at);
                let cell = if is_first { cell_of(at) } else { cell_of(at) + 1 };
                cell.saturating_mul(cell_us) - 1_000
            });
            let inside = starts.filter(|at| (segment.from_us + 1..segment.to_us).contains(at));
            std::iter::once(segment.from_us).chain(inside).collect()
        }
        // The keyframes that the first pass selects.
        FrameSet::Keyframes => {
            let (mut selection, mut selected, mut last_cell) = (Selection::new(segment), Vec::new(), None);
            for at in keyframes {
                if last_cell.replace(cell_of(at)) == Some(cell_of(at)) {
                    continue;
                }
                selection.add(at);
                selected.extend(std::iter::from_fn(|| selection.take()));
            }
            selected.extend(selection.finish());
            selected
        }
    }
}

/// Returns the ranges between frames with a face and their neighbours, joined where they touch.
fn face_ranges(block: &Block, frames: &[FirstPassFrame]) -> Vec<Block> {
    let mut ranges: Vec<Block> = Vec::new();
    for (number, _) in frames.iter().enumerate().filter(|(_, frame)| frame.has_face) {
        let from_us = number.checked_sub(1).map_or(block.from_us, |previous| frames[previous].at_us);
        // The neighbouring frame is included, because a cut may be before it.
        let to_us = frames.get(number + 1).map_or(block.to_us, |next| next.at_us.saturating_add(1));
        let range = Block { from_us, to_us: to_us.min(block.to_us) };
        match ranges.last_mut() {
            Some(last) if range.from_us < last.to_us => last.to_us = range.to_us.max(last.to_us),
            _ if range.from_us < range.to_us => ranges.push(range),
            _ => {}
        }
    }
    ranges
}

#[cfg(test)]
mod tests;

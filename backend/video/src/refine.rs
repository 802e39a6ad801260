//! Closer looks where faces are: a first look at few frames decides which stretches of a video are
//! looked at more often. Pure functions of the index and of what the first look found.
//!
//! The video is divided into blocks, and each block is planned by itself. An interrupted analysis
//! therefore needs a first look at only one block to compute the same plan again.

use crate::index::{Index, Timeline};
use crate::sampling::{self, CLOSER_US, Looks, START_US, Sampling, Segment, Selection, decoding_us, whole};

/// Shortest length of a block in microseconds. A block ends where decoding can start, so blocks are
/// longer where keyframes are far apart.
const BLOCK_US: i64 = 60_000_000;
/// Maximum number of blocks, apart from the last one. The blocks of long videos are longer.
pub const MAX_BLOCKS: usize = 1_000;
/// Maximum number of frames in the first look at a block. It bounds the memory for their data.
pub const MAX_FIRST_LOOKS: i64 = 1_000;
/// Maximum number of segments with closer looks in one block. Each one needs a process.
pub const MAX_RUNS: usize = 8;
/// Maximum number of listed times of one segment. It bounds the length of an argument.
const MAX_LISTED: usize = 1_500;
/// Maximum number of cells in the longest gap. It bounds the search for a divisor.
const MAX_CELLS: i64 = 1_000;
/// Mean time between two frames, in microseconds, above which closer looks find nothing new.
const FEW_FRAMES_US: i64 = 500_000;
/// Time for analysing a frame without faces, in microseconds.
const ANALYSIS_US: i64 = 15_000;

/// How a video is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refined {
    /// The segments of [`Sampling::Auto`], without closer looks, because the video has few frames.
    Sparse(Vec<Segment>),
    /// Closer looks everywhere. A first look would take as long, because decoding must start at the
    /// beginning of the file, or because keyframes are very far apart.
    Everywhere(Segment),
    /// A first look at each block, and then closer looks where faces are.
    Blocks(Blocks),
}

/// A video that is read block by block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The segments of the first looks: those of [`Sampling::Auto`].
    plan: Vec<Segment>,
    max_gap_us: i64,
    blocks: Vec<Block>,
}

/// A stretch of a video that is planned by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Start in microseconds, inclusive.
    pub from_us: i64,
    /// End in microseconds, exclusive; `i64::MAX` for the end of the file.
    pub to_us: i64,
}

/// The result of a first look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstLook {
    /// Time of the frame in microseconds.
    pub at_us: i64,
    pub has_face: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frame of the first look with this index. It has no face, and is not decoded again.
    Seen(usize),
    /// Closer looks.
    Closer(Segment),
}

/// Returns how a video is read with closer looks. `max_gap_us` is the longest time without a look.
pub fn refine(index: &Index, max_gap_us: i64) -> Refined {
    let plan = sampling::plan(index, Sampling::Auto, max_gap_us);
    if index.frame_us > FEW_FRAMES_US {
        return Refined::Sparse(plan);
    }
    let refine_everywhere = || {
        let mut segments = sampling::with_last(vec![whole(Looks::All, cell(max_gap_us))], index);
        segments.pop().map_or_else(|| Refined::Sparse(Vec::new()), Refined::Everywhere)
    };
    if index.timeline == Timeline::Continued {
        return refine_everywhere();
    }
    let blocks = blocks(index, &plan);
    // Of keyframes, a first look selects up to two in the longest gap.
    let looks = |block: &Block| {
        let length_us = block.to_us.min(index.end_us).saturating_sub(block.from_us);
        length_us.saturating_mul(2) / max_gap_us.max(1)
    };
    if blocks.iter().any(|block| looks(block) > MAX_FIRST_LOOKS) {
        return refine_everywhere();
    }
    Refined::Blocks(Blocks { plan, max_gap_us, blocks })
}

impl Blocks {
    /// Returns the blocks in order. They do not overlap and cover the whole video.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns the segments of the first looks from the start of a block to the end of the video.
    /// The reader must stop after the first frame of the next block. The plan of this block needs
    /// that frame: if it contains a face, the time before it gets closer looks too.
    pub fn first_looks(&self, block: &Block) -> Vec<Segment> {
        let from_us = block.from_us;
        let remaining = self.plan.iter().filter(|segment| segment.to_us > from_us).cloned();
        let segments = remaining.map(|segment| match segment.looks {
            _ if segment.from_us >= from_us => segment,
            Looks::All => Segment { from_us, last_us: Some(from_us - 1), ..segment },
            // The first keyframe is selected, regardless of earlier selections.
            Looks::Keyframes => Segment { from_us, ..segment },
        });
        segments.collect()
    }

    /// Returns the steps of a block in order of time. Between a look with a face and its
    /// neighbours, the steps contain a frame for each [`CLOSER_US`], if the video has one. The
    /// frames of all looks are among the steps.
    ///
    /// `looks` contains the looks of the block and, if any, the first look of the next block.
    pub fn steps(&self, index: &Index, block: &Block, looks: &[FirstLook]) -> Vec<Step> {
        let mut runs = self.join(index, runs(block, looks)).into_iter().peekable();
        let (mut steps, mut covered_us) = (Vec::new(), i64::MIN);
        for (at, look) in looks.iter().enumerate().filter(|(_, look)| look.at_us < block.to_us) {
            while let Some(run) = runs.next_if(|run| run.from_us <= look.at_us) {
                covered_us = run.to_us;
                steps.push(Step::Closer(self.segment(&run, looks)));
            }
            if look.at_us >= covered_us {
                steps.push(Step::Seen(at));
            }
        }
        steps.extend(runs.map(|run| Step::Closer(self.segment(&run, looks))));
        steps
    }

    /// Joins two neighbouring runs if decoding and analysing the time between them is faster than
    /// starting another process, or if there are more than [`MAX_RUNS`].
    fn join(&self, index: &Index, runs: Vec<Block>) -> Vec<Block> {
        let saved_us = |pair: &[Block]| {
            let (end, next) = (pair[0].to_us, pair[1].from_us);
            let gap_us = next.saturating_sub(end);
            let looks = gap_us / cell(self.max_gap_us);
            let through_us = decoding_us(index, gap_us).saturating_add(looks.saturating_mul(ANALYSIS_US));
            let start_us = START_US.saturating_add(decoding_us(index, next - index.keyframe_before(next)));
            through_us.saturating_sub(start_us)
        };
        let saved: Vec<i64> = runs.windows(2).map(saved_us).collect();
        let mut order: Vec<usize> = (0..saved.len()).filter(|gap| saved[*gap] > 0).collect();
        order.sort_by_key(|gap| std::cmp::Reverse(saved[*gap]));
        order.truncate(MAX_RUNS - 1);
        let mut merged: Vec<Block> = Vec::with_capacity(order.len() + 1);
        for (at, run) in runs.into_iter().enumerate() {
            match merged.last_mut() {
                Some(last) if !order.contains(&(at - 1)) => last.to_us = run.to_us,
                _ => merged.push(run),
            }
        }
        merged
    }

    /// Returns the segment with closer looks in a run. The frames of first looks are listed, except
    /// frames that are the first of their cells and are therefore decoded anyway.
    fn segment(&self, run: &Block, looks: &[FirstLook]) -> Segment {
        let Block { from_us, to_us } = *run;
        let cell_us = cell(self.max_gap_us);
        let is_divisor = self.max_gap_us % cell_us == 0;
        let part_of = |at_us: i64| self.plan.partition_point(|segment| segment.to_us <= at_us);
        let is_first_of_cell = |at: usize| {
            let part = part_of(looks[at].at_us);
            // The first look at a segment may be at any position in its cell.
            let is_first = at.checked_sub(1).is_none_or(|before| part_of(looks[before].at_us) != part);
            let in_cell =
                |part: &Segment| part.looks == Looks::All && !part.also_us.contains(&looks[at].at_us);
            is_divisor && !is_first && self.plan.get(part).is_some_and(in_cell)
        };
        let in_run = (0..looks.len()).filter(|at| (from_us..to_us).contains(&looks[*at].at_us));
        let listed_times = in_run.filter(|at| !is_first_of_cell(*at)).map(|at| looks[at].at_us);
        Segment {
            from_us,
            to_us,
            also_us: listed_times.take(MAX_LISTED).collect(),
            last_us: (from_us > 0).then(|| from_us - 1),
            ..whole(Looks::All, cell_us)
        }
    }
}

/// Returns the length of the cells of closer looks: at most [`CLOSER_US`], and a divisor of
/// `max_gap_us` if there is one.
fn cell(max_gap_us: i64) -> i64 {
    let max_gap_us = max_gap_us.max(1);
    let min_count = max_gap_us.saturating_add(CLOSER_US - 1) / CLOSER_US;
    let divides = |count: &i64| max_gap_us % count == 0;
    let count = (min_count..=min_count.saturating_mul(2).min(MAX_CELLS)).find(divides);
    count.map_or(CLOSER_US.min(max_gap_us), |count| max_gap_us / count)
}

/// Returns the blocks of a video. The first looks at a block do not depend on earlier blocks.
fn blocks(index: &Index, plan: &[Segment]) -> Vec<Block> {
    let least_us = BLOCK_US.max(index.end_us / MAX_BLOCKS as i64 + 1);
    let mut blocks = Vec::new();
    let mut from_us = 0;
    for start in plan.iter().flat_map(|segment| starts(index, segment)) {
        if start.saturating_sub(from_us) >= least_us {
            blocks.push(Block { from_us, to_us: start });
            from_us = start;
        }
    }
    blocks.push(Block { from_us, to_us: i64::MAX });
    blocks
}

/// Returns where blocks can start in a segment.
fn starts(index: &Index, segment: &Segment) -> Vec<i64> {
    let first = index.keyframes_us.partition_point(|at| *at < segment.from_us);
    let keyframes = index.keyframes_us[first..].iter().copied().take_while(|at| *at < segment.to_us);
    let cell_us = segment.cell_us.max(1);
    // Cells are counted with a tolerance of a millisecond.
    let cell_of = |at: i64| at.saturating_add(1_000).div_euclid(cell_us);
    match segment.looks {
        // The first cell that begins after a keyframe.
        Looks::All => {
            let starts = keyframes.map(|at| {
                let is_first = cell_of(at - 1) < cell_of(at);
                let cell = if is_first { cell_of(at) } else { cell_of(at) + 1 };
                cell.saturating_mul(cell_us) - 1_000
            });
            let inside = starts.filter(|at| (segment.from_us + 1..segment.to_us).contains(at));
            std::iter::once(segment.from_us).chain(inside).collect()
        }
        // The keyframes that the first look selects.
        Looks::Keyframes => {
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

/// Returns the stretches between looks with a face and their neighbours, joined where they touch.
fn runs(block: &Block, looks: &[FirstLook]) -> Vec<Block> {
    let mut runs: Vec<Block> = Vec::new();
    for (at, _) in looks.iter().enumerate().filter(|(_, look)| look.has_face) {
        let from_us = at.checked_sub(1).map_or(block.from_us, |previous| looks[previous].at_us);
        // The frame of the neighbour is included, because a cut may be before it.
        let to_us = looks.get(at + 1).map_or(block.to_us, |next| next.at_us.saturating_add(1));
        let run = Block { from_us, to_us: to_us.min(block.to_us) };
        match runs.last_mut() {
            Some(last) if run.from_us < last.to_us => last.to_us = run.to_us.max(last.to_us),
            _ if run.from_us < run.to_us => runs.push(run),
            _ => {}
        }
    }
    runs
}

#[cfg(test)]
mod tests;

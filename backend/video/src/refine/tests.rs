#![allow(clippy::unwrap_used)]
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SECOND: i64 = 1_000_000;
const FRAME_US: i64 = 40_000;

/// Returns the index of a video with 25 frames per second. `keyframes` are the numbers of its
/// keyframes.
fn video(keyframes: impl IntoIterator<Item = i64>, frames: i64) -> Index {
    let mut keyframes_us: Vec<i64> = keyframes.into_iter().map(|number| number * FRAME_US).collect();
    keyframes_us.push(0);
    keyframes_us.sort_unstable();
    keyframes_us.dedup();
    let (width, height) = (1920, 1080);
    let (end_us, last_us) = (frames * FRAME_US, (frames - 1) * FRAME_US);
    Index { keyframes_us, last_us, end_us, frame_us: FRAME_US, width, height, ..Index::default() }
}

fn every(seconds: i64, video_seconds: i64) -> Index {
    video((0..video_seconds / seconds).map(|at| at * seconds * 25), video_seconds * 25)
}

fn refine_blocks(index: &Index, max_gap_us: i64) -> Blocks {
    match refine(index, max_gap_us) {
        RefinePlan::Blocks(blocks) => blocks,
        other => panic!("{other:?}"),
    }
}

/// Returns the times of the frames that a reader returns for a segment.
fn read(index: &Index, segment: &Segment) -> Vec<i64> {
    let start = index.keyframe_before(segment.from_us);
    let decoded: Vec<i64> = match segment.decoded {
        FrameSet::Keyframes => index.keyframes_us.clone(),
        FrameSet::All => (0..index.end_us / FRAME_US).map(|number| number * FRAME_US).collect(),
    };
    let cell_of = |at: i64| (at + 1_000).div_euclid(segment.cell_us);
    let (mut selection, mut last, mut returned) = (Selection::new(segment), None, Vec::new());
    for at in decoded.into_iter().filter(|at| *at >= start.max(segment.from_us - 500)) {
        let is_listed = segment.listed_us.contains(&at);
        if last.is_some_and(|last| cell_of(at) <= cell_of(last)) && !is_listed {
            continue;
        }
        last = Some(at);
        if at >= segment.to_us {
            break;
        }
        if segment.last_us.is_none_or(|last| at > last) {
            selection.add(at);
            returned.extend(std::iter::from_fn(|| selection.take()));
        }
    }
    returned.extend(selection.finish());
    returned
}

/// Returns the first pass of a block, and the first frame of the next block. `faces` are the times
/// of the frames with a face.
fn first_pass(index: &Index, blocks: &Blocks, block: &Block, faces: &BTreeSet<i64>) -> Vec<FirstPassFrame> {
    let mut frames = Vec::new();
    for at_us in blocks.first_pass(block).iter().flat_map(|segment| read(index, segment)) {
        frames.push(FirstPassFrame { at_us, has_face: faces.contains(&at_us) });
        if at_us >= block.to_us {
            break;
        }
    }
    frames
}

/// Returns the times of all frames that are analysed, and the number of processes.
fn analyse(index: &Index, max_gap_us: i64, faces: &BTreeSet<i64>) -> (Vec<i64>, usize) {
    let blocks = refine_blocks(index, max_gap_us);
    let (mut times, mut processes) = (Vec::new(), 0);
    for block in blocks.blocks() {
        let frames = first_pass(index, &blocks, block, faces);
        for step in blocks.steps(index, block, &frames) {
            match step {
                Step::FirstPassFrame(number) => {
                    assert!(!frames[number].has_face);
                    times.push(frames[number].at_us);
                }
                Step::CloserLooks(segment) => {
                    assert!(segment.from_us >= block.from_us && segment.to_us <= block.to_us);
                    processes += 1;
                    times.extend(read(index, &segment));
                }
            }
        }
    }
    (times, processes)
}

fn auto_times(index: &Index, max_gap_us: i64) -> Vec<i64> {
    let plan = sampling::plan(index, Sampling::Auto, max_gap_us);
    plan.iter().flat_map(|segment| read(index, segment)).collect()
}

#[test]
fn analyses_more_frames_around_each_face() {
    let index = every(2, 20);
    let blocks = refine_blocks(&index, 2 * SECOND);
    let [block] = blocks.blocks() else { panic!("one block") };
    let frames = first_pass(&index, &blocks, block, &[6 * SECOND].into());
    let closer = Segment {
        from_us: 4 * SECOND,
        to_us: 8 * SECOND + 1,
        listed_us: [4, 6, 8].map(|at| at * SECOND).into(),
        last_us: Some(4 * SECOND - 1),
        ..whole_video(FrameSet::All, MAX_CLOSER_GAP_US)
    };
    let expected = [0, 1].map(Step::FirstPassFrame).into_iter().chain([Step::CloserLooks(closer)]);
    let expected: Vec<Step> = expected.chain((5..11).map(Step::FirstPassFrame)).collect();
    assert_eq!(blocks.steps(&index, block, &frames), expected);
}

#[test]
fn face_at_block_border_is_refined_on_both_sides() {
    let index = every(2, 200);
    let blocks = refine_blocks(&index, 2 * SECOND);
    let starts: Vec<i64> = blocks.blocks().iter().map(|block| block.from_us / SECOND).collect();
    assert_eq!(starts, [0, 60, 120, 180]);
    // In the first pass, the first frame of the second block, and the last one of the third.
    let faces: BTreeSet<i64> = [60 * SECOND, 178 * SECOND].into();
    let (times, _) = analyse(&index, 2 * SECOND, &faces);
    for (from, to) in [(58, 62), (176, 180)] {
        let nearby = times.iter().filter(|at| (from * SECOND..to * SECOND).contains(at)).count();
        assert!(nearby >= 16, "{from}: {nearby}");
    }
    assert!(times.len() < auto_times(&index, 2 * SECOND).len() + 32, "{}", times.len());
}

#[test]
fn indivisible_or_short_videos_are_read_in_one_pass() {
    let continued = Index { timeline: Timeline::Continued, ..every(2, 200) };
    let everywhere = |index: &Index| {
        RefinePlan::Everywhere(Segment {
            listed_us: vec![index.last_us],
            ..whole_video(FrameSet::All, MAX_CLOSER_GAP_US)
        })
    };
    assert_eq!(refine(&continued, 2 * SECOND), everywhere(&continued));
    // One group of pictures of more than half an hour, whose first pass would be large.
    let long = Index { keyframes_us: vec![0], ..every(2, 2_400) };
    assert_eq!(refine(&long, 2 * SECOND), everywhere(&long));
    assert!(matches!(refine(&every(2, 2_400), 2 * SECOND), RefinePlan::Blocks(_)));
    // The first pass of a shorter film is as large if the longest gap is short.
    let [short, longer] = [479_000, 480_000].map(|max_gap_us| refine(&video([], 6_000), max_gap_us));
    assert!(matches!(short, RefinePlan::Everywhere(_)), "{short:?}");
    assert!(matches!(longer, RefinePlan::Blocks(_)), "{longer:?}");
    let slides = Index { frame_us: SECOND, ..every(2, 200) };
    let plan = sampling::plan(&slides, Sampling::Auto, 2 * SECOND);
    assert_eq!(refine(&slides, 2 * SECOND), RefinePlan::Sparse(plan));
}

#[test]
fn cell_length_divides_longest_gap() {
    for max_gap_ms in 200..=60_000 {
        let cell_us = cell_length(max_gap_ms * 1_000);
        assert_eq!(max_gap_ms * 1_000 % cell_us, 0, "{max_gap_ms}");
        assert!((125_000..=MAX_CLOSER_GAP_US).contains(&cell_us), "{max_gap_ms}: {cell_us}");
    }
    for odd in [0, 1, 250_007, i64::MAX] {
        assert!((1..=MAX_CLOSER_GAP_US).contains(&cell_length(odd)), "{odd}");
    }
}

#[test]
fn number_of_refine_processes_is_limited() {
    // A day with a keyframe every second, and a face in every fourth one.
    let day = 24 * 3_600;
    let index = Index { width: 4096, height: 2304, ..every(1, day) };
    let blocks = refine_blocks(&index, SECOND);
    assert!((MAX_BLOCKS - 20..=MAX_BLOCKS + 1).contains(&blocks.blocks().len()), "{}", blocks.blocks().len());
    let block = blocks.blocks()[1];
    let frames: Vec<FirstPassFrame> = (block.from_us / SECOND..=block.to_us / SECOND)
        .map(|at| FirstPassFrame { at_us: at * SECOND, has_face: at % 4 == 0 })
        .collect();
    let steps = blocks.steps(&index, &block, &frames);
    let closer = steps.iter().filter(|step| matches!(step, Step::CloserLooks(_))).count();
    assert_eq!(closer, MAX_CLOSER_SEGMENTS);
}

#[test]
fn refine_starts_process_only_to_save_work() {
    // One keyframe in ten minutes: each process decodes everything before its segment again.
    let index = every(600, 600);
    let faces: BTreeSet<i64> = (10..60).map(|at| at * 10 * SECOND).collect();
    let (times, processes) = analyse(&index, 2 * SECOND, &faces);
    assert!(processes <= 3, "{processes}");
    assert!(faces.iter().all(|face| times.binary_search(face).is_ok()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn refined_frames_contain_auto_frames_and_closer_looks(
        keyframes in proptest::collection::vec(0..6_000_i64, 0..200),
        regular in proptest::option::of(1..400_i64),
        frames in 1..6_000_i64,
        visible in proptest::collection::vec((0..6_000_i64, 1..200_i64), 0..12),
        // At least twice the length of the film, divided by MAX_FIRST_PASS_FRAMES, so that each
        // block can have a first pass.
        max_gap_ms in prop_oneof![Just(2_000_i64), 480..5_000_i64],
    ) {
        let grid = regular.into_iter().flat_map(|step| (0..6_000 / step).map(move |at| at * step));
        let index = video(keyframes.into_iter().chain(grid).filter(|at| *at < frames), frames);
        let max_gap_us = max_gap_ms * 1_000;
        let faces: BTreeSet<i64> =
            visible.iter().flat_map(|(from, length)| (*from..from + length).map(|at| at * FRAME_US)).collect();
        let sparse = auto_times(&index, max_gap_us);
        prop_assert_eq!(&analyse(&index, max_gap_us, &BTreeSet::new()).0, &sparse);
        let (times, processes) = analyse(&index, max_gap_us, &faces);
        prop_assert!(times.is_sorted_by(|a, b| a < b), "{times:?}");
        let all: BTreeSet<i64> = times.iter().copied().collect();
        prop_assert!(sparse.iter().all(|at| all.contains(at)), "{sparse:?} {times:?}");
        prop_assert!(processes <= refine_blocks(&index, max_gap_us).blocks().len() * MAX_CLOSER_SEGMENTS);
        // Around each frame with a face, no gap is longer than that of closer looks.
        for (at, _) in sparse.iter().enumerate().filter(|(_, time)| faces.contains(time)) {
            let from = if at == 0 { 0 } else { sparse[at - 1] };
            let to = sparse.get(at + 1).copied().unwrap_or(index.end_us - FRAME_US);
            let nearby: Vec<i64> = times.iter().copied().filter(|at| (from..=to).contains(at)).collect();
            let longest = nearby.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
            prop_assert!(longest <= MAX_CLOSER_GAP_US + FRAME_US, "{longest} from {from} to {to}: {nearby:?}");
            let last = nearby.last().copied().unwrap_or(from);
            prop_assert!(to - last <= MAX_CLOSER_GAP_US + FRAME_US, "{last} {to}");
        }
    }

    #[test]
    fn refine_blocks_cover_video_in_order(
        keyframes in proptest::collection::vec(0..50_000_i64, 0..300),
        frames in 1..50_000_i64,
        // As above.
        max_gap_ms in 4_000..60_000_i64,
    ) {
        let index = video(keyframes.into_iter().filter(|at| *at < frames), frames);
        let blocks = refine_blocks(&index, max_gap_ms * 1_000);
        let blocks = blocks.blocks();
        prop_assert_eq!((blocks[0].from_us, blocks[blocks.len() - 1].to_us), (0, i64::MAX));
        for pair in blocks.windows(2) {
            prop_assert_eq!(pair[0].to_us, pair[1].from_us);
            prop_assert!(pair[0].to_us - pair[0].from_us >= BLOCK_US);
        }
    }
}

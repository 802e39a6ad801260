use crate::similarity::similarity;
use crate::track::{Shot, TimedBox, Track};

/// Splits a track where the identity changed, and returns its parts in order of time.
///
/// The identity changes between two best shots if the similarity of every earlier shot to every
/// later shot is below `threshold` (-1..1). A single bad shot therefore does not split a track.
/// Shots without an embedding are ignored. Between the two shots, the track is split where
/// successive boxes overlap least.
///
/// The first part keeps the number of the track, and `new_id` returns the numbers of the others.
/// Each part keeps its boxes and its best shots. If boxes of the track were omitted, those of its
/// best shots are added again, and the samples are estimates with the same sum.
pub fn split<P>(mut track: Track<P>, threshold: f32, mut new_id: impl FnMut() -> u64) -> Vec<Track<P>> {
    let changes = identity_changes(&track.best_shots, threshold);
    if changes.is_empty() {
        return vec![track];
    }
    add_shot_boxes(&mut track.boxes, &track.best_shots);
    let starts: Vec<i64> =
        changes.iter().filter_map(|&(before, after)| split_time(&track.boxes, before, after)).collect();
    let Track { id, samples, mut boxes, mut best_shots, .. } = track;
    let (total, mut remaining) = (boxes.len(), samples);
    let mut parts = Vec::with_capacity(starts.len() + 1);
    for start in starts.into_iter().rev() {
        let tail = boxes.split_off(boxes.partition_point(|timed_box| timed_box.at_us < start));
        let (later, earlier) = best_shots.into_iter().partition(|shot: &Shot<P>| shot.at_us >= start);
        best_shots = earlier;
        let share = (u64::from(samples) * tail.len() as u64 / total.max(1) as u64) as u32;
        let share = share.min(remaining);
        remaining -= share;
        parts.push(new_track(0, share, tail, later));
    }
    parts.push(new_track(id, remaining, boxes, best_shots));
    parts.reverse();
    for part in parts.iter_mut().skip(1) {
        part.id = new_id();
    }
    parts
}

fn new_track<P>(id: u64, samples: u32, boxes: Vec<TimedBox>, best_shots: Vec<Shot<P>>) -> Track<P> {
    let time = |timed_box: Option<&TimedBox>| timed_box.map_or(0, |timed_box| timed_box.at_us);
    Track { id, started_us: time(boxes.first()), ended_us: time(boxes.last()), samples, boxes, best_shots }
}

/// Returns the times of the last shot before and the first shot after each change of identity.
fn identity_changes<P>(best_shots: &[Shot<P>], threshold: f32) -> Vec<(i64, i64)> {
    let mut shots: Vec<(i64, &[f32])> =
        best_shots.iter().filter_map(|shot| Some((shot.at_us, shot.embedding.as_deref()?))).collect();
    shots.sort_by_key(|(at_us, _)| *at_us);
    let differ = |a: &[f32], b: &[f32]| similarity(Some(a), Some(b)).is_some_and(|value| value < threshold);
    let is_change = |i: &usize| {
        let (before, after) = shots.split_at(*i);
        before.iter().all(|a| after.iter().all(|b| differ(a.1, b.1)))
    };
    (1..shots.len()).filter(is_change).map(|i| (shots[i - 1].0, shots[i].0)).collect()
}

/// Inserts the boxes of the best shots that are missing.
fn add_shot_boxes<P>(boxes: &mut Vec<TimedBox>, best_shots: &[Shot<P>]) {
    for shot in best_shots {
        if let Err(index) = boxes.binary_search_by_key(&shot.at_us, |timed_box| timed_box.at_us) {
            boxes.insert(index, TimedBox { at_us: shot.at_us, bbox: shot.bbox });
        }
    }
}

/// Returns the time of the box that overlaps least with the previous box, after `from_us` and up to
/// `to_us`; of equal ones, the last.
fn split_time(boxes: &[TimedBox], from_us: i64, to_us: i64) -> Option<i64> {
    boxes
        .windows(2)
        .filter(|pair| pair[1].at_us > from_us && pair[1].at_us <= to_us)
        .map(|pair| (pair[0].bbox.iou(&pair[1].bbox), pair[1].at_us))
        .min_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))
        .map(|(_, at_us)| at_us)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use vision::Rect;

    const ADA: [f32; 2] = [1.0, 0.0];
    const BOB: [f32; 2] = [0.0, 1.0];

    /// Returns a track of 11 boxes, one every 100 us, with a jump before 600 us.
    fn track(shots: &[(i64, Option<[f32; 2]>)]) -> Track<()> {
        let bbox = |i: i64| Rect { x: if i < 6 { 0.0 } else { 5.0 }, y: 0.0, width: 10.0, height: 10.0 };
        let boxes = (0..=10).map(|i| TimedBox { at_us: i * 100, bbox: bbox(i) }).collect();
        let shot = |&(at_us, embedding): &(i64, Option<[f32; 2]>)| Shot {
            at_us,
            bbox: bbox(at_us / 100),
            score: 0.9,
            quality: 0.5,
            embedding: embedding.map(|e| Arc::from(e.as_slice())),
            payload: (),
        };
        let best_shots = shots.iter().map(shot).collect();
        Track { id: 7, started_us: 0, ended_us: 1000, samples: 11, boxes, best_shots }
    }

    #[test]
    fn identity_change_splits_track_at_jump() {
        let parts = split(track(&[(900, Some(BOB)), (100, Some(ADA)), (500, None)]), 0.4, || 20);
        let summary =
            |p: &Track<()>| (p.id, p.started_us, p.ended_us, p.samples, p.boxes.len(), p.best_shots.len());
        assert_eq!(
            parts.iter().map(summary).collect::<Vec<_>>(),
            [(7, 0, 500, 6, 6, 2), (20, 600, 1000, 5, 5, 1)]
        );
    }

    #[test]
    fn single_outlier_or_missing_embeddings_do_not_split_track() {
        for shots in [
            vec![(100, Some(ADA)), (500, Some(BOB)), (900, Some(ADA))],
            vec![(100, Some(ADA)), (900, None)],
            vec![],
        ] {
            let parts = split(track(&shots), 0.4, || panic!("the track is split"));
            assert_eq!((parts.len(), parts[0].samples, parts[0].best_shots.len()), (1, 11, shots.len()));
        }
    }

    #[test]
    fn splits_track_whose_shot_boxes_are_missing() {
        let mut thinned_track = track(&[(300, Some(ADA)), (700, Some(BOB))]);
        thinned_track.boxes = vec![thinned_track.boxes[0], thinned_track.boxes[10]];
        let parts = split(thinned_track, 0.4, || 20);
        let times: Vec<_> = parts.iter().map(|part| (part.started_us, part.ended_us)).collect();
        assert_eq!(times, [(0, 300), (700, 1000)]);
    }

    #[test]
    fn split_assigns_every_sample_to_one_part() {
        let mut ids = 10..;
        let mut long_track = track(&[(0, Some(ADA)), (500, Some(BOB)), (1000, Some([-1.0, 0.0]))]);
        long_track.samples = 1000;
        let parts = split(long_track, 0.4, || ids.next().unwrap());
        assert_eq!(parts.iter().map(|part| part.samples).sum::<u32>(), 1000);
        assert_eq!(parts.iter().map(|part| part.id).collect::<Vec<_>>(), [7, 10, 11]);
        assert_eq!(parts.iter().map(|part| part.boxes.len()).sum::<usize>(), 11);
    }
}

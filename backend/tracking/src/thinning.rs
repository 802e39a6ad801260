use crate::track::{TimedBox, interpolate};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Removes boxes until at most `keep` remain, but never the first and the last one.
///
/// Removes first the box that linear interpolation between its neighbours predicts best. This is
/// the method of Visvalingam and Whyatt (1993) for lines, with the largest error of an edge in
/// pixels in place of the area of a triangle. Time: O(n log n).
pub(crate) fn thin(boxes: &mut Vec<TimedBox>, keep: usize) {
    let count = boxes.len();
    if count <= keep.max(2) {
        return;
    }
    let mut before: Vec<usize> = (0..count).map(|i| i.saturating_sub(1)).collect();
    let mut after: Vec<usize> = (1..=count).collect();
    let mut error = vec![u32::MAX; count];
    let mut is_removed = vec![false; count];
    let mut heap = BinaryHeap::with_capacity(count);
    for i in 1..count - 1 {
        error[i] = prediction_error(&boxes[i - 1], &boxes[i], &boxes[i + 1]);
        heap.push(Reverse((error[i], i)));
    }
    let mut remaining = count;
    while remaining > keep.max(2) {
        let Some(Reverse((value, i))) = heap.pop() else { break };
        if is_removed[i] || error[i] != value {
            continue;
        }
        is_removed[i] = true;
        remaining -= 1;
        let (left, right) = (before[i], after[i]);
        (after[left], before[right]) = (right, left);
        for j in [left, right] {
            if j > 0 && j < count - 1 {
                // The error never falls, so that a slow curve does not disappear box by box.
                error[j] = prediction_error(&boxes[before[j]], &boxes[j], &boxes[after[j]]).max(value);
                heap.push(Reverse((error[j], j)));
            }
        }
    }
    let mut index = 0;
    boxes.retain(|_| {
        index += 1;
        !is_removed[index - 1]
    });
}

/// Returns the largest distance in pixels between an edge of `middle` and its interpolation, as the
/// bits of a number that is not negative: they have the same order as the number.
fn prediction_error(before: &TimedBox, middle: &TimedBox, after: &TimedBox) -> u32 {
    let (real, line) = (middle.bbox, interpolate(before, after, middle.at_us));
    let edges = [
        real.x - line.x,
        real.y - line.y,
        real.x + real.width - line.x - line.width,
        real.y + real.height - line.y - line.height,
    ];
    edges.iter().fold(0.0f32, |worst, edge| worst.max(edge.abs())).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vision::Rect;

    fn at(i: i64, x: f32) -> TimedBox {
        TimedBox { at_us: i * 1000, bbox: Rect { x, y: 5.0, width: 10.0, height: 10.0 } }
    }

    #[test]
    fn corners_remain_and_straight_parts_disappear() {
        let mut boxes: Vec<_> = (0..=100).map(|i| at(i, (50 - (i - 50).abs()) as f32)).collect();
        thin(&mut boxes, 3);
        let times: Vec<i64> = boxes.iter().map(|b| b.at_us / 1000).collect();
        assert_eq!(times, [0, 50, 100]);
        thin(&mut boxes, 0);
        assert_eq!(boxes.len(), 2);
    }

    #[test]
    fn a_wave_is_reproduced_within_pixels() {
        let wave: Vec<_> = (0..2000).map(|i| at(i, 100.0 * (i as f32 / 80.0).sin())).collect();
        let mut thinned = wave.clone();
        thin(&mut thinned, 400);
        assert_eq!(thinned.len(), 400);
        for known in &wave {
            let next = thinned.partition_point(|b| b.at_us < known.at_us);
            let (Some(before), after) = (thinned.get(next.saturating_sub(1)), thinned[next]) else {
                panic!()
            };
            let x = if after.at_us == known.at_us {
                after.bbox.x
            } else {
                interpolate(before, &after, known.at_us).x
            };
            assert!((x - known.bbox.x).abs() < 1.0, "{x} in place of {}", known.bbox.x);
        }
    }
}

//! A compact binary encoding of the boxes of a track, and the selection of boxes to keep.
//!
//! The first byte is the version, 1. Then follow the number of boxes and, for each box, the
//! differences of its time, left edge, top edge, width and height from the previous box. Times are
//! in milliseconds, coordinates in quarters of a pixel. Numbers are variable-length integers
//! (LEB128); signed numbers use the zigzag encoding of Protocol Buffers. Each list of boxes has
//! exactly one encoding.
use crate::track::{MAX_COORDINATE, TimedBox, interpolate};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use vision::Rect;

/// Maximum length of an encoding in bytes.
pub const MAX_BYTES: usize = 16 * 1024;
const VERSION: u8 = 1;
/// A box has a time and four coordinates, with at least one byte each.
const MIN_BOX_BYTES: usize = 5;
const UNITS_PER_PIXEL: f32 = 4.0;
const MAX_UNITS: i64 = (MAX_COORDINATE * UNITS_PER_PIXEL) as i64;
const MAX_MS: i64 = i64::MAX / 1000;

/// The bytes are not the encoding of a list of boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of boxes: {0}")]
pub struct DecodeError(&'static str);

/// Time in milliseconds; left edge, top edge, width and height in quarters of a pixel.
type Quantised = [i64; 5];

/// Returns the encoding of the boxes, which has at most [`MAX_BYTES`]. If necessary, it omits the
/// boxes that linear interpolation predicts best. The boxes must be in order of time. Boxes that
/// are not finite, out of range, or in the same millisecond as the previous box are also omitted.
pub fn encode(boxes: &[TimedBox]) -> Vec<u8> {
    let mut boxes: Vec<TimedBox> = boxes.to_vec();
    boxes.retain(|timed_box| quantise(timed_box).is_some());
    boxes.dedup_by(|next, timed_box| next.at_us.div_euclid(1000) <= timed_box.at_us.div_euclid(1000));
    loop {
        let bytes = write_boxes(&boxes);
        if bytes.len() <= MAX_BYTES {
            return bytes;
        }
        // The differences become larger when boxes are removed, so 5 % more boxes are removed.
        let max_count = boxes.len() * MAX_BYTES / bytes.len() * 19 / 20;
        thin(&mut boxes, max_count);
    }
}

/// Returns the boxes of an encoding.
///
/// # Errors
/// Fails if the bytes are not a possible result of [`encode`].
pub fn decode(bytes: &[u8]) -> Result<Vec<TimedBox>, DecodeError> {
    if bytes.len() > MAX_BYTES {
        return Err(DecodeError("too long"));
    }
    let Some((&VERSION, mut rest)) = bytes.split_first() else {
        return Err(DecodeError("unknown version"));
    };
    let count = read_varint(&mut rest)?;
    if count > (rest.len() / MIN_BOX_BYTES) as u64 {
        return Err(DecodeError("too many boxes for the length"));
    }
    let mut boxes = Vec::with_capacity(count as usize);
    let mut last: Quantised = [0; 5];
    for i in 0..count {
        let mut next = last;
        for (k, value) in next.iter_mut().enumerate() {
            let difference = if k == 0 && i > 0 {
                i64::try_from(read_varint(&mut rest)?).ok()
            } else {
                Some(read_zigzag(&mut rest)?)
            };
            *value = difference.and_then(|d| value.checked_add(d)).ok_or(DecodeError("overflow"))?;
        }
        if i > 0 && next[0] <= last[0] {
            return Err(DecodeError("times are not in order"));
        }
        boxes.push(dequantise(&next).ok_or(DecodeError("out of range"))?);
        last = next;
    }
    if rest.is_empty() { Ok(boxes) } else { Err(DecodeError("bytes after the end")) }
}

fn write_boxes(boxes: &[TimedBox]) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    write_varint(&mut bytes, boxes.len() as u64);
    let mut last: Quantised = [0; 5];
    for (i, next) in boxes.iter().filter_map(quantise).enumerate() {
        for (k, (value, before)) in next.iter().zip(&last).enumerate() {
            let difference = value - before;
            write_varint(&mut bytes, if k == 0 && i > 0 { difference as u64 } else { to_zigzag(difference) });
        }
        last = next;
    }
    bytes
}

/// Returns the numbers to store; `None` if the box is not finite or out of range.
fn quantise(timed_box: &TimedBox) -> Option<Quantised> {
    let Rect { x, y, width, height } = timed_box.bbox;
    let (x, width) = quantise_span(x, width)?;
    let (y, height) = quantise_span(y, height)?;
    Some([timed_box.at_us.div_euclid(1000), x, y, width, height]).filter(|numbers| numbers[0] >= -MAX_MS)
}

/// Returns start and length in quarters of a pixel. Start and end are rounded, so that a box inside
/// an image remains inside.
fn quantise_span(start: f32, length: f32) -> Option<(i64, i64)> {
    let is_in_range = |value: f32| value.is_finite() && value.abs() <= MAX_COORDINATE;
    if !is_in_range(start) || !is_in_range(length) || length <= 0.0 {
        return None;
    }
    let [start, end] = [start, start + length].map(|end| f64::from(end) * f64::from(UNITS_PER_PIXEL));
    let (mut first, mut last) = (start.round() as i64, end.round() as i64);
    if first == last {
        // A very small box becomes the quarter of a pixel that contains its end.
        last = end.ceil() as i64;
        first = last - 1;
    }
    Some((first, (last - first).clamp(1, MAX_UNITS)))
}

fn dequantise(numbers: &Quantised) -> Option<TimedBox> {
    let [ms, x, y, width, height] = *numbers;
    let is_in_range = |value: &i64| (-MAX_UNITS..=MAX_UNITS).contains(value);
    let is_valid = [x, y, width, height].iter().all(is_in_range) && width > 0 && height > 0;
    let is_time_valid = (-MAX_MS..=MAX_MS).contains(&ms);
    let [x, y, width, height] = [x, y, width, height].map(|value| value as f32 / UNITS_PER_PIXEL);
    (is_valid && is_time_valid).then(|| TimedBox { at_us: ms * 1000, bbox: Rect { x, y, width, height } })
}

fn to_zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

fn write_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads a number of at most 64 bits in its shortest form.
fn read_varint(bytes: &mut &[u8]) -> Result<u64, DecodeError> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or(DecodeError("truncated"))?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if (bits << shift) >> shift != bits {
            return Err(DecodeError("overflow"));
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return if byte == 0 && shift > 0 {
                Err(DecodeError("not the shortest form"))
            } else {
                Ok(value)
            };
        }
    }
    Err(DecodeError("overflow"))
}

fn read_zigzag(bytes: &mut &[u8]) -> Result<i64, DecodeError> {
    read_varint(bytes).map(|value| (value >> 1) as i64 ^ -((value & 1) as i64))
}

/// Removes boxes until at most `max_count` remain. Keeps the first and the last box.
///
/// Repeatedly removes the box that linear interpolation between the adjacent boxes predicts best.
/// This is the method of Visvalingam and Whyatt (1993) for lines, with the largest error of an edge
/// in pixels instead of the area of a triangle. Time: O(n log n).
pub(crate) fn thin(boxes: &mut Vec<TimedBox>, max_count: usize) {
    let count = boxes.len();
    if count <= max_count.max(2) {
        return;
    }
    let mut previous: Vec<usize> = (0..count).map(|i| i.saturating_sub(1)).collect();
    let mut next: Vec<usize> = (1..=count).collect();
    let mut errors = vec![u32::MAX; count];
    let mut is_removed = vec![false; count];
    let mut heap = BinaryHeap::with_capacity(count);
    for i in 1..count - 1 {
        errors[i] = prediction_error(&boxes[i - 1], &boxes[i], &boxes[i + 1]);
        heap.push(Reverse((errors[i], i)));
    }
    let mut remaining = count;
    while remaining > max_count.max(2) {
        let Some(Reverse((error, i))) = heap.pop() else { break };
        if is_removed[i] || errors[i] != error {
            continue;
        }
        is_removed[i] = true;
        remaining -= 1;
        let (left, right) = (previous[i], next[i]);
        (next[left], previous[right]) = (right, left);
        for j in [left, right] {
            if j > 0 && j < count - 1 {
                // The error never decreases, so that small errors do not add up along a curve.
                errors[j] = prediction_error(&boxes[previous[j]], &boxes[j], &boxes[next[j]]).max(error);
                heap.push(Reverse((errors[j], j)));
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
/// bits of a 32-bit float. For numbers that are not negative, the bits have the same order.
fn prediction_error(before: &TimedBox, middle: &TimedBox, after: &TimedBox) -> u32 {
    let (actual, predicted) = (middle.bbox, interpolate(before, after, middle.at_us));
    let edges = [
        actual.x - predicted.x,
        actual.y - predicted.y,
        actual.x + actual.width - predicted.x - predicted.width,
        actual.y + actual.height - predicted.y - predicted.height,
    ];
    edges.iter().fold(0.0f32, |max, edge| max.max(edge.abs())).to_bits()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use vision::Rect;

    fn box_lists(max_count: usize) -> impl Strategy<Value = Vec<TimedBox>> {
        let row = (1..5_000_000i64, -2000.0..4000.0f32, -2000.0..4000.0f32, 0.01..900.0f32, 0.01..900.0f32);
        (any::<i32>(), prop::collection::vec(row, 0..max_count)).prop_map(|(start, rows)| {
            let mut at_us = i64::from(start) * 1000;
            rows.into_iter()
                .map(|(step, x, y, width, height)| {
                    at_us += step;
                    TimedBox { at_us, bbox: Rect { x, y, width, height } }
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn boxes_round_trip_with_documented_precision(boxes in box_lists(300)) {
            let bytes = encode(&boxes);
            let decoded = decode(&bytes).unwrap();
            prop_assert_eq!(encode(&decoded), bytes);
            let mut expected = boxes.clone();
            expected.dedup_by(|next, timed_box| next.at_us.div_euclid(1000) <= timed_box.at_us.div_euclid(1000));
            prop_assert_eq!(decoded.len(), expected.len());
            for (a, b) in decoded.iter().zip(&expected) {
                prop_assert!(b.at_us - a.at_us < 1000 && b.at_us >= a.at_us);
                let [x, y] = [a.bbox.x - b.bbox.x, a.bbox.y - b.bbox.y];
                let [w, h] = [a.bbox.width - b.bbox.width, a.bbox.height - b.bbox.height];
                prop_assert!(x.abs().max(y.abs()) <= 0.251 && w.abs().max(h.abs()) <= 0.251);
            }
        }

        #[test]
        fn decoded_boxes_stay_inside_image(
            (width, height) in (1u32..5000, 1u32..5000), boxes in box_lists(50),
        ) {
            let clip = |timed_box: &TimedBox| Some(TimedBox { bbox: timed_box.bbox.clip_to((width, height))?, ..*timed_box });
            let boxes: Vec<TimedBox> = boxes.iter().filter_map(clip).collect();
            for TimedBox { bbox, .. } in decode(&encode(&boxes)).unwrap() {
                prop_assert!(bbox.x >= 0.0 && bbox.x + bbox.width <= width as f32, "{bbox:?} in {width}");
                prop_assert!(bbox.y >= 0.0 && bbox.y + bbox.height <= height as f32, "{bbox:?} in {height}");
            }
        }

        #[test]
        fn decoded_boxes_are_encoded_as_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(boxes) = decode(&bytes) {
                prop_assert_eq!(write_boxes(&boxes), bytes);
            }
        }

        #[test]
        fn decoding_damaged_box_bytes_does_not_panic(boxes in box_lists(20), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut bytes = encode(&boxes);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(boxes) = decode(&bytes) {
                prop_assert_eq!(write_boxes(&boxes), bytes.clone());
            }
            let _ = decode(&bytes[..at]);
        }
    }

    #[test]
    fn long_track_is_thinned_to_byte_limit() {
        let wave = |i: i64| 500.0 + 300.0 * (i as f32 / 40.0).sin();
        let boxes: Vec<TimedBox> = (0..100_000)
            .map(|i| TimedBox {
                at_us: i * 40_000,
                bbox: Rect { x: wave(i), y: wave(i + 9), width: 80.0, height: 90.0 },
            })
            .collect();
        let bytes = encode(&boxes);
        let decoded = decode(&bytes).unwrap();
        assert!(bytes.len() <= MAX_BYTES && bytes.len() > MAX_BYTES * 3 / 4, "{}", bytes.len());
        assert_eq!((decoded[0].at_us, decoded[decoded.len() - 1].at_us), (0, 99_999 * 40_000));
    }

    #[test]
    fn invalid_box_bytes_are_rejected_with_reason() {
        for (bytes, reason) in [
            (vec![], "unknown version"),
            (vec![2, 0], "unknown version"),
            (vec![1], "truncated"),
            (vec![1, 0, 0], "bytes after the end"),
            (vec![1, 0x80, 0], "not the shortest form"),
            (vec![1, 0xff, 0xff, 0xff, 0xff, 0x0f], "too many boxes for the length"),
            (vec![1, 1, 0, 0, 0, 0, 2], "out of range"),
            (vec![1, 2, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0], "times are not in order"),
            ([vec![1, 1], vec![0xff; 9], vec![2, 0, 0, 2, 2]].concat(), "overflow"),
            (vec![1; MAX_BYTES + 1], "too long"),
        ] {
            assert_eq!(decode(&bytes), Err(DecodeError(reason)), "{bytes:?}");
        }
        assert_eq!(decode(&encode(&[])), Ok(Vec::new()));
    }

    #[test]
    fn encoding_omits_unusable_boxes() {
        let timed_box = |at_us, width| TimedBox { at_us, bbox: Rect { x: 0.0, y: 0.0, width, height: 1.0 } };
        let unusable = [(0, 1.0), (999, 1.0), (1000, 0.0), (2000, f32::NAN), (3000, 2e9), (i64::MAX, 1.0)]
            .map(|(at_us, width)| timed_box(at_us, width));
        assert_eq!(decode(&encode(&unusable)).unwrap().len(), 2);
        assert_eq!(decode(&encode(&[timed_box(i64::MIN, 1.0)])).unwrap().len(), 0);
    }

    fn box_at_ms(i: i64, x: f32) -> TimedBox {
        TimedBox { at_us: i * 1000, bbox: Rect { x, y: 5.0, width: 10.0, height: 10.0 } }
    }

    #[test]
    fn thinning_keeps_turning_points_and_removes_boxes_between() {
        let mut boxes: Vec<_> = (0..=100).map(|i| box_at_ms(i, (50 - (i - 50).abs()) as f32)).collect();
        thin(&mut boxes, 3);
        let times: Vec<i64> = boxes.iter().map(|b| b.at_us / 1000).collect();
        assert_eq!(times, [0, 50, 100]);
        thin(&mut boxes, 0);
        assert_eq!(boxes.len(), 2);
    }

    #[test]
    fn thinned_wave_stays_within_one_pixel() {
        let wave: Vec<_> = (0..2000).map(|i| box_at_ms(i, 100.0 * (i as f32 / 80.0).sin())).collect();
        let mut thinned = wave.clone();
        thin(&mut thinned, 400);
        assert_eq!(thinned.len(), 400);
        for timed_box in &wave {
            let next = thinned.partition_point(|b| b.at_us < timed_box.at_us);
            let (Some(before), after) = (thinned.get(next.saturating_sub(1)), thinned[next]) else {
                panic!()
            };
            let x = if after.at_us == timed_box.at_us {
                after.bbox.x
            } else {
                interpolate(before, &after, timed_box.at_us).x
            };
            assert!((x - timed_box.bbox.x).abs() < 1.0, "{x} instead of {}", timed_box.bbox.x);
        }
    }
}

//! The grey reduction from which all hashes of an image are computed.

use crate::Frame;
use crate::grey::grey_row;
use crate::resize::{MAX_FACTOR, cell_means};
use multiversion::multiversion;

/// Size of the common reduction: a multiple of 32x32, 9x8 and 8x8, so that each of them is a mean
/// over whole blocks.
pub(super) const REDUCED: (usize, usize) = (288, 256);

/// Divides an image of any size into a grid of [`REDUCED`] (columns, rows) equal areas, and returns
/// the mean grey level of each.
pub(super) fn reduction(frame: &Frame) -> Vec<f32> {
    // Means over whole pixels reduce the image first, down to at least the size of the reduction,
    // because they are many times faster than means over areas with parts of pixels.
    let (columns, rows) = (REDUCED.0 as u32, REDUCED.1 as u32);
    let factor = |length: u32, target: u32| (length / target).clamp(1, MAX_FACTOR);
    let (across, down) = (factor(frame.width(), columns), factor(frame.height(), rows));
    if across > 1 || down > 1 {
        reduce(&cell_means(frame, (frame.width() / across, frame.height() / down)))
    } else {
        reduce(frame)
    }
}

/// Computes mean grey levels of [`REDUCED`] equal areas. An area may include parts of pixels, which
/// are weighted by the included part. A smaller image is enlarged in the same way.
#[multiversion(targets("x86_64+avx2"))]
fn reduce(frame: &Frame) -> Vec<f32> {
    let (columns, rows) = REDUCED;
    let (width, height) = (frame.width() as usize, frame.height() as usize);
    // Right edge of each area: number of whole pixels to its left, and share of the next pixel.
    let edges: Vec<(usize, f64)> = (1..=columns)
        .map(|i| ((i * width) as f64 / columns as f64).min(width as f64))
        .map(|edge| (edge as usize, edge.fract()))
        .collect();
    let mut grey = vec![0u8; width];
    // The sums of the pixels to the left of each pixel. The last sum is repeated, because the last
    // edge has no pixel to its right.
    let mut running = vec![0u32; width + 2];
    let mut line = vec![0f32; columns];
    let mut reduced = vec![0f32; columns * rows];
    let vertical = rows as f32 / height as f32;
    let horizontal = columns as f64 / width as f64;
    for (y, row) in frame.data().chunks_exact(width * 3).enumerate() {
        grey_row(row, &mut grey);
        let mut sum = 0u32;
        for (at, value) in running[1..].iter_mut().zip(&grey) {
            sum += u32::from(*value);
            *at = sum;
        }
        running[width + 1] = sum;
        // An area is the difference of the sums up to its edges.
        let mut before = 0.0;
        for (value, (pixel, share)) in line.iter_mut().zip(&edges) {
            let (whole, next) = (running[*pixel], running[pixel + 1]);
            let after = f64::from(whole) + share * f64::from(next - whole);
            *value = ((after - before) * horizontal) as f32;
            before = after;
        }
        // This row covers [top, bottom) of the reduction's rows.
        let (top, bottom) = (y as f32 * vertical, (y + 1) as f32 * vertical);
        for target in top as usize..(bottom.ceil() as usize).min(rows) {
            let share = bottom.min((target + 1) as f32) - top.max(target as f32);
            let into = &mut reduced[target * columns..(target + 1) * columns];
            for (sum, value) in into.iter_mut().zip(&line) {
                *sum += value * share;
            }
        }
    }
    reduced
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Computes the reduction without optimisations. Databases contain hashes, so the optimised
    /// reduction must return exactly these values.
    fn reference(frame: &Frame) -> Vec<f32> {
        let factor = |length: u32, target: usize| (length / target as u32).clamp(1, MAX_FACTOR);
        let cells = |length: u32, target: usize| (length / factor(length, target)) as usize;
        let (width, height) = (cells(frame.width(), REDUCED.0), cells(frame.height(), REDUCED.1));
        let span = |i: usize, length: u32, cells: usize| {
            (i * length as usize / cells) as u32..((i + 1) * length as usize / cells) as u32
        };
        let grey = |column: usize, row: usize| {
            let (mut sums, mut count) = ([0u32; 3], 0);
            for y in span(row, frame.height(), height) {
                for x in span(column, frame.width(), width) {
                    let pixel = frame.pixel(x, y);
                    sums = std::array::from_fn(|c| sums[c] + u32::from(pixel[c]));
                    count += 1;
                }
            }
            let [r, g, b] = sums.map(|sum| (sum + count / 2) / count);
            (r * 9798 + g * 19235 + b * 3735 + (1 << 14)) >> 15
        };
        let mut reduced = vec![0f32; REDUCED.0 * REDUCED.1];
        let vertical = REDUCED.1 as f32 / height as f32;
        for y in 0..height {
            let row: Vec<u32> = (0..width).map(|x| grey(x, y)).collect();
            let up_to = |i: usize| {
                let edge = (i * width) as f64 / REDUCED.0 as f64;
                let whole: u32 = row[..edge as usize].iter().sum();
                f64::from(whole) + edge.fract() * f64::from(row.get(edge as usize).copied().unwrap_or(0))
            };
            let (top, bottom) = (y as f32 * vertical, (y + 1) as f32 * vertical);
            for target in top as usize..(bottom.ceil() as usize).min(REDUCED.1) {
                let share = bottom.min((target + 1) as f32) - top.max(target as f32);
                for column in 0..REDUCED.0 {
                    let area = (up_to(column + 1) - up_to(column)) * (REDUCED.0 as f64 / width as f64);
                    reduced[target * REDUCED.0 + column] += area as f32 * share;
                }
            }
        }
        reduced
    }

    #[test]
    fn reductions_are_exact_for_every_size() {
        let mut state = 1u32;
        for (width, height) in [
            (1, 1),
            (3, 700),
            (287, 255),
            (288, 256),
            (576, 511),
            (333, 500),
            (910, 1137),
            (1027, 769),
            (2600, 300),
            (1, 9000),
            (4608, 515),
        ] {
            let noise = (0..width * height * 3).map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            });
            let frame = Frame::new(width, height, noise.collect()).unwrap();
            assert!(reduction(&frame) == reference(&frame), "{width}x{height}");
        }
    }

    #[testing::needs(shared)]
    #[test]
    fn reductions_of_photographs_are_exact() {
        for path in testing::images() {
            let bytes = std::fs::read(&path).unwrap();
            let frame = crate::decode(&bytes, &crate::Limits::default()).unwrap().frame;
            assert!(reduction(&frame) == reference(&frame), "{}", path.display());
        }
    }
}

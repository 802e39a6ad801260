//! Computes grey-level statistics with integers.

use crate::Frame;
use crate::frame::to_grey;
use multiversion::multiversion;

/// Grey-level statistics of a frame, equal to OpenCV's (BT.601 grey rounded to 8 bits; Laplacian
/// and 3x3 Sobel with reflect-101 borders).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GreyStatistics {
    pub laplacian_variance: f64,
    /// Mean squared Sobel gradient.
    pub tenengrad: f64,
    pub mean: f64,
    pub std: f64,
    /// Share of pixels at most 5 or at least 250.
    pub clipped: f64,
}

pub fn grey_statistics(frame: &Frame) -> GreyStatistics {
    let (width, height) = (frame.width() as usize, frame.height() as usize);
    let grey = to_grey(frame);
    let mut histogram = [0u64; 256];
    for value in &grey {
        histogram[usize::from(*value)] += 1;
    }
    let edges = sum_edges(&grey, width, height);
    let count = grey.len() as f64;
    let (mut sum, mut squares) = (0, 0);
    for (level, pixels) in (0u64..).zip(histogram) {
        sum += level * pixels;
        squares += level * level * pixels;
    }
    let clipped: u64 = histogram[..=5].iter().chain(&histogram[250..]).sum();
    GreyStatistics {
        laplacian_variance: variance(edges.laplacian as f64, edges.laplacian_squares as f64, count),
        tenengrad: edges.gradient_squares as f64 / count,
        mean: sum as f64 / count,
        std: variance(sum as f64, squares as f64, count).sqrt(),
        clipped: clipped as f64 / count,
    }
}

fn variance(sum: f64, squares: f64, count: f64) -> f64 {
    let mean = sum / count;
    (squares / count - mean * mean).max(0.0)
}

#[derive(Default)]
struct EdgeSums {
    laplacian: i64,
    laplacian_squares: u64,
    gradient_squares: u64,
}

/// Maximum number of pixels whose sum of squared gradients fits in 32 bits. A squared gradient is
/// at most 2 * 1020².
const MAX_RUN: usize = 1024;

/// Sums the Laplacian [0 1 0; 1 -4 1; 0 1 0], its square, and the squared Sobel gradient.
fn sum_edges(grey: &[u8], width: usize, height: usize) -> EdgeSums {
    let mut total = EdgeSums::default();
    // Three successive rows, each with one reflected pixel at both ends.
    let mut rows: [Vec<i16>; 3] = std::array::from_fn(|_| vec![0; width + 2]);
    let load_row = |y: usize, row: &mut [i16]| {
        for (value, level) in row[1..=width].iter_mut().zip(&grey[y * width..(y + 1) * width]) {
            *value = i16::from(*level);
        }
        row[0] = row[2.min(width)];
        row[width + 1] = row[width.saturating_sub(1).max(1)];
    };
    load_row(reflect(-1, height), &mut rows[0]);
    load_row(0, &mut rows[1]);
    for y in 0..height {
        load_row(reflect(y as isize + 1, height), &mut rows[2]);
        let [above, middle, below] = &rows;
        for start in (0..width).step_by(MAX_RUN) {
            let end = (start + MAX_RUN).min(width) + 2;
            add_run(&above[start..end], &middle[start..end], &below[start..end], &mut total);
        }
        rows.rotate_left(1);
    }
    total
}

/// Adds the sums of one run; the slices are two pixels longer than the run.
#[multiversion(targets("x86_64+avx2"))]
fn add_run(above: &[i16], middle: &[i16], below: &[i16], total: &mut EdgeSums) {
    let length = above.len() - 2;
    let (a0, a1, a2) = (&above[..length], &above[1..=length], &above[2..length + 2]);
    let (m0, m1, m2) = (&middle[..length], &middle[1..=length], &middle[2..length + 2]);
    let (b0, b1, b2) = (&below[..length], &below[1..=length], &below[2..length + 2]);
    let (mut laplacian, mut laplacian_squares, mut gradient_squares) = (0i32, 0u32, 0u32);
    for x in 0..length {
        let l = i32::from(a1[x] + b1[x] + m0[x] + m2[x] - 4 * m1[x]);
        let gx = i32::from((a2[x] + 2 * m2[x] + b2[x]) - (a0[x] + 2 * m0[x] + b0[x]));
        let gy = i32::from((b0[x] + 2 * b1[x] + b2[x]) - (a0[x] + 2 * a1[x] + a2[x]));
        laplacian += l;
        laplacian_squares += (l * l) as u32;
        gradient_squares += (gx * gx + gy * gy) as u32;
    }
    total.laplacian += i64::from(laplacian);
    total.laplacian_squares += u64::from(laplacian_squares);
    total.gradient_squares += u64::from(gradient_squares);
}

/// Reflects an index at the border (reflect-101): -1 becomes 1, and `length` becomes `length - 2`.
/// If `length` is 1, every index becomes 0.
fn reflect(index: isize, length: usize) -> usize {
    if length == 1 {
        return 0;
    }
    let last = length as isize - 1;
    (if index < 0 { -index } else { index.min(2 * last - index) }) as usize
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Computes the same statistics directly from their definitions, pixel by pixel.
    fn reference_statistics(frame: &Frame) -> GreyStatistics {
        let (width, height) = (frame.width() as isize, frame.height() as isize);
        let grey = to_grey(frame);
        let level = |x: isize, y: isize| {
            let (x, y) = (reflect(x, width as usize), reflect(y, height as usize));
            f64::from(grey[y * width as usize + x])
        };
        let mut laplacians = Vec::new();
        let mut gradients = 0.0;
        for y in 0..height {
            for x in 0..width {
                let neighbours = level(x - 1, y) + level(x + 1, y) + level(x, y - 1) + level(x, y + 1);
                laplacians.push(neighbours - 4.0 * level(x, y));
                let column = |x: isize| level(x, y - 1) + 2.0 * level(x, y) + level(x, y + 1);
                let row = |y: isize| level(x - 1, y) + 2.0 * level(x, y) + level(x + 1, y);
                gradients += (column(x + 1) - column(x - 1)).powi(2) + (row(y + 1) - row(y - 1)).powi(2);
            }
        }
        let count = grey.len() as f64;
        let mean_and_variance = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / count;
            (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count)
        };
        let levels: Vec<f64> = grey.iter().map(|v| f64::from(*v)).collect();
        GreyStatistics {
            laplacian_variance: mean_and_variance(&laplacians).1,
            tenengrad: gradients / count,
            mean: mean_and_variance(&levels).0,
            std: mean_and_variance(&levels).1.sqrt(),
            clipped: grey.iter().filter(|v| **v <= 5 || **v >= 250).count() as f64 / count,
        }
    }

    #[test]
    fn grey_statistics_match_definitions_at_every_size() {
        for (width, height) in [(1, 1), (1, 9), (9, 1), (2, 2), (3, 2), (17, 13), (2500, 3)] {
            // Edges of maximum contrast, which would cause an overflow of a sum that is too small.
            let data = (0..width * height)
                .flat_map(|i: u32| [if (i * i / 3 + i).is_multiple_of(2) { 0 } else { 255 }; 3]);
            let frame = Frame::new(width, height, data.collect()).unwrap();
            let (actual, expected) = (grey_statistics(&frame), reference_statistics(&frame));
            let is_close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.max(1.0);
            let numbers = |s: &GreyStatistics| [s.laplacian_variance, s.tenengrad, s.mean, s.std, s.clipped];
            let mut pairs = numbers(&actual).into_iter().zip(numbers(&expected));
            assert!(pairs.all(|(a, b)| is_close(a, b)), "{width}x{height}: {actual:?} {expected:?}");
        }
    }
}

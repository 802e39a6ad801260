//! Grey-level statistics, computed in integers and equal to OpenCV's.

use crate::Frame;
use crate::frame::grey;
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
    let grey = grey(frame);
    let mut histogram = [0u64; 256];
    for value in &grey {
        histogram[usize::from(*value)] += 1;
    }
    let edges = edges(&grey, width, height);
    let count = grey.len() as f64;
    let (mut sum, mut squares) = (0, 0);
    for (level, times) in (0u64..).zip(histogram) {
        sum += level * times;
        squares += level * level * times;
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
struct Edges {
    laplacian: i64,
    laplacian_squares: u64,
    gradient_squares: u64,
}

/// Maximum number of pixels whose sum of squared gradients (at most 2 * 1020² each) fits in 32
/// bits.
const RUN: usize = 1024;

/// Sums the Laplacian [0 1 0; 1 -4 1; 0 1 0], its square, and the squared Sobel gradient.
fn edges(grey: &[u8], width: usize, height: usize) -> Edges {
    let mut total = Edges::default();
    // Three rows with one reflected pixel on each side. They rotate: each is converted once.
    let mut rows: [Vec<i16>; 3] = std::array::from_fn(|_| vec![0; width + 2]);
    let widen = |row: usize, into: &mut [i16]| {
        let source = &grey[row * width..(row + 1) * width];
        for (wide, value) in into[1..=width].iter_mut().zip(source) {
            *wide = i16::from(*value);
        }
        into[0] = into[2.min(width)];
        into[width + 1] = into[width.saturating_sub(1).max(1)];
    };
    widen(reflect(-1, height), &mut rows[0]);
    widen(0, &mut rows[1]);
    for y in 0..height {
        widen(reflect(y as isize + 1, height), &mut rows[2]);
        let [above, here, below] = &rows;
        for start in (0..width).step_by(RUN) {
            let end = (start + RUN).min(width) + 2;
            add_run(&above[start..end], &here[start..end], &below[start..end], &mut total);
        }
        rows.rotate_left(1);
    }
    total
}

/// Adds the sums of one run; the slices are two pixels longer than the run.
#[multiversion(targets("x86_64+avx2"))]
fn add_run(above: &[i16], here: &[i16], below: &[i16], total: &mut Edges) {
    let length = above.len() - 2;
    let (a0, a1, a2) = (&above[..length], &above[1..=length], &above[2..length + 2]);
    let (h0, h1, h2) = (&here[..length], &here[1..=length], &here[2..length + 2]);
    let (b0, b1, b2) = (&below[..length], &below[1..=length], &below[2..length + 2]);
    let (mut laplacian, mut laplacian_squares, mut gradient_squares) = (0i32, 0u32, 0u32);
    for x in 0..length {
        let l = i32::from(a1[x] + b1[x] + h0[x] + h2[x] - 4 * h1[x]);
        let gx = i32::from((a2[x] + 2 * h2[x] + b2[x]) - (a0[x] + 2 * h0[x] + b0[x]));
        let gy = i32::from((b0[x] + 2 * b1[x] + b2[x]) - (a0[x] + 2 * a1[x] + a2[x]));
        laplacian += l;
        laplacian_squares += (l * l) as u32;
        gradient_squares += (gx * gx + gy * gy) as u32;
    }
    total.laplacian += i64::from(laplacian);
    total.laplacian_squares += u64::from(laplacian_squares);
    total.gradient_squares += u64::from(gradient_squares);
}

/// Reflects an index at the border (reflect-101): -1 becomes 1, `length` becomes `length - 2`. A
/// single row or column is its own neighbour.
fn reflect(at: isize, length: usize) -> usize {
    if length == 1 {
        return 0;
    }
    let last = length as isize - 1;
    (if at < 0 { -at } else { at.min(2 * last - at) }) as usize
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Computes the same statistics directly from their definitions, pixel by pixel.
    fn reference(frame: &Frame) -> GreyStatistics {
        let (width, height) = (frame.width() as isize, frame.height() as isize);
        let grey = grey(frame);
        let at = |x: isize, y: isize| {
            let (x, y) = (reflect(x, width as usize), reflect(y, height as usize));
            f64::from(grey[y * width as usize + x])
        };
        let mut laplacians = Vec::new();
        let mut gradients = 0.0;
        for y in 0..height {
            for x in 0..width {
                laplacians.push(at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1) - 4.0 * at(x, y));
                let column = |x: isize| at(x, y - 1) + 2.0 * at(x, y) + at(x, y + 1);
                let row = |y: isize| at(x - 1, y) + 2.0 * at(x, y) + at(x + 1, y);
                gradients += (column(x + 1) - column(x - 1)).powi(2) + (row(y + 1) - row(y - 1)).powi(2);
            }
        }
        let count = grey.len() as f64;
        let spread = |values: &[f64]| {
            let mean = values.iter().sum::<f64>() / count;
            (mean, values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count)
        };
        let levels: Vec<f64> = grey.iter().map(|v| f64::from(*v)).collect();
        GreyStatistics {
            laplacian_variance: spread(&laplacians).1,
            tenengrad: gradients / count,
            mean: spread(&levels).0,
            std: spread(&levels).1.sqrt(),
            clipped: grey.iter().filter(|v| **v <= 5 || **v >= 250).count() as f64 / count,
        }
    }

    #[test]
    fn grey_statistics_match_definitions_at_every_size() {
        for (width, height) in [(1, 1), (1, 9), (9, 1), (2, 2), (3, 2), (17, 13), (2500, 3)] {
            // Edges of maximum contrast, so that an overflowing sum is detected.
            let data = (0..width * height)
                .flat_map(|i: u32| [if (i * i / 3 + i).is_multiple_of(2) { 0 } else { 255 }; 3]);
            let frame = Frame::new(width, height, data.collect()).unwrap();
            let (found, wanted) = (grey_statistics(&frame), reference(&frame));
            let close = |a: f64, b: f64| (a - b).abs() <= 1e-6 * b.max(1.0);
            let numbers = |s: &GreyStatistics| [s.laplacian_variance, s.tenengrad, s.mean, s.std, s.clipped];
            let mut pairs = numbers(&found).into_iter().zip(numbers(&wanted));
            assert!(pairs.all(|(a, b)| close(a, b)), "{width}x{height}: {found:?} {wanted:?}");
        }
    }
}

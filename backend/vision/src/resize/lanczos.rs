//! Scaling for people to look at: Lanczos with three lobes over all source pixels.

use super::cells::{MOST_FACTOR, cell_means};
use crate::Frame;

/// The share of the reduction that is left to Lanczos; the rest is done by whole-number box means, which is many times
/// quicker and cannot be told apart at this gap.
const GAP: f64 = 1.5;

/// Scales a frame up or down; a side of zero counts as one.
pub(crate) fn lanczos(source: &Frame, size: (u32, u32)) -> Frame {
    let (width, height) = (size.0.max(1), size.1.max(1));
    let factor = |from: u32, to: u32| ((f64::from(from) / f64::from(to) / GAP) as u32).clamp(1, MOST_FACTOR);
    let (across, down) = (factor(source.width(), width), factor(source.height(), height));
    if across > 1 || down > 1 {
        let cells = (source.width() / across, source.height() / down);
        return convolve(&cell_means(source, cells), (width, height));
    }
    convolve(source, (width, height))
}

/// The source pixels that make one output pixel: the first of them and their weights, which sum to one.
struct Kernel {
    first: usize,
    weights: Vec<f32>,
}

fn kernels(from: u32, to: u32) -> Vec<Kernel> {
    let scale = f64::from(from) / f64::from(to);
    // Shrinking widens the kernel, so that every source pixel counts.
    let stretch = scale.max(1.0);
    let kernel = |i| {
        let centre = (f64::from(i) + 0.5) * scale;
        let first = (centre - 3.0 * stretch).floor().max(0.0) as usize;
        let end = ((centre + 3.0 * stretch).ceil() as usize).min(from as usize);
        let weights: Vec<f64> = (first..end).map(|at| window((at as f64 + 0.5 - centre) / stretch)).collect();
        let total: f64 = weights.iter().sum();
        Kernel { first, weights: weights.iter().map(|w| (w / total) as f32).collect() }
    };
    (0..to).map(kernel).collect()
}

/// sinc(x) sinc(x / 3) within three of zero.
fn window(x: f64) -> f64 {
    let sinc = |x: f64| {
        let angle = std::f64::consts::PI * x;
        if angle.abs() < 1e-9 { 1.0 } else { angle.sin() / angle }
    };
    if x.abs() < 3.0 { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

fn convolve(source: &Frame, (width, height): (u32, u32)) -> Frame {
    let row_length = source.width() as usize * 3;
    let columns = kernels(source.width(), width);
    let mut out = Frame::filled(width, height, [0; 3]);
    let mut blended = vec![0f32; row_length];
    let lines = out.data_mut().chunks_exact_mut(width as usize * 3);
    for (line, rows) in lines.zip(kernels(source.height(), height)) {
        blended.fill(0.0);
        let used = source.data().chunks_exact(row_length).skip(rows.first);
        for (row, weight) in used.zip(&rows.weights) {
            for (sum, value) in blended.iter_mut().zip(row) {
                *sum += f32::from(*value) * weight;
            }
        }
        let (blended, _) = blended.as_chunks::<3>();
        for (pixel, column) in line.as_chunks_mut::<3>().0.iter_mut().zip(&columns) {
            let mut sum = [0f32; 3];
            for (value, weight) in blended[column.first..].iter().zip(&column.weights) {
                sum = [sum[0] + value[0] * weight, sum[1] + value[1] * weight, sum[2] + value[2] * weight];
            }
            // The cast saturates: overshoot at edges is cut off.
            *pixel = sum.map(|v| v.round() as u8);
        }
    }
    out
}

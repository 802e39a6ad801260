//! Scales images for viewing: Lanczos with three lobes over all source pixels, with SIMD.

use super::cells::{MAX_FACTOR, cell_means};
use crate::{Frame, Taps};
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

/// Minimum reduction factor that is left to Lanczos. Box means over whole pixels do the rest; they
/// are many times faster, and at this ratio the difference is invisible.
const MIN_LANCZOS_FACTOR: f64 = 1.5;

/// Scales a frame up or down; a side of zero is treated as one.
pub(crate) fn lanczos(source: &Frame, size: (u32, u32)) -> Frame {
    let (width, height) = (size.0.max(1), size.1.max(1));
    let factor = |from: u32, to: u32| {
        ((f64::from(from) / f64::from(to) / MIN_LANCZOS_FACTOR) as u32).clamp(1, MAX_FACTOR)
    };
    let (across, down) = (factor(source.width(), width), factor(source.height(), height));
    if across > 1 || down > 1 {
        let cells = (source.width() / across, source.height() / down);
        return convolve(&cell_means(source, cells), (width, height));
    }
    convolve(source, (width, height))
}

fn convolve(source: &Frame, (width, height): (u32, u32)) -> Frame {
    let mut out = Frame::filled(width, height, [0; 3]);
    let from = TypedImageRef::<U8x3>::from_buffer(source.width(), source.height(), source.data())
        .expect("a frame's length matches its size");
    let mut to = TypedImage::<U8x3>::from_buffer(width, height, out.data_mut())
        .expect("a frame's length matches its size");
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Lanczos3));
    // The untyped call would add the code for every pixel format to the binary.
    Resizer::new().resize_typed(&from, &mut to, &options).expect("without a crop box no option is invalid");
    out
}

/// Number of lobes of the kernel on each side.
const LOBES: usize = 3;

/// Returns the filter of [`lanczos`] along one axis when it enlarges `from` pixels to `to`. It has
/// the kernel's six neighbours; pixel centres are at half integers. Neighbours outside the image
/// have weight 0.
pub(crate) fn enlarging_taps(from: u32, to: u32) -> Taps {
    let sinc = |x: f64| {
        let x = x * std::f64::consts::PI;
        if x == 0.0 { 1.0 } else { x.sin() / x }
    };
    let centre = |i: usize| (i as f64 + 0.5) * f64::from(from) / f64::from(to) - 0.5;
    let weight = |i: usize, at: i64| {
        let x = at as f64 - centre(i);
        let inside = (0..i64::from(from)).contains(&at) && x.abs() < LOBES as f64;
        if inside { sinc(x) * sinc(x / LOBES as f64) } else { 0.0 }
    };
    let first = |i: usize| (centre(i) - LOBES as f64).floor() as i64 + 1;
    let sums: Vec<f64> =
        (0..to as usize).map(|i| (0..2 * LOBES as i64).map(|k| weight(i, first(i) + k)).sum()).collect();
    Taps::new((from, to as usize), 2 * LOBES, |k, i| {
        let at = first(i) + k as i64;
        (at, weight(i, at) / sums[i])
    })
}

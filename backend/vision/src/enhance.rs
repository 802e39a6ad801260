//! Enhances low-resolution images for detection and for viewing.
//!
//! There are three steps. `inference::graphs` computes the same formulas on a device:
//!
//! 1. **Contrast.** Percentile stretch on luma (Gonzalez & Woods, *Digital Image Processing*, 3.2).
//!    1 % of the pixels are below the grey level `low`, and 1 % are above `high`. Every channel
//!    becomes `(v - (low + high) / 2) * gain + 127.5`, with `gain = 255 / (high - low)`. The gain
//!    is at most [`MAX_GAIN`], which limits the noise. This step is first because the original has
//!    fewer pixels, and because it would amplify the rounding of earlier steps. Apart from
//!    clipping, the order of this step and the next does not change the result.
//! 2. **Upscale.** An image whose short side is under [`LOW_RESOLUTION_SIDE`] is enlarged by
//!    Lanczos with three lobes (Duchon 1979) until that side has [`TARGET_SIDE`] pixels. The scale
//!    is at most [`MAX_SCALE`], and the result is within the decoder's limits. Columns are filtered
//!    first, then rows.
//! 3. **Unsharp mask** (Gonzalez & Woods, 3.6.3), only after an upscale, because upscaling softens
//!    the image: `v + UNSHARP_AMOUNT * (v - blurred)`. `blurred` is the image after a Gaussian blur
//!    of [`BLUR_SIGMA`] pixels with the radius [`BLUR_RADIUS`] and replicated borders.
//!
//! Levels are rounded half up and clipped to bytes after each step, and between columns and rows.

use crate::decode::BYTES_PER_PIXEL;
use crate::frame::to_grey;
use crate::resize::{self, enlarging_taps};
use crate::{AxisTaps, Frame, Limits, Taps};

/// Images whose short side is below this, in pixels, have low resolution.
pub const LOW_RESOLUTION_SIDE: u32 = 400;
/// The short side after the upscale, in pixels. It equals the side of the default detection canvas,
/// so the detector does not enlarge the image again.
pub const TARGET_SIDE: u32 = 640;
pub const MAX_SCALE: f64 = 4.0;
pub const MAX_GAIN: f32 = 4.0;
/// Standard deviation of the unsharp mask's blur, in pixels of the result.
pub const BLUR_SIGMA: f32 = 1.5;
/// Radius of the blur in pixels: three standard deviations, rounded down.
pub const BLUR_RADIUS: usize = 4;
/// Share of the detail that the unsharp mask adds.
pub const UNSHARP_AMOUNT: f32 = 0.6;

/// Share of the pixels that may clip at each end of the contrast stretch.
const CLIPPED_SHARE: f64 = 0.01;

#[derive(Clone, Debug)]
pub struct Enhanced {
    pub frame: Frame,
    /// Pixels of the result per pixel of the original: 1 for an image that was not enlarged.
    pub scale: f32,
}

/// The parameters of the enhancement of one image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    /// Width and height of the result in pixels.
    pub size: (u32, u32),
    /// Pixels of the result per pixel of the original, at least 1.
    pub scale: f32,
    /// Contrast gain, 1..=[`MAX_GAIN`].
    pub gain: f32,
    /// Value in grey levels that is added after the gain.
    pub offset: f32,
}

impl Plan {
    /// Computes the plan for `frame`. `limits` bound the result in the same way as a decoded image.
    pub fn of(frame: &Frame, limits: &Limits) -> Self {
        let (size, scale) = enlarged_size((frame.width(), frame.height()), limits);
        let (gain, offset) = contrast_stretch(frame);
        Self { size, scale: scale as f32, gain, offset }
    }

    /// Returns whether the image is enlarged and therefore sharpened.
    pub fn enlarges(&self) -> bool {
        self.scale > 1.0
    }

    /// Returns the filters of the upscale of an `image` (width, height). `rows` is applied first.
    pub fn upscale_taps(&self, image: (u32, u32)) -> AxisTaps {
        AxisTaps { columns: enlarging_taps(image.0, self.size.0), rows: enlarging_taps(image.1, self.size.1) }
    }

    /// Returns the filters of the unsharp mask's blur of the result. `columns` is applied first,
    /// without rounding.
    pub fn blur_taps(&self) -> AxisTaps {
        let weights = blur_weights();
        let along = |length: u32| {
            Taps::new((length, length as usize), weights.len(), |k, i| {
                ((i + k) as i64 - BLUR_RADIUS as i64, f64::from(weights[k]))
            })
        };
        AxisTaps { columns: along(self.size.0), rows: along(self.size.1) }
    }

    /// Applies the contrast stretch to a level.
    pub fn stretch_level(&self, level: u8) -> u8 {
        round_to_byte(f32::from(level) * self.gain + self.offset)
    }
}

/// Enhances `frame` within `limits`, on the calling thread.
pub fn enhance(frame: &Frame, limits: &Limits) -> Enhanced {
    let plan = Plan::of(frame, limits);
    let levels: [u8; 256] = std::array::from_fn(|level| plan.stretch_level(level as u8));
    let mut stretched = frame.clone();
    for value in stretched.data_mut() {
        *value = levels[usize::from(*value)];
    }
    if !plan.enlarges() {
        return Enhanced { frame: stretched, scale: 1.0 };
    }
    let mut enlarged = resize::resize_lanczos(&stretched, plan.size);
    sharpen(&mut enlarged);
    Enhanced { frame: enlarged, scale: plan.scale }
}

/// Returns the maximum number of bytes that [`enhance`] allocates for an `image` (width, height):
/// the stretched copy and, if the image is enlarged, the result and a copy of it.
pub fn working_bytes(image: (u32, u32), limits: &Limits) -> u64 {
    let bytes = |(width, height): (u32, u32)| u64::from(width) * u64::from(height) * BYTES_PER_PIXEL;
    let (size, scale) = enlarged_size(image, limits);
    bytes(image) + if scale > 1.0 { 2 * bytes(size) } else { 0 }
}

/// Returns the weights of the blur, `BLUR_RADIUS` on each side of the centre; their sum is 1.
pub fn blur_weights() -> [f32; 2 * BLUR_RADIUS + 1] {
    let weight =
        |i: usize| (-(i as f64 - BLUR_RADIUS as f64).powi(2) / (2.0 * f64::from(BLUR_SIGMA).powi(2))).exp();
    let sum: f64 = (0..=2 * BLUR_RADIUS).map(weight).sum();
    std::array::from_fn(|i| (weight(i) / sum) as f32)
}

/// Returns the size of the result and the scale.
fn enlarged_size(image: (u32, u32), limits: &Limits) -> ((u32, u32), f64) {
    let scale = scale(image, limits);
    let side = |length: u32| (f64::from(length) * scale).round() as u32;
    ((side(image.0), side(image.1)), scale)
}

fn scale((width, height): (u32, u32), limits: &Limits) -> f64 {
    let (short, long) = (f64::from(width.min(height)), f64::from(width.max(height)));
    if short >= f64::from(LOW_RESOLUTION_SIDE) {
        return 1.0;
    }
    let by_side = f64::from(limits.max_side) / long;
    // The subtraction of one pixel compensates for rounding up.
    let by_pixels = (limits.max_pixels as f64 / (short * long)).sqrt() - 1.0 / short;
    (f64::from(TARGET_SIDE) / short).min(MAX_SCALE).min(by_side).min(by_pixels).max(1.0)
}

/// Returns gain and offset of the contrast stretch. An image with a single level stays unchanged.
fn contrast_stretch(frame: &Frame) -> (f32, f32) {
    let mut histogram = [0usize; 256];
    let grey = to_grey(frame);
    for level in &grey {
        histogram[usize::from(*level)] += 1;
    }
    let max_clipped = (grey.len() as f64 * CLIPPED_SHARE) as usize;
    let (mut below, mut above) = (0, 0);
    let is_over_limit = |count: &mut usize, level: &usize| {
        *count += histogram[*level];
        *count > max_clipped
    };
    let low = (0..256).find(|level| is_over_limit(&mut below, level)).unwrap_or(0);
    let high = (0..256).rev().find(|level| is_over_limit(&mut above, level)).unwrap_or(255);
    if high <= low {
        return (1.0, 0.0);
    }
    let gain = (255.0 / (high - low) as f32).min(MAX_GAIN);
    (gain, 127.5 - (low + high) as f32 / 2.0 * gain)
}

/// Rounds half up and clips to a byte.
fn round_to_byte(level: f32) -> u8 {
    (level.clamp(0.0, 255.0) + 0.5) as u8
}

/// Applies the unsharp mask in place. Allocates one copy of the image, and only as many blurred
/// rows as the blur needs.
fn sharpen(frame: &mut Frame) {
    const TAPS: usize = 2 * BLUR_RADIUS + 1;
    let weights = blur_weights();
    let (height, length) = (frame.height() as usize, frame.width() as usize * 3);
    let mut padded = vec![0.0; length + 6 * BLUR_RADIUS];
    let mut rows: [Vec<f32>; TAPS] = std::array::from_fn(|_| vec![0.0; length]);
    let mut sums = vec![0.0; length];
    let original = frame.clone();
    let row_of = |y: usize| &original.data()[y * length..(y + 1) * length];
    let mut blur_row = |y: usize, blurred: &mut [f32]| {
        pad_row(row_of(y), &mut padded);
        blurred.fill(0.0);
        for (tap, weight) in weights.iter().enumerate() {
            for (sum, value) in blurred.iter_mut().zip(&padded[tap * 3..]) {
                *sum += value * weight;
            }
        }
    };
    // `rows` is a ring buffer: row `y` is at `y % TAPS`.
    for y in 0..BLUR_RADIUS.min(height) {
        blur_row(y, &mut rows[y % TAPS]);
    }
    for (y, line) in frame.data_mut().chunks_exact_mut(length).enumerate() {
        if y + BLUR_RADIUS < height {
            blur_row(y + BLUR_RADIUS, &mut rows[(y + BLUR_RADIUS) % TAPS]);
        }
        sums.fill(0.0);
        for (tap, weight) in weights.iter().enumerate() {
            let from = (y + tap).saturating_sub(BLUR_RADIUS).min(height - 1);
            for (sum, value) in sums.iter_mut().zip(&rows[from % TAPS]) {
                *sum += value * weight;
            }
        }
        for (value, blurred) in line.iter_mut().zip(&sums) {
            let level = f32::from(*value);
            *value = round_to_byte(level + UNSHARP_AMOUNT * (level - blurred));
        }
    }
}

/// Copies the row and repeats its first and last pixel `BLUR_RADIUS` times at the ends.
fn pad_row(row: &[u8], padded: &mut [f32]) {
    let (first, last) = (&row[..3], &row[row.len() - 3..]);
    let repeated = |pixel: &[u8]| pixel.iter().copied().cycle().take(3 * BLUR_RADIUS).collect::<Vec<u8>>();
    let levels = repeated(first).into_iter().chain(row.iter().copied()).chain(repeated(last));
    for (value, level) in padded.iter_mut().zip(levels) {
        *value = f32::from(level);
    }
}

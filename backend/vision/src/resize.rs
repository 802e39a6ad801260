//! Scales images. The crate `fast_image_resize` scales images for viewing. This module draws the
//! detector's canvas, within one grey level of OpenCV's `INTER_LINEAR`: it scales one megapixel to
//! 640x640 in 0.7 ms on one core with AVX2, and that crate takes 2.2 ms.
//!
//! Filters are available as tables ([`Taps`]), so that a device can compute the same results.
use crate::Frame;
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use multiversion::multiversion;

/// A linear filter along one axis. Output `i` is the sum over `k < count` of `weights[k * length +
/// i]` times the input at `indices[k * length + i]`. All indices are inside the input; the weight
/// of a position outside is 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Taps {
    /// Number of inputs per output.
    pub count: usize,
    /// Number of outputs.
    pub length: usize,
    /// `count * length` input positions.
    pub indices: Vec<i32>,
    /// `count * length` weights.
    pub weights: Vec<f32>,
}

impl Taps {
    /// Builds a filter from `tap`. `tap(k, i)` returns the input position, which may be outside the
    /// image, and the weight of tap `k` of output `i`.
    pub(crate) fn new(
        (from, length): (u32, usize),
        count: usize,
        tap: impl Fn(usize, usize) -> (i64, f64),
    ) -> Self {
        let last = i64::from(from.max(1)) - 1;
        let mut taps = Self { count, length, indices: Vec::new(), weights: Vec::new() };
        for k in 0..count {
            for i in 0..length {
                let (position, weight) = tap(k, i);
                taps.indices.push(position.clamp(0, last) as i32);
                taps.weights.push(weight as f32);
            }
        }
        taps
    }
}

/// Minimum factor by which Lanczos reduces a side. A larger reduction begins with means over cells,
/// which are much faster. With this factor, the difference is invisible.
const MIN_LANCZOS_FACTOR: f64 = 1.5;

/// Scales a frame up or down; a side of zero is treated as one.
pub(crate) fn resize_lanczos(source: &Frame, size: (u32, u32)) -> Frame {
    let (width, height) = (size.0.max(1), size.1.max(1));
    let factor = |from: u32, to: u32| {
        ((f64::from(from) / f64::from(to) / MIN_LANCZOS_FACTOR) as u32).clamp(1, MAX_REDUCTION)
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
    // `resize` would add the code for every pixel format to the binary.
    Resizer::new().resize_typed(&from, &mut to, &options).expect("options without a crop box are valid");
    out
}

/// Number of lobes of the kernel on each side.
const LOBES: usize = 3;

/// Returns the filter of [`resize_lanczos`] along one axis for enlarging `from` pixels to `to`. It
/// has six taps; pixel centres are at half integers. Taps outside the image have weight 0.
pub(crate) fn enlarging_taps(from: u32, to: u32) -> Taps {
    let sinc = |x: f64| {
        let x = x * std::f64::consts::PI;
        if x == 0.0 { 1.0 } else { x.sin() / x }
    };
    let centre = |i: usize| (i as f64 + 0.5) * f64::from(from) / f64::from(to) - 0.5;
    let weight = |i: usize, position: i64| {
        let x = position as f64 - centre(i);
        let has_weight = (0..i64::from(from)).contains(&position) && x.abs() < LOBES as f64;
        if has_weight { sinc(x) * sinc(x / LOBES as f64) } else { 0.0 }
    };
    let first = |i: usize| (centre(i) - LOBES as f64).floor() as i64 + 1;
    let sums: Vec<f64> =
        (0..to as usize).map(|i| (0..2 * LOBES as i64).map(|k| weight(i, first(i) + k)).sum()).collect();
    Taps::new((from, to as usize), 2 * LOBES, |k, i| {
        let position = first(i) + k as i64;
        (position, weight(i, position) / sums[i])
    })
}

/// Position of an output pixel between two adjacent input pixels. At the border, the second pixel
/// does not exist and its weight is zero.
struct Tap {
    /// Index of the first pixel.
    first: usize,
    /// Weight of the second pixel, in 1/256 or 1/2048.
    weight: u32,
}

/// Returns the taps that scale `from` pixels to `to`, with weights in units of 1 / `units`. Pixel
/// centres are at half integers; borders are replicated.
fn bilinear_taps(from: u32, to: u32, units: u32) -> Vec<Tap> {
    let scale = f64::from(from) / f64::from(to);
    let last = f64::from(from - 1);
    let tap = |i| {
        let position = ((f64::from(i) + 0.5) * scale - 0.5).clamp(0.0, last);
        Tap { first: position as usize, weight: (position.fract() * f64::from(units)).round() as u32 }
    };
    (0..to).map(tap).collect()
}

/// Number of units in a weight of 1, for columns and for rows. With these units, the sums below fit
/// in 32 and 16 bits.
const COLUMN_UNITS: u32 = 2048;
const ROW_UNITS: u32 = 256;

/// Returns the filter of [`draw_bilinear`] along one axis of `canvas` pixels. It scales `from`
/// pixels to the first `to` pixels; the rest is black. `is_rows`: the axis from top to bottom.
pub(crate) fn letterbox_taps(from: u32, to: u32, canvas: u32, is_rows: bool) -> Taps {
    let units = if is_rows { ROW_UNITS } else { COLUMN_UNITS };
    let taps = bilinear_taps(from, to, units);
    Taps::new((from, canvas as usize), 2, |k, i| {
        let Some(tap) = taps.get(i) else { return (0, 0.0) };
        let share = f64::from(tap.weight) / f64::from(units);
        ((tap.first + k) as i64, if k == 0 { 1.0 - share } else { share })
    })
}

/// Scales `source` to `size` and draws it at the top left of `canvas`. The rest of the canvas does
/// not change. `size` must fit the canvas.
pub(crate) fn draw_bilinear(source: &Frame, canvas: &mut Frame, size: (u32, u32)) {
    let source_row = source.width() as usize * 3;
    let canvas_row = canvas.width() as usize * 3;
    let columns = bilinear_taps(source.width(), size.0, COLUMN_UNITS);
    let rows = bilinear_taps(source.height(), size.1, ROW_UNITS);
    let weights: Vec<u16> = columns.iter().flat_map(|column| [column.weight as u16; 3]).collect();
    let (mut lefts, mut rights) = (vec![0u16; weights.len()], vec![0u16; weights.len()]);
    // Rows are blended first: this reads contiguous bytes, and only the necessary rows. One pixel
    // of padding is the right neighbour of the last column.
    let mut blended = vec![0u16; source_row + 3];
    for (line, row) in canvas.data_mut().chunks_exact_mut(canvas_row).zip(&rows) {
        let upper = row.first * source_row;
        let lower = (row.first + 1).min(source.height() as usize - 1) * source_row;
        blend_rows(
            &source.data()[upper..upper + source_row],
            &source.data()[lower..lower + source_row],
            row.weight as u16,
            &mut blended,
        );
        // Left and right pixels are copied to two rows, because contiguous values are faster.
        let pairs = lefts.as_chunks_mut::<3>().0.iter_mut().zip(rights.as_chunks_mut::<3>().0);
        for ((left, right), column) in pairs.zip(&columns) {
            let Some([first @ .., r, g, b]) = blended[column.first * 3..].first_chunk::<6>() else { break };
            (*left, *right) = (*first, [*r, *g, *b]);
        }
        blend_columns(&lefts, &rights, &weights, line);
    }
}

/// Computes `upper * (256 - weight) + lower * weight`, which is exact in 16 bits.
#[multiversion(targets("x86_64+avx2"))]
fn blend_rows(upper: &[u8], lower: &[u8], weight: u16, out: &mut [u16]) {
    let rest = 256 - weight;
    for ((out, upper), lower) in out.iter_mut().zip(upper).zip(lower) {
        *out = u16::from(*upper) * rest + u16::from(*lower) * weight;
    }
}

/// Computes `(left * (2048 - weight) + right * weight) / (2048 * 256)`, rounded half up.
#[multiversion(targets("x86_64+avx2"))]
fn blend_columns(lefts: &[u16], rights: &[u16], weights: &[u16], out: &mut [u8]) {
    for (((out, left), right), weight) in out.iter_mut().zip(lefts).zip(rights).zip(weights) {
        let rest = COLUMN_UNITS as u16 - weight;
        let sum = u32::from(*left) * u32::from(rest) + u32::from(*right) * u32::from(*weight);
        *out = ((sum + (1 << 18)) >> 19) as u8;
    }
}

/// Maximum factor by which [`cell_means`] reduces a side. A cell then has at most twice as many
/// rows, and their sum fits in 16 bits.
pub(crate) const MAX_REDUCTION: u32 = 128;

/// Returns the means over a grid of `columns` x `rows` cells. Each axis has at least one cell and
/// at most as many cells as pixels. It also has at least as many cells as pixels divided by
/// [`MAX_REDUCTION`]. Edges are rounded to whole pixels: cells differ by at most one pixel, and
/// together they cover exactly the frame.
pub(crate) fn cell_means(source: &Frame, (columns, rows): (u32, u32)) -> Frame {
    let edges = |length: u32, cells: u32| -> Vec<usize> {
        (0..=u64::from(cells)).map(|i| (i * u64::from(length) / u64::from(cells)) as usize).collect()
    };
    let (lefts, tops) = (edges(source.width(), columns), edges(source.height(), rows));
    let widths: Vec<usize> = lefts.windows(2).map(|cell| cell[1] - cell[0]).collect();
    let row_length = source.width() as usize * 3;
    let line_length = columns as usize * 3;
    let mut out = Frame::filled(columns, rows, [0; 3]);
    let (mut sums, mut totals) = (vec![0u16; row_length], vec![0u32; line_length]);
    for (line, span) in out.data_mut().chunks_exact_mut(line_length).zip(tops.windows(2)) {
        sum_rows(&source.data()[span[0] * row_length..span[1] * row_length], &mut sums);
        // Most adjacent cells have the same width, and are processed together.
        let (mut column, mut left) = (0, 0);
        for run in widths.chunk_by(|a, b| a == b) {
            let (cells, pixels) = (column..column + run.len() * 3, left..left + run.len() * run[0] * 3);
            (column, left) = (cells.end, pixels.end);
            sum_cells(&sums[pixels], run[0], &mut totals[cells.clone()]);
            write_means(&totals[cells.clone()], run[0] * (span[1] - span[0]), &mut line[cells]);
        }
    }
    out
}

/// Writes the sums of `rows` to `sums`, which has one value for each byte of a row.
#[multiversion(targets("x86_64+avx2"))]
fn sum_rows(rows: &[u8], sums: &mut [u16]) {
    let length = sums.len();
    sums.fill(0);
    // Four rows are added at a time, so that each sum is read and written once, not four times.
    let row_groups = rows.chunks_exact(4 * length);
    for row in row_groups.remainder().chunks_exact(length) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += u16::from(*value);
        }
    }
    for row_group in row_groups {
        let (upper, lower) = row_group.split_at(2 * length);
        let ((a, b), (c, d)) = (upper.split_at(length), lower.split_at(length));
        for ((((sum, a), b), c), d) in sums.iter_mut().zip(a).zip(b).zip(c).zip(d) {
            *sum += u16::from(*a) + u16::from(*b) + u16::from(*c) + u16::from(*d);
        }
    }
}

/// Writes the sums of the pixels of each cell to `totals`; all cells are `width` pixels wide.
fn sum_cells(sums: &[u16], width: usize, totals: &mut [u32]) {
    match width {
        1 => sum_cells_of::<1>(sums, totals),
        2 => sum_cells_of::<2>(sums, totals),
        3 => sum_cells_of::<3>(sums, totals),
        4 => sum_cells_of::<4>(sums, totals),
        5 => sum_cells_of::<5>(sums, totals),
        6 => sum_cells_of::<6>(sums, totals),
        7 => sum_cells_of::<7>(sums, totals),
        8 => sum_cells_of::<8>(sums, totals),
        _ => sum_each_cell(sums.chunks_exact(width * 3), totals),
    }
}

/// Works like [`sum_cells`], for a width known at compile time. It is twice as fast.
fn sum_cells_of<const WIDTH: usize>(sums: &[u16], totals: &mut [u32]) {
    let (pixels, _) = sums.as_chunks::<3>();
    sum_each_cell(pixels.as_chunks::<WIDTH>().0.iter().map(|cell| cell.as_flattened()), totals);
}

#[inline(always)]
fn sum_each_cell<'a>(cells: impl Iterator<Item = &'a [u16]>, totals: &mut [u32]) {
    for (total, cell) in totals.as_chunks_mut::<3>().0.iter_mut().zip(cells) {
        *total = [0; 3];
        for pixel in cell.as_chunks::<3>().0 {
            for (total, value) in total.iter_mut().zip(pixel) {
                *total += u32::from(*value);
            }
        }
    }
}

/// Writes the mean for each sum of `count` bytes, rounded half up. `count` is at most 65,536.
#[multiversion(targets("x86_64+avx2"))]
fn write_means(sums: &[u32], count: usize, means: &mut [u8]) {
    // Multiplication by the reciprocal is much faster than division. The result is exact: in units
    // of 2^-40, the reciprocal is too large by at most one unit, and `sum + half` is less than `256
    // * count`. The product is therefore too large by less than 2^24 units. The exact quotient is
    // at least `1 / count`, which is at least 2^24 units, below the next integer.
    let count = count as u64;
    let (half, reciprocal) = (count / 2, (1 << 40) / count + 1);
    for (mean, sum) in means.iter_mut().zip(sums) {
        *mean = (((u64::from(*sum) + half) * reciprocal) >> 40) as u8;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn fast_mean_equals_rounded_division() {
        for count in 1..=65_536u32 {
            // The smallest sum with the next mean.
            let next = |level: u32| ((level + 1) * count - count / 2).min(255 * count);
            let sums: Vec<u32> =
                (0..=255).flat_map(|level| [level * count, next(level) - 1, next(level)]).collect();
            let mut means = vec![0; sums.len()];
            write_means(&sums, count as usize, &mut means);
            for (mean, sum) in means.iter().zip(&sums) {
                assert_eq!(u32::from(*mean), (sum + count / 2) / count, "{sum} / {count}");
            }
        }
    }

    #[test]
    fn cell_means_round_half_up_at_every_size() {
        for ((width, height), (columns, rows)) in [
            ((1, 1), (1, 1)),
            ((7, 5), (3, 5)),
            ((7, 5), (7, 2)),
            ((40, 33), (11, 4)),
            ((255, 255), (1, 1)),
            ((300, 511), (3, 2)),
        ] {
            let data = (0..width * height * 3)
                .map(|i: u32| if i.is_multiple_of(5) { 255 } else { (i.wrapping_mul(i) >> 5) as u8 });
            let frame = Frame::new(width, height, data.collect()).unwrap();
            let means = cell_means(&frame, (columns, rows));
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))) {
                let span = |i: u32, length: u32, cells: u32| i * length / cells..(i + 1) * length / cells;
                let (mut sums, mut count) = ([0u32; 3], 0);
                for y in span(row, height, rows) {
                    for x in span(column, width, columns) {
                        let pixel = frame.pixel(x, y);
                        sums = std::array::from_fn(|c| sums[c] + u32::from(pixel[c]));
                        count += 1;
                    }
                }
                let expected = sums.map(|sum| ((sum + count / 2) / count) as u8);
                assert_eq!(means.pixel(column, row), expected, "{width}x{height} at {column},{row}");
            }
        }
    }
}

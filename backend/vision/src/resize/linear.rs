//! Scales bilinearly like OpenCV's `INTER_LINEAR`, with two by two neighbours at every scale.

use crate::{Frame, Taps};
use multiversion::multiversion;

/// Position of an output pixel between two input pixels: index of the first and weight of the
/// second, in 1/256 or 1/2048. The second is the next pixel. At the border it is the first again,
/// with weight zero.
struct Tap {
    first: usize,
    weight: u32,
}

/// Returns the taps that scale `from` pixels to `to`. Pixel centres are at half integers; borders
/// are replicated.
fn taps(from: u32, to: u32, one: u32) -> Vec<Tap> {
    let scale = f64::from(from) / f64::from(to);
    let last = f64::from(from - 1);
    let tap = |i| {
        let at = ((f64::from(i) + 0.5) * scale - 0.5).clamp(0.0, last);
        Tap { first: at as usize, weight: (at.fract() * f64::from(one)).round() as u32 }
    };
    (0..to).map(tap).collect()
}

/// Units of a weight between two columns and between two rows. With these the sums below fit in 32
/// and 16 bits.
const COLUMN_PARTS: u32 = 2048;
const ROW_PARTS: u32 = 256;

/// Returns the filter of [`linear_into_top_left`] along one axis of `canvas` pixels. The first `to`
/// pixels are drawn from `from` pixels; the rest is black.
pub(crate) fn linear_taps(from: u32, to: u32, canvas: u32, rows: bool) -> Taps {
    let parts = if rows { ROW_PARTS } else { COLUMN_PARTS };
    let taps = taps(from, to, parts);
    Taps::new((from, canvas as usize), 2, |k, i| {
        let Some(tap) = taps.get(i) else { return (0, 0.0) };
        let share = f64::from(tap.weight) / f64::from(parts);
        ((tap.first + k) as i64, if k == 0 { 1.0 - share } else { share })
    })
}

/// Scales `source` to `size` and draws it into the top-left corner of `canvas`. The rest of the
/// canvas stays unchanged. `size` must fit the canvas.
pub(crate) fn linear_into_top_left(source: &Frame, canvas: &mut Frame, size: (u32, u32)) {
    let source_row = source.width() as usize * 3;
    let canvas_row = canvas.width() as usize * 3;
    let columns = taps(source.width(), size.0, COLUMN_PARTS);
    let rows = taps(source.height(), size.1, ROW_PARTS);
    let weights: Vec<u16> = columns.iter().flat_map(|column| [column.weight as u16; 3]).collect();
    let (mut lefts, mut rights) = (vec![0u16; weights.len()], vec![0u16; weights.len()]);
    // Rows are blended first: this reads contiguous bytes, and only the rows that are needed. One
    // pixel of padding lets the last column read its right neighbour.
    let mut blended = vec![0u16; source_row + 3];
    for (line, row) in canvas.data_mut().chunks_exact_mut(canvas_row).zip(&rows) {
        let upper = row.first * source_row;
        let lower = (row.first + 1).min(source.height() as usize - 1) * source_row;
        blend(
            &source.data()[upper..upper + source_row],
            &source.data()[lower..lower + source_row],
            row.weight as u16,
            &mut blended,
        );
        // Both neighbours are copied to rows of their own, so that `mix` reads contiguous values.
        let pairs = lefts.as_chunks_mut::<3>().0.iter_mut().zip(rights.as_chunks_mut::<3>().0);
        for ((left, right), column) in pairs.zip(&columns) {
            let Some([near @ .., r, g, b]) = blended[column.first * 3..].first_chunk::<6>() else { break };
            (*left, *right) = (*near, [*r, *g, *b]);
        }
        mix(&lefts, &rights, &weights, line);
    }
}

/// Computes `upper * (256 - weight) + lower * weight`, which is exact in 16 bits.
#[multiversion(targets("x86_64+avx2"))]
fn blend(upper: &[u8], lower: &[u8], weight: u16, out: &mut [u16]) {
    let rest = 256 - weight;
    for ((out, upper), lower) in out.iter_mut().zip(upper).zip(lower) {
        *out = u16::from(*upper) * rest + u16::from(*lower) * weight;
    }
}

/// Computes `(left * (2048 - weight) + right * weight) / (2048 * 256)`, rounded half up.
#[multiversion(targets("x86_64+avx2"))]
fn mix(lefts: &[u16], rights: &[u16], weights: &[u16], out: &mut [u8]) {
    for (((out, left), right), weight) in out.iter_mut().zip(lefts).zip(rights).zip(weights) {
        let rest = COLUMN_PARTS as u16 - weight;
        let sum = u32::from(*left) * u32::from(rest) + u32::from(*right) * u32::from(*weight);
        *out = ((sum + (1 << 18)) >> 19) as u8;
    }
}

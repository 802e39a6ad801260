//! Scales down by averaging cells of whole pixels: the fast first step of a large reduction.

use crate::Frame;
use multiversion::multiversion;

/// Maximum reduction in one step. A cell then has at most twice as many rows, and sums of that many
/// bytes fit in 16 bits.
pub(crate) const MAX_FACTOR: u32 = 128;

/// Returns the means over a grid of `columns` x `rows` cells. Each axis has at least one cell and
/// at most as many cells as pixels. It also has at least as many cells as pixels divided by
/// [`MAX_FACTOR`]. Edges are rounded to whole pixels: cells differ by at most one pixel, and
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
        // Cells of the same width follow one another in long runs.
        let (mut column, mut left) = (0, 0);
        for run in widths.chunk_by(|a, b| a == b) {
            let (cells, pixels) = (column..column + run.len() * 3, left..left + run.len() * run[0] * 3);
            (column, left) = (cells.end, pixels.end);
            sum_cells(&sums[pixels], run[0], &mut totals[cells.clone()]);
            divide(&totals[cells.clone()], run[0] * (span[1] - span[0]), &mut line[cells]);
        }
    }
    out
}

/// Writes the sums of `rows` to `sums`, which has one value for each byte of a row.
#[multiversion(targets("x86_64+avx2"))]
fn sum_rows(rows: &[u8], sums: &mut [u16]) {
    let length = sums.len();
    sums.fill(0);
    // Four rows are added in one pass, so that each sum is read and written once, not four times.
    let fours = rows.chunks_exact(4 * length);
    for row in fours.remainder().chunks_exact(length) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += u16::from(*value);
        }
    }
    for four in fours {
        let (upper, lower) = four.split_at(2 * length);
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
fn divide(sums: &[u32], count: usize, means: &mut [u8]) {
    // A division takes much longer than a multiplication by the reciprocal. The unit is 2^-40. The
    // reciprocal is too large by at most one unit, and the dividend `sum + half` is less than `256
    // * count`. The product is therefore too large by less than 2^24 units. The exact quotient is
    // at least `1 / count` below the next integer, and `1 / count` is at least 2^24 units. The
    // result is therefore exact.
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
    fn means_equal_divisions() {
        for count in 1..=65_536u32 {
            // A mean changes where the rounded sum is a multiple of the count.
            let change = |level: u32| ((level + 1) * count - count / 2).min(255 * count);
            let sums: Vec<u32> =
                (0..=255).flat_map(|level| [level * count, change(level) - 1, change(level)]).collect();
            let mut means = vec![0; sums.len()];
            divide(&sums, count as usize, &mut means);
            for (mean, sum) in means.iter().zip(&sums) {
                assert_eq!(u32::from(*mean), (sum + count / 2) / count, "{sum} / {count}");
            }
        }
    }

    #[test]
    fn cells_of_every_size_are_means_rounded_half_up() {
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
                let wanted = sums.map(|sum| ((sum + count / 2) / count) as u8);
                assert_eq!(means.pixel(column, row), wanted, "{width}x{height} at {column},{row}");
            }
        }
    }
}

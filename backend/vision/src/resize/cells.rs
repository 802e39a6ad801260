//! Scales down by means over cells of whole pixels: the fast first step of a large reduction.

use crate::Frame;

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
    let row_length = source.width() as usize * 3;
    let mut out = Frame::filled(columns, rows, [0; 3]);
    let mut sums = vec![0u16; row_length];
    for (line, span) in out.data_mut().chunks_exact_mut(columns as usize * 3).zip(tops.windows(2)) {
        sums.fill(0);
        for row in source.data()[span[0] * row_length..span[1] * row_length].chunks_exact(row_length) {
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += u16::from(*value);
            }
        }
        let (sums, _) = sums.as_chunks::<3>();
        for (pixel, cell) in line.as_chunks_mut::<3>().0.iter_mut().zip(lefts.windows(2)) {
            let count = ((cell[1] - cell[0]) * (span[1] - span[0])) as u32;
            let total = sums[cell[0]..cell[1]]
                .iter()
                .fold([0u32; 3], |total, sum| std::array::from_fn(|c| total[c] + u32::from(sum[c])));
            *pixel = total.map(|sum| ((sum + count / 2) / count) as u8);
        }
    }
    out
}

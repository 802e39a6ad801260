//! Conversion of rows of pixels to the three planes of JPEG (BT.601 with full range, as JFIF says).

use super::Chroma;
use super::tables::BLOCK;
use super::transform::Block;
use crate::Frame;
use multiversion::multiversion;

/// Luma and the two colour planes of one row of groups of blocks. Levels are centred at 0. The last
/// column and the last row are repeated up to whole groups.
pub(super) struct Planes {
    /// Number of luma blocks along each side of a group.
    factor: usize,
    /// Values per row of luma: a whole number of groups.
    width: usize,
    /// Luma, blue difference and red difference at full resolution.
    full: [Vec<f32>; 3],
    /// The colour planes at the resolution of their blocks; empty if that is the full resolution.
    small: [Vec<f32>; 2],
}

impl Planes {
    /// Allocates the planes for rows of `frame`.
    pub(super) fn new(frame: &Frame, chroma: Chroma) -> Self {
        let factor = chroma.factor();
        let side = BLOCK * factor;
        let width = (frame.width() as usize).next_multiple_of(side);
        let small = if factor == 1 { 0 } else { width / factor * BLOCK };
        let full = std::array::from_fn(|_| vec![0.0; width * side]);
        Self { factor, width, full, small: std::array::from_fn(|_| vec![0.0; small]) }
    }

    /// Returns the side of a group in pixels.
    pub(super) fn group_side(&self) -> usize {
        BLOCK * self.factor
    }

    /// Returns the number of groups in a row.
    pub(super) fn groups(&self) -> usize {
        self.width / self.group_side()
    }

    /// Converts the rows from `top` on.
    pub(super) fn read(&mut self, frame: &Frame, top: usize) {
        let (row, last) = (frame.width() as usize * 3, frame.height() as usize - 1);
        for y in 0..self.group_side() {
            let source = &frame.data()[(top + y).min(last) * row..][..row];
            let to = self.full.each_mut().map(|plane| &mut plane[y * self.width..(y + 1) * self.width]);
            convert(source, to);
        }
        if self.factor == 2 {
            let [_, colours @ ..] = &self.full;
            for (small, full) in self.small.iter_mut().zip(colours) {
                halve(full, self.width, small);
            }
        }
    }

    /// Iterates over the luma blocks of a group, in reading order.
    pub(super) fn luma_blocks(&self, group: usize) -> impl Iterator<Item = Block> {
        let (factor, width) = (self.factor, self.width);
        (0..factor * factor).map(move |block| {
            let (x, y) = (group * factor + block % factor, block / factor);
            cut(&self.full[0][y * BLOCK * width..], width, x)
        })
    }

    /// Returns the block of each colour plane of a group.
    pub(super) fn colour_blocks(&self, group: usize) -> [Block; 2] {
        let [_, full @ ..] = &self.full;
        let planes = if self.factor == 1 { full } else { &self.small };
        planes.each_ref().map(|plane| cut(plane, self.width / self.factor, group))
    }
}

/// Copies the block number `at` of a row of blocks.
fn cut(plane: &[f32], width: usize, at: usize) -> Block {
    let mut block = [[0.0; BLOCK]; BLOCK];
    for (to, from) in block.iter_mut().zip(plane.chunks_exact(width)) {
        to.copy_from_slice(&from[at * BLOCK..(at + 1) * BLOCK]);
    }
    block
}

/// Writes the means of two by two values.
#[multiversion(targets("x86_64+avx2"))]
fn halve(full: &[f32], width: usize, small: &mut [f32]) {
    for (to, from) in small.chunks_exact_mut(width / 2).zip(full.chunks_exact(2 * width)) {
        let (upper, lower) = from.split_at(width);
        let pairs = upper.as_chunks::<2>().0.iter().zip(lower.as_chunks::<2>().0);
        for (value, ([a, b], [c, d])) in to.iter_mut().zip(pairs) {
            *value = (a + b + c + d) * 0.25;
        }
    }
}

/// Converts a row of pixels and repeats the last one.
fn convert(rgb: &[u8], to: [&mut [f32]; 3]) {
    let (pixels, _) = rgb.as_chunks::<3>();
    let [luma, blue, red] = to.map(|plane| plane.split_at_mut(pixels.len()));
    convert_pixels(pixels, [luma.0, blue.0, red.0]);
    for (values, rest) in [luma, blue, red] {
        rest.fill(values[values.len() - 1]);
    }
}

#[multiversion(targets("x86_64+avx2"))]
fn convert_pixels(pixels: &[[u8; 3]], [luma, blue, red]: [&mut [f32]; 3]) {
    for (((rgb, luma), blue), red) in pixels.iter().zip(luma).zip(blue).zip(red) {
        let [r, g, b] = [f32::from(rgb[0]), f32::from(rgb[1]), f32::from(rgb[2])];
        *luma = 0.299 * r + 0.587 * g + 0.114 * b - 128.0;
        *blue = -0.168_735_9 * r - 0.331_264_1 * g + 0.5 * b;
        *red = 0.5 * r - 0.418_687_6 * g - 0.081_312_4 * b;
    }
}

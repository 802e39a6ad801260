//! The discrete cosine transform of a block and its quantisation.

use super::tables::{BLOCK, COEFFICIENTS, ZIGZAG};
use multiversion::multiversion;
use std::f32::consts::FRAC_1_SQRT_2;

/// A block of levels, or of coefficients.
pub(super) type Block = [[f32; BLOCK]; BLOCK];

/// Half the cosine of 1 to 7 times pi / 16; index 0 is unused.
const HALF_COSINES: [f32; BLOCK] = [
    0.0,
    0.490_392_64,
    0.461_939_77,
    0.415_734_8,
    0.5 * FRAC_1_SQRT_2,
    0.277_785_12,
    0.191_341_72,
    0.097_545_16,
];

/// Returns the coefficients of a block in zigzag order, in units of their steps, rounded to the
/// nearest integer.
#[multiversion(targets("x86_64+avx2"))]
pub(super) fn coefficients(block: Block, quantizer: &Quantizer) -> [i16; COEFFICIENTS] {
    quantizer.quantize(&transform(block))
}

/// Returns the orthonormal two-dimensional DCT-II. Rows and columns are exchanged: the first index
/// is the horizontal frequency. Exchanging them back would cost another pass.
#[inline(always)]
fn transform(mut block: Block) -> Block {
    transform_columns(&mut block);
    let mut turned = [[0.0; BLOCK]; BLOCK];
    for (y, row) in block.iter().enumerate() {
        for (x, value) in row.iter().enumerate() {
            turned[x][y] = *value;
        }
    }
    transform_columns(&mut turned);
    turned
}

/// Transforms each column. Sums and differences of opposite values halve the multiplications of the
/// definition: even coefficients depend only on the sums, odd ones only on the differences.
#[inline(always)]
// An iterator over one row of the block could not write to the others.
#[allow(clippy::needless_range_loop)]
fn transform_columns(block: &mut Block) {
    let [_, c1, c2, c3, c4, c5, c6, c7] = HALF_COSINES;
    for x in 0..BLOCK {
        let sum = |y: usize| block[y][x] + block[7 - y][x];
        let difference = |y: usize| block[y][x] - block[7 - y][x];
        let (s0, s1, s2, s3) = (sum(0), sum(1), sum(2), sum(3));
        let (d0, d1, d2, d3) = (difference(0), difference(1), difference(2), difference(3));
        let (outer, inner) = (s0 + s3, s1 + s2);
        let (far, near) = (s0 - s3, s1 - s2);
        block[0][x] = (outer + inner) * c4;
        block[4][x] = (outer - inner) * c4;
        block[2][x] = far * c2 + near * c6;
        block[6][x] = far * c6 - near * c2;
        block[1][x] = d0 * c1 + d1 * c3 + d2 * c5 + d3 * c7;
        block[3][x] = d0 * c3 - d1 * c7 - d2 * c1 - d3 * c5;
        block[5][x] = d0 * c5 - d1 * c1 + d2 * c7 + d3 * c3;
        block[7][x] = d0 * c7 - d1 * c5 + d2 * c3 - d3 * c1;
    }
}

/// Divides coefficients by their steps.
pub(super) struct Quantizer {
    /// Reciprocals of the steps, with rows and columns exchanged.
    reciprocals: [f32; COEFFICIENTS],
}

impl Quantizer {
    /// Creates the quantiser for steps in reading order.
    pub(super) fn new(steps: &[u8; COEFFICIENTS]) -> Self {
        Self { reciprocals: std::array::from_fn(|at| 1.0 / f32::from(steps[exchanged(at)])) }
    }

    #[inline(always)]
    fn quantize(&self, block: &Block) -> [i16; COEFFICIENTS] {
        // A float of this size has no fraction bits, so the addition rounds, and the lowest bits
        // of the result are the integer. A call of `round` is a call of a library function on
        // processors without SSE4.1.
        const ROUNDING: f32 = 12_582_912.0;
        let mut levels = [0; COEFFICIENTS];
        for ((level, value), reciprocal) in levels.iter_mut().zip(block.as_flattened()).zip(&self.reciprocals)
        {
            *level = (value * reciprocal + ROUNDING).to_bits() as i16;
        }
        ORDER.map(|at| levels[usize::from(at)])
    }
}

/// [`ZIGZAG`] with rows and columns exchanged.
const ORDER: [u8; COEFFICIENTS] = {
    let mut order = [0; COEFFICIENTS];
    let mut at = 0;
    while at < COEFFICIENTS {
        order[at] = exchanged(ZIGZAG[at] as usize) as u8;
        at += 1;
    }
    order
};

/// Returns the position in a block whose rows and columns are exchanged.
const fn exchanged(at: usize) -> usize {
    at % BLOCK * BLOCK + at / BLOCK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coefficients_agree_with_the_definition() {
        let block: Block = std::array::from_fn(|y| {
            std::array::from_fn(|x| ((y * 37 + x * 91 + x * y) % 256) as f32 - 128.0)
        });
        let found = transform(block);
        let weight = |k: usize| if k == 0 { (1.0f64 / 8.0).sqrt() } else { 0.5 };
        let cosine = |k: usize, i: usize| (std::f64::consts::PI / 8.0 * (i as f64 + 0.5) * k as f64).cos();
        let steps = std::array::from_fn(|at| 1 + at as u8 * 2);
        let quantized = Quantizer::new(&steps).quantize(&found);
        for (position, at) in ZIGZAG.iter().enumerate() {
            let (v, u) = (usize::from(*at) / BLOCK, usize::from(*at) % BLOCK);
            let mut sum = 0.0;
            for (y, row) in block.iter().enumerate() {
                for (x, value) in row.iter().enumerate() {
                    sum += f64::from(*value) * cosine(v, y) * cosine(u, x);
                }
            }
            let wanted = sum * weight(u) * weight(v);
            assert!((f64::from(found[u][v]) - wanted).abs() < 1e-3, "{u},{v}");
            let level = wanted / f64::from(steps[usize::from(*at)]);
            assert!((f64::from(quantized[position]) - level).abs() < 0.501, "{u},{v}");
        }
    }
}

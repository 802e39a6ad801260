//! Perceptual hashes: fingerprints that stay nearly the same when a picture is stored again, scaled or lightly edited.
//!
//! All three are made from one grey reduction of the whole picture, stretched to a square, so that they do not depend
//! on its size. Bits are in reading order, the first one the highest.
//!
//! TABLE

use crate::Frame;
use crate::grey::grey;
use crate::resize::{self, Filter};
use std::sync::LazyLock;

/// Three 64-bit hashes of a whole picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PerceptualHashes {
    /// DCT hash: signs of the 8x8 lowest frequencies of a 32x32 reduction against their median (Zauner 2010,
    /// "Implementation and benchmarking of perceptual image hash functions"). The constant term takes part in neither.
    pub p: u64,
    /// Gradient hash: whether each of 8 pixels of 8 rows is darker than its right neighbour in a 9x8 reduction
    /// (Krawetz 2013, "dHash").
    pub d: u64,
    /// Mean hash: whether each pixel of an 8x8 reduction is brighter than their mean (Krawetz 2011, "aHash").
    pub a: u64,
}

/// The common reduction: a multiple of 32x32, 9x8 and 8x8, so that each of them is a mean over whole blocks.
const REDUCED: (usize, usize) = (288, 256);

impl PerceptualHashes {
    /// Hashes the picture.
    pub fn of(frame: &Frame) -> Self {
        let size = (REDUCED.0 as u32, REDUCED.1 as u32);
        let reduced = resize::grey(&grey(frame), (frame.width(), frame.height()), size, Filter::Area);
        Self { p: dct_hash(&reduced), d: gradient_hash(&reduced), a: mean_hash(&reduced) }
    }

    /// Number of differing bits of each hash: `(p, d, a)`, 0..=64.
    pub fn distance(&self, other: &Self) -> (u32, u32, u32) {
        let bits = |a: u64, b: u64| (a ^ b).count_ones();
        (bits(self.p, other.p), bits(self.d, other.d), bits(self.a, other.a))
    }

    /// The near-duplicate decision (thresholds documented with their measurements in the module).
    pub fn is_near(&self, other: &Self) -> bool {
        let (p, d, a) = self.distance(other);
        p <= 10 && d <= 12 && a <= 12
    }
}

/// Block means of the reduction: `columns` x `rows` of them.
fn means<const COLUMNS: usize, const ROWS: usize>(reduced: &[u8]) -> [[f32; COLUMNS]; ROWS] {
    let (width, height) = (REDUCED.0 / COLUMNS, REDUCED.1 / ROWS);
    let mut sums = [[0u32; COLUMNS]; ROWS];
    for (y, line) in reduced.chunks_exact(REDUCED.0).enumerate() {
        for (sum, block) in sums[y / height].iter_mut().zip(line.chunks_exact(width)) {
            *sum += block.iter().map(|v| u32::from(*v)).sum::<u32>();
        }
    }
    sums.map(|row| row.map(|sum| sum as f32 / (width * height) as f32))
}

fn pack(bits: impl Iterator<Item = bool>) -> u64 {
    bits.fold(0, |hash, bit| hash << 1 | u64::from(bit))
}

fn gradient_hash(reduced: &[u8]) -> u64 {
    let rows = means::<9, 8>(reduced);
    pack(rows.iter().flat_map(|row| row.windows(2).map(|pair| pair[0] < pair[1])))
}

fn mean_hash(reduced: &[u8]) -> u64 {
    let rows = means::<8, 8>(reduced);
    let mean = rows.as_flattened().iter().sum::<f32>() / 64.0;
    pack(rows.as_flattened().iter().map(|v| *v > mean))
}

/// The first eight rows of the 32-point DCT-II.
static BASIS: LazyLock<[[f32; 32]; 8]> = LazyLock::new(|| {
    std::array::from_fn(|k| {
        std::array::from_fn(|n| (std::f32::consts::PI / 32.0 * (n as f32 + 0.5) * k as f32).cos())
    })
});

fn dct_hash(reduced: &[u8]) -> u64 {
    let dot = |a: &[f32; 32], b: &[f32; 32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let pixels = means::<32, 32>(reduced);
    let rows = pixels.map(|row| BASIS.each_ref().map(|basis| dot(basis, &row)));
    let mut low = [[0.0; 8]; 8];
    for (v, line) in low.iter_mut().enumerate() {
        for (u, value) in line.iter_mut().enumerate() {
            *value = BASIS[v].iter().zip(&rows).map(|(basis, row)| basis * row[u]).sum();
        }
    }
    let mut sorted = [0.0; 63];
    sorted.copy_from_slice(&low.as_flattened()[1..]);
    sorted.sort_unstable_by(f32::total_cmp);
    let median = sorted[31];
    // The constant term is the picture's brightness; its bit would be the same for all.
    low[0][0] = median;
    pack(low.as_flattened().iter().map(|v| *v > median))
}

//! Perceptual hashes: fingerprints that change little when an image is saved again, scaled or
//! slightly edited.
//!
//! All three hashes are computed from a small grey version of the image with a fixed size, so they
//! do not depend on the image's size. Bits are in reading order, the highest first.
//!
//! docs/reference/ACCURACY.md contains the distances between 47 photographs and edited copies, and
//! between different images. The thresholds are between both, and closer to those of copies. Images
//! with near hashes can still show different people: badges with one design differ only in a small
//! part of the image.
use crate::Frame;
use crate::frame::write_grey;
use crate::resize::{MAX_REDUCTION, cell_means};
use multiversion::multiversion;
use std::sync::LazyLock;

/// Three 64-bit hashes of a whole image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PerceptualHashes {
    /// DCT hash: whether each of the 8x8 lowest frequencies of a 32x32 reduction is above their
    /// median (Zauner 2010, "Implementation and benchmarking of perceptual image hash functions").
    /// The bit of the constant term is 0, and the median excludes this term.
    pub p: u64,
    /// Gradient hash: for 8 pixels in each of 8 rows of a 9x8 reduction, whether the right
    /// neighbour is clearly brighter (Krawetz 2013, "dHash").
    pub d: u64,
    /// Mean hash: whether each pixel of an 8x8 reduction is clearly brighter than the mean of all
    /// (Krawetz 2011, "aHash").
    pub a: u64,
}

/// Difference in grey levels above which a bit is set. In uniform areas, the differences are noise
/// and smaller than this.
const MIN_DIFFERENCE: f32 = 0.5;

impl PerceptualHashes {
    pub fn of(frame: &Frame) -> Self {
        let reduced = reduce(frame);
        Self { p: dct_hash(&reduced), d: gradient_hash(&reduced), a: mean_hash(&reduced) }
    }

    /// Returns the number of differing bits of each hash: `(p, d, a)`, 0..=64.
    pub fn distance(&self, other: &Self) -> (u32, u32, u32) {
        let bits = |a: u64, b: u64| (a ^ b).count_ones();
        (bits(self.p, other.p), bits(self.d, other.d), bits(self.a, other.a))
    }

    /// Returns whether the hashes of two images are near. `a` must differ by at most 12 bits. In
    /// addition, one of two conditions must hold:
    ///
    /// - `p` at most 10 and `d` at most 12: the image was saved again, scaled or cropped slightly.
    /// - `p` at most 24 and `d` at most 4: a watermark was added in a corner. A watermark changes
    ///   many bits of `p`, but few bits of `d`.
    ///
    /// docs/reference/ACCURACY.md contains the measurements. The search in the store (`near`) finds
    /// every stored image that this function accepts. If these distances are increased, those of
    /// the search must be increased too.
    pub fn is_near(&self, other: &Self) -> bool {
        let (p, d, a) = self.distance(other);
        a <= 12 && ((p <= 10 && d <= 12) || (p <= 24 && d <= 4))
    }
}

/// Returns the means of `COLUMNS` x `ROWS` blocks of the reduction.
fn block_means<const COLUMNS: usize, const ROWS: usize>(reduced: &[f32]) -> [[f32; COLUMNS]; ROWS] {
    let (width, height) = (REDUCED.0 / COLUMNS, REDUCED.1 / ROWS);
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (y, line) in reduced.chunks_exact(REDUCED.0).enumerate() {
        for (sum, block) in sums[y / height].iter_mut().zip(line.chunks_exact(width)) {
            *sum += block.iter().sum::<f32>();
        }
    }
    sums.map(|row| row.map(|sum| sum / (width * height) as f32))
}

fn pack_bits(bits: impl Iterator<Item = bool>) -> u64 {
    bits.fold(0, |hash, bit| hash << 1 | u64::from(bit))
}

fn gradient_hash(reduced: &[f32]) -> u64 {
    let rows = block_means::<9, 8>(reduced);
    pack_bits(rows.iter().flat_map(|row| row.windows(2).map(|pair| pair[1] - pair[0] > MIN_DIFFERENCE)))
}

fn mean_hash(reduced: &[f32]) -> u64 {
    let rows = block_means::<8, 8>(reduced);
    let mean = rows.as_flattened().iter().sum::<f32>() / 64.0;
    pack_bits(rows.as_flattened().iter().map(|v| *v > mean + MIN_DIFFERENCE))
}

/// The first eight rows of the 32-point DCT-II.
static BASIS: LazyLock<[[f32; 32]; 8]> = LazyLock::new(|| {
    std::array::from_fn(|k| {
        std::array::from_fn(|n| (std::f32::consts::PI / 32.0 * (n as f32 + 0.5) * k as f32).cos())
    })
});

fn dct_hash(reduced: &[f32]) -> u64 {
    let dot = |a: &[f32; 32], b: &[f32; 32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let pixels = block_means::<32, 32>(reduced);
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
    // The constant term is the brightness, so its bit would be the same for all images. The margin
    // of 1 is the largest rounding error in a uniform image; terms of photographs are in the
    // thousands.
    low[0][0] = median;
    pack_bits(low.as_flattened().iter().map(|v| *v > median + 1.0))
}

/// Columns and rows of the reduction: a multiple of 32x32, 9x8 and 8x8, so that blocks have equal
/// sizes.
const REDUCED: (usize, usize) = (288, 256);

/// Divides an image of any size into a grid of [`REDUCED`] equal areas, and returns the mean grey
/// level of each.
fn reduce(frame: &Frame) -> Vec<f32> {
    // Means over whole pixels first reduce the image to at least the size of the reduction, because
    // they are much faster than means over areas with parts of pixels.
    let (columns, rows) = (REDUCED.0 as u32, REDUCED.1 as u32);
    let factor = |length: u32, target: u32| (length / target).clamp(1, MAX_REDUCTION);
    let (across, down) = (factor(frame.width(), columns), factor(frame.height(), rows));
    if across > 1 || down > 1 {
        grey_means(&cell_means(frame, (frame.width() / across, frame.height() / down)))
    } else {
        grey_means(frame)
    }
}

/// Returns the mean grey levels of [`REDUCED`] equal areas. A pixel that is partly in an area is
/// weighted by that part. A smaller image is enlarged in the same way.
#[multiversion(targets("x86_64+avx2"))]
fn grey_means(frame: &Frame) -> Vec<f32> {
    let (columns, rows) = REDUCED;
    let (width, height) = (frame.width() as usize, frame.height() as usize);
    // Right edge of each area: number of whole pixels to its left, and share of the next pixel.
    let edges: Vec<(usize, f64)> = (1..=columns)
        .map(|i| ((i * width) as f64 / columns as f64).min(width as f64))
        .map(|edge| (edge as usize, edge.fract()))
        .collect();
    let mut grey = vec![0u8; width];
    // The sums of the pixels to the left of each pixel. The last sum is repeated, because the last
    // edge has no pixel to its right.
    let mut prefix_sums = vec![0u32; width + 2];
    let mut line = vec![0f32; columns];
    let mut reduced = vec![0f32; columns * rows];
    let vertical = rows as f32 / height as f32;
    let horizontal = columns as f64 / width as f64;
    for (y, row) in frame.data().chunks_exact(width * 3).enumerate() {
        write_grey(row, &mut grey);
        let mut sum = 0u32;
        for (prefix_sum, value) in prefix_sums[1..].iter_mut().zip(&grey) {
            sum += u32::from(*value);
            *prefix_sum = sum;
        }
        prefix_sums[width + 1] = sum;
        // An area is the difference of the sums up to its edges.
        let mut before = 0.0;
        for (value, (pixel, share)) in line.iter_mut().zip(&edges) {
            let (whole, next) = (prefix_sums[*pixel], prefix_sums[pixel + 1]);
            let after = f64::from(whole) + share * f64::from(next - whole);
            *value = ((after - before) * horizontal) as f32;
            before = after;
        }
        // The row covers the rows [top, bottom) of the reduction.
        let (top, bottom) = (y as f32 * vertical, (y + 1) as f32 * vertical);
        for target in top as usize..(bottom.ceil() as usize).min(rows) {
            let share = bottom.min((target + 1) as f32) - top.max(target as f32);
            let target_row = &mut reduced[target * columns..(target + 1) * columns];
            for (sum, value) in target_row.iter_mut().zip(&line) {
                *sum += value * share;
            }
        }
    }
    reduced
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::crop;

    fn ramp(rising: bool) -> Frame {
        let level = |x: u32| (if rising { x } else { 143 - x }) as u8;
        let data = (0..144 * 90).flat_map(|i| [level(i % 144); 3]).collect();
        Frame::new(144, 90, data).unwrap()
    }

    #[test]
    fn hash_bits_match_their_definition() {
        let (rising, falling) = (PerceptualHashes::of(&ramp(true)), PerceptualHashes::of(&ramp(false)));
        assert_eq!((rising.d, falling.d), (u64::MAX, 0));
        assert_eq!((rising.a, falling.a), (0x0F0F_0F0F_0F0F_0F0F, 0xF0F0_F0F0_F0F0_F0F0));
        assert!(!rising.is_near(&falling));
        assert_eq!(rising.p >> 63, 0, "the bit of the constant term is 0");
    }

    #[test]
    fn uniform_image_has_zero_hashes() {
        let flat = PerceptualHashes::of(&Frame::filled(33, 17, [90, 120, 40]));
        assert_eq!((flat.d, flat.a), (0, 0));
        let pixel = PerceptualHashes::of(&Frame::filled(1, 1, [255; 3]));
        assert_eq!((pixel.d, pixel.a), (0, 0));
    }

    #[test]
    fn perceptual_hash_is_stable_under_resizing() {
        let data = (0..1200u32 * 900).flat_map(|i| {
            let (x, y) = (i % 1200, i / 1200);
            [(x * y / 5000) as u8, (x / 8) as u8, ((x / 90 + y / 70) % 2 * 200) as u8]
        });
        let large = Frame::new(1200, 900, data.collect()).unwrap();
        for side in [800, 299, 150, 100] {
            let small = crop::thumbnail(&large, side);
            let (p, d, a) = PerceptualHashes::of(&large).distance(&PerceptualHashes::of(&small));
            assert!(p <= 3 && d <= 4 && a <= 2, "{side}: {p} {d} {a}");
        }
    }

    /// Computes the reduction without optimisations. Databases contain hashes, so the optimised
    /// reduction must return exactly these values.
    fn reference_reduction(frame: &Frame) -> Vec<f32> {
        let factor = |length: u32, target: usize| (length / target as u32).clamp(1, MAX_REDUCTION);
        let cells = |length: u32, target: usize| (length / factor(length, target)) as usize;
        let (width, height) = (cells(frame.width(), REDUCED.0), cells(frame.height(), REDUCED.1));
        let span = |i: usize, length: u32, cells: usize| {
            (i * length as usize / cells) as u32..((i + 1) * length as usize / cells) as u32
        };
        let grey = |column: usize, row: usize| {
            let (mut sums, mut count) = ([0u32; 3], 0);
            for y in span(row, frame.height(), height) {
                for x in span(column, frame.width(), width) {
                    let pixel = frame.pixel(x, y);
                    sums = std::array::from_fn(|c| sums[c] + u32::from(pixel[c]));
                    count += 1;
                }
            }
            let [r, g, b] = sums.map(|sum| (sum + count / 2) / count);
            (r * 9798 + g * 19235 + b * 3735 + (1 << 14)) >> 15
        };
        let mut reduced = vec![0f32; REDUCED.0 * REDUCED.1];
        let vertical = REDUCED.1 as f32 / height as f32;
        for y in 0..height {
            let row: Vec<u32> = (0..width).map(|x| grey(x, y)).collect();
            let up_to = |i: usize| {
                let edge = (i * width) as f64 / REDUCED.0 as f64;
                let whole: u32 = row[..edge as usize].iter().sum();
                f64::from(whole) + edge.fract() * f64::from(row.get(edge as usize).copied().unwrap_or(0))
            };
            let (top, bottom) = (y as f32 * vertical, (y + 1) as f32 * vertical);
            for target in top as usize..(bottom.ceil() as usize).min(REDUCED.1) {
                let share = bottom.min((target + 1) as f32) - top.max(target as f32);
                for column in 0..REDUCED.0 {
                    let area = (up_to(column + 1) - up_to(column)) * (REDUCED.0 as f64 / width as f64);
                    reduced[target * REDUCED.0 + column] += area as f32 * share;
                }
            }
        }
        reduced
    }

    #[test]
    fn reductions_are_exact_for_every_size() {
        let mut state = 1u32;
        for (width, height) in [
            (1, 1),
            (3, 700),
            (287, 255),
            (288, 256),
            (576, 511),
            (333, 500),
            (910, 1137),
            (1027, 769),
            (2600, 300),
            (1, 9000),
            (4608, 515),
        ] {
            let noise = (0..width * height * 3).map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            });
            let frame = Frame::new(width, height, noise.collect()).unwrap();
            assert!(reduce(&frame) == reference_reduction(&frame), "{width}x{height}");
        }
    }

    #[testing::needs(shared)]
    #[test]
    fn reductions_of_photographs_are_exact() {
        for path in testing::images() {
            let bytes = std::fs::read(&path).unwrap();
            let frame = crate::decode(&bytes, &crate::Limits::default()).unwrap().frame;
            assert!(reduce(&frame) == reference_reduction(&frame), "{}", path.display());
        }
    }
}

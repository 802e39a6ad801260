//! Perceptual hashes: fingerprints that change little when an image is saved again, scaled or
//! lightly edited.
//!
//! All three hashes are computed from one grey reduction of the whole image, stretched to a square,
//! so they do not depend on the image's size. Bits are in reading order, the highest first.
//!
//! docs/reference/ACCURACY.md lists how much edits of 47 photographs change the hashes, and the
//! distances between different images. The thresholds keep a margin to both, and a larger margin to
//! different images. Near hashes alone do not prove that two images show the same people: badges on
//! one template differ only in a small part of the image.
use crate::Frame;
use crate::frame::grey_row;
use crate::resize::{MAX_FACTOR, cell_means};
use multiversion::multiversion;
use std::sync::LazyLock;

/// Three 64-bit hashes of a whole image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PerceptualHashes {
    /// DCT hash: compares the 8x8 lowest frequencies of a 32x32 reduction with their median (Zauner
    /// 2010, "Implementation and benchmarking of perceptual image hash functions"). The constant
    /// term has no bit and is not part of the median.
    pub p: u64,
    /// Gradient hash: for 8 pixels in each of 8 rows of a 9x8 reduction, whether the right
    /// neighbour is clearly brighter (Krawetz 2013, "dHash").
    pub d: u64,
    /// Mean hash: whether each pixel of an 8x8 reduction is clearly brighter than the mean of all
    /// (Krawetz 2011, "aHash").
    pub a: u64,
}

/// Minimum difference in grey levels that sets a bit. Blocks of flat backgrounds differ by less;
/// without a margin their bits would be noise.
const MARGIN: f32 = 0.5;

impl PerceptualHashes {
    pub fn of(frame: &Frame) -> Self {
        let reduced = reduction(frame);
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
    /// - `p` at most 10 and `d` at most 12: the image was saved again, scaled or trimmed.
    /// - `p` at most 24 and `d` at most 4: the same image with a mark in a corner. A mark changes
    ///   all of `p`, but few bits of `d`.
    ///
    /// docs/reference/ACCURACY.md contains the measurements. The store's look-up (`near`) finds
    /// every stored image that this function accepts. If these distances are increased, the
    /// look-up's distances must be increased too.
    pub fn is_near(&self, other: &Self) -> bool {
        let (p, d, a) = self.distance(other);
        a <= 12 && ((p <= 10 && d <= 12) || (p <= 24 && d <= 4))
    }
}

/// Returns `columns` x `rows` block means of the reduction.
fn means<const COLUMNS: usize, const ROWS: usize>(reduced: &[f32]) -> [[f32; COLUMNS]; ROWS] {
    let (width, height) = (REDUCED.0 / COLUMNS, REDUCED.1 / ROWS);
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (y, line) in reduced.chunks_exact(REDUCED.0).enumerate() {
        for (sum, block) in sums[y / height].iter_mut().zip(line.chunks_exact(width)) {
            *sum += block.iter().sum::<f32>();
        }
    }
    sums.map(|row| row.map(|sum| sum / (width * height) as f32))
}

fn pack(bits: impl Iterator<Item = bool>) -> u64 {
    bits.fold(0, |hash, bit| hash << 1 | u64::from(bit))
}

fn gradient_hash(reduced: &[f32]) -> u64 {
    let rows = means::<9, 8>(reduced);
    pack(rows.iter().flat_map(|row| row.windows(2).map(|pair| pair[1] - pair[0] > MARGIN)))
}

fn mean_hash(reduced: &[f32]) -> u64 {
    let rows = means::<8, 8>(reduced);
    let mean = rows.as_flattened().iter().sum::<f32>() / 64.0;
    pack(rows.as_flattened().iter().map(|v| *v > mean + MARGIN))
}

/// The first eight rows of the 32-point DCT-II.
static BASIS: LazyLock<[[f32; 32]; 8]> = LazyLock::new(|| {
    std::array::from_fn(|k| {
        std::array::from_fn(|n| (std::f32::consts::PI / 32.0 * (n as f32 + 0.5) * k as f32).cos())
    })
});

fn dct_hash(reduced: &[f32]) -> u64 {
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
    // The constant term is the image's brightness; its bit would be the same for all images. The
    // margin of 1 is the largest rounding error in a flat image; the terms of a photograph are in
    // the thousands.
    low[0][0] = median;
    pack(low.as_flattened().iter().map(|v| *v > median + 1.0))
}

/// Size of the common reduction: a multiple of 32x32, 9x8 and 8x8, so that each of them is a mean
/// over whole blocks.
const REDUCED: (usize, usize) = (288, 256);

/// Divides an image of any size into a grid of [`REDUCED`] (columns, rows) equal areas, and returns
/// the mean grey level of each.
fn reduction(frame: &Frame) -> Vec<f32> {
    // Means over whole pixels reduce the image first, down to at least the size of the reduction,
    // because they are many times faster than means over areas with parts of pixels.
    let (columns, rows) = (REDUCED.0 as u32, REDUCED.1 as u32);
    let factor = |length: u32, target: u32| (length / target).clamp(1, MAX_FACTOR);
    let (across, down) = (factor(frame.width(), columns), factor(frame.height(), rows));
    if across > 1 || down > 1 {
        reduce(&cell_means(frame, (frame.width() / across, frame.height() / down)))
    } else {
        reduce(frame)
    }
}

/// Computes mean grey levels of [`REDUCED`] equal areas. An area may include parts of pixels, which
/// are weighted by the included part. A smaller image is enlarged in the same way.
#[multiversion(targets("x86_64+avx2"))]
fn reduce(frame: &Frame) -> Vec<f32> {
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
    let mut running = vec![0u32; width + 2];
    let mut line = vec![0f32; columns];
    let mut reduced = vec![0f32; columns * rows];
    let vertical = rows as f32 / height as f32;
    let horizontal = columns as f64 / width as f64;
    for (y, row) in frame.data().chunks_exact(width * 3).enumerate() {
        grey_row(row, &mut grey);
        let mut sum = 0u32;
        for (at, value) in running[1..].iter_mut().zip(&grey) {
            sum += u32::from(*value);
            *at = sum;
        }
        running[width + 1] = sum;
        // An area is the difference of the sums up to its edges.
        let mut before = 0.0;
        for (value, (pixel, share)) in line.iter_mut().zip(&edges) {
            let (whole, next) = (running[*pixel], running[pixel + 1]);
            let after = f64::from(whole) + share * f64::from(next - whole);
            *value = ((after - before) * horizontal) as f32;
            before = after;
        }
        // This row covers [top, bottom) of the reduction's rows.
        let (top, bottom) = (y as f32 * vertical, (y + 1) as f32 * vertical);
        for target in top as usize..(bottom.ceil() as usize).min(rows) {
            let share = bottom.min((target + 1) as f32) - top.max(target as f32);
            let into = &mut reduced[target * columns..(target + 1) * columns];
            for (sum, value) in into.iter_mut().zip(&line) {
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
        // The constant term has no bit of its own.
        assert_eq!(rising.p >> 63, 0);
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
            // Images are near-duplicates up to a distance of ten bits of `p`; scaling alone may use
            // three of them.
            assert!(p <= 3 && d <= 4 && a <= 2, "{side}: {p} {d} {a}");
        }
    }

    /// Computes the reduction without optimisations. Databases contain hashes, so the optimised
    /// reduction must return exactly these values.
    fn reference(frame: &Frame) -> Vec<f32> {
        let factor = |length: u32, target: usize| (length / target as u32).clamp(1, MAX_FACTOR);
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
            assert!(reduction(&frame) == reference(&frame), "{width}x{height}");
        }
    }

    #[testing::needs(shared)]
    #[test]
    fn reductions_of_photographs_are_exact() {
        for path in testing::images() {
            let bytes = std::fs::read(&path).unwrap();
            let frame = crate::decode(&bytes, &crate::Limits::default()).unwrap().frame;
            assert!(reduction(&frame) == reference(&frame), "{}", path.display());
        }
    }
}

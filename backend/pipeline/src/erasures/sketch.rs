//! Computes one-way sketches of faces. A sketch suffices to recognise a suppressed person, but not
//! to search for a person. The store compares sketches.
//!
//! Each bit indicates on which side of a plane through the origin the embedding lies. Two
//! directions at an angle `a` differ in a bit with probability `a / pi` (Charikar 2002, "Similarity
//! estimation techniques from rounding algorithms"). The number of differing bits is therefore an
//! estimate of the angle.
//!
//! The planes are derived from a secret: their entries are +1 and -1 from a stream of HMAC-SHA256.
//! Without the secret, a sketch reveals nothing about a face. Sketches computed with different
//! secrets cannot be compared. docs/explanation/PRIVACY.md lists the measured error rates.
use crate::domain::{Secret, hex};
use inference::EmbedderInfo;
use std::fmt;
use std::sync::{Arc, OnceLock};
use store::erasures::suppressions::{SKETCH_BITS, Sketch};

/// Number of components of an embedding whose signs come from one digest for each plane.
const BLOCK: usize = 256;
/// Number of blocks whose signs are kept in memory, 256 KiB each.
const CACHED_BLOCKS: usize = 8;

/// The signs of the planes, +1 or -1, for each component of a block.
type Signs = Vec<[f32; SKETCH_BITS]>;

/// Returns the maximum number of differing bits between two sketches of one person, for the
/// embedder in use.
///
/// If no value was measured, the limit is slightly stricter than the match threshold. At the angle
/// of the threshold, `256 * acos(threshold) / pi` bits differ on average; the limit is 5 bits
/// lower.
pub fn max_differing_bits(embedder: &EmbedderInfo) -> u32 {
    let angle = f64::from(embedder.match_threshold.clamp(-1.0, 1.0)).acos() / std::f64::consts::PI;
    let expected = (SKETCH_BITS as f64 * angle) as u32;
    embedder.sketch_bits.unwrap_or(expected.saturating_sub(5))
}

#[derive(Clone)]
pub struct Sketcher {
    secret: Secret,
    key: String,
    signs: Arc<[OnceLock<Signs>; CACHED_BLOCKS]>,
}

impl Sketcher {
    pub fn new(secret: Secret) -> Self {
        let digest = keyed_digest(&secret, b"name", &position(0, 0));
        let key = hex(&digest[..8]);
        Self { secret, key, signs: Arc::default() }
    }

    /// Returns a name for the secret that does not reveal it.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn sketch(&self, model_id: i32, embedding: &[f32]) -> Sketch {
        let mut sums = [0.0_f32; SKETCH_BITS];
        for (block, part) in embedding.chunks(BLOCK).enumerate() {
            let computed;
            let signs = match self.signs.get(block) {
                Some(cached) => cached.get_or_init(|| self.compute_signs(block)),
                None => {
                    computed = self.compute_signs(block);
                    &computed
                }
            };
            for (value, signs) in part.iter().zip(signs) {
                sums.iter_mut().zip(signs).for_each(|(sum, sign)| *sum += sign * value);
            }
        }
        let bits = sums.iter().map(|sum| if *sum >= 0.0 { '1' } else { '0' });
        Sketch { bits: bits.collect(), key: self.key.clone(), model_id }
    }

    /// Returns the sketch with bits that depend on the file and the region of the face in it (x, y,
    /// width, height as fractions of the image). Two sketches with the same mask differ in the same
    /// number of bits as without it. Sketches with different masks have no similarity, so they do
    /// not reveal that two images show the same person.
    #[must_use]
    pub(crate) fn masked(&self, sketch: &Sketch, sha256: &[u8], region: [f32; 4]) -> Sketch {
        let mut message = sha256.to_vec();
        message.extend(region.iter().flat_map(|value| value.to_le_bytes()));
        let mask = keyed_digest(&self.secret, b"mask", &message);
        let is_set = |at: usize| mask[at / 8] >> (at % 8) & 1 == 1;
        let bits = sketch.bits.bytes().enumerate();
        let bits = bits.map(|(at, bit)| if (bit == b'1') != is_set(at) { '1' } else { '0' }).collect();
        Sketch { bits, ..sketch.clone() }
    }

    fn compute_signs(&self, block: usize) -> Signs {
        let mut signs = vec![[0.0; SKETCH_BITS]; BLOCK];
        for plane in 0..SKETCH_BITS {
            let digest = keyed_digest(&self.secret, b"plane", &position(plane, block));
            for (at, component) in signs.iter_mut().enumerate() {
                component[plane] = if digest[at / 8] >> (at % 8) & 1 == 1 { 1.0 } else { -1.0 };
            }
        }
        signs
    }
}

/// Returns the number of differing bits of two sketches.
pub(crate) fn differing_bits(a: &str, b: &str) -> usize {
    a.bytes().zip(b.bytes()).filter(|(a, b)| a != b).count()
}

impl fmt::Debug for Sketcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sketcher({})", self.key)
    }
}

fn position(plane: usize, block: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&(plane as u64).to_be_bytes());
    bytes[8..].copy_from_slice(&(block as u64).to_be_bytes());
    bytes
}

fn keyed_digest(secret: &Secret, label: &[u8], message: &[u8]) -> [u8; 32] {
    secret.hmac(&[b"facecrawl sketch 1 ", label, message])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differing(a: &Sketch, b: &Sketch) -> usize {
        differing_bits(&a.bits, &b.bits)
    }

    #[test]
    fn sketch_mask_preserves_distance_and_hides_identity() {
        let sketcher = Sketcher::new(Secret::new("a secret of thirty-two characters"));
        let direction = |seed: f32| (0..128).map(|at| ((at * at) as f32 + seed).sin()).collect::<Vec<_>>();
        let (first, second) = (sketcher.sketch(1, &direction(0.0)), sketcher.sketch(1, &direction(0.4)));
        let region = [0.1, 0.2, 0.3, 0.4];
        let masked = |sketch: &Sketch| sketcher.masked(sketch, &[7; 32], region);
        assert_eq!(differing(&masked(&first), &masked(&second)), differing(&first, &second));
        assert_eq!(masked(&masked(&first)), first);
        for unrelated in [
            sketcher.masked(&first, &[8; 32], region),
            sketcher.masked(&first, &[7; 32], [0.1, 0.2, 0.3, 0.5]),
            first.clone(),
        ] {
            let difference = differing(&masked(&first), &unrelated);
            assert!((88..=168).contains(&difference), "{difference}");
        }
    }

    #[test]
    fn sketch_bits_are_stable_across_versions() {
        // Computed by an earlier version. Stored sketches would match nobody if the algorithm
        // changed.
        let sketcher = Sketcher::new(Secret::new("a secret of thirty-two characters"));
        let direction: Vec<f32> = (0..300).map(|at| ((at * at) as f32).sin()).collect();
        let bits = sketcher.sketch(1, &direction).bits;
        let words = bits
            .as_bytes()
            .chunks(64)
            .map(|word| word.iter().fold(0_u64, |value, bit| value << 1 | u64::from(*bit == b'1')));
        assert_eq!(
            words.collect::<Vec<_>>(),
            [0xfb06_6052_6042_6d12, 0x7f34_76c5_01ff_9a4a, 0xbc5d_7391_828a_6fea, 0x2692_70af_3559_a5ba]
        );
    }

    #[test]
    fn sketch_depends_on_direction_and_secret() {
        let sketcher = Sketcher::new(Secret::new("a secret of thirty-two characters"));
        let direction: Vec<f32> = (0..300).map(|at| ((at * at) as f32).sin()).collect();
        let opposite: Vec<f32> = direction.iter().map(|value| -value).collect();
        let longer: Vec<f32> = direction.iter().map(|value| value * 3.0).collect();
        let sketch = sketcher.sketch(1, &direction);
        assert_eq!(sketch.bits.len(), SKETCH_BITS);
        assert_eq!(sketch, sketcher.sketch(1, &longer));
        assert_eq!(differing(&sketch, &sketcher.sketch(1, &opposite)), SKETCH_BITS);
        let other = Sketcher::new(Secret::new("another secret, as long as the first"));
        assert_ne!(sketcher.key(), other.key());
        let difference = differing(&sketch, &other.sketch(1, &direction));
        // Binomial distribution with 256 trials: five standard deviations are 40.
        assert!((88..=168).contains(&difference), "{difference}");
    }
}

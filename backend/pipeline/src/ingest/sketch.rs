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
use crate::domain::Secret;
use hmac::{Hmac, KeyInit, Mac};
use inference::EmbedderInfo;
use sha2::Sha256;
use std::fmt;
use store::suppressions::{SKETCH_BITS, Sketch};

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
}

impl Sketcher {
    pub fn new(secret: Secret) -> Self {
        let digest = stream(&secret, b"name", 0, 0);
        let key = digest[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { secret, key }
    }

    /// Returns a name for the secret that does not reveal it.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn sketch(&self, model_id: i32, embedding: &[f32]) -> Sketch {
        let bits = (0..SKETCH_BITS).map(|plane| if self.side(plane, embedding) { '1' } else { '0' });
        Sketch { bits: bits.collect(), key: self.key.clone(), model_id }
    }

    fn side(&self, plane: usize, embedding: &[f32]) -> bool {
        // One digest contains the signs of 256 components.
        let mut sum = 0.0_f32;
        for (block, part) in embedding.chunks(256).enumerate() {
            let signs = stream(&self.secret, b"plane", plane, block);
            for (at, value) in part.iter().enumerate() {
                let positive = signs[at / 8] >> (at % 8) & 1 == 1;
                sum += if positive { *value } else { -*value };
            }
        }
        sum >= 0.0
    }
}

impl fmt::Debug for Sketcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sketcher({})", self.key)
    }
}

fn stream(secret: &Secret, label: &[u8], plane: usize, block: usize) -> [u8; 32] {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(secret.reveal().as_bytes()).expect("HMAC accepts a key of any length");
    mac.update(b"facecrawl sketch 1 ");
    mac.update(label);
    mac.update(&(plane as u64).to_be_bytes());
    mac.update(&(block as u64).to_be_bytes());
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn differing(a: &Sketch, b: &Sketch) -> usize {
        a.bits.bytes().zip(b.bits.bytes()).filter(|(a, b)| a != b).count()
    }

    #[test]
    fn a_sketch_knows_its_direction_and_nothing_of_another_secret() {
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
        let chance = differing(&sketch, &other.sketch(1, &direction));
        // Binomial distribution with 256 trials: five standard deviations are 40.
        assert!((88..=168).contains(&chance), "{chance}");
    }
}

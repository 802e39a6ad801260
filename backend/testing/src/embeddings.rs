//! Generates random embeddings that are the same in every run.

/// Number of components of the default embedder's embeddings.
pub const DIMENSIONS: usize = 128;

/// A pseudo-random generator (SplitMix64, Steele et al. 2014) that computes directions by the
/// Box-Muller method (1958). The value is the seed and, later, the state of the generator.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Returns a number below `bound`, which must not be 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// Returns a number between 0 and 1, both exclusive.
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    pub fn unit_vector(&mut self, dimensions: usize) -> Vec<f32> {
        normalize(&(0..dimensions).map(|_| self.gauss()).collect::<Vec<f64>>())
    }

    /// Returns a unit vector. Only the first `random_components` of its [`DIMENSIONS`] components
    /// are random; the others are 0.
    pub fn padded_unit_vector(&mut self, random_components: usize) -> Vec<f32> {
        let mut raw: Vec<f64> = (0..random_components.min(DIMENSIONS)).map(|_| self.gauss()).collect();
        raw.resize(DIMENSIONS, 0.0);
        normalize(&raw)
    }

    /// Returns a unit vector near `centre`, with as many components. Two such vectors have a mean
    /// cosine of 1 / (1 + `spread`²).
    pub fn vector_near(&mut self, centre: &[f32], spread: f64) -> Vec<f32> {
        displace(centre, &self.unit_vector(centre.len()), spread)
    }

    /// Returns a number of the standard normal distribution.
    fn gauss(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Returns `centre` plus `spread` times `noise`, normalised to length 1. The arguments have the
/// same number of components.
pub fn displace(centre: &[f32], noise: &[f32], spread: f64) -> Vec<f32> {
    let raw: Vec<f64> =
        centre.iter().zip(noise).map(|(c, n)| f64::from(*c) + spread * f64::from(*n)).collect();
    normalize(&raw)
}

pub fn normalize(raw: &[f64]) -> Vec<f32> {
    let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
    raw.iter().map(|x| (x / length) as f32).collect()
}

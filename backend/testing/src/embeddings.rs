//! Embeddings drawn at random, the same every time.

/// Components of what the default embedder gives.
pub const DIMENSIONS: usize = 128;

/// Numbers that look like chance (SplitMix64, Steele et al. 2014), and directions from them (Box and Muller, 1958); the seed is its state.
pub struct Random(pub u64);

impl Random {
    /// All 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Below `bound`, which is not 0.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.bits() % bound as u64) as usize
    }

    /// Between 0 and 1, neither of them.
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// A unit vector; in a space of `freedom` of the [`DIMENSIONS`].
    pub fn direction(&mut self, freedom: usize) -> Vec<f32> {
        let mut gauss =
            || (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        let raw: Vec<f64> = (0..DIMENSIONS).map(|i| if i < freedom { gauss() } else { 0.0 }).collect();
        unit(&raw)
    }

    /// A unit vector near `centre`: two of them have the cosine 1 / (1 + `spread`²) in the mean.
    pub fn near(&mut self, centre: &[f32], spread: f64) -> Vec<f32> {
        let noise = self.direction(DIMENSIONS);
        let raw: Vec<f64> =
            centre.iter().zip(noise).map(|(c, n)| f64::from(*c) + spread * f64::from(n)).collect();
        unit(&raw)
    }
}

/// The same direction with length 1.
pub fn unit(raw: &[f64]) -> Vec<f32> {
    let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
    raw.iter().map(|x| (x / length) as f32).collect()
}

//! Embeddings drawn at random.

/// Of the default embedder.
pub(crate) const DIMENSIONS: usize = 128;

/// SplitMix64, and Gaussian numbers from it (Box and Muller).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// In a space of `freedom` of the dimensions.
    pub(crate) fn direction(&mut self, freedom: usize) -> Vec<f32> {
        let mut gauss =
            || (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos();
        let raw: Vec<f64> = (0..DIMENSIONS).map(|i| if i < freedom { gauss() } else { 0.0 }).collect();
        unit(&raw)
    }
}

/// Of length 1.
pub(crate) fn unit(raw: &[f64]) -> Vec<f32> {
    let length = raw.iter().map(|x| x * x).sum::<f64>().sqrt();
    raw.iter().map(|x| (x / length) as f32).collect()
}

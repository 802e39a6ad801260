//! Perceptual hashes.
use crate::Frame;

/// Three 64-bit hashes of a whole picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct PerceptualHashes {
    /// DCT hash.
    pub p: u64,
    /// Gradient hash.
    pub d: u64,
    /// Mean hash.
    pub a: u64,
}

impl PerceptualHashes {
    /// Hashes the picture.
    pub fn of(_frame: &Frame) -> Self {
        todo!()
    }
    /// The near-duplicate decision (thresholds documented with their measurements).
    pub fn is_near(&self, _other: &Self) -> bool {
        todo!()
    }
}

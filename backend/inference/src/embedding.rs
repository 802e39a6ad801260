//! Face embeddings as unit vectors.

/// An L2-normalised face embedding.
#[derive(Clone, Debug, PartialEq)]
pub struct Embedding(Vec<f32>);

impl Embedding {
    /// Normalises `raw` to length 1; returns `None` for an empty, zero or non-finite vector.
    pub fn from_raw(mut raw: Vec<f32>) -> Option<Self> {
        let norm = raw.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>().sqrt();
        if raw.is_empty() || !norm.is_finite() || norm <= f64::EPSILON {
            return None;
        }
        raw.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
        Some(Self(raw))
    }

    pub fn as_slice(&self) -> &[f32] {
        &self.0
    }

    /// Returns the cosine similarity, -1..1; `None` if the dimensions differ.
    pub fn similarity(&self, other: &Self) -> Option<f32> {
        self.similarity_to(&other.0)
    }

    /// Works like [`Self::similarity`] for a stored embedding of length 1.
    pub fn similarity_to(&self, stored: &[f32]) -> Option<f32> {
        (self.0.len() == stored.len()).then(|| self.0.iter().zip(stored).map(|(a, b)| a * b).sum())
    }
}

//! Converts the cosine of two embeddings to the similarity of CompreFace, 0 to 1.

/// Steepness of the curve (`c1`). It is the second coefficient of CompreFace's default model
/// (`20180402-114759` in `facenet.py`), rounded.
const STEEPNESS: f64 = 5.29;

/// Returns the similarity of two faces with this cosine, -1 to 1. `threshold` is the cosine at
/// which the service treats two faces as one person; its similarity is 0.5.
///
/// The formula is that of CompreFace (`EuclideanDistanceClassifier.java`):
/// `(tanh((c0 - d) * c1) + 1) / 2`, where `d` is the Euclidean distance of the embeddings, which
/// have length 1, so `d = sqrt(2 - 2 cos)`. CompreFace measured `c0` for its models; here it is the
/// distance at `threshold`. The result has five decimal places, like that of CompreFace.
pub(super) fn similarity(cosine: f32, threshold: f32) -> f64 {
    let distance = |cosine: f32| (2.0 - 2.0 * f64::from(cosine).clamp(-1.0, 1.0)).sqrt();
    let value = (((distance(threshold) - distance(cosine)) * STEEPNESS).tanh() + 1.0) / 2.0;
    round(value)
}

/// Rounds to five decimal places.
pub(super) fn round(value: f64) -> f64 {
    (value * 1e5).round() / 1e5
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pairs are the rows of the table in docs/how-to/COMPATIBILITY.md. Their cosines come from
    /// the inverse of the formula: `1 - d^2 / 2` with `d = c0 - atanh(2 s - 1) / c1`.
    #[test]
    fn similarity_of_half_is_the_threshold() {
        assert_eq!(similarity(0.45, 0.45), 0.5);
        assert_eq!(similarity(0.50, 0.50), 0.5);
        let rows = [
            (0.3628, 0.30),
            (0.4091, 0.40),
            (0.4895, 0.60),
            (0.5180, 0.67),
            (0.5788, 0.80),
            (0.6462, 0.90),
            (0.7406, 0.97),
        ];
        for (cosine, expected) in rows {
            let found = similarity(cosine, 0.45);
            assert!((found - expected).abs() < 0.001, "{cosine}: {found}, expected {expected}");
        }
    }

    #[test]
    fn similarity_grows_with_the_cosine_and_stays_in_range() {
        let values: Vec<f64> = (-10..=10).map(|tenths| similarity(tenths as f32 / 10.0, 0.45)).collect();
        assert!(values.windows(2).all(|pair| pair[0] <= pair[1]), "{values:?}");
        assert!(values.iter().all(|value| (0.0..=1.0).contains(value)), "{values:?}");
        assert!(values[20] > 0.999, "equal faces");
    }
}

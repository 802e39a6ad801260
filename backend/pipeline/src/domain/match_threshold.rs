//! Selects the minimum similarity at which two faces are considered one person.

/// A cosine similarity from -1 to 1, and the setting that it comes from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MatchThreshold {
    /// Minimum similarity of two faces of one person.
    pub value: f32,
    pub source: ThresholdSource,
}

/// The settings that can define a threshold, in order of precedence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThresholdSource {
    Request,
    Collection,
    /// `MATCH_THRESHOLD`.
    Service,
    /// The embedding model, with the value in `models.toml`.
    Model,
}

impl MatchThreshold {
    /// Returns the effective threshold, which is the first one that is set.
    pub fn resolve(request: Option<f32>, collection: Option<f32>, config: Option<f32>, model: f32) -> Self {
        let (value, source) = match (request, collection, config) {
            (Some(value), ..) => (value, ThresholdSource::Request),
            (None, Some(value), _) => (value, ThresholdSource::Collection),
            (None, None, Some(value)) => (value, ThresholdSource::Service),
            (None, None, None) => (model, ThresholdSource::Model),
        };
        Self { value, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_setting_counts() {
        let of = |request, collection, config| {
            let threshold = MatchThreshold::resolve(request, collection, config, 0.4);
            (threshold.value, threshold.source)
        };
        assert_eq!(of(Some(0.1), Some(0.2), Some(0.3)), (0.1, ThresholdSource::Request));
        assert_eq!(of(None, Some(0.2), Some(0.3)), (0.2, ThresholdSource::Collection));
        assert_eq!(of(None, None, Some(0.3)), (0.3, ThresholdSource::Service));
        assert_eq!(of(None, None, None), (0.4, ThresholdSource::Model));
    }
}

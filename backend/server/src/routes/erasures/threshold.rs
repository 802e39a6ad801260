//! Resolves the minimum similarity at which an erasure includes a face.
use crate::{ApiError, Code};
use pipeline::{MatchThreshold, ThresholdSource};

/// Returns the threshold that an erasure uses. It is at least 0, because faces of one person never
/// have a negative cosine. `model` is the embedding model's own threshold, at which the false match
/// rate was measured (`models.toml`).
///
/// # Errors
/// Fails with 422 for a threshold below that of the model, from any source, unless `force` is set.
/// At that similarity strangers match, and an erasure cannot be undone.
pub(super) fn erasure_threshold(threshold: MatchThreshold, model: f32, force: bool) -> Result<f32, ApiError> {
    let MatchThreshold { value, source } = threshold;
    if value >= model || force {
        return Ok(value.max(0.0));
    }
    let origin = match source {
        ThresholdSource::Request => "from the request",
        ThresholdSource::Collection => "from the collection",
        ThresholdSource::Service | ThresholdSource::Model => "from the service",
    };
    let sentence = format!(
        "threshold: {value} ({origin}) is below {model}, the threshold of the embedding model; faces of strangers reach this similarity and would also be erased"
    );
    Err(refuse(sentence)
        .value(value.to_string())
        .reason("strangers_match")
        .allowed([format!("a number from {model} to 1"), "force=true".to_owned()]))
}

/// Rejects thresholds below 0, because faces of one person never have a negative cosine, and above
/// 1.
///
/// # Errors
/// Fails with 422. The message contains the allowed range.
pub(super) fn check_range(threshold: Option<f64>) -> Result<(), ApiError> {
    const ALLOWED: &str = "a number from 0 to 1";
    match threshold.filter(|value| !(0.0..=1.0).contains(value)) {
        None => Ok(()),
        Some(value) => Err(refuse(format!("threshold: invalid value: {value}, expected {ALLOWED}"))
            .value(value.to_string())
            .allowed([ALLOWED])),
    }
}

fn refuse(sentence: String) -> ApiError {
    ApiError::new(Code::InvalidField, sentence).field("threshold")
}

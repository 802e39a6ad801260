//! From which similarity a face goes.
use crate::{ApiError, Code};

/// Where a threshold can come from, and what it is held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    /// Of the request.
    pub(super) request: Option<f64>,
    /// Of the collection.
    pub(super) collection: Option<f32>,
    /// `MATCH_THRESHOLD`, else the embedding model's own.
    pub(super) service: f32,
    /// The embedding model's own, at which its rate of false matches was measured (`models.toml`).
    pub(super) model: f32,
    /// The caller says that strangers may go, too.
    pub(super) force: bool,
}

impl Thresholds {
    /// Returns the threshold in force, at least 0: faces of one person have no negative cosine.
    ///
    /// # Errors
    /// 422 for one below the model's own, from whatever source, unless it is forced: strangers are
    /// that much alike, and what is erased does not come back.
    pub(super) fn resolve(self) -> Result<f32, ApiError> {
        let (threshold, source) = match (self.request, self.collection) {
            (Some(threshold), _) => (threshold as f32, "the request's"),
            (None, Some(threshold)) => (threshold, "the collection's"),
            (None, None) => (self.service, "the service's"),
        };
        if threshold >= self.model || self.force {
            return Ok(threshold.max(0.0));
        }
        let sentence = format!(
            "threshold: {threshold} ({source}) is below {}, the embedding model's own; strangers are that much alike, and would be erased as well",
            self.model
        );
        Err(refuse(sentence)
            .value(threshold.to_string())
            .reason("strangers_match")
            .allowed([format!("a number from {} to 1", self.model), "force=true".to_owned()]))
    }
}

/// Refuses thresholds below 0, because faces of one person never have a negative cosine, and above 1.
///
/// # Errors
/// 422 that names the range.
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

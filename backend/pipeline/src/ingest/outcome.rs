//! The state and reason of a picture that could not be analysed, and the metric of outcomes.
use crate::AnalyzeError;
use vision::DecodeError;

/// State and reason code of a picture that cannot be analysed: `skipped` for what is no usable picture, `failed` for one that is broken or on
/// which we failed.
pub(crate) fn analysis_failure(error: &AnalyzeError) -> (&'static str, &'static str) {
    let state = match error {
        AnalyzeError::Decode(DecodeError::Corrupt { .. }) => "failed",
        AnalyzeError::Decode(_) => "skipped",
        _ => "failed",
    };
    (state, error.code())
}

/// Feeds `facecrawl_crawl_outcomes_total{ledger,state,reason}`.
pub(crate) fn count_outcome(ledger: &'static str, state: &'static str, reason: Option<&str>) {
    let reason = reason.unwrap_or("none").to_owned();
    metrics::counter!("facecrawl_crawl_outcomes_total", "ledger" => ledger, "state" => state, "reason" => reason)
        .increment(1);
}

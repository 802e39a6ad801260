//! Maps analysis errors to states and reason codes, and counts the outcomes of ledger rows.
use crate::AnalyzeError;
use vision::DecodeError;

/// Returns the state and reason code of an image that cannot be analysed: `skipped` if the file is
/// not a usable image, `failed` if it is corrupt or if the service failed.
pub(crate) fn analysis_failure(error: &AnalyzeError) -> (&'static str, &'static str) {
    let state = match error {
        AnalyzeError::Decode(DecodeError::Corrupt { .. }) => "failed",
        AnalyzeError::Decode(_) => "skipped",
        _ => "failed",
    };
    (state, error.code())
}

/// Increments `facecrawl_crawl_outcomes_total{ledger,state,reason}`.
pub(crate) fn count_outcome(ledger: &'static str, state: &'static str, reason: Option<&str>) {
    let reason = reason.unwrap_or("none").to_owned();
    metrics::counter!("facecrawl_crawl_outcomes_total", "ledger" => ledger, "state" => state, "reason" => reason)
        .increment(1);
}

use domain::Reason;

/// Increments `facecrawl_crawl_outcomes_total{ledger,state,reason}`. `state` is a state's code.
pub(crate) fn count_outcome(ledger: &'static str, state: &'static str, reason: Option<&Reason>) {
    let reason = reason.map_or("none".into(), Reason::code);
    metrics::counter!("facecrawl_crawl_outcomes_total", "ledger" => ledger, "state" => state, "reason" => reason)
        .increment(1);
}

//! The metrics of a runner.
use super::Shared;
use crate::{JobState, QueueError};
use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::Duration;

const JOBS: &str = "facecrawl_jobs_total";
const PANICS: &str = "facecrawl_job_panics_total";
const RUN: &str = "facecrawl_job_run_seconds";
const CLAIM: &str = "facecrawl_queue_claim_seconds";
const STALE: &str = "facecrawl_queue_stale_total";
const RESCUED: &str = "facecrawl_queue_rescued_total";
const ALONE: &str = "facecrawl_queue_alone_total";
const PURGED: &str = "facecrawl_queue_purged_total";
const ERRORS: &str = "facecrawl_queue_errors_total";
const DEPTH: &str = "facecrawl_queue_jobs";
const OLDEST: &str = "facecrawl_queue_oldest_due_seconds";
const RUNNING: &str = "facecrawl_jobs_running";

pub(super) fn describe() {
    describe_counter!(JOBS, "Runs of jobs that ended, by kind and outcome");
    describe_counter!(PANICS, "Runs of jobs that ended in a panic of the handler, by kind");
    describe_histogram!(RUN, Unit::Seconds, "How long handlers ran, by kind");
    describe_histogram!(CLAIM, Unit::Seconds, "How long claims took");
    describe_counter!(STALE, "Results discarded because the claim was no longer held, by kind");
    describe_counter!(RESCUED, "Jobs rescued after their lease expired");
    describe_counter!(
        ALONE,
        "Runs that had a process to themselves, because processes ended while they ran the job, by kind"
    );
    describe_counter!(PURGED, "Completed and cancelled jobs deleted after they were kept long enough");
    describe_counter!(ERRORS, "Calls to the queue's database that failed, by call");
    describe_gauge!(DEPTH, "Jobs in the queue, by kind and state (live and discarded)");
    describe_gauge!(OLDEST, Unit::Seconds, "Age of the oldest job that is due and not running");
    describe_gauge!(RUNNING, "Jobs in flight in this process, by kind");
}

/// Counts a run whose outcome is settled.
pub(super) fn count_outcome(kind: &str, outcome: &'static str) {
    counter!(JOBS, "kind" => kind.to_owned(), "outcome" => outcome).increment(1);
    if outcome == "stale" {
        counter!(STALE, "kind" => kind.to_owned()).increment(1);
    }
}

pub(super) fn count_panic(kind: &str) {
    counter!(PANICS, "kind" => kind.to_owned()).increment(1);
}

pub(super) fn record_run_time(kind: &str, duration: Duration) {
    histogram!(RUN, "kind" => kind.to_owned()).record(duration);
}

pub(super) fn record_claim_time(duration: Duration) {
    histogram!(CLAIM).record(duration);
}

pub(super) fn count_rescued(count: u64) {
    counter!(RESCUED).increment(count);
}

pub(super) fn count_alone_run(kind: &str) {
    counter!(ALONE, "kind" => kind.to_owned()).increment(1);
}

pub(super) fn count_purged(count: u64) {
    counter!(PURGED).increment(count);
}

pub(super) fn count_failure(call: &'static str) {
    counter!(ERRORS, "call" => call).increment(1);
}

/// The depth gauges that were set. A gauge whose kind and state have no more jobs is set to zero.
#[derive(Default)]
pub(super) struct Depth(Mutex<HashSet<(String, JobState)>>);

impl Depth {
    pub(super) async fn publish(&self, shared: &Shared) -> Result<(), QueueError> {
        let stats = shared.queue.jobs().depth().await?;
        let mut current = HashSet::new();
        for (kind, state, count) in stats.counts {
            gauge!(DEPTH, "kind" => kind.clone(), "state" => state.as_str()).set(count as f64);
            current.insert((kind, state));
        }
        let previous = std::mem::replace(&mut *self.0.lock(), current.clone());
        for (kind, state) in previous.difference(&current) {
            gauge!(DEPTH, "kind" => kind.clone(), "state" => state.as_str()).set(0.0);
        }
        gauge!(OLDEST).set(stats.oldest_due_seconds);
        for (kind, count) in shared.slots.count_running() {
            gauge!(RUNNING, "kind" => kind).set(count as f64);
        }
        Ok(())
    }
}

//! Counts the running jobs of each crawl in this process, so that only the last of them checks
//! whether the crawl has ended.
//!
//! The check is a query. While another job of the crawl runs here, its row is still queued, or it
//! will be settled before that job itself ends. So the crawl either has not ended, or the other job
//! checks later.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use uuid::Uuid;

/// The running jobs of each crawl.
#[derive(Default)]
pub(crate) struct LiveJobs(Mutex<HashMap<Uuid, Jobs>>);

#[derive(Default)]
struct Jobs {
    running: usize,
    /// Whether a job settled a row since the last check.
    settled: bool,
}

/// A running job. If it is dropped before [`Self::end`], for example at a shutdown, another job or
/// `Crawls::reconcile` ends the crawl.
pub(crate) struct LiveJob<'a> {
    jobs: &'a LiveJobs,
    crawl: Uuid,
    has_ended: bool,
}

impl LiveJobs {
    /// Counts a job of the crawl as running, until [`LiveJob::end`] is called or it is dropped.
    pub(crate) fn begin(&self, crawl: Uuid) -> LiveJob<'_> {
        self.lock().entry(crawl).or_default().running += 1;
        LiveJob { jobs: self, crawl, has_ended: false }
    }

    /// Removes a job. Returns whether it was the last and a row was settled since the last check.
    fn leave(&self, crawl: Uuid, settled: bool) -> bool {
        let mut crawls = self.lock();
        let Some(jobs) = crawls.get_mut(&crawl) else { return settled };
        jobs.running -= 1;
        jobs.settled |= settled;
        if jobs.running > 0 {
            return false;
        }
        crawls.remove(&crawl).is_some_and(|jobs| jobs.settled)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Jobs>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LiveJob<'_> {
    /// Ends the job. `settled` means that it settled its row, or may have settled it. Returns
    /// whether the caller must check if the crawl has ended: no other job of the crawl runs in this
    /// process, and a row was settled since the last check.
    pub(crate) fn end(mut self, settled: bool) -> bool {
        self.has_ended = true;
        self.jobs.leave(self.crawl, settled)
    }
}

impl Drop for LiveJob<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.jobs.leave(self.crawl, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_job_checks_if_any_row_was_settled() {
        let (jobs, crawl) = (LiveJobs::default(), Uuid::now_v7());
        let (first, second, other) = (jobs.begin(crawl), jobs.begin(crawl), jobs.begin(Uuid::now_v7()));
        assert!(!first.end(true), "another job of the crawl is running");
        assert!(second.end(false), "the first job left the check to this one");
        assert!(!other.end(false), "nothing was settled");
        assert!(jobs.lock().is_empty());
    }

    #[test]
    fn a_dropped_job_is_not_waited_for() {
        let (jobs, crawl) = (LiveJobs::default(), Uuid::now_v7());
        let (dropped, last) = (jobs.begin(crawl), jobs.begin(crawl));
        drop(dropped);
        assert!(last.end(true));
    }
}

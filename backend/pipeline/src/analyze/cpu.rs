//! Work on pixels, kept off the async threads and bounded, so that many pictures at once neither starve the runtime nor pile up in memory.

use super::AnalyzeError;
use super::fair_semaphore::FairSemaphore;
use inference::{Operation, Requester, RunError, Timed};
use std::sync::Arc;
use std::time::Instant;

/// A bounded share of the blocking threads; cheap to clone.
#[derive(Clone)]
pub(crate) struct Cpu {
    permits: FairSemaphore,
}

impl Cpu {
    /// `threads` at once; 0 means one per core.
    pub(crate) fn new(threads: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { permits: FairSemaphore::new(if threads == 0 { cores } else { threads }) }
    }

    /// Runs `work` on a blocking thread when one is free. A panic inside becomes [`AnalyzeError::Panicked`].
    ///
    /// The permit travels with the work: a caller that goes away leaves the bound intact.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Timed<T>, AnalyzeError> {
        self.run_for(Requester::default(), None, work).await
    }

    /// Runs `work` like [`Self::run`], on behalf of `requester`, whose work takes turns with that
    /// of others. Does not start the work after `deadline` or after the caller has dropped the
    /// future.
    ///
    /// # Errors
    /// `DeadlineExceeded` at that time, or at once when it has passed.
    pub(crate) async fn run_for<T: Send + 'static>(
        &self,
        requester: Requester,
        deadline: Option<Instant>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Timed<T>, AnalyzeError> {
        let asked = Instant::now();
        let is_late = move || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if is_late() {
            return Err(late());
        }
        let permit = in_time(deadline, self.permits.acquire(requester)).await?;
        // Goes with this future, which is how the work learns that nobody waits for it.
        let caller = Arc::new(());
        let waits = Arc::downgrade(&caller);
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            if is_late() || waits.strong_count() == 0 {
                return None;
            }
            let queued = asked.elapsed();
            let started = Instant::now();
            let output = work();
            Some(Timed { output, queued, ran: started.elapsed() })
        });
        let ended = in_time(deadline, task).await?;
        drop(caller);
        let done = ended.map_err(|error| {
            tracing::error!(%error, "work on pixels did not end");
            AnalyzeError::Panicked
        })?;
        done.ok_or_else(late)
    }
}

/// Waits until `deadline` at most.
async fn in_time<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Result<T, AnalyzeError> {
    match deadline {
        None => Ok(work.await),
        Some(deadline) => tokio::time::timeout_at(deadline.into(), work).await.map_err(|_| late()),
    }
}

fn late() -> AnalyzeError {
    RunError::DeadlineExceeded { operation: Operation::ImageProcessing.name() }.into()
}

/// [`Cpu`] for one caller.
#[derive(Clone, Copy)]
pub(crate) struct CpuFor<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) requester: Requester,
    pub(super) deadline: Option<Instant>,
}

impl CpuFor<'_> {
    /// Runs `work` with [`Cpu::run_for`] on behalf of the caller, with its deadline.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Timed<T>, AnalyzeError> {
        self.cpu.run_for(self.requester, self.deadline, work).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn a_panic_is_an_error_and_gives_its_thread_back() {
        let cpu = Cpu::new(1);
        for _ in 0..3 {
            let ran = cpu.run(|| -> u32 { panic!("a decoder's bug") }).await;
            assert!(matches!(ran.err(), Some(AnalyzeError::Panicked)));
        }
        assert_eq!(cpu.run(|| 7).await.map(|ran| ran.output).ok(), Some(7));
    }

    fn is_late<T>(ran: Result<Timed<T>, AnalyzeError>) -> bool {
        matches!(ran.err(), Some(AnalyzeError::Run(RunError::DeadlineExceeded { .. })))
    }

    #[tokio::test]
    async fn work_whose_time_is_over_is_not_begun() {
        let cpu = Cpu::new(1);
        let begun = Arc::new(AtomicUsize::new(0));
        let work = || {
            let begun = begun.clone();
            move || begun.fetch_add(1, Ordering::SeqCst)
        };
        assert!(is_late(cpu.run_for(Requester(1), Some(Instant::now()), work()).await));
        // Nor when the time runs out while another has the thread.
        let (free, wait) = std::sync::mpsc::channel::<()>();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let busy = cpu.clone();
        let busy = tokio::spawn(async move {
            busy.run(move || {
                let _ = started.send(());
                wait.recv()
            })
            .await
        });
        has_started.await.unwrap();
        let soon = Instant::now() + std::time::Duration::from_millis(20);
        assert!(is_late(cpu.run_for(Requester(1), Some(soon), work()).await));
        // Nor for a caller who has gone.
        drop(Box::pin(cpu.run(work())));
        free.send(()).unwrap();
        assert!(busy.await.unwrap().is_ok());
        assert_eq!(begun.load(Ordering::SeqCst), 0);
        assert!(
            cpu.run_for(Requester(1), Some(Instant::now() + std::time::Duration::from_secs(60)), work())
                .await
                .is_ok()
        );
        assert_eq!(begun.load(Ordering::SeqCst), 1);
    }
}

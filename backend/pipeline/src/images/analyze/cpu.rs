//! A bounded pool for CPU work on pixels, outside the async threads. The bound protects the async
//! runtime and the memory when many images arrive concurrently.

use super::AnalyzeError;
use crate::admission::fair_semaphore::FairSemaphore;
use inference::{Operation, Requester, RunError, Timed};
use std::sync::Arc;
use std::time::Instant;

/// A bounded share of Tokio's blocking threads. Cloning it is cheap.
#[derive(Clone)]
pub(crate) struct Cpu {
    permits: FairSemaphore,
}

impl Cpu {
    /// Creates a pool that runs up to `threads` tasks concurrently; 0 means one per core.
    pub(crate) fn new(threads: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { permits: FairSemaphore::new(if threads == 0 { cores } else { threads }) }
    }

    /// Runs `work` on a blocking thread as soon as one is free. A panic in `work` becomes
    /// [`AnalyzeError::Panicked`]. The permit belongs to the work, not to the future: the bound
    /// applies even if the caller drops the future.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Timed<T>, AnalyzeError> {
        self.run_for(Requester::default(), None, work).await
    }

    /// Runs `work` like [`Self::run`], on behalf of `requester`. Requesters are served in turn.
    /// Does not start the work after `deadline` or after the caller has dropped the future.
    ///
    /// # Errors
    /// Fails with `DeadlineExceeded` at `deadline`, or immediately if it has passed.
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
        // Dropped together with this future. Through the weak reference, the work checks whether
        // the caller still waits.
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
            tracing::error!(%error, "pixel task failed");
            AnalyzeError::Panicked
        })?;
        done.ok_or_else(late)
    }
}

/// Awaits `work` until `deadline` at the latest.
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
pub(crate) struct CallerCpu<'a> {
    pub(super) cpu: &'a Cpu,
    pub(super) requester: Requester,
    pub(super) deadline: Option<Instant>,
}

impl CallerCpu<'_> {
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
        // The deadline passes while other work uses the only thread.
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
        // The caller drops the future.
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

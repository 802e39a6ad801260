//! Work on pixels, kept off the async threads and bounded, so that many pictures at once neither starve the runtime nor pile up in memory.

use super::AnalyzeError;
use inference::Timed;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Semaphore;

/// A bounded share of the blocking threads; cheap to clone.
#[derive(Clone)]
pub(crate) struct Cpu {
    permits: Arc<Semaphore>,
}

impl Cpu {
    /// `threads` at once; 0 means one per core.
    pub(crate) fn new(threads: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { permits: Arc::new(Semaphore::new(if threads == 0 { cores } else { threads })) }
    }

    /// Runs `work` on a blocking thread when one is free. A panic inside becomes [`AnalyzeError::Panicked`].
    ///
    /// The permit travels with the work: a caller that goes away leaves the bound intact.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Timed<T>, AnalyzeError> {
        let asked = Instant::now();
        let permit = self.permits.clone().acquire_owned().await.expect("the semaphore is never closed");
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let queued = asked.elapsed();
            let started = Instant::now();
            let output = work();
            Timed { output, queued, ran: started.elapsed() }
        });
        task.await.map_err(|error| {
            tracing::error!(%error, "work on pixels did not end");
            AnalyzeError::Panicked
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_and_gives_its_thread_back() {
        let cpu = Cpu::new(1);
        for _ in 0..3 {
            let ran = cpu.run(|| -> u32 { panic!("a decoder's bug") }).await;
            assert!(matches!(ran.err(), Some(AnalyzeError::Panicked)));
        }
        assert_eq!(cpu.run(|| 7).await.map(|ran| ran.output).ok(), Some(7));
    }
}

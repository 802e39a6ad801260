//! Tests many concurrent requests: the total cost matches the device's cost model, and no request
//! is lost when devices fail.
use crate::batcher::support::*;
use inference::backend::{Backend, BackendError, BatchView, OutputView};
use inference::batcher::{Batcher, Device, Limits};
use inference::{Priority, RunError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// A device that counts the cost of runs: a fixed cost and a cost per item, padding included.
struct Billed {
    inner: Doubler,
    clock: Arc<AtomicU64>,
    /// Lets the first run report its start and wait.
    first: Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>,
}

const FIXED: u64 = 1000;
const PER_ITEM: u64 = 50;

impl Backend for Billed {
    fn run(
        &mut self,
        batch: BatchView<'_>,
        read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError> {
        if let Some((begun, go_on)) = self.first.take() {
            begun.send(()).unwrap();
            go_on.recv().unwrap();
        }
        self.clock.fetch_add(FIXED + PER_ITEM * batch.shape[0] as u64, Ordering::SeqCst);
        self.inner.run(batch, read)
    }
    fn device(&self) -> &str {
        "fake:0"
    }
}

#[testing::test(flavor = "multi_thread")]
async fn a_loaded_device_is_as_fast_as_its_cost_model_says() {
    const REQUESTS: u64 = 640;
    for prefetch in [false, true] {
        for max_batch in [1, 4, 8, 16, 32] {
            let (begins, begun) = mpsc::channel();
            let (start, go_on) = mpsc::channel();
            let clock = Arc::new(AtomicU64::new(0));
            let first = Some((begins, go_on));
            let device = Billed { inner: Doubler::default(), clock: clock.clone(), first };
            let limits = Limits { queue_capacity: 2000, max_batch, max_delay: Duration::ZERO, prefetch };
            let device = Device { primary: Box::new(device), fallback: None };
            let numbers = Numbers::default();
            let written = numbers.written.clone();
            let batcher = Batcher::start(numbers, vec![device], limits).unwrap();
            let send = |i: u64| {
                let own = batcher.clone();
                let ask = Ask { number: i as f32, width: 2 };
                tokio::spawn(async move { own.run(ask, Priority::Background).await.unwrap().output })
            };
            // The first run waits until all others are queued: the cost model assumes full batches.
            let first = send(0);
            begun.recv_timeout(Duration::from_secs(20)).unwrap();
            let tasks: Vec<_> = (1..=REQUESTS).map(send).collect();
            let ahead = if prefetch { max_batch } else { 0 };
            let queued = (1 + ahead, REQUESTS as usize - ahead);
            while (written.load(Ordering::SeqCst), batcher.waiting()) != queued {
                tokio::task::yield_now().await;
            }
            start.send(()).unwrap();
            assert_eq!(first.await.unwrap(), 0.0);
            for (i, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.unwrap(), (i + 1) as f32 * 2.0);
            }
            let batch = max_batch as u64;
            let full = (REQUESTS / batch) * (FIXED + PER_ITEM * batch);
            let spent = clock.load(Ordering::SeqCst);
            assert_eq!(spent, FIXED + PER_ITEM + full, "batches of {max_batch}, prefetch {prefetch}");
        }
    }
}

/// A device that fails, panics or (above 8 items) runs out of memory in some of its runs. The
/// sequence is pseudo-random and fixed.
struct Moody {
    inner: Doubler,
    state: u32,
}

impl Backend for Moody {
    fn run(
        &mut self,
        batch: BatchView<'_>,
        read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError> {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match self.state >> 24 {
            0..=12 => Err(BackendError::Failed("injected failure".into())),
            13..=20 => panic!("injected panic"),
            21..=28 if batch.shape[0] > 8 => Err(BackendError::OutOfMemory("injected".into())),
            _ => self.inner.run(batch, read),
        }
    }
    fn device(&self) -> &str {
        "fake:0"
    }
}

#[testing::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_thousand_callers_get_their_own_answer_or_the_devices_error() {
    for (fallback, prefetch) in [(false, false), (false, true), (true, true)] {
        let device = |seed| Device {
            primary: Box::new(Moody { inner: Doubler::default(), state: seed }),
            fallback: fallback.then(|| Box::new(Doubler::default()) as Box<dyn Backend>),
        };
        let limits =
            Limits { queue_capacity: 20_000, max_batch: 32, max_delay: Duration::from_micros(100), prefetch };
        let batcher = Batcher::start(Numbers::default(), vec![device(1), device(2)], limits).unwrap();
        let tasks: Vec<_> = (0..10_000_u16)
            .map(|i| {
                let own = batcher.clone();
                let priority = if i % 5 == 0 { Priority::Interactive } else { Priority::Background };
                let ask = Ask { number: f32::from(i), width: 1 + usize::from(i % 2) };
                let task = tokio::spawn(async move { own.run(ask, priority).await });
                // One caller in eight abandons its request, some before and some after the run.
                if i % 8 == 3 {
                    task.abort();
                }
                (i, task)
            })
            .collect();
        let (mut answered, mut failed, mut left) = (0, 0, 0);
        for (i, task) in tasks {
            match task.await {
                Ok(Ok(found)) => {
                    assert_eq!(found.output, f32::from(i) * 2.0);
                    answered += 1;
                }
                Ok(Err(RunError::Failed { reason, .. })) => {
                    assert!(reason.contains("injected"), "{reason}");
                    failed += 1;
                }
                Ok(Err(other)) => panic!("{other}"),
                Err(gone) => {
                    assert!(gone.is_cancelled());
                    left += 1;
                }
            }
        }
        assert_eq!(answered + failed + left, 10_000);
        assert!(answered > 5000, "{answered} answered, {failed} failed, {left} left");
        assert!(left <= 1250 && (fallback == (failed == 0)), "{failed} failed, {left} left");
        batcher.ready().unwrap();
        assert_eq!(batcher.waiting(), 0);
    }
}

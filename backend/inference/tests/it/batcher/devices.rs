//! Tests devices that run out of memory, fail, panic or are lost. Also tests that the cost of many
//! concurrent requests matches the cost model of the device, and that no request is lost.
use crate::batcher::*;
use inference::backend::{Backend, BackendError, BatchView, OutputReader};
use inference::batcher::{Batcher, Device, Limits};
use inference::{Priority, RunError};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

#[testing::test(flavor = "multi_thread")]
async fn out_of_memory_permanently_lowers_batch_size() {
    let (gate, controls) = gate();
    let limits = Limits { max_batch: 64, ..SINGLE_ITEMS };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device = Doubler { gate: Some(gate), sizes: sizes.clone(), max_items: Some(8), ..Default::default() };
    let batcher = start(vec![device], limits);
    for round in 0..2 {
        let mut tasks = vec![occupy(&batcher, &controls).await];
        for i in 1..=40_u8 {
            tasks.push(enqueue(&batcher, f32::from(i), Priority::Background).await);
        }
        controls.release();
        // In the first round, batches of 64 and 32 exceed the memory. The second round has batches
        // of at most 8.
        let runs = if round == 0 { 2 + 5 } else { 5 };
        for _ in 0..runs {
            controls.next();
            controls.release();
        }
        check_doubled(tasks).await;
    }
    assert_eq!(*sizes.lock().unwrap(), [1, 64, 32, 8, 8, 8, 8, 8, 1, 8, 8, 8, 8, 8]);
}

#[testing::test(flavor = "multi_thread")]
async fn failing_device_falls_back_to_second_backend() {
    let failing = |error: BackendError| Doubler { fails_with: Some(error), ..Default::default() };
    let limits = Limits { max_batch: 4, ..SINGLE_ITEMS };
    let devices = |error, fallback: Option<Doubler>| {
        vec![Device { primary: Box::new(failing(error)), fallback: fallback.map(|f| Box::new(f) as _) }]
    };
    let request = Call { number: 21.0, width: 2 };

    let error = BackendError::Failed("kernel error".into());
    let batcher =
        Batcher::start(Numbers::default(), devices(error.clone(), Some(Doubler::default())), limits).unwrap();
    assert_eq!(batcher.run(request, Priority::Interactive).await.unwrap().output, 42.0);
    batcher.check_ready().unwrap();

    let without_fallback = Batcher::start(Numbers::default(), devices(error.clone(), None), limits).unwrap();
    let failed = without_fallback.run(request, Priority::Interactive).await.unwrap_err().to_string();
    assert!(failed.contains("kernel error"), "without a fallback the request fails: {failed}");

    let both_failing = Batcher::start(
        Numbers::default(),
        devices(error, Some(failing(BackendError::Failed("fallback error".into())))),
        limits,
    );
    let failed = both_failing.unwrap().run(request, Priority::Interactive).await.unwrap_err().to_string();
    assert!(failed.contains("kernel error") && failed.contains("fallback error"), "{failed}");

    let lost = BackendError::DeviceLost("the GPU has fallen off the bus".into());
    let batcher =
        Batcher::start(Numbers::default(), devices(lost, Some(Doubler::default())), limits).unwrap();
    batcher.check_ready().unwrap();
    assert_eq!(
        batcher.run(request, Priority::Interactive).await.unwrap().output,
        42.0,
        "the fallback runs the request"
    );
    let reason = batcher.check_ready().unwrap_err();
    assert!(reason.contains("fallen off the bus") && reason.contains("fake:0"), "{reason}");
}

#[testing::test(flavor = "multi_thread")]
async fn other_devices_take_over_from_lost_device() {
    for prefetch in [false, true] {
        let lost = BackendError::DeviceLost("the GPU has fallen off the bus".into());
        let (gate, controls) = gate();
        let devices = vec![
            Doubler { fails_with: Some(lost), gate: Some(gate), ..Default::default() },
            Doubler::default(),
        ];
        let batcher = start(devices, Limits { prefetch, ..SINGLE_ITEMS });
        // Requests go to either device until the first one is lost.
        let mut failed = 0;
        while batcher.check_ready().is_ok() {
            let batcher = batcher.clone();
            let task = tokio::spawn(async move {
                batcher.run(Call { number: 4.0, width: 2 }, Priority::Interactive).await
            });
            while !task.is_finished() {
                if controls.run_receiver.try_recv().is_ok() {
                    controls.release();
                }
                tokio::task::yield_now().await;
            }
            failed += usize::from(task.await.unwrap().is_err());
        }
        assert!(batcher.check_ready().unwrap_err().contains("fallen off the bus"));
        for i in 0..50_u8 {
            let request = Call { number: f32::from(i), width: 2 };
            match batcher.run(request, Priority::Interactive).await {
                Ok(result) => assert_eq!(result.output, f32::from(i) * 2.0),
                Err(RunError::Failed { reason, .. }) => {
                    assert!(reason.contains("lost"), "{reason}");
                    failed += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        // Only the running request and the prepared request can have failed.
        assert!(failed <= 2, "{failed}");
    }
}

#[testing::test(flavor = "multi_thread")]
async fn failing_input_does_not_fail_whole_batch() {
    for prefetch in [false, true] {
        let (gate, controls) = gate();
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let device =
            Doubler { gate: Some(gate), sizes: sizes.clone(), fails_on: Some(2.0), ..Default::default() };
        let limits = Limits { max_batch: 4, prefetch, ..SINGLE_ITEMS };
        let batcher = start(vec![device], limits);
        let send_request = |number| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.run(Call { number, width: 3 }, Priority::Background).await })
        };
        let first = send_request(9.0);
        assert_eq!(controls.next(), [9.0]);
        // Each request is sent after the previous one was queued or written.
        let mut tasks = Vec::new();
        for (index, number) in [1.0, 2.0, 3.0, 4.0].into_iter().enumerate() {
            tasks.push(send_request(number));
            while batcher.queue_depth() + batcher.model().written.load(Ordering::SeqCst) < index + 2 {
                tokio::task::yield_now().await;
            }
        }
        for _ in 0..3 {
            controls.release();
            controls.next();
        }
        controls.release();
        let mut outputs = Vec::new();
        for task in tasks {
            outputs.push(task.await.unwrap().map(|result| result.output).ok());
        }
        assert_eq!(outputs, [None, None, Some(6.0), Some(8.0)], "prefetch {prefetch}");
        assert_eq!(first.await.unwrap().unwrap().output, 18.0);
        // After the first request, the device runs the batch and its halves, each padded to the
        // batch size 4. No request runs alone.
        assert_eq!(*sizes.lock().unwrap(), [1, 4, 4, 4]);
        batcher.check_ready().unwrap();
    }
}

/// A device that counts the cost of runs: a fixed cost and a cost per item, padding included.
struct MeteredDevice {
    inner: Doubler,
    clock: Arc<AtomicU64>,
    /// Lets the first run report its start and wait.
    first: Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>,
}

const COST_PER_RUN: u64 = 1000;
const COST_PER_ITEM: u64 = 50;

impl Backend for MeteredDevice {
    fn run(&mut self, batch: BatchView<'_>, read: OutputReader<'_>) -> Result<(), BackendError> {
        if let Some((start_sender, resume_receiver)) = self.first.take() {
            start_sender.send(()).unwrap();
            resume_receiver.recv().unwrap();
        }
        self.clock.fetch_add(COST_PER_RUN + COST_PER_ITEM * batch.shape[0] as u64, Ordering::SeqCst);
        self.inner.run(batch, read)
    }
    fn device(&self) -> &str {
        "fake:0"
    }
}

#[testing::test(flavor = "multi_thread")]
async fn loaded_device_matches_cost_model() {
    const REQUESTS: u64 = 640;
    for prefetch in [false, true] {
        for max_batch in [1, 4, 8, 16, 32] {
            let (start_sender, start_receiver) = mpsc::channel();
            let (resume_sender, resume_receiver) = mpsc::channel();
            let clock = Arc::new(AtomicU64::new(0));
            let first = Some((start_sender, resume_receiver));
            let device = MeteredDevice { inner: Doubler::default(), clock: clock.clone(), first };
            let limits = Limits { queue_capacity: 2000, max_batch, max_delay: Duration::ZERO, prefetch };
            let device = Device { primary: Box::new(device), fallback: None };
            let numbers = Numbers::default();
            let written = numbers.written.clone();
            let batcher = Batcher::start(numbers, vec![device], limits).unwrap();
            let send = |i: u64| {
                let batcher = batcher.clone();
                let request = Call { number: i as f32, width: 2 };
                tokio::spawn(async move { batcher.run(request, Priority::Background).await.unwrap().output })
            };
            // The first run waits until all others are queued: the cost model assumes full batches.
            let first = send(0);
            start_receiver.recv_timeout(Duration::from_secs(20)).unwrap();
            let tasks: Vec<_> = (1..=REQUESTS).map(send).collect();
            let prefetched = if prefetch { max_batch } else { 0 };
            let queued = (1 + prefetched, REQUESTS as usize - prefetched);
            while (written.load(Ordering::SeqCst), batcher.queue_depth()) != queued {
                tokio::task::yield_now().await;
            }
            resume_sender.send(()).unwrap();
            assert_eq!(first.await.unwrap(), 0.0);
            for (i, task) in tasks.into_iter().enumerate() {
                assert_eq!(task.await.unwrap(), (i + 1) as f32 * 2.0);
            }
            let batch = max_batch as u64;
            let full = (REQUESTS / batch) * (COST_PER_RUN + COST_PER_ITEM * batch);
            let cost = clock.load(Ordering::SeqCst);
            assert_eq!(
                cost,
                COST_PER_RUN + COST_PER_ITEM + full,
                "batches of {max_batch}, prefetch {prefetch}"
            );
        }
    }
}

/// A device that fails, panics or (above 8 items) runs out of memory in some of its runs. The
/// sequence is pseudo-random and fixed.
struct UnreliableDevice {
    inner: Doubler,
    state: u32,
}

impl Backend for UnreliableDevice {
    fn run(&mut self, batch: BatchView<'_>, read: OutputReader<'_>) -> Result<(), BackendError> {
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
async fn ten_thousand_callers_receive_own_result_or_device_error() {
    for (fallback, prefetch) in [(false, false), (false, true), (true, true)] {
        let device = |seed| Device {
            primary: Box::new(UnreliableDevice { inner: Doubler::default(), state: seed }),
            fallback: fallback.then(|| Box::new(Doubler::default()) as Box<dyn Backend>),
        };
        let limits =
            Limits { queue_capacity: 20_000, max_batch: 32, max_delay: Duration::from_micros(100), prefetch };
        let batcher = Batcher::start(Numbers::default(), vec![device(1), device(2)], limits).unwrap();
        let tasks: Vec<_> = (0..10_000_u16)
            .map(|i| {
                let batcher = batcher.clone();
                let priority = if i % 5 == 0 { Priority::Interactive } else { Priority::Background };
                let request = Call { number: f32::from(i), width: 1 + usize::from(i % 2) };
                let task = tokio::spawn(async move { batcher.run(request, priority).await });
                // One caller in eight abandons its request, some before and some after the run.
                if i % 8 == 3 {
                    task.abort();
                }
                (i, task)
            })
            .collect();
        let (mut succeeded, mut failed, mut abandoned) = (0, 0, 0);
        for (i, task) in tasks {
            match task.await {
                Ok(Ok(result)) => {
                    assert_eq!(result.output, f32::from(i) * 2.0);
                    succeeded += 1;
                }
                Ok(Err(RunError::Failed { reason, .. })) => {
                    assert!(reason.contains("injected"), "{reason}");
                    failed += 1;
                }
                Ok(Err(error)) => panic!("{error}"),
                Err(join_error) => {
                    assert!(join_error.is_cancelled());
                    abandoned += 1;
                }
            }
        }
        assert_eq!(succeeded + failed + abandoned, 10_000);
        assert!(succeeded > 5000, "{succeeded} succeeded, {failed} failed, {abandoned} abandoned");
        assert!(abandoned <= 1250 && (fallback == (failed == 0)), "{failed} failed, {abandoned} abandoned");
        batcher.check_ready().unwrap();
        assert_eq!(batcher.queue_depth(), 0);
    }
}

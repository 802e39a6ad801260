//! Tests devices that run out of memory, fail, panic or are lost. Also tests that a loaded device
//! runs full batches, and that no request is lost.
use crate::batcher::*;
use inference::backend::{Backend, BackendError, BatchView, OutputReader};
use inference::batcher::{Batcher, Device, Limits};
use inference::{Priority, RunError};
use std::time::Duration;

#[testing::test(flavor = "multi_thread")]
async fn out_of_memory_permanently_lowers_batch_size() {
    let device = Doubler { max_items: Some(8), ..Default::default() };
    let mut device = GatedDevice::occupied(device, Limits { max_batch: 64, ..SINGLE_ITEMS });
    // In the first round, batches of 64 and 32 exceed the memory. The second round has batches of
    // at most 8.
    for (round, runs) in [2 + 5, 5].into_iter().enumerate() {
        if round > 0 {
            device.occupy();
        }
        for number in (1..=40_u8).map(f32::from) {
            device.enqueue(number, Priority::Background).await;
        }
        device.finish_runs(runs);
        device.check_results().await;
    }
    assert_eq!(device.check_results().await, [1, 64, 32, 8, 8, 8, 8, 8, 1, 8, 8, 8, 8, 8]);
}

#[testing::test(flavor = "multi_thread")]
async fn failing_device_falls_back_to_second_backend() {
    let failing = |error: BackendError| Doubler { fails_with: Some(error), ..Default::default() };
    let failed = |text: &str| failing(BackendError::Failed(text.into()));
    let run = async |primary: Doubler, fallback: Option<Doubler>| {
        let device = Device { primary: Box::new(primary), fallback: fallback.map(|f| Box::new(f) as _) };
        let limits = Limits { max_batch: 4, ..SINGLE_ITEMS };
        let batcher = Batcher::start(Numbers::default(), vec![device], limits).unwrap();
        batcher.check_ready().unwrap();
        let result = batcher.run(Call { number: 21.0, width: 2 }, Priority::Interactive).await;
        (result.map(|result| result.output).map_err(|error| error.to_string()), batcher.check_ready())
    };

    let (result, ready) = run(failed("kernel error"), Some(Doubler::default())).await;
    assert_eq!((result, ready), (Ok(42.0), Ok(())));
    let error = run(failed("kernel error"), None).await.0.unwrap_err();
    assert!(error.contains("kernel error"), "without a fallback the request fails: {error}");
    let error = run(failed("kernel error"), Some(failed("fallback error"))).await.0.unwrap_err();
    assert!(error.contains("kernel error") && error.contains("fallback error"), "{error}");

    let lost = failing(BackendError::DeviceLost("the GPU has fallen off the bus".into()));
    let (result, ready) = run(lost, Some(Doubler::default())).await;
    assert_eq!(result, Ok(42.0), "the fallback runs the request");
    let reason = ready.unwrap_err();
    assert!(reason.contains("fallen off the bus") && reason.contains("fake:0"), "{reason}");
}

#[testing::test(flavor = "multi_thread")]
async fn other_devices_take_over_from_lost_device() {
    for prefetch in [false, true] {
        let lost = BackendError::DeviceLost("the GPU has fallen off the bus".into());
        let (gate, controls) = gate();
        let devices =
            vec![Doubler { fails_with: Some(lost), gate, ..Default::default() }, Doubler::default()];
        let batcher = start(devices, Limits { prefetch, ..SINGLE_ITEMS });
        // Requests go to either device until the first one is lost.
        let mut failed = 0;
        while batcher.check_ready().is_ok() {
            let (_, task) = send(&batcher, 4.0, Priority::Interactive);
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
            match batcher.run(Call::from(f32::from(i)), Priority::Interactive).await {
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
        let device = Doubler { fails_on: Some(2.0), ..Default::default() };
        let mut device = GatedDevice::occupied(device, Limits { max_batch: 4, prefetch, ..SINGLE_ITEMS });
        for number in [1.0, 2.0, 3.0, 4.0] {
            device.enqueue(number, Priority::Background).await;
        }
        device.finish_runs(3);
        let mut outputs = Vec::new();
        for (_, task) in device.requests.drain(..) {
            outputs.push(task.await.unwrap().map(|result| result.output).ok());
        }
        assert_eq!(outputs, [Some(0.0), None, None, Some(6.0), Some(8.0)], "prefetch {prefetch}");
        // After the first request, the device runs the batch and its halves, each padded to the
        // batch size 4. No request runs alone.
        assert_eq!(device.check_results().await, [1, 4, 4, 4]);
        device.batcher.check_ready().unwrap();
    }
}

#[testing::test(flavor = "multi_thread")]
async fn loaded_device_runs_full_batches() {
    const REQUESTS: usize = 640;
    for (prefetch, max_batch) in [false, true].into_iter().flat_map(|p| [1, 4, 8, 16, 32].map(|m| (p, m))) {
        let limits = Limits { queue_capacity: 2000, max_batch, prefetch, ..SINGLE_ITEMS };
        let mut device = GatedDevice::occupied(Doubler::default(), limits);
        (1..=REQUESTS as u16).for_each(|number| device.send(f32::from(number), Priority::Background));
        let prefetched = if prefetch { max_batch } else { 0 };
        device.wait_for(1 + prefetched, REQUESTS - prefetched).await;
        let runs = REQUESTS / max_batch;
        device.finish_runs(runs);
        assert_eq!(device.check_results().await[1..], vec![max_batch; runs], "prefetch {prefetch}");
    }
}

/// A device that fails, panics or (above 8 items) runs out of memory in some of its runs, unless it
/// is reliable. The sequence is pseudo-random and fixed.
struct UnreliableDevice {
    inner: Doubler,
    is_reliable: bool,
    state: u32,
}

impl Backend for UnreliableDevice {
    fn run(&mut self, batch: BatchView<'_>, read: OutputReader<'_>) -> Result<(), BackendError> {
        self.state = self.state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match self.state >> 24 {
            _ if self.is_reliable => self.inner.run(batch, read),
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
    for (is_reliable, fallback, max_batch, prefetch) in [
        (true, false, 1, false),
        (true, false, 32, false),
        (true, false, 1, true),
        (true, false, 32, true),
        (false, false, 32, false),
        (false, false, 32, true),
        (false, true, 32, true),
    ] {
        let device = |state| Device {
            primary: Box::new(UnreliableDevice { inner: Doubler::default(), is_reliable, state }),
            fallback: fallback.then(|| Box::new(Doubler::default()) as Box<dyn Backend>),
        };
        let max_delay = Duration::from_micros(100);
        let limits = Limits { queue_capacity: 20_000, max_batch, max_delay, prefetch };
        let devices = [1, 2, 3].map(device).into();
        let batcher = Batcher::start(Numbers::default(), devices, limits).unwrap();
        let tasks: Vec<_> = (0..10_000_u16)
            .map(|i| {
                let batcher = batcher.clone();
                let priority = if i % 5 == 0 { Priority::Interactive } else { Priority::Background };
                let request = Call { number: f32::from(i), width: 1 + usize::from(i % 4) };
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
        assert!(abandoned <= 1250, "{abandoned} abandoned");
        assert_eq!(failed == 0, is_reliable || fallback, "{failed} failed");
        batcher.check_ready().unwrap();
        assert_eq!(batcher.queue_depth(), 0);
    }
}

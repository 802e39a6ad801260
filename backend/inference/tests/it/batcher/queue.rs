//! Tests the queue: the order of requests, batches and their preparation, full queues, abandoned
//! requests and deadlines.
use crate::batcher::*;
use inference::batcher::{Limits, RequestOptions};
use inference::{Priority, Requester, RunError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Returns options with a deadline after `duration`.
fn within(duration: Duration) -> RequestOptions {
    RequestOptions { deadline: Some(Instant::now() + duration), ..Priority::Interactive.into() }
}

#[testing::test(flavor = "multi_thread")]
async fn interactive_requests_run_first_without_starving_background() {
    let mut device = GatedDevice::occupied(Doubler::default(), SINGLE_ITEMS);
    for number in [101.0, 102.0, 103.0] {
        device.enqueue(number, Priority::Background).await;
    }
    for number in (1..=12_u8).map(f32::from) {
        device.enqueue(number, Priority::Interactive).await;
    }
    let order = [1, 2, 3, 4, 5, 6, 7, 8, 101, 9, 10, 11, 12, 102, 103_u8];
    assert_eq!(device.finish_runs(15), order.map(|number| [f32::from(number)]));
    device.check_results().await;
}

#[testing::test(flavor = "multi_thread")]
async fn requesters_of_same_priority_alternate() {
    let mut device = GatedDevice::occupied(Doubler::default(), SINGLE_ITEMS);
    for (requester, number) in [(1, 10.0), (1, 11.0), (1, 12.0), (2, 20.0), (2, 21.0)] {
        let options = RequestOptions { requester: Requester(requester), ..Priority::Interactive.into() };
        device.enqueue(number, options).await;
    }
    assert_eq!(device.finish_runs(5), [[10.0], [20.0], [11.0], [21.0], [12.0]]);
    device.check_results().await;
}

#[testing::test(flavor = "multi_thread")]
async fn skips_requests_of_aborted_callers() {
    let mut device = GatedDevice::occupied(Doubler::default(), SINGLE_ITEMS);
    device.enqueue(1.0, Priority::Interactive).await;
    device.abort_last().await;
    device.send(2.0, Priority::Interactive);
    assert_eq!(device.finish_runs(1), [[2.0]], "the abandoned request never reaches the device");
    device.check_results().await;
}

#[testing::test(flavor = "multi_thread")]
async fn full_queue_reports_retry_delay() {
    let limits = Limits { queue_capacity: 4, ..SINGLE_ITEMS };
    let mut device = GatedDevice::occupied(Doubler::default(), limits);
    let batcher = device.batcher.clone();
    for number in [1.0, 2.0, 3.0] {
        device.enqueue(number, Priority::Background).await;
    }
    batcher.check_queue_capacity(Priority::Interactive).unwrap();
    let background = batcher.check_queue_capacity(Priority::Background);
    assert!(
        matches!(background, Err(RunError::Overloaded { .. })),
        "background work must not occupy the whole queue: {background:?}"
    );
    device.enqueue(5.0, Priority::Interactive).await;
    match batcher.check_queue_capacity(Priority::Interactive) {
        Err(RunError::Overloaded { operation, retry_after }) => {
            assert_eq!(operation, "face_detection");
            assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(60));
        }
        result => panic!("{result:?}"),
    }
    // A caller that still sends a request waits for room, but not beyond the deadline.
    let result = batcher.run(Call::from(6.0), within(Duration::from_millis(20))).await;
    assert!(matches!(result, Err(RunError::DeadlineExceeded { .. })), "{result:?}");
    assert_eq!(batcher.queue_depth(), 4, "requests that wait for room are not in the queue");
    device.abort_last().await;
    // Requests 1, 2 and 3 wait. The room of an abandoned request is available again.
    device.send(7.0, Priority::Interactive);
    device.finish_runs(4);
    device.check_results().await;
}

#[testing::test(flavor = "multi_thread")]
async fn processes_more_requests_than_queue_capacity() {
    for prefetch in [false, true] {
        let limits = Limits { queue_capacity: 3, max_batch: 2, prefetch, ..SINGLE_ITEMS };
        let batcher = start(vec![Doubler::default(), Doubler::default()], limits);
        let send = |i: u16| {
            let priority = if i.is_multiple_of(2) { Priority::Interactive } else { Priority::Background };
            send(&batcher, f32::from(i), priority)
        };
        check_results((0..500).map(send).collect::<Vec<_>>()).await;
        batcher.check_queue_capacity(Priority::Background).unwrap();
    }
}

#[testing::test(flavor = "multi_thread")]
async fn panic_fails_only_one_request() {
    let batcher = start(vec![Doubler::default()], SINGLE_ITEMS);
    let run = |number: f32| batcher.run(Call::from(number), Priority::Interactive);
    match run(-1.0).await {
        Err(RunError::Failed { operation, reason }) => {
            assert_eq!(operation, "face_detection");
            assert!(reason.contains("a negative number makes this device panic"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(run(3.0).await.unwrap().output, 6.0);
    batcher.check_ready().unwrap();
}

#[testing::test(flavor = "multi_thread")]
async fn groups_waiting_requests_into_padded_batches_by_shape() {
    let mut device = GatedDevice::occupied(Doubler::default(), Limits { max_batch: 8, ..SINGLE_ITEMS });
    for number in (1..=5_u8).map(f32::from) {
        device.enqueue(number, Priority::Background).await;
    }
    device.enqueue(Call { number: 9.0, width: 7 }, Priority::Interactive).await;
    let runs = device.finish_runs(2);
    assert_eq!(runs[0], [9.0], "another shape runs in a separate batch");
    assert_eq!(runs[1][..5], [1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!(device.check_results().await, [1, 1, 8]);
}

#[testing::test(flavor = "multi_thread")]
async fn batch_runs_when_full_or_after_max_delay() {
    // The delay is so long that the batch can only be complete because the last request arrived.
    let limits = Limits { max_batch: 4, max_delay: Duration::from_secs(3600), ..SINGLE_ITEMS };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let batcher = start(vec![Doubler { sizes: sizes.clone(), ..Default::default() }], limits);
    check_results([1.0, 2.0, 3.0, 4.0].map(|number| send(&batcher, number, Priority::Background))).await;
    assert_eq!(*sizes.lock().unwrap(), [4]);

    let limits = Limits { max_delay: Duration::from_millis(1), ..limits };
    let batcher = start(vec![Doubler::default()], limits);
    check_results([send(&batcher, 1.0, Priority::Background)]).await;
}

#[testing::test(flavor = "multi_thread")]
async fn dropping_last_batcher_ends_its_threads() {
    // Each device holds a reference to the list.
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let devices = (0..2).map(|_| Doubler { sizes: sizes.clone(), ..Default::default() }).collect();
    let batcher = start(devices, SINGLE_ITEMS);
    let clone = batcher.clone();
    drop(batcher);
    assert_eq!(clone.run(Call::from(1.0), Priority::Background).await.unwrap().output, 2.0);
    assert_eq!(Arc::strong_count(&sizes), 3);
    drop(clone);
    assert_eq!(Arc::strong_count(&sizes), 1, "dropping the last clone waits for the threads");
}

#[testing::test(flavor = "multi_thread")]
async fn expired_request_fails_without_device_run() {
    let mut device = GatedDevice::occupied(Doubler::default(), SINGLE_ITEMS);
    for duration in [Duration::from_millis(20), Duration::ZERO] {
        let error = device.batcher.run(Call::from(5.0), within(duration)).await.unwrap_err();
        assert!(matches!(error, RunError::DeadlineExceeded { operation: "face_detection" }), "{error}");
    }
    device.send(6.0, within(Duration::from_secs(3600)));
    assert_eq!(device.finish_runs(1), [[6.0]], "the expired request never reaches the device");
    device.check_results().await;
}

const PREFETCH: Limits = Limits { max_batch: 4, prefetch: true, ..SINGLE_ITEMS };

#[testing::test(flavor = "multi_thread")]
async fn prefetch_fills_next_batch_while_device_runs() {
    let mut device = GatedDevice::occupied(Doubler::default(), PREFETCH);
    // The device is busy. The requests are written one by one as they arrive, into one batch.
    for (written, number) in [(2, 1.0), (3, 2.0), (4, 3.0)] {
        device.send(number, Priority::Background);
        device.wait_for(written, 0).await;
    }
    assert_eq!(device.finish_runs(1)[0][..3], [1.0, 2.0, 3.0]);
    assert_eq!(device.check_results().await, [1, 4]);
}

#[testing::test(flavor = "multi_thread")]
async fn interactive_requests_run_directly_after_prepared_batch() {
    let mut device = GatedDevice::occupied(Doubler::default(), PREFETCH);
    for number in (1..=8_u8).map(f32::from) {
        device.enqueue(number, Priority::Background).await;
    }
    // Exactly one full batch is prepared. The requests that are still queued run after the
    // interactive one.
    device.wait_for(5, 4).await;
    device.enqueue(100.0, Priority::Interactive).await;
    let expected = [&[1.0, 2.0, 3.0, 4.0][..], &[100.0, 5.0, 6.0, 7.0], &[8.0]];
    assert_eq!(device.finish_runs(3), expected);
    device.check_results().await;
}

#[testing::test(flavor = "multi_thread")]
async fn oversized_prepared_batch_is_split() {
    let device = Doubler { max_items: Some(2), ..Default::default() };
    let mut device = GatedDevice::occupied(device, Limits { max_batch: 8, ..PREFETCH });
    for number in (1..=8_u8).map(f32::from) {
        device.enqueue(number, Priority::Background).await;
    }
    device.wait_for(9, 0).await;
    device.finish_runs(9);
    // Batch sizes are 1 and 8.
    assert_eq!(device.check_results().await, [1, 8, 1, 1, 1, 1, 1, 1, 1, 1]);
}

#[testing::test(flavor = "multi_thread")]
async fn unwritable_request_fails_only_its_batch() {
    let batcher = start(vec![Doubler::default()], PREFETCH);
    let failed = batcher.run(Call::from(f32::NAN), Priority::Interactive).await.unwrap_err();
    assert!(
        matches!(&failed, RunError::Failed { reason, .. } if reason.contains("not a number")),
        "{failed}"
    );
    check_results([send(&batcher, 2.0, Priority::Interactive)]).await;
    batcher.check_ready().unwrap();
}

#[testing::test(flavor = "multi_thread")]
async fn idle_device_takes_work_regardless_of_speed() {
    for prefetch in [false, true] {
        let (gate, slow) = gate();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let devices = vec![
            Doubler { gate, ..Default::default() },
            Doubler { sizes: ran.clone(), ..Default::default() },
        ];
        let batcher = start(devices, Limits { prefetch, ..SINGLE_ITEMS });
        let send = |i: u8| send(&batcher, f32::from(i), Priority::Interactive);
        let requests: Vec<_> = (0..60).map(send).collect();
        // The slow device completes no run. It holds the batch that it runs and at most the batch
        // that was written for it.
        let unfinished = if prefetch { 2 } else { 1 };
        wait_until(|| requests.iter().filter(|(_, task)| task.is_finished()).count() >= 60 - unfinished)
            .await;
        assert!(ran.lock().unwrap().len() >= 60 - unfinished);
        (0..unfinished).for_each(|_| slow.release());
        check_results(requests).await;
    }
}

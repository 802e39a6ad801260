//! Tests the queue: the order of requests, batches and their preparation, full queues, abandoned
//! requests and deadlines.
use crate::batcher::*;
use inference::backend::{Backend, BackendError, BatchView, OutputReader};
use inference::batcher::{Batcher, Device, Limits, RequestOptions};
use inference::{Priority, Requester, RunError};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

fn with_deadline(deadline: Option<Instant>) -> RequestOptions {
    RequestOptions { deadline, ..Priority::Interactive.into() }
}

/// Starts a batcher whose only device is occupied with request 0.
async fn start_occupied(limits: Limits) -> (Batcher<Numbers>, Controls, Pending) {
    let (gate, controls) = gate();
    let batcher = start(vec![Doubler { gate: Some(gate), ..Default::default() }], limits);
    let first = occupy(&batcher, &controls).await;
    (batcher, controls, first)
}

#[testing::test(flavor = "multi_thread", worker_threads = 4)]
async fn results_are_neither_lost_nor_swapped() {
    for (max_batch, prefetch) in [(1, false), (32, false), (1, true), (32, true)] {
        let max_delay = Duration::from_micros(200);
        let limits = Limits { queue_capacity: 20_000, max_batch, max_delay, prefetch };
        let batcher = start((0..3).map(|_| Doubler::default()).collect(), limits);
        let tasks: Vec<_> = (0..10_000_u16)
            .map(|i| {
                let batcher = batcher.clone();
                let priority = if i % 3 == 0 { Priority::Interactive } else { Priority::Background };
                tokio::spawn(async move {
                    let request = Call { number: f32::from(i), width: 1 + usize::from(i % 4) };
                    (i, batcher.run(request, priority).await)
                })
            })
            .collect();
        for task in tasks {
            let (i, result) = task.await.unwrap();
            assert_eq!(result.unwrap().output, f32::from(i) * 2.0);
        }
        assert_eq!(batcher.queue_depth(), 0);
        batcher.check_ready().unwrap();
    }
}

/// Lets the device run, and returns the numbers of the next `runs` runs.
fn release_runs(controls: &Controls, runs: usize) -> Vec<f32> {
    let mut order = Vec::new();
    for _ in 0..runs {
        controls.release();
        order.extend(controls.next());
    }
    controls.release();
    order
}

#[testing::test(flavor = "multi_thread")]
async fn interactive_requests_run_first_without_starving_background() {
    let (batcher, controls, first) = start_occupied(SINGLE_ITEMS).await;
    let mut tasks = vec![first];
    for i in 1..=3_u8 {
        tasks.push(enqueue(&batcher, 100.0 + f32::from(i), Priority::Background).await);
    }
    for i in 1..=12_u8 {
        tasks.push(enqueue(&batcher, f32::from(i), Priority::Interactive).await);
    }
    let order = release_runs(&controls, 15);
    check_success(tasks).await;
    let expected: Vec<f32> = [1, 2, 3, 4, 5, 6, 7, 8, 101, 9, 10, 11, 12, 102, 103]
        .into_iter()
        .map(|n: u8| f32::from(n))
        .collect();
    assert_eq!(order, expected);
}

#[testing::test(flavor = "multi_thread")]
async fn requesters_of_same_priority_alternate() {
    let (batcher, controls, first) = start_occupied(SINGLE_ITEMS).await;
    let mut tasks = vec![first];
    let options_of =
        |requester| RequestOptions { requester: Requester(requester), ..Priority::Interactive.into() };
    for number in [10.0, 11.0, 12.0] {
        tasks.push(enqueue(&batcher, number, options_of(1)).await);
    }
    for number in [20.0, 21.0] {
        tasks.push(enqueue(&batcher, number, options_of(2)).await);
    }
    let order = release_runs(&controls, 5);
    check_success(tasks).await;
    assert_eq!(order, [10.0, 20.0, 11.0, 21.0, 12.0]);
}

#[testing::test(flavor = "multi_thread")]
async fn skips_requests_of_aborted_callers() {
    let (batcher, controls, first) = start_occupied(SINGLE_ITEMS).await;
    let abandoned = enqueue(&batcher, 1.0, Priority::Interactive).await;
    let remaining = enqueue(&batcher, 2.0, Priority::Interactive).await;
    abandoned.abort();
    assert!(abandoned.await.unwrap_err().is_cancelled());
    controls.release();
    assert_eq!(controls.next(), [2.0], "the abandoned request never reaches the device");
    controls.release();
    assert_eq!(first.await.unwrap().unwrap().output, 0.0);
    assert_eq!(remaining.await.unwrap().unwrap().output, 4.0);
}

#[testing::test(flavor = "multi_thread")]
async fn full_queue_reports_retry_delay() {
    let (batcher, controls, first) = start_occupied(Limits { queue_capacity: 4, ..SINGLE_ITEMS }).await;
    let mut tasks = vec![first];
    for i in 1..=3_u8 {
        tasks.push(enqueue(&batcher, f32::from(i), Priority::Background).await);
    }
    batcher.check_queue_capacity(Priority::Interactive).unwrap();
    let background = batcher.check_queue_capacity(Priority::Background);
    assert!(
        matches!(background, Err(RunError::Overloaded { .. })),
        "background work must not occupy the whole queue: {background:?}"
    );
    let abandoned = enqueue(&batcher, 5.0, Priority::Interactive).await;
    match batcher.check_queue_capacity(Priority::Interactive) {
        Err(RunError::Overloaded { operation, retry_after }) => {
            assert_eq!(operation, "face_detection");
            assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(60));
        }
        result => panic!("{result:?}"),
    }
    // A caller that still sends a request waits for room, but not beyond the deadline.
    let soon = Some(Instant::now() + Duration::from_millis(20));
    let result = batcher.run(Call { number: 6.0, width: 3 }, with_deadline(soon)).await;
    assert!(matches!(result, Err(RunError::DeadlineExceeded { .. })), "{result:?}");
    assert_eq!(batcher.queue_depth(), 4, "requests that wait for room are not in the queue");
    abandoned.abort();
    let _ = abandoned.await;
    // Requests 1, 2 and 3 wait. The room of an abandoned request is available again.
    let last = send(&batcher, 7.0, Priority::Interactive);
    controls.release();
    for _ in 0..4 {
        controls.next();
        controls.release();
    }
    assert_eq!(last.await.unwrap().unwrap().output, 14.0);
    check_success(tasks).await;
}

#[testing::test(flavor = "multi_thread")]
async fn processes_more_requests_than_queue_capacity() {
    for prefetch in [false, true] {
        let limits = Limits { queue_capacity: 3, max_batch: 2, max_delay: Duration::ZERO, prefetch };
        let batcher = start(vec![Doubler::default(), Doubler::default()], limits);
        let tasks: Vec<_> = (0..500_u16)
            .map(|i| {
                let priority = if i % 2 == 0 { Priority::Interactive } else { Priority::Background };
                send(&batcher, f32::from(i), priority)
            })
            .collect();
        check_doubled(tasks).await;
        batcher.check_queue_capacity(Priority::Background).unwrap();
    }
}

#[testing::test(flavor = "multi_thread")]
async fn panic_fails_only_one_request() {
    let batcher = start(vec![Doubler::default()], SINGLE_ITEMS);
    let run = |number| batcher.run(Call { number, width: 2 }, Priority::Interactive);
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
    let (gate, controls) = gate();
    let limits = Limits { max_batch: 8, ..SINGLE_ITEMS };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device = Doubler { gate: Some(gate), sizes: sizes.clone(), ..Default::default() };
    let batcher = start(vec![device], limits);
    let mut tasks = vec![occupy(&batcher, &controls).await];
    for i in 1..=5_u8 {
        tasks.push(enqueue(&batcher, f32::from(i), Priority::Background).await);
    }
    let clone = batcher.clone();
    let wide =
        tokio::spawn(async move { clone.run(Call { number: 9.0, width: 7 }, Priority::Interactive).await });
    while batcher.queue_depth() < 6 {
        tokio::task::yield_now().await;
    }
    controls.release();
    assert_eq!(controls.next(), [9.0], "another shape runs in a separate batch");
    controls.release();
    assert_eq!(controls.next()[..5], [1.0, 2.0, 3.0, 4.0, 5.0]);
    controls.release();
    check_doubled(tasks).await;
    assert_eq!(wide.await.unwrap().unwrap().output, 18.0);
    assert_eq!(*sizes.lock().unwrap(), [1, 1, 8]);
}

#[testing::test(flavor = "multi_thread")]
async fn batch_runs_when_full_or_after_max_delay() {
    // The delay is so long that the batch can only be complete because the last request arrived.
    let limits = Limits { max_batch: 4, max_delay: Duration::from_secs(3600), ..SINGLE_ITEMS };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let batcher = start(vec![Doubler { sizes: sizes.clone(), ..Default::default() }], limits);
    let tasks: Vec<_> = (0..4_u8).map(|i| send(&batcher, f32::from(i), Priority::Background)).collect();
    check_doubled(tasks).await;
    assert_eq!(*sizes.lock().unwrap(), [4]);

    let limits = Limits { max_delay: Duration::from_millis(1), ..limits };
    let batcher = start(vec![Doubler::default()], limits);
    assert_eq!(batcher.run(Call { number: 1.0, width: 2 }, Priority::Background).await.unwrap().output, 2.0);
}

#[testing::test(flavor = "multi_thread")]
async fn dropping_last_batcher_ends_its_threads() {
    struct DropReporter(Doubler, #[allow(dead_code)] mpsc::Sender<()>);
    impl Backend for DropReporter {
        fn run(&mut self, batch: BatchView<'_>, read: OutputReader<'_>) -> Result<(), BackendError> {
            self.0.run(batch, read)
        }
        fn device(&self) -> &str {
            self.0.device()
        }
    }
    let (drop_sender, drop_receiver) = mpsc::channel();
    let devices = (0..2)
        .map(|_| Device {
            primary: Box::new(DropReporter(Doubler::default(), drop_sender.clone())),
            fallback: None,
        })
        .collect();
    drop(drop_sender);
    let batcher = Batcher::start(Numbers::default(), devices, SINGLE_ITEMS).unwrap();
    let clone = batcher.clone();
    drop(batcher);
    assert_eq!(clone.run(Call { number: 1.0, width: 1 }, Priority::Background).await.unwrap().output, 2.0);
    assert_eq!(drop_receiver.try_recv(), Err(mpsc::TryRecvError::Empty));
    drop(clone);
    assert_eq!(
        drop_receiver.try_recv(),
        Err(mpsc::TryRecvError::Disconnected),
        "dropping the last clone waits for the threads"
    );
}

#[testing::test(flavor = "multi_thread")]
async fn expired_request_fails_without_device_run() {
    let (batcher, controls, first) = start_occupied(SINGLE_ITEMS).await;
    let request = Call { number: 5.0, width: 3 };
    let soon = Some(Instant::now() + Duration::from_millis(20));
    let result = batcher.run(request, with_deadline(soon)).await.unwrap_err();
    assert!(matches!(result, RunError::DeadlineExceeded { operation: "face_detection" }), "{result}");
    let error = batcher.run(request, with_deadline(Some(Instant::now()))).await.unwrap_err();
    assert!(matches!(error, RunError::DeadlineExceeded { .. }), "{error}");

    let valid = send(&batcher, 6.0, with_deadline(Some(Instant::now() + Duration::from_secs(3600))));
    controls.release();
    assert_eq!(controls.next(), [6.0], "the expired request never reaches the device");
    controls.release();
    assert_eq!(valid.await.unwrap().unwrap().output, 12.0);
    first.await.unwrap().unwrap();
}

const PREFETCH: Limits = Limits { max_batch: 4, prefetch: true, ..SINGLE_ITEMS };

/// Starts a batcher whose model counts the requests that it has written.
fn start_counting(device: Doubler, limits: Limits) -> (Batcher<Numbers>, Arc<AtomicUsize>) {
    let numbers = Numbers::default();
    let written = numbers.written.clone();
    let device = Device { primary: Box::new(device), fallback: None };
    (Batcher::start(numbers, vec![device], limits).unwrap(), written)
}

async fn wait_until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), wait).await.expect("the condition becomes true");
}

#[testing::test(flavor = "multi_thread")]
async fn prefetch_fills_next_batch_while_device_runs() {
    let (gate, controls) = gate();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device = Doubler { gate: Some(gate), sizes: sizes.clone(), ..Default::default() };
    let (batcher, written) = start_counting(device, PREFETCH);
    let mut tasks = vec![send(&batcher, 0.0, Priority::Background)];
    assert_eq!(controls.next(), [0.0]);
    // The device is busy. The requests are written one by one as they arrive, into one batch.
    for i in 1..=3_u8 {
        tasks.push(send(&batcher, f32::from(i), Priority::Background));
        wait_until(|| written.load(Ordering::SeqCst) == 1 + usize::from(i)).await;
    }
    assert_eq!(batcher.queue_depth(), 0);
    controls.release();
    assert_eq!(controls.next()[..3], [1.0, 2.0, 3.0]);
    controls.release();
    check_doubled(tasks).await;
    assert_eq!(*sizes.lock().unwrap(), [1, 4]);
}

#[testing::test(flavor = "multi_thread")]
async fn interactive_requests_run_directly_after_prepared_batch() {
    let (gate, controls) = gate();
    let (batcher, written) = start_counting(Doubler { gate: Some(gate), ..Default::default() }, PREFETCH);
    let mut tasks = vec![send(&batcher, 0.0, Priority::Background)];
    assert_eq!(controls.next(), [0.0]);
    for i in 1..=8_u8 {
        tasks.push(send(&batcher, f32::from(i), Priority::Background));
        // Each request is queued or written into the current batch before the next one is sent.
        let sent = usize::from(i);
        wait_until(|| batcher.queue_depth() + written.load(Ordering::SeqCst) == 1 + sent).await;
    }
    // Exactly one full batch is prepared. The requests that are still queued run after the
    // interactive one.
    wait_until(|| (written.load(Ordering::SeqCst), batcher.queue_depth()) == (5, 4)).await;
    tasks.push(send(&batcher, 100.0, Priority::Interactive));
    wait_until(|| batcher.queue_depth() == 5).await;
    controls.release();
    assert_eq!(controls.next(), [1.0, 2.0, 3.0, 4.0]);
    controls.release();
    assert_eq!(controls.next(), [100.0, 5.0, 6.0, 7.0]);
    controls.release();
    assert_eq!(controls.next(), [8.0]);
    controls.release();
    check_success(tasks).await;
}

#[testing::test(flavor = "multi_thread")]
async fn oversized_prepared_batch_is_split() {
    let (gate, controls) = gate();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device = Doubler { gate: Some(gate), sizes: sizes.clone(), max_items: Some(2), ..Default::default() };
    let (batcher, written) = start_counting(device, Limits { max_batch: 8, ..PREFETCH });
    let mut tasks = vec![send(&batcher, 0.0, Priority::Background)];
    controls.next();
    for i in 1..=8_u8 {
        tasks.push(send(&batcher, f32::from(i), Priority::Background));
        wait_until(|| written.load(Ordering::SeqCst) == 1 + usize::from(i)).await;
    }
    for _ in 0..9 {
        controls.release();
        controls.next();
    }
    controls.release();
    check_doubled(tasks).await;
    // Batch sizes are 1 and 8.
    assert_eq!(*sizes.lock().unwrap(), [1, 8, 1, 1, 1, 1, 1, 1, 1, 1]);
}

#[testing::test(flavor = "multi_thread")]
async fn unwritable_request_fails_only_its_batch() {
    let (batcher, _) = start_counting(Doubler::default(), PREFETCH);
    let failed = batcher.run(Call { number: f32::NAN, width: 3 }, Priority::Interactive).await.unwrap_err();
    assert!(
        matches!(&failed, RunError::Failed { reason, .. } if reason.contains("not a number")),
        "{failed}"
    );
    assert_eq!(batcher.run(Call { number: 2.0, width: 3 }, Priority::Interactive).await.unwrap().output, 4.0);
    batcher.check_ready().unwrap();
}

#[testing::test(flavor = "multi_thread")]
async fn idle_device_takes_work_regardless_of_speed() {
    for prefetch in [false, true] {
        let limits = Limits { prefetch, ..SINGLE_ITEMS };
        let (gate, slow) = gate();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let devices = vec![
            Doubler { gate: Some(gate), ..Default::default() },
            Doubler { sizes: ran.clone(), ..Default::default() },
        ];
        let batcher = start(devices, limits);
        let tasks: Vec<_> = (0..60_u8).map(|i| send(&batcher, f32::from(i), Priority::Interactive)).collect();
        // The slow device completes no run. It holds the batch that it runs and at most the batch
        // that was written for it.
        let unfinished = if prefetch { 2 } else { 1 };
        wait_until(|| tasks.iter().filter(|task| task.is_finished()).count() >= 60 - unfinished).await;
        assert!(ran.lock().unwrap().len() >= 60 - unfinished);
        for task in tasks {
            while !task.is_finished() {
                if slow.run_receiver.try_recv().is_ok() {
                    slow.release();
                }
                tokio::task::yield_now().await;
            }
            task.await.unwrap().unwrap();
        }
    }
}

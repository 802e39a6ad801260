//! Tests that the next batch is written while one runs.
use crate::batcher::support::*;
use inference::batcher::{Batcher, Device, Limits};
use inference::{Priority, RunError};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const AHEAD: Limits = Limits { max_batch: 4, prefetch: true, ..ONE_BY_ONE };

/// Starts a batcher whose model counts the requests that it has written.
fn counting(device: Doubler, limits: Limits) -> (Batcher<Numbers>, Arc<AtomicUsize>) {
    let numbers = Numbers::default();
    let written = numbers.written.clone();
    let device = Device { primary: Box::new(device), fallback: None };
    (Batcher::start(numbers, vec![device], limits).unwrap(), written)
}

async fn until(condition: impl Fn() -> bool) {
    let waits = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), waits)
        .await
        .expect("the condition becomes true");
}

fn send(batcher: &Batcher<Numbers>, number: f32, priority: Priority) -> Pending {
    let own = batcher.clone();
    tokio::spawn(async move { own.run(Ask { number, width: 3 }, priority).await })
}

#[testing::test(flavor = "multi_thread")]
async fn requests_are_written_while_the_device_runs_and_join_until_it_is_free() {
    let (gate, controls) = gate();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device = Doubler { gate: Some(gate), sizes: sizes.clone(), ..Default::default() };
    let (batcher, written) = counting(device, AHEAD);
    let mut tasks = vec![send(&batcher, 0.0, Priority::Background)];
    assert_eq!(controls.next(), [0.0]);
    // The device is busy. The requests are written one by one as they arrive, into one batch.
    for i in 1..=3_u8 {
        tasks.push(send(&batcher, f32::from(i), Priority::Background));
        until(|| written.load(Ordering::SeqCst) == 1 + usize::from(i)).await;
    }
    assert_eq!(batcher.waiting(), 0);
    controls.release();
    assert_eq!(controls.next()[..3], [1.0, 2.0, 3.0]);
    controls.release();
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
    }
    assert_eq!(*sizes.lock().unwrap(), [1, 4]);
}

#[testing::test(flavor = "multi_thread")]
async fn one_batch_is_ahead_and_interactive_requests_overtake_the_rest() {
    let (gate, controls) = gate();
    let (batcher, written) = counting(Doubler { gate: Some(gate), ..Default::default() }, AHEAD);
    let mut tasks = vec![send(&batcher, 0.0, Priority::Background)];
    assert_eq!(controls.next(), [0.0]);
    for i in 1..=8_u8 {
        tasks.push(send(&batcher, f32::from(i), Priority::Background));
        // Each request is queued or written into the current batch before the next one is sent.
        let of_crawl = usize::from(i);
        until(|| batcher.waiting() + written.load(Ordering::SeqCst) == 1 + of_crawl).await;
    }
    // Exactly one full batch is prepared. The requests that are still queued run after the
    // interactive one.
    until(|| (written.load(Ordering::SeqCst), batcher.waiting()) == (5, 4)).await;
    tasks.push(send(&batcher, 100.0, Priority::Interactive));
    until(|| batcher.waiting() == 5).await;
    controls.release();
    assert_eq!(controls.next(), [1.0, 2.0, 3.0, 4.0]);
    controls.release();
    assert_eq!(controls.next(), [100.0, 5.0, 6.0, 7.0]);
    controls.release();
    assert_eq!(controls.next(), [8.0]);
    controls.release();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

#[testing::test(flavor = "multi_thread")]
async fn a_prepared_batch_that_is_too_large_by_now_is_split() {
    let (gate, controls) = gate();
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device =
        Doubler { gate: Some(gate), sizes: sizes.clone(), memory_for: Some(2), ..Default::default() };
    let (batcher, written) = counting(device, Limits { max_batch: 8, ..AHEAD });
    let mut tasks = vec![send(&batcher, 0.0, Priority::Background)];
    controls.next();
    for i in 1..=8_u8 {
        tasks.push(send(&batcher, f32::from(i), Priority::Background));
        until(|| written.load(Ordering::SeqCst) == 1 + usize::from(i)).await;
    }
    for _ in 0..9 {
        controls.release();
        controls.next();
    }
    controls.release();
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
    }
    // Batch sizes are 1 and 8.
    assert_eq!(*sizes.lock().unwrap(), [1, 8, 1, 1, 1, 1, 1, 1, 1, 1]);
}

#[testing::test(flavor = "multi_thread")]
async fn a_request_that_cannot_be_written_fails_its_batch_alone() {
    let (batcher, _) = counting(Doubler::default(), AHEAD);
    let failed = batcher.run(Ask { number: f32::NAN, width: 3 }, Priority::Interactive).await.unwrap_err();
    assert!(
        matches!(&failed, RunError::Failed { reason, .. } if reason.contains("not a number")),
        "{failed}"
    );
    assert_eq!(batcher.run(Ask { number: 2.0, width: 3 }, Priority::Interactive).await.unwrap().output, 4.0);
    batcher.ready().unwrap();
}

#[testing::test(flavor = "multi_thread")]
async fn work_goes_to_the_device_that_is_free_whatever_its_speed() {
    for prefetch in [false, true] {
        let limits = Limits { prefetch, ..ONE_BY_ONE };
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
        let held = if prefetch { 2 } else { 1 };
        until(|| tasks.iter().filter(|task| task.is_finished()).count() >= 60 - held).await;
        assert!(ran.lock().unwrap().len() >= 60 - held);
        for task in tasks {
            while !task.is_finished() {
                if slow.entered.try_recv().is_ok() {
                    slow.release();
                }
                tokio::task::yield_now().await;
            }
            task.await.unwrap().unwrap();
        }
    }
}

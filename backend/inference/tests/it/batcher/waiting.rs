//! Tests the order of requests, batches, full queues, abandoned requests and deadlines.
use crate::batcher::support::*;
use inference::backend::{Backend, BackendError, BatchView, OutputView};
use inference::batcher::{Batcher, Device, Limits, Terms};
use inference::{Priority, Requester, RunError};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn before(deadline: Option<Instant>) -> Terms {
    Terms { deadline, ..Priority::Interactive.into() }
}

#[testing::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_result_is_lost_or_swapped() {
    for (max_batch, prefetch) in [(1, false), (32, false), (1, true), (32, true)] {
        let max_delay = Duration::from_micros(200);
        let limits = Limits { queue_capacity: 20_000, max_batch, max_delay, prefetch };
        let batcher = start((0..3).map(|_| Doubler::default()).collect(), limits);
        let tasks: Vec<_> = (0..10_000_u16)
            .map(|i| {
                let batcher = batcher.clone();
                let priority = if i % 3 == 0 { Priority::Interactive } else { Priority::Background };
                tokio::spawn(async move {
                    let ask = Ask { number: f32::from(i), width: 1 + usize::from(i % 4) };
                    (i, batcher.run(ask, priority).await)
                })
            })
            .collect();
        for task in tasks {
            let (i, answer) = task.await.unwrap();
            assert_eq!(answer.unwrap().output, f32::from(i) * 2.0);
        }
        assert_eq!(batcher.waiting(), 0);
        batcher.ready().unwrap();
    }
}

#[testing::test(flavor = "multi_thread")]
async fn interactive_requests_go_first_and_crawl_work_is_not_starved() {
    let (gate, controls) = gate();
    let batcher = start(vec![Doubler { gate: Some(gate), ..Default::default() }], ONE_BY_ONE);
    let mut tasks = vec![occupy(&batcher, &controls).await];
    for i in 1..=3_u8 {
        tasks.push(ask(&batcher, 100.0 + f32::from(i), Priority::Background).await);
    }
    for i in 1..=12_u8 {
        tasks.push(ask(&batcher, f32::from(i), Priority::Interactive).await);
    }
    let mut order = Vec::new();
    for _ in 0..15 {
        controls.release();
        order.extend(controls.next());
    }
    controls.release();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let expected: Vec<f32> = [1, 2, 3, 4, 5, 6, 7, 8, 101, 9, 10, 11, 12, 102, 103]
        .into_iter()
        .map(|n: u8| f32::from(n))
        .collect();
    assert_eq!(order, expected);
}

#[testing::test(flavor = "multi_thread")]
async fn requesters_of_one_priority_take_turns() {
    let (gate, controls) = gate();
    let batcher = start(vec![Doubler { gate: Some(gate), ..Default::default() }], ONE_BY_ONE);
    let mut tasks = vec![occupy(&batcher, &controls).await];
    let of = |requester| Terms { requester: Requester(requester), ..Priority::Interactive.into() };
    for number in [10.0, 11.0, 12.0] {
        tasks.push(ask(&batcher, number, of(1)).await);
    }
    for number in [20.0, 21.0] {
        tasks.push(ask(&batcher, number, of(2)).await);
    }
    let mut order = Vec::new();
    for _ in 0..5 {
        controls.release();
        order.extend(controls.next());
    }
    controls.release();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(order, [10.0, 20.0, 11.0, 21.0, 12.0]);
}

#[testing::test(flavor = "multi_thread")]
async fn requests_whose_caller_left_are_skipped() {
    let (gate, controls) = gate();
    let batcher = start(vec![Doubler { gate: Some(gate), ..Default::default() }], ONE_BY_ONE);
    let first = occupy(&batcher, &controls).await;
    let leaving = ask(&batcher, 1.0, Priority::Interactive).await;
    let staying = ask(&batcher, 2.0, Priority::Interactive).await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    controls.release();
    assert_eq!(controls.next(), [2.0], "the abandoned request never reaches the device");
    controls.release();
    assert_eq!(first.await.unwrap().unwrap().output, 0.0);
    assert_eq!(staying.await.unwrap().unwrap().output, 4.0);
}

#[testing::test(flavor = "multi_thread")]
async fn a_full_queue_says_when_to_come_back() {
    let (gate, controls) = gate();
    let limits = Limits { queue_capacity: 4, ..ONE_BY_ONE };
    let batcher = start(vec![Doubler { gate: Some(gate), ..Default::default() }], limits);
    let mut tasks = vec![occupy(&batcher, &controls).await];
    for i in 1..=3_u8 {
        tasks.push(ask(&batcher, f32::from(i), Priority::Background).await);
    }
    batcher.check_room(Priority::Interactive).unwrap();
    let crawl = batcher.check_room(Priority::Background);
    assert!(
        matches!(crawl, Err(RunError::Overloaded { .. })),
        "crawl work leaves room for callers: {crawl:?}"
    );
    let leaving = ask(&batcher, 5.0, Priority::Interactive).await;
    match batcher.check_room(Priority::Interactive) {
        Err(RunError::Overloaded { operation, retry_after }) => {
            assert_eq!(operation, "face_detection");
            assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(60));
        }
        other => panic!("{other:?}"),
    }
    // A caller that still sends a request waits for room, but not beyond the deadline.
    let soon = Some(Instant::now() + Duration::from_millis(20));
    let late = batcher.run(Ask { number: 6.0, width: 3 }, before(soon)).await;
    assert!(matches!(late, Err(RunError::DeadlineExceeded { .. })), "{late:?}");
    assert_eq!(batcher.waiting(), 4, "requests that wait for room are not in the queue");
    leaving.abort();
    let _ = leaving.await;
    // Requests 1, 2 and 3 wait. The room of an abandoned request is available again.
    let own = batcher.clone();
    let last =
        tokio::spawn(async move { own.run(Ask { number: 7.0, width: 3 }, Priority::Interactive).await });
    controls.release();
    for _ in 0..4 {
        controls.next();
        controls.release();
    }
    assert_eq!(last.await.unwrap().unwrap().output, 14.0);
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

#[testing::test(flavor = "multi_thread")]
async fn more_requests_than_room_are_all_answered() {
    for prefetch in [false, true] {
        let limits = Limits { queue_capacity: 3, max_batch: 2, max_delay: Duration::ZERO, prefetch };
        let batcher = start(vec![Doubler::default(), Doubler::default()], limits);
        let tasks: Vec<_> = (0..500_u16)
            .map(|i| {
                let own = batcher.clone();
                let priority = if i % 2 == 0 { Priority::Interactive } else { Priority::Background };
                tokio::spawn(async move { own.run(Ask { number: f32::from(i), width: 2 }, priority).await })
            })
            .collect();
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
        }
        batcher.check_room(Priority::Background).unwrap();
    }
}

#[testing::test(flavor = "multi_thread")]
async fn a_panic_fails_one_request_and_the_thread_goes_on() {
    let batcher = start(vec![Doubler::default()], ONE_BY_ONE);
    let ask = |number| batcher.run(Ask { number, width: 2 }, Priority::Interactive);
    match ask(-1.0).await {
        Err(RunError::Failed { operation, reason }) => {
            assert_eq!(operation, "face_detection");
            assert!(reason.contains("a negative number breaks this device"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(ask(3.0).await.unwrap().output, 6.0);
    batcher.ready().unwrap();
}

#[testing::test(flavor = "multi_thread")]
async fn what_waits_is_gathered_into_padded_batches_of_one_shape() {
    let (gate, controls) = gate();
    let limits = Limits { max_batch: 8, ..ONE_BY_ONE };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device = Doubler { gate: Some(gate), sizes: sizes.clone(), ..Default::default() };
    let batcher = start(vec![device], limits);
    let mut tasks = vec![occupy(&batcher, &controls).await];
    for i in 1..=5_u8 {
        tasks.push(ask(&batcher, f32::from(i), Priority::Background).await);
    }
    let own = batcher.clone();
    let wide =
        tokio::spawn(async move { own.run(Ask { number: 9.0, width: 7 }, Priority::Interactive).await });
    while batcher.waiting() < 6 {
        tokio::task::yield_now().await;
    }
    controls.release();
    assert_eq!(controls.next(), [9.0], "another shape runs in a separate batch");
    controls.release();
    assert_eq!(controls.next()[..5], [1.0, 2.0, 3.0, 4.0, 5.0]);
    controls.release();
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
    }
    assert_eq!(wide.await.unwrap().unwrap().output, 18.0);
    assert_eq!(*sizes.lock().unwrap(), [1, 1, 8]);
}

#[testing::test(flavor = "multi_thread")]
async fn a_request_waits_for_company_no_longer_than_the_delay() {
    // The delay is so long that the batch can only be complete because the last request arrived.
    let limits = Limits { max_batch: 4, max_delay: Duration::from_secs(3600), ..ONE_BY_ONE };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let batcher = start(vec![Doubler { sizes: sizes.clone(), ..Default::default() }], limits);
    let tasks: Vec<_> = (0..4_u8)
        .map(|i| {
            let batcher = batcher.clone();
            tokio::spawn(async move {
                batcher.run(Ask { number: f32::from(i), width: 2 }, Priority::Background).await
            })
        })
        .collect();
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
    }
    assert_eq!(*sizes.lock().unwrap(), [4]);

    let limits = Limits { max_delay: Duration::from_millis(1), ..limits };
    let batcher = start(vec![Doubler::default()], limits);
    assert_eq!(batcher.run(Ask { number: 1.0, width: 2 }, Priority::Background).await.unwrap().output, 2.0);
}

#[testing::test(flavor = "multi_thread")]
async fn the_threads_end_with_the_last_handle() {
    struct Watched(Doubler, #[allow(dead_code)] mpsc::Sender<()>);
    impl Backend for Watched {
        fn run(
            &mut self,
            batch: BatchView<'_>,
            read: &mut dyn FnMut(&[OutputView<'_>]),
        ) -> Result<(), BackendError> {
            self.0.run(batch, read)
        }
        fn device(&self) -> &str {
            self.0.device()
        }
    }
    let (alive, ended) = mpsc::channel();
    let devices = (0..2)
        .map(|_| Device { primary: Box::new(Watched(Doubler::default(), alive.clone())), fallback: None })
        .collect();
    drop(alive);
    let batcher = Batcher::start(Numbers::default(), devices, ONE_BY_ONE).unwrap();
    let clone = batcher.clone();
    drop(batcher);
    assert_eq!(clone.run(Ask { number: 1.0, width: 1 }, Priority::Background).await.unwrap().output, 2.0);
    assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Empty));
    drop(clone);
    assert_eq!(
        ended.try_recv(),
        Err(mpsc::TryRecvError::Disconnected),
        "dropping the last clone waits for the threads"
    );
}

#[testing::test(flavor = "multi_thread")]
async fn a_request_whose_time_is_over_is_answered_and_never_run() {
    let (gate, controls) = gate();
    let batcher = start(vec![Doubler { gate: Some(gate), ..Default::default() }], ONE_BY_ONE);
    let first = occupy(&batcher, &controls).await;
    let ask = Ask { number: 5.0, width: 3 };
    let soon = Some(Instant::now() + Duration::from_millis(20));
    let late = batcher.run(ask, before(soon)).await.unwrap_err();
    assert!(matches!(late, RunError::DeadlineExceeded { operation: "face_detection" }), "{late}");
    let over = batcher.run(ask, before(Some(Instant::now()))).await.unwrap_err();
    assert!(matches!(over, RunError::DeadlineExceeded { .. }), "{over}");

    let own = batcher.clone();
    let ample = Some(Instant::now() + Duration::from_secs(3600));
    let in_time = tokio::spawn(async move { own.run(Ask { number: 6.0, width: 3 }, before(ample)).await });
    controls.release();
    assert_eq!(controls.next(), [6.0], "the late request never reaches the device");
    controls.release();
    assert_eq!(in_time.await.unwrap().unwrap().output, 12.0);
    first.await.unwrap().unwrap();
}

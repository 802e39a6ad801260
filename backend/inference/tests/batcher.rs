//! The contract of the device threads, on devices whose behaviour is known.
#![allow(clippy::unwrap_used, missing_docs)]
use inference::backend::{Backend, BackendError, BatchView, OutputView};
use inference::batcher::{Batcher, Device, Limits};
use inference::models::Model;
use inference::{Lane, Operation, RunError, Timed};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// A request is a number and a width; the tensor is the number, `width` times; the result is what the device made of it.
struct Numbers;

#[derive(Clone, Copy, Debug)]
struct Ask {
    number: f32,
    width: usize,
}

impl Model for Numbers {
    type Input = Ask;
    type Output = f32;
    fn operation(&self) -> Operation {
        Operation::FaceDetection
    }
    fn shape(&self, input: &Ask) -> [usize; 3] {
        [1, 1, input.width]
    }
    fn write(&self, input: &Ask, slot: &mut [f32]) {
        slot.fill(input.number);
    }
    fn read(&self, _: &Ask, outputs: &[OutputView<'_>], index: usize, batch: usize) -> Result<f32, String> {
        assert_eq!(outputs[0].shape, [batch]);
        Ok(outputs[0].data[index])
    }
}

/// Where the device stops before each run until the test lets it go on, and what it reports.
struct Gate {
    entered: mpsc::Sender<Vec<f32>>,
    leave: mpsc::Receiver<()>,
}

struct Controls {
    entered: mpsc::Receiver<Vec<f32>>,
    leave: mpsc::Sender<()>,
}

fn gate() -> (Gate, Controls) {
    let (entered, seen) = mpsc::channel();
    let (go, leave) = mpsc::channel();
    (Gate { entered, leave }, Controls { entered: seen, leave: go })
}

impl Controls {
    /// The numbers of the run that the device is about to do.
    fn next(&self) -> Vec<f32> {
        self.entered.recv_timeout(Duration::from_secs(20)).expect("the device gets work")
    }
    fn release(&self) {
        self.leave.send(()).unwrap();
    }
}

/// Doubles numbers.
#[derive(Default)]
struct Doubler {
    gate: Option<Gate>,
    memory_for: Option<usize>,
    fails_with: Option<BackendError>,
    sizes: Arc<Mutex<Vec<usize>>>,
}

impl Backend for Doubler {
    fn run(
        &mut self,
        batch: BatchView<'_>,
        read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError> {
        let [items, _, _, width] = batch.shape;
        let numbers: Vec<f32> = batch.data.chunks_exact(width).map(|item| item[0]).collect();
        assert!(batch.data.chunks_exact(width).zip(&numbers).all(|(item, n)| item.iter().all(|v| v == n)));
        self.sizes.lock().unwrap().push(items);
        if let Some(gate) = &self.gate {
            gate.entered.send(numbers.clone()).unwrap();
            gate.leave.recv().unwrap();
        }
        if self.memory_for.is_some_and(|most| items > most) {
            return Err(BackendError::OutOfMemory(format!("{items} are too many")));
        }
        if let Some(error) = &self.fails_with {
            return Err(error.clone());
        }
        assert!(numbers[0] >= 0.0, "a negative number breaks this device");
        let doubled: Vec<f32> = numbers.iter().map(|n| n * 2.0).collect();
        read(&[OutputView { name: "doubled", shape: vec![items], data: &doubled }]);
        Ok(())
    }
    fn device(&self) -> &str {
        "fake:0"
    }
}

const ONE_BY_ONE: Limits = Limits { queue_capacity: 64, max_batch: 1, max_delay: Duration::ZERO };

fn start(devices: Vec<Doubler>, limits: Limits) -> Batcher<Numbers> {
    let devices = devices.into_iter().map(|d| Device { primary: Box::new(d), fallback: None }).collect();
    Batcher::start(Numbers, devices, limits).unwrap()
}

type Pending = JoinHandle<Result<Timed<f32>, RunError>>;

/// Sends a request from a task of its own and returns when it is queued (or was refused).
async fn ask(batcher: &Batcher<Numbers>, number: f32, lane: Lane) -> Pending {
    let before = batcher.waiting();
    let own = batcher.clone();
    let task = tokio::spawn(async move { own.run(Ask { number, width: 3 }, lane).await });
    while batcher.waiting() == before && !task.is_finished() {
        tokio::task::yield_now().await;
    }
    task
}

/// Occupies the only device with request 0, so that what follows has to wait.
async fn occupy(batcher: &Batcher<Numbers>, controls: &Controls) -> Pending {
    let own = batcher.clone();
    let task = tokio::spawn(async move { own.run(Ask { number: 0.0, width: 3 }, Lane::Background).await });
    while batcher.waiting() == 0 && !task.is_finished() {
        if let Ok(numbers) = controls.entered.try_recv() {
            assert_eq!(numbers, [0.0]);
            return task;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(controls.next(), [0.0]);
    task
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_result_is_lost_or_swapped() {
    for max_batch in [1, 32] {
        let limits = Limits { queue_capacity: 20_000, max_batch, max_delay: Duration::from_micros(200) };
        let batcher = start((0..3).map(|_| Doubler::default()).collect(), limits);
        let tasks: Vec<_> = (0..10_000_u16)
            .map(|i| {
                let batcher = batcher.clone();
                let lane = if i % 3 == 0 { Lane::Interactive } else { Lane::Background };
                tokio::spawn(async move {
                    let ask = Ask { number: f32::from(i), width: 1 + usize::from(i % 4) };
                    (i, batcher.run(ask, lane).await)
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

#[tokio::test(flavor = "multi_thread")]
async fn interactive_requests_go_first_and_crawl_work_is_not_starved() {
    let (gate, controls) = gate();
    let batcher = start(vec![Doubler { gate: Some(gate), ..Default::default() }], ONE_BY_ONE);
    let mut tasks = vec![occupy(&batcher, &controls).await];
    for i in 1..=3_u8 {
        tasks.push(ask(&batcher, 100.0 + f32::from(i), Lane::Background).await);
    }
    for i in 1..=12_u8 {
        tasks.push(ask(&batcher, f32::from(i), Lane::Interactive).await);
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

#[tokio::test(flavor = "multi_thread")]
async fn requests_whose_caller_left_are_skipped() {
    let (gate, controls) = gate();
    let batcher = start(vec![Doubler { gate: Some(gate), ..Default::default() }], ONE_BY_ONE);
    let first = occupy(&batcher, &controls).await;
    let leaving = ask(&batcher, 1.0, Lane::Interactive).await;
    let staying = ask(&batcher, 2.0, Lane::Interactive).await;
    leaving.abort();
    assert!(leaving.await.unwrap_err().is_cancelled());
    controls.release();
    assert_eq!(controls.next(), [2.0], "the abandoned request never reaches the device");
    controls.release();
    assert_eq!(first.await.unwrap().unwrap().output, 0.0);
    assert_eq!(staying.await.unwrap().unwrap().output, 4.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_when_to_come_back() {
    let (gate, controls) = gate();
    let limits = Limits { queue_capacity: 4, ..ONE_BY_ONE };
    let batcher = start(vec![Doubler { gate: Some(gate), ..Default::default() }], limits);
    let mut tasks = vec![occupy(&batcher, &controls).await];
    for i in 1..=3_u8 {
        tasks.push(ask(&batcher, f32::from(i), Lane::Background).await);
    }
    let crawl = ask(&batcher, 4.0, Lane::Background).await.await.unwrap();
    assert!(
        matches!(crawl, Err(RunError::Overloaded { .. })),
        "crawl work leaves room for callers: {crawl:?}"
    );
    let leaving = ask(&batcher, 5.0, Lane::Interactive).await;
    match ask(&batcher, 6.0, Lane::Interactive).await.await.unwrap() {
        Err(RunError::Overloaded { operation, retry_after }) => {
            assert_eq!(operation, "face_detection");
            assert!(retry_after > Duration::ZERO && retry_after <= Duration::from_secs(60));
        }
        other => panic!("{other:?}"),
    }
    leaving.abort();
    let _ = leaving.await;
    // Waiting: 1, 2, 3 and an abandoned one, whose place is free again.
    let batcher_own = batcher.clone();
    let last =
        tokio::spawn(async move { batcher_own.run(Ask { number: 7.0, width: 3 }, Lane::Interactive).await });
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

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_fails_one_request_and_the_thread_goes_on() {
    let batcher = start(vec![Doubler::default()], ONE_BY_ONE);
    let ask = |number| batcher.run(Ask { number, width: 2 }, Lane::Interactive);
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

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_is_gathered_into_padded_batches_of_one_shape() {
    let (gate, controls) = gate();
    let limits = Limits { max_batch: 8, ..ONE_BY_ONE };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device = Doubler { gate: Some(gate), sizes: sizes.clone(), ..Default::default() };
    let batcher = start(vec![device], limits);
    let mut tasks = vec![occupy(&batcher, &controls).await];
    for i in 1..=5_u8 {
        tasks.push(ask(&batcher, f32::from(i), Lane::Background).await);
    }
    let own = batcher.clone();
    let wide = tokio::spawn(async move { own.run(Ask { number: 9.0, width: 7 }, Lane::Interactive).await });
    while batcher.waiting() < 6 {
        tokio::task::yield_now().await;
    }
    controls.release();
    assert_eq!(controls.next(), [9.0], "another shape has a batch of its own");
    controls.release();
    assert_eq!(controls.next()[..5], [1.0, 2.0, 3.0, 4.0, 5.0]);
    controls.release();
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
    }
    assert_eq!(wide.await.unwrap().unwrap().output, 18.0);
    assert_eq!(*sizes.lock().unwrap(), [1, 1, 8]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_waits_for_company_no_longer_than_the_delay() {
    // The delay is long enough that only the arrival of the last request can explain that the batch is complete.
    let limits = Limits { max_batch: 4, max_delay: Duration::from_secs(3600), ..ONE_BY_ONE };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let batcher = start(vec![Doubler { sizes: sizes.clone(), ..Default::default() }], limits);
    let tasks: Vec<_> = (0..4_u8)
        .map(|i| {
            let batcher = batcher.clone();
            tokio::spawn(async move {
                batcher.run(Ask { number: f32::from(i), width: 2 }, Lane::Background).await
            })
        })
        .collect();
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
    }
    assert_eq!(*sizes.lock().unwrap(), [4]);

    let limits = Limits { max_delay: Duration::from_millis(1), ..limits };
    let batcher = start(vec![Doubler::default()], limits);
    assert_eq!(batcher.run(Ask { number: 1.0, width: 2 }, Lane::Background).await.unwrap().output, 2.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_memory_halves_the_batch_and_is_remembered() {
    let (gate, controls) = gate();
    let limits = Limits { max_batch: 16, ..ONE_BY_ONE };
    let sizes = Arc::new(Mutex::new(Vec::new()));
    let device =
        Doubler { gate: Some(gate), sizes: sizes.clone(), memory_for: Some(4), ..Default::default() };
    let batcher = start(vec![device], limits);
    for round in 0..2 {
        let mut tasks = vec![occupy(&batcher, &controls).await];
        for i in 1..=12_u8 {
            tasks.push(ask(&batcher, f32::from(i), Lane::Background).await);
        }
        controls.release();
        // The first round meets the limit at 16 and at 8; the second never tries more than 4.
        let runs = if round == 0 { 2 + 3 } else { 3 };
        for _ in 0..runs {
            controls.next();
            controls.release();
        }
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
        }
    }
    assert_eq!(*sizes.lock().unwrap(), [1, 16, 8, 4, 4, 4, 1, 4, 4, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_device_hands_its_requests_to_the_second_one() {
    let failing = |error: BackendError| Doubler { fails_with: Some(error), ..Default::default() };
    let limits = Limits { max_batch: 4, ..ONE_BY_ONE };
    let devices = |error, fallback: Option<Doubler>| {
        vec![Device { primary: Box::new(failing(error)), fallback: fallback.map(|f| Box::new(f) as _) }]
    };
    let ask = Ask { number: 21.0, width: 2 };

    let error = BackendError::Failed("kernel error".into());
    let batcher = Batcher::start(Numbers, devices(error.clone(), Some(Doubler::default())), limits).unwrap();
    assert_eq!(batcher.run(ask, Lane::Interactive).await.unwrap().output, 42.0);
    batcher.ready().unwrap();

    let alone = Batcher::start(Numbers, devices(error.clone(), None), limits).unwrap();
    let failed = alone.run(ask, Lane::Interactive).await.unwrap_err().to_string();
    assert!(
        failed.contains("kernel error"),
        "without a second device it is an error of the request: {failed}"
    );

    let both =
        Batcher::start(Numbers, devices(error, Some(failing(BackendError::Failed("too".into())))), limits);
    let failed = both.unwrap().run(ask, Lane::Interactive).await.unwrap_err().to_string();
    assert!(failed.contains("kernel error") && failed.contains("too"), "{failed}");

    let lost = BackendError::DeviceLost("it fell off the bus".into());
    let batcher = Batcher::start(Numbers, devices(lost, Some(Doubler::default())), limits).unwrap();
    batcher.ready().unwrap();
    assert_eq!(
        batcher.run(ask, Lane::Interactive).await.unwrap().output,
        42.0,
        "the request is still answered"
    );
    let reason = batcher.ready().unwrap_err();
    assert!(reason.contains("fell off the bus") && reason.contains("fake:0"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
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
    let batcher = Batcher::start(Numbers, devices, ONE_BY_ONE).unwrap();
    let clone = batcher.clone();
    drop(batcher);
    assert_eq!(clone.run(Ask { number: 1.0, width: 1 }, Lane::Background).await.unwrap().output, 2.0);
    assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Empty));
    drop(clone);
    assert_eq!(ended.try_recv(), Err(mpsc::TryRecvError::Disconnected), "dropping waits for the threads");
}

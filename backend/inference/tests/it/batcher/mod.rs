//! Tests the device threads with fake devices. This file contains the devices, and requests with
//! known results.
mod devices;
mod queue;

use inference::backend::{Backend, BackendError, BatchView, OutputReader, OutputView};
use inference::batcher::{Batcher, Device, Limits, RequestOptions};
use inference::models::Model;
use inference::{Operation, Priority, RunError, Timed};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// A model for tests. A request is a number and a width. The tensor repeats the number `width`
/// times. The result is the device's output.
#[derive(Default)]
pub(crate) struct Numbers {
    pub(crate) written: Arc<AtomicUsize>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: f32,
    pub(crate) width: usize,
}

impl Model for Numbers {
    type Input = Call;
    type Output = f32;
    fn operation(&self) -> Operation {
        Operation::FaceDetection
    }
    fn shape(&self, input: &Call) -> [usize; 3] {
        [1, 1, input.width]
    }
    fn write(&self, input: &Call, slot: &mut [f32]) {
        assert!(!input.number.is_nan(), "this request is not a number");
        slot.fill(input.number);
        self.written.fetch_add(1, Ordering::SeqCst);
    }
    fn read(&self, _: &Call, outputs: &[OutputView<'_>], index: usize, batch: usize) -> Result<f32, String> {
        assert_eq!(outputs[0].shape, [batch]);
        Ok(outputs[0].data[index])
    }
}

/// The device's channels to the test. Before each run, the device sends the numbers and waits.
pub(crate) struct Gate {
    pub(crate) run_sender: mpsc::Sender<Vec<f32>>,
    pub(crate) release_receiver: mpsc::Receiver<()>,
}

pub(crate) struct Controls {
    pub(crate) run_receiver: mpsc::Receiver<Vec<f32>>,
    pub(crate) release_sender: mpsc::Sender<()>,
}

pub(crate) fn gate() -> (Gate, Controls) {
    let (run_sender, run_receiver) = mpsc::channel();
    let (release_sender, release_receiver) = mpsc::channel();
    (Gate { run_sender, release_receiver }, Controls { run_receiver, release_sender })
}

impl Controls {
    /// Returns the numbers of the run that the device is about to start.
    pub(crate) fn next(&self) -> Vec<f32> {
        self.run_receiver.recv_timeout(Duration::from_secs(20)).expect("the device starts a run")
    }
    pub(crate) fn release(&self) {
        self.release_sender.send(()).unwrap();
    }
}

#[derive(Default)]
pub(crate) struct Doubler {
    pub(crate) gate: Option<Gate>,
    /// A run with more items fails with an out-of-memory error.
    pub(crate) max_items: Option<usize>,
    pub(crate) fails_with: Option<BackendError>,
    /// A run that contains this number fails.
    pub(crate) fails_on: Option<f32>,
    pub(crate) sizes: Arc<Mutex<Vec<usize>>>,
}

impl Backend for Doubler {
    fn run(&mut self, batch: BatchView<'_>, read: OutputReader<'_>) -> Result<(), BackendError> {
        let [items, _, _, width] = batch.shape;
        let numbers: Vec<f32> = batch.data.chunks_exact(width).map(|item| item[0]).collect();
        assert!(batch.data.chunks_exact(width).zip(&numbers).all(|(item, n)| item.iter().all(|v| v == n)));
        self.sizes.lock().unwrap().push(items);
        if let Some(gate) = &self.gate {
            gate.run_sender.send(numbers.clone()).unwrap();
            gate.release_receiver.recv().unwrap();
        }
        if self.max_items.is_some_and(|limit| items > limit) {
            return Err(BackendError::OutOfMemory(format!("{items} are too many")));
        }
        if let Some(error) = &self.fails_with {
            return Err(error.clone());
        }
        if self.fails_on.is_some_and(|number| numbers.contains(&number)) {
            return Err(BackendError::Failed("this number fails on purpose".into()));
        }
        assert!(numbers[0] >= 0.0, "a negative number makes this device panic");
        let doubled: Vec<f32> = numbers.iter().map(|n| n * 2.0).collect();
        read(&[OutputView { name: "doubled", shape: vec![items], data: &doubled, bytes: &[] }]);
        Ok(())
    }
    fn device(&self) -> &str {
        "fake:0"
    }
}

pub(crate) const SINGLE_ITEMS: Limits =
    Limits { queue_capacity: 64, max_batch: 1, max_delay: Duration::ZERO, prefetch: false };

pub(crate) fn start(devices: Vec<Doubler>, limits: Limits) -> Batcher<Numbers> {
    let devices = devices.into_iter().map(|d| Device { primary: Box::new(d), fallback: None }).collect();
    Batcher::start(Numbers::default(), devices, limits).unwrap()
}

pub(crate) type Pending = JoinHandle<Result<Timed<f32>, RunError>>;

/// Sends a request from a separate task.
pub(crate) fn send(batcher: &Batcher<Numbers>, number: f32, options: impl Into<RequestOptions>) -> Pending {
    let (batcher, options) = (batcher.clone(), options.into());
    tokio::spawn(async move { batcher.run(Call { number, width: 3 }, options).await })
}

/// Sends a request from a separate task and returns when it is queued.
pub(crate) async fn enqueue(
    batcher: &Batcher<Numbers>,
    number: f32,
    options: impl Into<RequestOptions>,
) -> Pending {
    let before = batcher.queue_depth();
    let task = send(batcher, number, options);
    while batcher.queue_depth() == before && !task.is_finished() {
        tokio::task::yield_now().await;
    }
    task
}

/// Occupies the only device with request 0, so that later requests must wait.
pub(crate) async fn occupy(batcher: &Batcher<Numbers>, controls: &Controls) -> Pending {
    let task = send(batcher, 0.0, Priority::Background);
    while batcher.queue_depth() == 0 && !task.is_finished() {
        if let Ok(numbers) = controls.run_receiver.try_recv() {
            assert_eq!(numbers, [0.0]);
            return task;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(controls.next(), [0.0]);
    task
}

/// Waits for requests of the numbers 0, 1, 2 and so on, and checks their results.
pub(crate) async fn check_doubled(tasks: Vec<Pending>) {
    for (i, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().unwrap().output, i as f32 * 2.0);
    }
}

/// Waits for the requests and checks that none of them failed.
pub(crate) async fn check_success(tasks: Vec<Pending>) {
    for task in tasks {
        task.await.unwrap().unwrap();
    }
}

//! Tests the device threads with fake devices. This file contains the devices, and requests with
//! known results.
mod devices;
mod queue;

use inference::backend::{Backend, BackendError, BatchView, OutputReader, OutputView, Outputs};
use inference::batcher::{Batcher, Device, Limits, RequestOptions, RunResult};
use inference::models::Model;
use inference::{Operation, Priority};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;

/// A model for tests. A request is a number and a width. The tensor repeats the number `width`
/// times. The result is the device's output.
#[derive(Default)]
pub(crate) struct Numbers {
    /// Number of requests that were written into tensors.
    pub(crate) written: AtomicUsize,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) number: f32,
    pub(crate) width: usize,
}

impl From<f32> for Call {
    fn from(number: f32) -> Self {
        Self { number, width: 3 }
    }
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
    fn read(&self, _: &Call, outputs: Outputs<'_>) -> Result<f32, String> {
        let output = outputs.single()?;
        assert_eq!(output.shape, [outputs.batch]);
        Ok(output.data[outputs.index])
    }
}

/// The device's channels to the test. Before each run, the device sends the numbers and waits.
pub(crate) type Gate = (mpsc::Sender<Vec<f32>>, mpsc::Receiver<()>);

pub(crate) struct Controls {
    pub(crate) run_receiver: mpsc::Receiver<Vec<f32>>,
    release_sender: mpsc::Sender<()>,
}

pub(crate) fn gate() -> (Option<Gate>, Controls) {
    let (run_sender, run_receiver) = mpsc::channel();
    let (release_sender, release_receiver) = mpsc::channel();
    (Some((run_sender, release_receiver)), Controls { run_receiver, release_sender })
}

impl Controls {
    /// Returns the numbers of the run that the device is about to start.
    fn next(&self) -> Vec<f32> {
        self.run_receiver.recv_timeout(testing::MAX_WAIT).expect("the device starts a run")
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
        if let Some((run_sender, release_receiver)) = &self.gate {
            run_sender.send(numbers.clone()).unwrap();
            release_receiver.recv().unwrap();
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

/// A request with its number. It is sent from a separate task.
pub(crate) type Request = (f32, JoinHandle<RunResult<f32>>);

pub(crate) fn send(
    batcher: &Batcher<Numbers>,
    call: impl Into<Call>,
    options: impl Into<RequestOptions>,
) -> Request {
    let (batcher, call, options) = (batcher.clone(), call.into(), options.into());
    (call.number, tokio::spawn(async move { batcher.run(call, options).await }))
}

/// Waits for the requests and checks that each of them received its own result.
pub(crate) async fn check_results(requests: impl IntoIterator<Item = Request>) {
    for (number, task) in requests {
        assert_eq!(task.await.unwrap().unwrap().output, number * 2.0);
    }
}

pub(crate) async fn wait_until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(testing::MAX_WAIT, wait).await.expect("the condition becomes true");
}

/// A batcher whose only device waits for the test before each run.
pub(crate) struct GatedDevice {
    /// Dropped before the batcher, so that the device does not wait forever if a test fails.
    controls: Controls,
    pub(crate) batcher: Batcher<Numbers>,
    sizes: Arc<Mutex<Vec<usize>>>,
    pub(crate) requests: Vec<Request>,
    /// Number of requests that are queued or were written.
    accepted: usize,
}

impl GatedDevice {
    /// Starts the batcher and occupies the device.
    pub(crate) fn occupied(device: Doubler, limits: Limits) -> Self {
        let (gate, controls) = gate();
        let sizes = device.sizes.clone();
        let batcher = start(vec![Doubler { gate, ..device }], limits);
        let mut device = Self { controls, batcher, sizes, requests: Vec::new(), accepted: 0 };
        device.occupy();
        device
    }

    /// Occupies the idle device with request 0, so that later requests must wait.
    pub(crate) fn occupy(&mut self) {
        self.send(0.0, Priority::Background);
        assert_eq!(self.controls.next(), [0.0]);
        self.accepted = self.written();
    }

    fn written(&self) -> usize {
        self.batcher.model().written.load(Ordering::SeqCst)
    }

    pub(crate) fn send(&mut self, call: impl Into<Call>, options: impl Into<RequestOptions>) {
        self.requests.push(send(&self.batcher, call, options));
    }

    /// Sends a request to the busy device and returns when it is queued or written.
    pub(crate) async fn enqueue(&mut self, call: impl Into<Call>, options: impl Into<RequestOptions>) {
        self.send(call, options);
        self.accepted += 1;
        wait_until(|| self.batcher.queue_depth() + self.written() == self.accepted).await;
    }

    /// Waits until this many requests were written, and this many are in the queue.
    pub(crate) async fn wait_for(&self, written: usize, queued: usize) {
        wait_until(|| (self.written(), self.batcher.queue_depth()) == (written, queued)).await;
    }

    /// Ends the run of the busy device and its next `runs` runs. Returns the numbers of the latter.
    pub(crate) fn finish_runs(&self, runs: usize) -> Vec<Vec<f32>> {
        let next_run = |_| {
            self.controls.release();
            self.controls.next()
        };
        let runs = (0..runs).map(next_run).collect();
        self.controls.release();
        runs
    }

    /// Aborts the last request.
    pub(crate) async fn abort_last(&mut self) {
        let (_, task) = self.requests.pop().unwrap();
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }

    /// Waits for the requests and checks their results. Returns the batch sizes of all runs.
    pub(crate) async fn check_results(&mut self) -> Vec<usize> {
        check_results(self.requests.drain(..)).await;
        self.sizes.lock().unwrap().clone()
    }
}

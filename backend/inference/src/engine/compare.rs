//! Runs a synthetic sample on a device and compares the results with the CPU's. The module `prove`
//! decides which samples and batch sizes run.
use crate::backend::{Backend, BatchView, OutputView, Outputs};
use crate::models::Model;
use crate::unavailable::DIFFERS;
use std::time::Instant;

/// Maximum distance between the output vectors of a device and the CPU, divided by the length of
/// the CPU's vector. Reduced precision on GPUs (TF32, FP16) stays below 0.01; a faulty kernel far
/// exceeds the limit.
pub(super) const TOLERANCE: f64 = 0.03;
/// The limit for BF16, which has 8 significant bits; TF32 and FP16 have 11. Embeddings change by
/// 0.04 (a cosine of 0.999).
pub(super) const BF16_TOLERANCE: f64 = 0.1;
/// The limit for INT8. The embeddings of 139 faces change by 0.04 in the median and by at most 0.07
/// (a cosine of 0.9977).
pub(super) const INT8_TOLERANCE: f64 = 0.15;
/// The limit for two sessions on the CPU, where only the order of additions differs.
const CPU_TOLERANCE: f64 = 1e-3;
/// Minimum root mean square of an expected output. Smaller outputs are compared as if they had this
/// value, because the relative differences of scores near zero are large.
const MIN_RMS: f64 = 1e-2;
/// Number of runs of a batch size after the first one. Their median is the steady time.
const STEADY_RUNS: usize = 5;

/// The values of each output of a run. The error says why the outputs cannot be read.
pub(super) type SampleResult = Result<Vec<Vec<f32>>, String>;

/// One request and its prepared input.
pub(super) struct Sample<M: Model> {
    shape: [usize; 3],
    data: Vec<f32>,
    input: M::Input,
}

impl<M: Model> Sample<M> {
    pub(super) fn new(model: &M, input: M::Input) -> Self {
        let shape = model.shape(&input);
        let mut data = vec![0.0; shape.iter().product()];
        model.write(&input, &mut data);
        Self { shape, data, input }
    }

    /// Works like [`Self::run`] for a backend that accepts images.
    pub(super) fn run_images(&self, model: &M, backend: &mut dyn Backend, batch: usize) -> SampleResult {
        let image = model.image_input(&self.input).ok_or("the sample contains no image")?;
        let mut outputs = Vec::new();
        backend
            .run_images(&vec![image; batch], batch, &mut |views| {
                outputs = views.iter().map(|view| view.data.to_vec()).collect();
            })
            .map_err(|e| e.to_string())?;
        Ok(outputs)
    }

    /// Runs the sample `batch` times in one batch and returns all outputs. Fails if the outputs
    /// cannot be read.
    pub(super) fn run(&self, model: &M, backend: &mut dyn Backend, batch: usize) -> SampleResult {
        let outputs = self.run_values(model, backend, &self.data.repeat(batch))?;
        Ok(outputs.into_iter().map(|(_, values)| values).collect())
    }

    /// Runs another input of the same shape, runs the sample again, and returns its outputs. A
    /// provider can reuse state of an earlier run, so a fault may appear only after the first run.
    pub(super) fn run_again(&self, model: &M, backend: &mut dyn Backend, batch: usize) -> SampleResult {
        let other_input: Vec<f32> = self.data.iter().rev().map(|value| value * 0.5).collect();
        self.run_values(model, backend, &other_input.repeat(batch))?;
        self.run(model, backend, batch)
    }

    /// Runs the model on `data`, which contains one or more items of the sample's shape. Returns
    /// each output with the length of its first axis.
    fn run_values(
        &self,
        model: &M,
        backend: &mut dyn Backend,
        data: &[f32],
    ) -> Result<Vec<(usize, Vec<f32>)>, String> {
        let [channels, height, width] = self.shape;
        let batch = data.len() / self.data.len();
        let mut outputs = Vec::new();
        let mut read_result = Ok(());
        backend
            .run(BatchView { shape: [batch, channels, height, width], data }, &mut |views| {
                let first_axis = |view: &OutputView<'_>| view.shape.first().copied().unwrap_or(0);
                outputs = views.iter().map(|view| (first_axis(view), view.data.to_vec())).collect();
                read_result = (0..batch)
                    .try_for_each(|index| model.read(&self.input, Outputs { views, index, batch }).map(drop));
            })
            .map_err(|e| e.to_string())?;
        read_result?;
        Ok(outputs)
    }

    /// Checks that each item of a batch has the same result as the item alone. The batch has four
    /// different items and runs on `batched`; the items run one by one on `single`.
    pub(super) fn check_batch_independence(
        &self,
        model: &M,
        single: &mut dyn Backend,
        batched: &mut dyn Backend,
    ) -> Result<(), String> {
        let factors = [1.0, 0.8, 0.6, 0.4_f32];
        let items = factors.map(|factor| self.data.iter().map(|v| v * factor).collect::<Vec<f32>>());
        let batch_outputs = self.run_values(model, batched, &items.concat())?;
        if batch_outputs.iter().any(|(length, _)| *length != items.len()) {
            return Err("the first axis of the outputs is not the batch axis".to_owned());
        }
        for (i, item) in items.iter().enumerate() {
            let expected: Vec<_> =
                self.run_values(model, single, item)?.into_iter().map(|(_, v)| v).collect();
            let actual: Vec<Vec<f32>> = batch_outputs
                .iter()
                .map(|(_, all)| all.chunks((all.len() / items.len()).max(1)).nth(i).unwrap_or(&[]).to_vec())
                .collect();
            let difference = difference(&expected, &actual, 1)?;
            if difference > CPU_TOLERANCE {
                let percent = difference * 100.0;
                let subject = "the outputs of a batch of 4";
                return Err(format!("{subject} differ by {percent:.1} % from the outputs of single runs"));
            }
        }
        Ok(())
    }

    /// Returns `[channels, height, width]`.
    pub(super) fn shape(&self) -> [usize; 3] {
        self.shape
    }
}

/// Compares two results of a model: `expected` for one item, and `actual` for a batch of `batch`
/// items that are all equal to it. Returns their relative distance.
pub(super) fn compare_outputs(
    expected: &[Vec<f32>],
    actual: &[Vec<f32>],
    batch: usize,
    tolerance: f64,
) -> Result<f64, String> {
    let share = difference(expected, actual, batch).map_err(|reason| format!("{DIFFERS}{reason}"))?;
    if share > tolerance {
        let (percent, allowed) = (share * 100.0, tolerance * 100.0);
        return Err(format!("{DIFFERS}at batch {batch} by {percent:.1} %; up to {allowed:.0} % is allowed"));
    }
    Ok(share)
}

/// Returns the maximum distance between an output of `actual` (`batch` equal items) and `expected`
/// (one item), divided by the length of the expected output. Fails if they cannot be compared.
fn difference(expected: &[Vec<f32>], actual: &[Vec<f32>], batch: usize) -> Result<f64, String> {
    let mut max_share = 0.0_f64;
    if expected.len() != actual.len() {
        return Err(format!("the model has {} outputs instead of {}", actual.len(), expected.len()));
    }
    for (number, (reference, values)) in expected.iter().zip(actual).enumerate() {
        let (actual, expected) = (values.len(), reference.len() * batch);
        if actual != expected {
            return Err(format!("output {number} has {actual} values instead of {expected}"));
        }
        for item in values.chunks_exact(reference.len().max(1)) {
            let distance = length(reference.iter().zip(item).map(|(a, b)| a - b));
            let scale = length(reference.iter().copied()).max(MIN_RMS * (reference.len() as f64).sqrt());
            let share = distance / scale;
            if share.is_nan() {
                return Err(format!("output {number} contains values that are not numbers"));
            }
            max_share = max_share.max(share);
        }
    }
    Ok(max_share)
}

fn length(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt()
}

/// Returns the median duration of [`STEADY_RUNS`] runs, in seconds.
pub(super) fn median_seconds(mut run: impl FnMut() -> Result<(), String>) -> Result<f64, String> {
    let mut seconds = Vec::with_capacity(STEADY_RUNS);
    for _ in 0..STEADY_RUNS {
        let started_at = Instant::now();
        run()?;
        seconds.push(started_at.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[STEADY_RUNS / 2])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Operation;
    use crate::backend::{BackendError, OutputReader};

    /// A model whose input and output are its request.
    struct Echo;

    impl Model for Echo {
        type Input = [f32; 4];
        type Output = ();

        fn operation(&self) -> Operation {
            Operation::FaceDetection
        }

        fn shape(&self, _: &[f32; 4]) -> [usize; 3] {
            [1, 2, 2]
        }

        fn write(&self, input: &[f32; 4], slot: &mut [f32]) {
            slot.copy_from_slice(input);
        }

        fn read(&self, _: &[f32; 4], _: Outputs<'_>) -> Result<(), String> {
            Ok(())
        }
    }

    /// A device that returns its input. If `is_faulty`, it adds the first output of the previous
    /// run to all values.
    struct Device {
        is_faulty: bool,
        bias: f32,
    }

    impl Backend for Device {
        fn run(&mut self, batch: BatchView<'_>, read: OutputReader<'_>) -> Result<(), BackendError> {
            let data: Vec<f32> = batch.data.iter().map(|value| value + self.bias).collect();
            self.bias = if self.is_faulty { data[0] } else { 0.0 };
            read(&[OutputView { name: "echo", shape: batch.shape.into(), data: &data, bytes: &[] }]);
            Ok(())
        }

        fn device(&self) -> &str {
            "cuda:0"
        }
    }

    #[test]
    fn warm_up_detects_device_faults_after_first_run() {
        let sample = Sample::new(&Echo, [1.0, 2.0, 3.0, 4.0]);
        let expected = vec![vec![1.0, 2.0, 3.0, 4.0]];
        for (is_faulty, is_equal) in [(false, true), (true, false)] {
            let device = &mut Device { is_faulty, bias: 0.0 };
            let first = sample.run(&Echo, device, 2).unwrap();
            assert!(compare_outputs(&expected, &first, 2, TOLERANCE).is_ok());
            let later = sample.run_again(&Echo, device, 2).unwrap();
            assert_eq!(compare_outputs(&expected, &later, 2, TOLERANCE).is_ok(), is_equal);
        }
    }

    #[test]
    fn output_comparison_tolerates_only_rounding() {
        let expected = vec![vec![1.0, 2.0, 3.0], vec![0.0; 4]];
        let similar = vec![vec![1.001, 2.0, 2.999, 1.0, 2.0, 3.0], vec![1e-5; 8]];
        assert!(compare_outputs(&expected, &similar, 2, TOLERANCE).unwrap() < 0.001);
        let different = vec![vec![1.0, 2.0, 3.0, 1.0, 2.5, 3.0], vec![0.0; 8]];
        assert!(
            compare_outputs(&expected, &different, 2, BF16_TOLERANCE).is_err(),
            "the difference in the second item of the batch is found"
        );
        let broken = vec![vec![1.0, f32::NAN, 3.0], vec![0.0; 4]];
        assert!(compare_outputs(&expected, &broken, 1, TOLERANCE).is_err());
        assert!(compare_outputs(&expected, &expected[..1], 1, TOLERANCE).is_err());
    }
}

//! The first runs of a session, on a drawn picture.
use crate::backend::{Backend, BatchView};
use crate::models::Model;

/// Largest allowed distance between a device's output and the CPU's, as a share of the output's length (both as vectors).
/// Reduced precision on GPUs (TF32, fp16) stays below 0.01; a wrong kernel is far above.
const TOLERANCE: f64 = 0.03;
/// Outputs shorter than this per value count as this long: a plane of scores near zero is not compared to the last digit.
const FLOOR: f64 = 1e-2;

/// One prepared input and the request it came from.
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

    /// Runs the sample `batch` times in one batch and returns all outputs. Fails when the outputs cannot be read.
    pub(super) fn run(
        &self,
        model: &M,
        backend: &mut dyn Backend,
        batch: usize,
    ) -> Result<Vec<Vec<f32>>, String> {
        let data = self.data.repeat(batch);
        let [channels, height, width] = self.shape;
        let mut outputs = Vec::new();
        let mut readable = Ok(());
        backend
            .run(BatchView { shape: [batch, channels, height, width], data: &data }, &mut |views| {
                outputs = views.iter().map(|view| view.data.to_vec()).collect();
                readable = (0..batch).try_for_each(|i| model.read(&self.input, views, i, batch).map(drop));
            })
            .map_err(|e| e.to_string())?;
        readable?;
        Ok(outputs)
    }
}

/// Whether `found`, the outputs of `batch` equal items, repeats `expected`, those of one.
pub(super) fn agree(expected: &[Vec<f32>], found: &[Vec<f32>], batch: usize) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("{} outputs instead of {}", found.len(), expected.len()));
    }
    for (number, (wanted, all)) in expected.iter().zip(found).enumerate() {
        if all.len() != wanted.len() * batch {
            return Err(format!(
                "output {number} has {} values instead of {}",
                all.len(),
                wanted.len() * batch
            ));
        }
        for item in all.chunks_exact(wanted.len().max(1)) {
            let distance = length(wanted.iter().zip(item).map(|(a, b)| a - b));
            let whole = length(wanted.iter().copied()).max(FLOOR * (wanted.len() as f64).sqrt());
            let share = distance / whole;
            if share.is_nan() || share > TOLERANCE {
                return Err(format!("output {number} differs from the CPU's by {:.1} %", share * 100.0));
            }
        }
    }
    Ok(())
}

fn length(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|v| f64::from(v) * f64::from(v)).sum::<f64>().sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_that_differ_are_told_from_rounding() {
        let expected = vec![vec![1.0, 2.0, 3.0], vec![0.0; 4]];
        let close = vec![vec![1.001, 2.0, 2.999, 1.0, 2.0, 3.0], vec![1e-5; 8]];
        assert_eq!(agree(&expected, &close, 2), Ok(()));
        let far = vec![vec![1.0, 2.0, 3.0, 1.0, 2.5, 3.0], vec![0.0; 8]];
        assert!(agree(&expected, &far, 2).is_err(), "the second item of the batch is compared too");
        let broken = vec![vec![1.0, f32::NAN, 3.0], vec![0.0; 4]];
        assert!(agree(&expected, &broken, 1).is_err());
        assert!(agree(&expected, &expected[..1], 1).is_err());
    }
}

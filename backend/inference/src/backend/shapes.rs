//! Divides the device memory of a model between its sessions, one for each frequent input shape.
//!
//! Since version 1.20, the CUDA provider of ONNX Runtime keeps cuDNN's execution plans for the
//! last shape only (<https://github.com/microsoft/onnxruntime/issues/23006>). A run with
//! another shape makes them again on one core: with 32 items on an H200, this takes 0.5 s for
//! SFace, and 3.3 s for YuNet. MIGraphX compiles the model again. A session that always runs the
//! same shape does this once.

/// Memory for the weights of a session, as a multiple of the size of the model file.
const WEIGHTS: usize = 2;
/// Minimum memory of a session besides its weights, in bytes. The libraries use memory that does
/// not depend on the size of the input.
const MIN_MEMORY: usize = 64 << 20;

/// Divides `whole` bytes between the sessions of a model file of `model` bytes, one for each of
/// `shapes`: in proportion to the sizes of their inputs, after each session has received a minimum.
/// Returns `None` if the minimums exceed `whole`.
pub(super) fn memory_limits(whole: usize, model: usize, shapes: &[[usize; 4]]) -> Option<Vec<usize>> {
    let sizes: Vec<usize> = shapes.iter().map(|shape| shape.iter().product()).collect();
    let least = model.saturating_mul(WEIGHTS).saturating_add(MIN_MEMORY);
    let rest = whole.checked_sub(least.saturating_mul(shapes.len()))?;
    let share = rest as f64 / sizes.iter().sum::<usize>().max(1) as f64;
    Some(sizes.into_iter().map(|size| least + (size as f64 * share) as usize).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn sessions_share_the_memory_by_the_size_of_their_inputs() {
        let shapes = [[1, 3, 10, 10], [8, 3, 10, 10]];
        let least = MIN_MEMORY + 20;
        let limits = memory_limits(900 + 2 * least, 10, &shapes).unwrap();
        assert_eq!(limits, [100 + least, 800 + least]);
        assert_eq!(memory_limits(2 * least - 1, 10, &shapes), None);
    }
}

//! A backend that is an ONNX Runtime session, or one session for each frequent input shape.
//!
//! Since version 1.20, the CUDA provider of ONNX Runtime keeps cuDNN's execution plans for the
//! last shape only (<https://github.com/microsoft/onnxruntime/issues/23006>). A run with another
//! shape creates them again on one core. With 32 items on an H200, this takes 0.5 s for SFace and
//! 3.3 s for YuNet. MIGraphX compiles the model again. A session that always runs the same shape
//! does this once.
use super::placement::ProviderSession;
use super::{Backend, BackendError, BatchView, OutputReader, OutputView, Placement};
use crate::runtime::Runtime;
use crate::tensorrt::Profile;
use crate::unavailable::is_out_of_memory;
use ort::value::{Shape, TensorElementType, TensorRef, ValueRef};

/// An ONNX Runtime session with the shape of its input.
pub struct OnnxModel {
    /// Runs every shape without a separate session.
    session: ProviderSession,
    /// Sessions that run one shape each.
    shape_sessions: Vec<([usize; 4], ProviderSession)>,
    label: String,
    input_shape: [Option<usize>; 4],
    /// The shapes that the session was built for, and the session that runs all other shapes.
    limits: Option<(Profile, Option<Box<OnnxModel>>)>,
}

impl OnnxModel {
    /// Builds a session of `model` (the file's bytes).
    pub fn load(runtime: &Runtime, model: &[u8], placement: &Placement) -> Result<Self, String> {
        let session = build_session(runtime, model, placement)?;
        let [input] = session.inputs() else {
            let count = session.inputs().len();
            return Err(format!("the model has {count} inputs; one image input is expected"));
        };
        if input.dtype().tensor_type() != Some(TensorElementType::Float32) {
            return Err(format!("the input {} is not a float32 tensor", input.name()));
        }
        let shape: Vec<Option<usize>> = input
            .dtype()
            .tensor_shape()
            .map(|dims| dims.iter().map(|d| usize::try_from(*d).ok()).collect())
            .unwrap_or_default();
        let input_shape: [Option<usize>; 4] = shape.try_into().map_err(|shape: Vec<_>| {
            format!("the input has {} dimensions; [batch, 3, height, width] is expected", shape.len())
        })?;
        if let Some(channels) = input_shape[1].filter(|channels| *channels != 3) {
            return Err(format!("the input has {channels} channels; 3 are expected"));
        }
        Ok(Self { session, shape_sessions: Vec::new(), label: placement.label(), input_shape, limits: None })
    }

    /// Builds a session for each of `shapes`. With `allow_other_shapes`, one more session runs all
    /// other shapes; otherwise the session of the largest shape runs them. Together, the sessions
    /// may allocate `memory_limit` of `placement`. If that is too little, one session runs all
    /// shapes.
    pub fn load_for_shapes(
        runtime: &Runtime,
        model: &[u8],
        placement: &Placement,
        shapes: &[[usize; 4]],
        allow_other_shapes: bool,
    ) -> Result<Self, String> {
        let mut shapes = shapes.to_vec();
        shapes.sort_by_key(|shape| shape.iter().product::<usize>());
        // The session for other shapes has memory for the largest shape.
        shapes.extend(shapes.last().copied().filter(|_| allow_other_shapes));
        let limits = memory_limits(placement.memory_limit, model.len(), &shapes);
        let Some((limit, limits)) = limits.as_deref().and_then(|limits| limits.split_last()) else {
            return Self::load(runtime, model, placement);
        };
        let with_limit = |memory_limit: usize| Placement { memory_limit, ..placement.clone() };
        let mut loaded = Self::load(runtime, model, &with_limit(*limit))?;
        for (shape, limit) in shapes.into_iter().zip(limits) {
            loaded.shape_sessions.push((shape, build_session(runtime, model, &with_limit(*limit))?));
        }
        Ok(loaded)
    }

    pub fn session_count(&self) -> usize {
        self.shape_sessions.len() + 1
    }

    /// Releases the sessions of shapes with more than `items` items.
    pub fn release_batches_above(&mut self, items: usize) {
        self.shape_sessions.retain(|(shape, _)| shape[0] <= items);
    }

    /// Restricts the session to the shapes in `profile`, because it would build an engine for any
    /// other shape. Inputs of other shapes run on `fallback`; if it is `None`, such runs fail.
    pub fn with_profile(self, profile: Profile, fallback: Option<Self>) -> Self {
        Self { limits: Some((profile, fallback.map(Box::new))), ..self }
    }

    pub(super) fn session_for(&mut self, shape: [usize; 4]) -> Result<&mut ProviderSession, BackendError> {
        match &mut self.limits {
            Some((profile, fallback)) if !profile.contains(shape) => match fallback {
                Some(fallback) => fallback.session_for(shape),
                None => Err(BackendError::Failed(format!(
                    "the input {shape:?} is outside the shapes of the engine on {} ({profile})",
                    self.label
                ))),
            },
            _ => {
                let session = self.shape_sessions.iter_mut().find(|(own_shape, _)| *own_shape == shape);
                Ok(session.map_or(&mut self.session, |(_, session)| session))
            }
        }
    }

    pub fn input_name(&self) -> &str {
        self.session.inputs()[0].name()
    }

    /// Returns `[batch, channels, height, width]` of the input. An axis of any length is `None`.
    pub fn input_shape(&self) -> [Option<usize>; 4] {
        self.input_shape
    }

    pub fn output_count(&self) -> usize {
        self.session.outputs().len()
    }
}

/// Memory for the weights of a session, as a multiple of the size of the model file.
const WEIGHT_MEMORY_FACTOR: usize = 2;
/// Minimum memory of a session besides its weights, in bytes. The libraries use memory that does
/// not depend on the size of the input.
const MIN_MEMORY: usize = 64 << 20;

/// Divides `total` bytes between the sessions of a model file of `model` bytes, one for each of
/// `shapes`: in proportion to the sizes of their inputs, after each session has received a minimum.
/// Returns `None` if the minimums exceed `total`.
fn memory_limits(total: usize, model: usize, shapes: &[[usize; 4]]) -> Option<Vec<usize>> {
    let sizes: Vec<usize> = shapes.iter().map(|shape| shape.iter().product()).collect();
    let minimum = model.saturating_mul(WEIGHT_MEMORY_FACTOR).saturating_add(MIN_MEMORY);
    let remaining = total.checked_sub(minimum.saturating_mul(shapes.len()))?;
    let share = remaining as f64 / sizes.iter().sum::<usize>().max(1) as f64;
    Some(sizes.into_iter().map(|size| minimum + (size as f64 * share) as usize).collect())
}

fn build_session(runtime: &Runtime, model: &[u8], placement: &Placement) -> Result<ProviderSession, String> {
    ProviderSession::build(runtime, model, placement, |builder| Ok(builder.with_memory_pattern(true)?))
}

impl Backend for OnnxModel {
    fn run(&mut self, batch: BatchView<'_>, read: OutputReader<'_>) -> Result<(), BackendError> {
        let input = TensorRef::from_array_view((batch.shape, batch.data))?;
        let session = self.session_for(batch.shape)?;
        let _lock = session.lock();
        pass_outputs(session.run(ort::inputs![input])?.iter(), read)
    }

    fn device(&self) -> &str {
        &self.label
    }
}

/// Passes outputs that are in host memory to `read`.
pub(super) fn pass_outputs<'a>(
    outputs: impl Iterator<Item = (&'a str, ValueRef<'a>)>,
    read: OutputReader<'_>,
) -> Result<(), BackendError> {
    let outputs: Vec<_> = outputs.collect();
    let sides = |shape: &Shape| shape.iter().map(|d| usize::try_from(*d).unwrap_or(0)).collect();
    let views = outputs
        .iter()
        .map(|(name, value)| {
            if value.dtype().tensor_type() == Some(TensorElementType::Uint8) {
                let (shape, bytes) = value.try_extract_tensor::<u8>()?;
                return Ok(OutputView { name, shape: sides(shape), data: &[], bytes });
            }
            let (shape, data) = value.try_extract_tensor::<f32>()?;
            Ok(OutputView { name, shape: sides(shape), data, bytes: &[] })
        })
        .collect::<Result<Vec<_>, BackendError>>()?;
    read(&views);
    Ok(())
}

impl From<ort::Error> for BackendError {
    fn from(error: ort::Error) -> Self {
        classify_error(&error.to_string())
    }
}

/// Maps the error text of a failed run, from CUDA or HIP, to a [`BackendError`].
fn classify_error(message: &str) -> BackendError {
    const DEVICE_LOST: [&str; 10] = [
        "illegal memory access",
        "unspecified launch failure",
        "device-side assert",
        "no cuda-capable device",
        "cuda failure 46",
        "cudaerrordevicesunavailable",
        "device lost",
        "[device] is lost",
        "uncorrectable ecc",
        "hiperrornodevice",
    ];
    let text = message.to_ascii_lowercase();
    if is_out_of_memory(message) {
        BackendError::OutOfMemory(message.to_owned())
    } else if DEVICE_LOST.iter().any(|phrase| text.contains(phrase)) {
        BackendError::DeviceLost(message.to_owned())
    } else {
        BackendError::Failed(message.to_owned())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn classifies_onnx_device_errors() {
        let memory = "CUDA failure 2: out of memory ; GPU=0 ; expr=cudaMalloc((void**)&p, size);";
        let arena =
            "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 4294967296";
        for text in [memory, arena] {
            assert_eq!(classify_error(text), BackendError::OutOfMemory(text.to_owned()));
        }
        let lost = "CUDA failure 700: an illegal memory access was encountered ; GPU=0";
        assert_eq!(classify_error(lost), BackendError::DeviceLost(lost.to_owned()));
        let other = "Got invalid dimensions for input: input for the following indices";
        assert_eq!(classify_error(other), BackendError::Failed(other.to_owned()));
    }

    #[test]
    fn sessions_share_memory_by_input_size() {
        let shapes = [[1, 3, 10, 10], [8, 3, 10, 10]];
        let minimum = MIN_MEMORY + 20;
        let limits = memory_limits(900 + 2 * minimum, 10, &shapes).unwrap();
        assert_eq!(limits, [100 + minimum, 800 + minimum]);
        assert_eq!(memory_limits(2 * minimum - 1, 10, &shapes), None);
    }
}

//! A model that takes images. Each image is copied to the device once, as bytes. The device
//! converts the image to a tensor and runs the model without copying the tensor to the host.
use super::graphs::Program;
use super::onnx::{OnnxModel, classify, pass_outputs};
use super::{Backend, BackendError, BatchView, ImageInput, OutputView, Placement};
use crate::graphs::{stack, tensor};
use crate::manifest::PixelInput;
use crate::runtime::Runtime;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::value::DynValue;

/// The graphs that run before a model on its device. One graph converts an image to the model's
/// input tensor. There is also one graph per batch size, which joins tensors into a batch.
pub struct Preparation {
    tensor: Program,
    stacks: Vec<(usize, Program)>,
    device: MemoryInfo<'static>,
}

impl Preparation {
    /// Loads the graphs for a model with this `input` and for batches of `sizes`.
    pub fn load(
        runtime: &Runtime,
        input: &PixelInput,
        sizes: &[usize],
        placement: &Placement,
    ) -> Result<Self, String> {
        let memory = placement
            .provider
            .memory()
            .ok_or_else(|| format!("{} provides no device memory", placement.provider.name()))?;
        let device_id = if memory == AllocationDevice::CPU { 0 } else { placement.device_id };
        let device_id =
            i32::try_from(device_id).map_err(|_| format!("device id {device_id} is too large"))?;
        let stacks = sizes.iter().filter(|size| **size > 1);
        Ok(Self {
            tensor: Program::load(runtime, &tensor(input), placement)?,
            stacks: stacks
                .map(|size| Ok((*size, Program::load(runtime, &stack(*size), placement)?)))
                .collect::<Result<_, String>>()?,
            device: MemoryInfo::new(memory, device_id, AllocatorType::Device, MemoryType::Default)
                .map_err(|e| e.to_string())?,
        })
    }

    /// Creates the tensor of one image in device memory.
    fn tensor(&mut self, image: &ImageInput<'_>) -> ort::Result<DynValue> {
        // A binding copies inputs to a device at once, but only references inputs in host memory.
        let owned = self.device.allocation_device() == AllocationDevice::CPU;
        let inputs = self.tensor.inputs(image, owned)?;
        run_on(&mut self.tensor, inputs.iter().map(|(name, value)| (name.as_str(), &**value)), &self.device)
    }

    /// Creates one tensor of `items` images in device memory. The last image is repeated in the
    /// remaining slots.
    fn batch(&mut self, images: &[ImageInput<'_>], items: usize) -> ort::Result<DynValue> {
        let mut tensors = images.iter().map(|image| self.tensor(image)).collect::<ort::Result<Vec<_>>>()?;
        if items == 1 && tensors.len() == 1 {
            return Ok(tensors.swap_remove(0));
        }
        let stack = self.stacks.iter_mut().find(|(size, _)| *size == items);
        let (Some((_, stack)), Some(last)) = (stack, tensors.last()) else {
            return Err(ort::Error::new(format!("there is no graph for {items} items per batch")));
        };
        let names = stack.inputs.clone();
        let slots = tensors.iter().chain(std::iter::repeat(last));
        run_on(stack, names.iter().map(String::as_str).zip(slots), &self.device)
    }
}

/// Runs a graph with one output and leaves the output in `memory`.
fn run_on<'a>(
    program: &mut Program,
    inputs: impl Iterator<Item = (&'a str, &'a DynValue)>,
    memory: &MemoryInfo<'static>,
) -> ort::Result<DynValue> {
    let mut binding = program.session.create_binding()?;
    for (name, value) in inputs {
        binding.bind_input(name, value)?;
    }
    let output = program.session.outputs().first().map(|output| output.name().to_owned());
    let output = output.ok_or_else(|| ort::Error::new("the graph has no output"))?;
    binding.bind_output_to_device(output.as_str(), memory)?;
    let mut outputs = program.session.run_binding(&binding)?;
    outputs.remove(&output).ok_or_else(|| ort::Error::new("the graph returned no output"))
}

/// A model with its preparation graphs.
pub struct PreparedModel {
    preparation: Preparation,
    model: OnnxModel,
}

impl PreparedModel {
    /// Combines a model and its preparation, which must be on the same device.
    pub fn new(preparation: Preparation, model: OnnxModel) -> Self {
        Self { preparation, model }
    }

    pub fn into_model(self) -> OnnxModel {
        self.model
    }
}

impl Backend for PreparedModel {
    fn run(
        &mut self,
        batch: BatchView<'_>,
        read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError> {
        self.model.run(batch, read)
    }

    fn takes_images(&self) -> bool {
        true
    }

    fn run_images(
        &mut self,
        images: &[ImageInput<'_>],
        items: usize,
        read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError> {
        let failed = |error: ort::Error| classify(&error.to_string());
        let batch = self.preparation.batch(images, items).map_err(failed)?;
        let shape = batch.dtype().tensor_shape().map(|sides| sides.to_vec()).unwrap_or_default();
        let shape: [i64; 4] = shape
            .try_into()
            .map_err(|shape| BackendError::Failed(format!("the tensor has the shape {shape:?}")))?;
        let session = self.model.session_for(shape.map(|side| usize::try_from(side).unwrap_or(0)))?;
        let mut binding = session.create_binding().map_err(failed)?;
        let name = session.inputs()[0].name().to_owned();
        binding.bind_input(name, &batch).map_err(failed)?;
        let host = MemoryInfo::default();
        for output in session.outputs() {
            binding.bind_output_to_device(output.name(), &host).map_err(failed)?;
        }
        let outputs = session.run_binding(&binding).map_err(failed)?;
        pass_outputs(outputs.iter(), read)
    }

    fn device(&self) -> &str {
        self.model.device()
    }
}

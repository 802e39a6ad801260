//! Backends that take images instead of tensors: the project's own graphs ([`crate::graphs`]), and
//! a model with the graphs that prepare its input. Each image is copied to the device once, as
//! bytes.
use super::placement::ProviderSession;
use super::session::{OnnxModel, pass_outputs};
use super::{Backend, BackendError, BatchView, ImageInput, OutputReader, Placement};
use crate::ep::Provider;
use crate::graphs::{self, Parameter};
use crate::manifest::PixelInput;
use crate::runtime::Runtime;
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::SessionInputValue;
use ort::value::{DynValue, PrimitiveTensorElementType, Tensor, TensorRef};

/// Sessions of graphs whose inputs are an image and then parameters.
pub struct PixelGraphs {
    sessions: Vec<ProviderSession>,
    label: String,
}

impl PixelGraphs {
    /// Builds one session per graph, all on `placement`. On a device, every node must run on that
    /// device; a provider that would assign nodes to the CPU is rejected.
    pub fn load(runtime: &Runtime, graphs: &[Vec<u8>], placement: &Placement) -> Result<Self, String> {
        let sessions = graphs.iter().map(|graph| load_graph(runtime, graph, placement));
        Ok(Self { sessions: sessions.collect::<Result<_, _>>()?, label: placement.label() })
    }
}

fn load_graph(runtime: &Runtime, graph: &[u8], placement: &Placement) -> Result<ProviderSession, String> {
    ProviderSession::build(runtime, graph, placement, |builder| {
        // With memory patterns, the runtime would cache a memory plan for each image size.
        let builder = builder.with_memory_pattern(false)?;
        match placement.provider {
            Provider::Cpu => Ok(builder),
            _ => Ok(builder.with_disable_cpu_fallback()?),
        }
    })
}

/// Returns the names of a graph's inputs, in its order.
fn input_names(session: &ProviderSession) -> impl Iterator<Item = String> {
    session.inputs().iter().map(|input| input.name().to_owned())
}

/// Returns the inputs of a graph for an image, with their names. With `copy_data`, their data is
/// copied.
fn graph_inputs<'a>(
    session: &ProviderSession,
    image: &'a ImageInput<'_>,
    copy_data: bool,
) -> ort::Result<Vec<(String, SessionInputValue<'a>)>> {
    let (expected, actual) = (session.inputs().len() - 1, image.parameters.len());
    if expected != actual {
        return Err(ort::Error::new(format!("the graph takes {expected} parameters, not {actual}")));
    }
    let frame = image.frame;
    let shape = [1, frame.height() as usize, frame.width() as usize, 3];
    let mut values = vec![input_value(&shape, frame.data(), copy_data)?];
    for parameter in &image.parameters {
        values.push(match parameter {
            Parameter::Indices { shape, data } => input_value(shape, data, copy_data)?,
            Parameter::Floats { shape, data } => input_value(shape, data, copy_data)?,
        });
    }
    Ok(input_names(session).zip(values).collect())
}

fn input_value<'a, T: PrimitiveTensorElementType + Clone + std::fmt::Debug + 'static>(
    shape: &[usize],
    data: &'a [T],
    copy_data: bool,
) -> ort::Result<SessionInputValue<'a>> {
    Ok(if copy_data {
        Tensor::from_array((shape.to_vec(), data.to_vec()))?.into()
    } else {
        TensorRef::from_array_view((shape.to_vec(), data))?.into()
    })
}

impl Backend for PixelGraphs {
    fn run(&mut self, _: BatchView<'_>, _: OutputReader<'_>) -> Result<(), BackendError> {
        Err(BackendError::Failed("an image graph accepts images, not tensors".to_owned()))
    }

    fn accepts_images(&self) -> bool {
        true
    }

    fn run_images(
        &mut self,
        images: &[ImageInput<'_>],
        _: usize,
        read: OutputReader<'_>,
    ) -> Result<(), BackendError> {
        let [image] = images else {
            let message = format!("the graph accepts one image per run, not {}", images.len());
            return Err(BackendError::Failed(message));
        };
        let missing = || BackendError::Failed(format!("the graph {} does not exist", image.graph_index));
        let session = self.sessions.get_mut(image.graph_index).ok_or_else(missing)?;
        let _lock = session.lock();
        let inputs = graph_inputs(session, image, false)?;
        pass_outputs(session.run(inputs)?.iter(), read)
    }

    fn device(&self) -> &str {
        &self.label
    }
}

/// The graphs that run before a model on its device. One graph converts an image to the model's
/// input tensor. The others join tensors into a batch.
pub struct Preparation {
    tensor_graph: ProviderSession,
    /// The graphs that join tensors, each with its batch size.
    stack_graphs: Vec<(usize, ProviderSession)>,
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
        let provider = placement.provider;
        let no_memory = || format!("{} provides no device memory", provider.name());
        let memory = provider.memory().ok_or_else(no_memory)?;
        let device_id = if memory == AllocationDevice::CPU { 0 } else { placement.device_id };
        let device_id =
            i32::try_from(device_id).map_err(|_| format!("device id {device_id} is too large"))?;
        let stack_sizes = sizes.iter().filter(|size| **size > 1);
        Ok(Self {
            tensor_graph: load_graph(runtime, &graphs::tensor(input), placement)?,
            stack_graphs: stack_sizes
                .map(|size| Ok((*size, load_graph(runtime, &graphs::stack(*size), placement)?)))
                .collect::<Result<_, String>>()?,
            device: MemoryInfo::new(memory, device_id, AllocatorType::Device, MemoryType::Default)
                .map_err(|e| e.to_string())?,
        })
    }

    /// Creates the tensor of one image in device memory.
    fn tensor(&mut self, image: &ImageInput<'_>) -> ort::Result<DynValue> {
        // A binding copies inputs to a device at once; it only references inputs in host memory.
        let copy_data = self.device.allocation_device() == AllocationDevice::CPU;
        let inputs = graph_inputs(&self.tensor_graph, image, copy_data)?;
        run_into_memory(
            &mut self.tensor_graph,
            inputs.iter().map(|(name, value)| (name.as_str(), &**value)),
            &self.device,
        )
    }

    /// Creates one tensor of `items` images in device memory. The last image is repeated in the
    /// remaining slots.
    fn batch(&mut self, images: &[ImageInput<'_>], items: usize) -> ort::Result<DynValue> {
        let mut tensors = images.iter().map(|image| self.tensor(image)).collect::<ort::Result<Vec<_>>>()?;
        if items == 1 && tensors.len() == 1 {
            return Ok(tensors.swap_remove(0));
        }
        let stack = self.stack_graphs.iter_mut().find(|(size, _)| *size == items);
        let (Some((_, stack)), Some(last)) = (stack, tensors.last()) else {
            return Err(ort::Error::new(format!("there is no graph for {items} items per batch")));
        };
        let names: Vec<String> = input_names(stack).collect();
        let slots = tensors.iter().chain(std::iter::repeat(last));
        run_into_memory(stack, names.iter().map(String::as_str).zip(slots), &self.device)
    }
}

/// Runs a graph with one output and writes the output into `memory`.
fn run_into_memory<'a>(
    graph: &mut ProviderSession,
    inputs: impl Iterator<Item = (&'a str, &'a DynValue)>,
    memory: &MemoryInfo<'static>,
) -> ort::Result<DynValue> {
    let mut binding = graph.create_binding()?;
    for (name, value) in inputs {
        binding.bind_input(name, value)?;
    }
    let output = graph.outputs().first().map(|output| output.name().to_owned());
    let output = output.ok_or_else(|| ort::Error::new("the graph has no output"))?;
    binding.bind_output_to_device(output.as_str(), memory)?;
    let mut outputs = graph.run_binding(&binding)?;
    outputs.remove(&output).ok_or_else(|| ort::Error::new("the graph returned no output"))
}

/// A model with its preparation graphs, which must be on the same device.
pub struct PreparedModel {
    pub preparation: Preparation,
    pub model: OnnxModel,
}

impl Backend for PreparedModel {
    fn run(&mut self, batch: BatchView<'_>, read: OutputReader<'_>) -> Result<(), BackendError> {
        self.model.run(batch, read)
    }

    fn accepts_images(&self) -> bool {
        true
    }

    fn run_images(
        &mut self,
        images: &[ImageInput<'_>],
        items: usize,
        read: OutputReader<'_>,
    ) -> Result<(), BackendError> {
        let _lock = self.preparation.tensor_graph.lock();
        let batch = self.preparation.batch(images, items)?;
        let shape = batch.dtype().tensor_shape().map(|sides| sides.to_vec()).unwrap_or_default();
        let shape: [i64; 4] = shape
            .try_into()
            .map_err(|shape| BackendError::Failed(format!("the tensor has the shape {shape:?}")))?;
        let session = self.model.session_for(shape.map(|side| usize::try_from(side).unwrap_or(0)))?;
        let mut binding = session.create_binding()?;
        let name = session.inputs()[0].name().to_owned();
        binding.bind_input(name, &batch)?;
        let host = MemoryInfo::default();
        for output in session.outputs() {
            binding.bind_output_to_device(output.name(), &host)?;
        }
        pass_outputs(session.run_binding(&binding)?.iter(), read)
    }

    fn device(&self) -> &str {
        self.model.device()
    }
}

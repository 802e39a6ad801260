//! A backend that runs the project's own graphs ([`crate::graphs`]) on one image at a time.
use super::onnx::{classify, pass_outputs};
use super::{Backend, BackendError, BatchView, ImageInput, OutputView, Placement};
use crate::ep::Provider;
use crate::graphs::Parameter;
use crate::runtime::{Runtime, log_level};
use ort::session::builder::GraphOptimizationLevel;
use ort::session::{Session, SessionInputValue};
use ort::value::{PrimitiveTensorElementType, Tensor, TensorRef};

/// Sessions of graphs whose inputs are an image and parameters.
pub struct PixelGraphs {
    programs: Vec<Program>,
    label: String,
}

/// A graph's session and the names of its inputs: the image first, then the parameters.
pub(super) struct Program {
    pub(super) session: Session,
    pub(super) inputs: Vec<String>,
}

impl PixelGraphs {
    /// Builds one session per graph, all on `placement`. On a device, every node must run on that
    /// device; a provider that would assign nodes to the CPU is rejected.
    pub fn load(runtime: &Runtime, graphs: &[Vec<u8>], placement: &Placement) -> Result<Self, String> {
        let programs = graphs.iter().map(|graph| Program::load(runtime, graph, placement));
        Ok(Self { programs: programs.collect::<Result<_, _>>()?, label: placement.label() })
    }
}

impl Program {
    pub(super) fn load(runtime: &Runtime, graph: &[u8], placement: &Placement) -> Result<Self, String> {
        let session = build(runtime, graph, placement).map_err(|e| e.to_string())?;
        let inputs = session.inputs().iter().map(|input| input.name().to_owned()).collect();
        Ok(Self { session, inputs })
    }

    /// Returns the inputs with their names, in the graph's order. `owned` copies their data.
    pub(super) fn inputs<'a>(
        &self,
        image: &'a ImageInput<'_>,
        owned: bool,
    ) -> ort::Result<Vec<(String, SessionInputValue<'a>)>> {
        if self.inputs.len() != image.parameters.len() + 1 {
            return Err(ort::Error::new(format!(
                "the graph takes {} parameters, not {}",
                self.inputs.len() - 1,
                image.parameters.len()
            )));
        }
        let frame = image.frame;
        let shape = [1, frame.height() as usize, frame.width() as usize, 3];
        let mut values = vec![value(&shape, frame.data(), owned)?];
        for parameter in &image.parameters {
            values.push(match parameter {
                Parameter::Indices { shape, data } => value(shape, data, owned)?,
                Parameter::Floats { shape, data } => value(shape, data, owned)?,
            });
        }
        Ok(self.inputs.iter().cloned().zip(values).collect())
    }
}

fn value<'a, T: PrimitiveTensorElementType + Clone + std::fmt::Debug + 'static>(
    shape: &[usize],
    data: &'a [T],
    owned: bool,
) -> ort::Result<SessionInputValue<'a>> {
    Ok(if owned {
        Tensor::from_array((shape.to_vec(), data.to_vec()))?.into()
    } else {
        TensorRef::from_array_view((shape.to_vec(), data))?.into()
    })
}

fn build(runtime: &Runtime, graph: &[u8], placement: &Placement) -> ort::Result<Session> {
    let builder = Session::builder(runtime.environment())?
        .with_log_level(log_level())?
        .with_optimization_level(GraphOptimizationLevel::Level3)?
        .with_intra_threads(1)?
        .with_inter_threads(1)?
        .with_intra_op_spinning(false)?
        .with_inter_op_spinning(false)?
        // Otherwise the runtime would cache a memory plan for each image size.
        .with_memory_pattern(false)?
        .with_execution_providers(placement.registrations()?)?;
    let mut builder = match placement.provider {
        Provider::Cpu => builder,
        _ => builder.with_disable_cpu_fallback()?,
    };
    builder.commit_from_memory(graph)
}

impl Backend for PixelGraphs {
    fn run(&mut self, _: BatchView<'_>, _: &mut dyn FnMut(&[OutputView<'_>])) -> Result<(), BackendError> {
        Err(BackendError::Failed("an image graph accepts images, not tensors".to_owned()))
    }

    fn takes_images(&self) -> bool {
        true
    }

    fn run_images(
        &mut self,
        images: &[ImageInput<'_>],
        _: usize,
        read: &mut dyn FnMut(&[OutputView<'_>]),
    ) -> Result<(), BackendError> {
        let failed = |error: ort::Error| classify(&error.to_string());
        let [image] = images else {
            return Err(BackendError::Failed(format!(
                "the graph accepts one image per run, not {}",
                images.len()
            )));
        };
        let program = self
            .programs
            .get_mut(image.program)
            .ok_or_else(|| BackendError::Failed(format!("the graph {} does not exist", image.program)))?;
        let inputs = program.inputs(image, false).map_err(failed)?;
        let outputs = program.session.run(inputs).map_err(failed)?;
        pass_outputs(outputs.iter(), read)
    }

    fn device(&self) -> &str {
        &self.label
    }
}

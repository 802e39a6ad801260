//! `image_enhancement`: stretches contrast, enlarges and sharpens images.
use crate::Operation;
use crate::backend::{ImageInput, OutputView};
use crate::graphs::{Parameter, PixelAxis};
use crate::models::Model;
use std::sync::{Arc, OnceLock};
use vision::enhance::{Enhanced, Plan};
use vision::{AxisTaps, Frame, Limits};

/// Enhances images on a device. Graph 0 stretches the contrast; graph 1 also enlarges and sharpens.
#[derive(Clone, Copy, Debug)]
pub struct EnhancementModel;

#[derive(Debug)]
pub struct EnhancementRequest {
    frame: Arc<Frame>,
    limits: Limits,
    /// Computed on the thread that runs the graph, because it reads every pixel.
    plan: OnceLock<Plan>,
}

impl EnhancementRequest {
    pub fn new(frame: Arc<Frame>, limits: Limits) -> Self {
        Self { frame, limits, plan: OnceLock::new() }
    }

    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    fn plan(&self) -> &Plan {
        self.plan.get_or_init(|| Plan::of(&self.frame, &self.limits))
    }
}

impl Model for EnhancementModel {
    type Input = EnhancementRequest;
    type Output = Enhanced;

    fn operation(&self) -> Operation {
        Operation::ImageEnhancement
    }

    fn shape(&self, input: &EnhancementRequest) -> [usize; 3] {
        [3, input.frame.height() as usize, input.frame.width() as usize]
    }

    fn image_input<'a>(&self, input: &'a EnhancementRequest) -> Option<ImageInput<'a>> {
        let (frame, plan) = (&*input.frame, input.plan());
        let one = |value| Parameter::Floats { shape: vec![1], data: vec![value] };
        let mut parameters = vec![one(plan.gain), one(plan.offset)];
        if plan.enlarges() {
            let AxisTaps { columns, rows } = plan.upscale_taps((frame.width(), frame.height()));
            parameters.extend(Parameter::filter(rows, PixelAxis::Rows));
            parameters.extend(Parameter::filter(columns, PixelAxis::Columns));
            let AxisTaps { columns, rows } = plan.blur_taps();
            parameters.extend(Parameter::filter(columns, PixelAxis::Columns));
            parameters.extend(Parameter::filter(rows, PixelAxis::Rows));
        }
        Some(ImageInput { frame, parameters, program: plan.enlarges().into() })
    }

    fn read(
        &self,
        input: &EnhancementRequest,
        outputs: &[OutputView<'_>],
        _: usize,
        _: usize,
    ) -> Result<Enhanced, String> {
        let frame = super::frame_from_output(outputs)?;
        let plan = input.plan();
        if (frame.width(), frame.height()) != plan.size {
            return Err(format!("the image is {frame:?} instead of {:?}", plan.size));
        }
        Ok(Enhanced { frame, scale: if plan.enlarges() { plan.scale } else { 1.0 } })
    }
}

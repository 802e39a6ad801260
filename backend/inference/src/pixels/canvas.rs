//! `image_processing`: draws an image onto a detector's canvas.
use crate::Operation;
use crate::backend::{ImageInput, OutputView};
use crate::graphs::letterbox_parameters;
use crate::models::Model;
use std::sync::Arc;
use vision::{Frame, Letterbox};

/// Draws canvases, as bytes, on a device.
#[derive(Clone, Copy, Debug)]
pub struct CanvasModel;

#[derive(Clone, Debug)]
pub struct CanvasRequest {
    pub frame: Arc<Frame>,
    pub letterbox: Letterbox,
}

impl Model for CanvasModel {
    type Input = CanvasRequest;
    type Output = Arc<Frame>;

    fn operation(&self) -> Operation {
        Operation::ImageProcessing
    }

    fn shape(&self, input: &CanvasRequest) -> [usize; 3] {
        [3, input.letterbox.canvas.1 as usize, input.letterbox.canvas.0 as usize]
    }

    fn image_input<'a>(&self, input: &'a CanvasRequest) -> Option<ImageInput<'a>> {
        let parameters = letterbox_parameters(&input.frame, &input.letterbox);
        Some(ImageInput { frame: &input.frame, parameters, program: 0 })
    }

    fn read(
        &self,
        _: &CanvasRequest,
        outputs: &[OutputView<'_>],
        _: usize,
        _: usize,
    ) -> Result<Arc<Frame>, String> {
        super::frame_from_output(outputs).map(Arc::new)
    }
}

//! Face detectors: YuNet and SCRFD. Their outputs are decoded in the modules of these names.
use super::{Model, PixelWriter, scrfd, yunet};
use crate::Operation;
use crate::backend::{ImageInput, Outputs};
use crate::graphs::letterbox_parameters;
use crate::manifest::{ModelFamily, ModelFile};
use std::sync::Arc;
use vision::{Detection, Frame, Letterbox};

#[derive(Clone, Debug)]
pub struct DetectionRequest {
    pub frame: Arc<Frame>,
    /// Position of the image on the canvas; the canvas must fit the detector (see
    /// [`DetectorModel::check_canvas`]).
    pub letterbox: Letterbox,
    /// Minimum score of reported faces, 0..1.
    pub min_score: f32,
}

/// A detector: converts canvases to tensors and outputs to faces.
#[derive(Clone, Debug)]
pub struct DetectorModel {
    family: ModelFamily,
    pixels: PixelWriter,
    nms_iou: f32,
    fixed_size: Option<(u32, u32)>,
    alignment: u32,
    has_landmarks: bool,
}

impl DetectorModel {
    /// Creates the detector that `file` describes, with the input shape and number of outputs of
    /// the loaded model.
    ///
    /// # Errors
    /// Fails if these do not fit a detector of its family.
    pub fn new(file: &ModelFile, input: [Option<usize>; 4], outputs: usize) -> Result<Self, String> {
        let (alignment, has_landmarks) = match file.family {
            ModelFamily::Yunet if outputs == yunet::OUTPUTS => (32, true),
            ModelFamily::Scrfd if scrfd::OUTPUTS.contains(&outputs) => {
                (scrfd::alignment(outputs), scrfd::has_landmarks(outputs))
            }
            ModelFamily::Yunet | ModelFamily::Scrfd => {
                let expected = if file.family == ModelFamily::Yunet { "12" } else { "6, 9, 10 or 15" };
                return Err(format!("the model has {outputs} outputs; its family has {expected}"));
            }
            _ => return Err(format!("{:?} is not a family of detectors", file.family)),
        };
        let fixed_size = match (input[3], input[2]) {
            (Some(width), Some(height))
                if width % alignment == 0 && height % alignment == 0 && width * height > 0 =>
            {
                let side =
                    |s: usize| u32::try_from(s).map_err(|_| format!("the input side {s} is too large"));
                Some((side(width)?, side(height)?))
            }
            (None, None) => None,
            (width, height) => {
                return Err(format!(
                    "the input is {width:?} x {height:?}; both sides must be dynamic, or fixed multiples of {alignment}"
                ));
            }
        };
        Ok(Self {
            family: file.family,
            pixels: PixelWriter::new(&file.input),
            nms_iou: file.nms_iou.ok_or("the manifest defines no nms_iou for the model")?,
            fixed_size,
            alignment: alignment as u32,
            has_landmarks,
        })
    }

    /// Returns the only canvas size that the detector accepts; `None` if its input is not fixed.
    pub fn fixed_size(&self) -> Option<(u32, u32)> {
        self.fixed_size
    }

    /// Returns the alignment of a canvas in pixels. Both sides must be multiples of it, unless the
    /// input is fixed.
    pub fn alignment(&self) -> u32 {
        self.alignment
    }

    /// Returns whether the model detects landmarks.
    pub fn has_landmarks(&self) -> bool {
        self.has_landmarks
    }

    /// Checks that the detector accepts a canvas of `width` and `height`. The error lists the
    /// allowed sizes.
    pub fn check_canvas(&self, (width, height): (u32, u32)) -> Result<(), String> {
        let alignment = self.alignment;
        match self.fixed_size {
            Some(size) if size != (width, height) => {
                Err(format!("the canvas is {width}x{height}; this detector requires {}x{}", size.0, size.1))
            }
            None if width % alignment != 0 || height % alignment != 0 => {
                Err(format!("the canvas is {width}x{height}; both sides must be multiples of {alignment}"))
            }
            _ => Ok(()),
        }
    }
}

impl Model for DetectorModel {
    type Input = DetectionRequest;
    type Output = Vec<Detection>;

    fn operation(&self) -> Operation {
        Operation::FaceDetection
    }

    fn shape(&self, input: &DetectionRequest) -> [usize; 3] {
        let (width, height) = input.letterbox.canvas;
        [3, height as usize, width as usize]
    }

    fn write(&self, input: &DetectionRequest, slot: &mut [f32]) {
        if input.letterbox == Letterbox::identity((input.frame.width(), input.frame.height())) {
            self.pixels.write(&input.frame, slot);
        } else {
            self.pixels.write(&input.letterbox.draw(&input.frame), slot);
        }
    }

    fn image_input<'a>(&self, input: &'a DetectionRequest) -> Option<ImageInput<'a>> {
        let parameters = letterbox_parameters(&input.frame, &input.letterbox);
        Some(ImageInput { frame: &input.frame, parameters, graph_index: 0 })
    }

    fn read(&self, input: &DetectionRequest, outputs: Outputs<'_>) -> Result<Vec<Detection>, String> {
        let [_, height, width] = self.shape(input);
        let mut faces = match self.family {
            ModelFamily::Yunet => yunet::decode(outputs, (width, height), input.min_score)?,
            _ => scrfd::decode(outputs, (width, height), input.min_score)?,
        };
        // Overflowing exponentials and faulty devices produce infinite values.
        faces.retain(Detection::is_finite);
        Ok(vision::nms(faces, self.nms_iou))
    }
}

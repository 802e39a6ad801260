//! The image operations as models: creates the inputs of a device's graph and reads its output.
//! The graphs are in [`crate::graphs`], the CPU's code in [`vision`].
use crate::Operation;
use crate::backend::{ImageInput, Outputs};
use crate::graphs::{Parameter, PixelAxis, RowSum, letterbox_parameters};
use crate::models::Model;
use std::sync::{Arc, OnceLock};
use vision::enhance::{Enhanced, Plan};
use vision::quality::GreyStatistics;
use vision::{AxisTaps, Frame, Letterbox, Limits};

/// Returns the single output, bytes `[1, height, width, 3]`, as a frame.
fn frame_from_output(outputs: Outputs<'_>) -> Result<Frame, String> {
    let output = outputs.single()?;
    let [1, height, width, 3] = output.shape[..] else {
        return Err(format!("the output is {:?}, which is not an image", output.shape));
    };
    let side = |length: usize| u32::try_from(length).map_err(|_| format!("a side has {length} pixels"));
    Frame::new(side(width)?, side(height)?, output.bytes.to_vec())
        .ok_or_else(|| format!("the output {:?} contains {} bytes", output.shape, output.bytes.len()))
}

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
        Some(ImageInput { frame: &input.frame, parameters, graph_index: 0 })
    }

    fn read(&self, _: &CanvasRequest, outputs: Outputs<'_>) -> Result<Arc<Frame>, String> {
        frame_from_output(outputs).map(Arc::new)
    }
}

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
        let scalar = |value| Parameter::Floats { shape: vec![1], data: vec![value] };
        let mut parameters = vec![scalar(plan.gain), scalar(plan.offset)];
        if plan.enlarges() {
            let AxisTaps { columns, rows } = plan.upscale_taps((frame.width(), frame.height()));
            parameters.extend(Parameter::filter(rows, PixelAxis::Rows));
            parameters.extend(Parameter::filter(columns, PixelAxis::Columns));
            let AxisTaps { columns, rows } = plan.blur_taps();
            parameters.extend(Parameter::filter(columns, PixelAxis::Columns));
            parameters.extend(Parameter::filter(rows, PixelAxis::Rows));
        }
        Some(ImageInput { frame, parameters, graph_index: plan.enlarges().into() })
    }

    fn read(&self, input: &EnhancementRequest, outputs: Outputs<'_>) -> Result<Enhanced, String> {
        let frame = frame_from_output(outputs)?;
        let plan = input.plan();
        if (frame.width(), frame.height()) != plan.size {
            return Err(format!("the image is {frame:?} instead of {:?}", plan.size));
        }
        Ok(Enhanced { frame, scale: if plan.enlarges() { plan.scale } else { 1.0 } })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct StatisticsModel;

impl Model for StatisticsModel {
    type Input = Arc<Frame>;
    type Output = GreyStatistics;

    fn operation(&self) -> Operation {
        Operation::QualityChecks
    }

    fn shape(&self, input: &Arc<Frame>) -> [usize; 3] {
        [3, input.height() as usize, input.width() as usize]
    }

    fn image_input<'a>(&self, input: &'a Arc<Frame>) -> Option<ImageInput<'a>> {
        let (rows, columns) = (input.height() as usize, input.width() as usize);
        let parameters =
            vec![neighbours(rows, -1), neighbours(rows, 1), neighbours(columns, -1), neighbours(columns, 1)];
        Some(ImageInput { frame: input, parameters, graph_index: 0 })
    }

    fn read(&self, input: &Arc<Frame>, outputs: Outputs<'_>) -> Result<GreyStatistics, String> {
        let (width, height) = (input.width() as usize, input.height() as usize);
        let output = outputs.single()?;
        if output.shape != [RowSum::COUNT, height] || output.data.iter().any(|v| !v.is_finite()) {
            return Err(format!("the output {:?} does not contain the sums of {height} rows", output.shape));
        }
        let row = |row: RowSum| output.data[row as usize * height..][..height].iter().map(|v| f64::from(*v));
        let sum = |kind: RowSum| row(kind).sum::<f64>();
        let (length, count) = (width as f64, (width * height) as f64);
        let mean = sum(RowSum::Grey) / count;
        // The sum of squares is the sum within rows plus the sum between row means (Chan 1979).
        let between_rows: f64 = row(RowSum::Grey).map(|grey| length * (grey / length - mean).powi(2)).sum();
        let laplacian = sum(RowSum::Laplacian) / count;
        Ok(GreyStatistics {
            laplacian_variance: (sum(RowSum::LaplacianSquares) / count - laplacian * laplacian).max(0.0),
            tenengrad: sum(RowSum::Gradient) / count,
            mean,
            std: ((sum(RowSum::Spread) + between_rows) / count).sqrt(),
            clipped: sum(RowSum::Clipped) / count,
        })
    }
}

/// Returns the neighbour of each of `length` pixels at distance `step` (-1 or 1). The border is
/// reflected without repeating its pixel (reflect-101). A single pixel is its own neighbour.
fn neighbours(length: usize, step: i64) -> Parameter {
    let last = length as i64 - 1;
    let neighbour = |i: i64| {
        let position = (i + step).abs();
        if position > last { (2 * last - position).max(0) } else { position }
    };
    let data = (0..=last).map(|i| neighbour(i) as i32).collect();
    Parameter::Indices { shape: vec![length], data }
}

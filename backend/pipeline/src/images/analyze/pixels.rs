//! Operations on whole images, on the device of each operation: an accelerator or the CPU pool.
//! Also rotates coordinates; pixels are rotated by `vision::crop::rotate`.
use super::{AnalyzeError, Analyzer};
use inference::{Operation, Priority, RunError, Timed, trace};
use std::sync::Arc;
use std::time::Duration;
use vision::enhance::Enhanced;
use vision::quality::GreyStatistics;
use vision::{Detection, Frame, Letterbox, Point, Rect, View, crop};

/// Runs `image_processing`, `image_enhancement` and `quality_checks` of one [`Analyzer`]. Each runs
/// on its configured device or, without one, on the CPU pool of the analyzer.
#[derive(Clone, Copy)]
pub struct Pixels<'a> {
    analyzer: &'a Analyzer,
}

impl Analyzer {
    pub fn pixels(&self) -> Pixels<'_> {
        Pixels { analyzer: self }
    }
}

impl Pixels<'_> {
    /// Returns the grey-level statistics of an image (`quality_checks`).
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Run`] or [`AnalyzeError::Panicked`].
    pub async fn statistics(
        &self,
        frame: Arc<Frame>,
        priority: Priority,
    ) -> Result<Timed<GreyStatistics>, AnalyzeError> {
        let device = self.analyzer.engine().statistics(frame.clone(), priority);
        let cpu_work = move || vision::quality::grey_statistics(&frame);
        self.run(Operation::QualityChecks, device, cpu_work).await
    }

    /// Returns the enhanced image (`image_enhancement`), within the limits of the decoder. It uses
    /// the share of the memory budget that the original image has reserved.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Run`] or [`AnalyzeError::Panicked`].
    pub async fn enhance(
        &self,
        frame: Arc<Frame>,
        priority: Priority,
    ) -> Result<Timed<Enhanced>, AnalyzeError> {
        let limits = self.analyzer.config().limits;
        let device = self.analyzer.engine().enhance(frame.clone(), limits, priority);
        let original = frame.clone();
        let cpu_work = move || vision::enhance::enhance(&frame, &limits);
        let mut enhanced = self.run(Operation::ImageEnhancement, device, cpu_work).await?;
        let Enhanced { frame: pixels, scale } = enhanced.output;
        enhanced.output = Enhanced { frame: pixels.with_attachment_of(&original), scale };
        Ok(enhanced)
    }

    /// Draws the detector's canvas (`image_processing`) with 8-bit pixels.
    ///
    /// # Errors
    /// Fails with [`AnalyzeError::Run`] or [`AnalyzeError::Panicked`].
    pub async fn canvas(
        &self,
        frame: Arc<Frame>,
        letterbox: Letterbox,
        priority: Priority,
    ) -> Result<Timed<Arc<Frame>>, AnalyzeError> {
        let device = self.analyzer.engine().canvas(frame.clone(), letterbox, priority);
        let cpu_work = move || {
            let _span = tracing::trace_span!(target: trace::RUN, "letterbox").entered();
            Arc::new(letterbox.draw(&frame))
        };
        self.run(Operation::ImageProcessing, device, cpu_work).await
    }

    /// Returns a view of an image as input for the detector, rotated clockwise by `rotation`
    /// degrees. If the detector draws canvases on its own device and the view is not rotated, the
    /// input consists of the pixels of the view and their position on the canvas. Otherwise the
    /// input is the finished canvas.
    pub(super) async fn detector_input(
        &self,
        frame: &Arc<Frame>,
        view: View,
        rotation: u32,
        priority: Priority,
    ) -> Result<Timed<DetectorInput>, AnalyzeError> {
        let (engine, cpu) = (self.analyzer.engine(), self.analyzer.cpu());
        let frame = frame.clone();
        if !engine.runs_on_device(Operation::ImageProcessing) {
            let draw = move || {
                let _span = tracing::trace_span!(target: trace::RUN, "letterbox").entered();
                let canvas = if view.is_whole() {
                    view.letterbox.draw(&frame)
                } else {
                    view.letterbox.draw(&view.crop(&frame))
                };
                DetectorInput::from_canvas(if rotation == 0 {
                    canvas
                } else {
                    crop::rotate(&canvas, rotation)
                })
            };
            return cpu.run(draw).await;
        }
        let mut input = Timed {
            output: DetectorInput { frame, letterbox: view.letterbox },
            queued: Duration::ZERO,
            ran: Duration::ZERO,
        };
        if !view.is_whole() {
            let whole = input.output.frame.clone();
            let cut = move || DetectorInput { frame: Arc::new(view.crop(&whole)), letterbox: view.letterbox };
            input = add_times(input, cpu.run(cut).await?);
        }
        if rotation == 0 && engine.draws_canvases_on_device() {
            return Ok(input);
        }
        let canvas = self.canvas(input.output.frame.clone(), view.letterbox, priority).await?;
        let rotate_canvas = move |canvas: &Frame| DetectorInput::from_canvas(crop::rotate(canvas, rotation));
        if rotation != 0 {
            let drawn = canvas.output.clone();
            let rotated = cpu.run(move || rotate_canvas(&drawn)).await?;
            return Ok(add_times(input, add_times(canvas, rotated)));
        }
        let letterbox = Letterbox::identity(view.letterbox.canvas);
        let Timed { output: frame, queued, ran } = canvas;
        Ok(add_times(input, Timed { output: DetectorInput { frame, letterbox }, queued, ran }))
    }

    /// Runs the operation on its device, or `cpu_work` on the CPU if it has none. Also runs
    /// `cpu_work` if the device fails and the configuration allows the CPU as a replacement.
    async fn run<T: Send + 'static>(
        &self,
        operation: Operation,
        device: impl Future<Output = Result<Timed<T>, RunError>>,
        cpu_work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Timed<T>, AnalyzeError> {
        let engine = self.analyzer.engine();
        if engine.runs_on_device(operation) {
            match device.await {
                Err(error) if engine.may_fall_back_to_cpu(operation, &error) => {}
                result => return Ok(result?),
            }
        }
        self.analyzer.cpu().run(cpu_work).await
    }
}

/// Input of the detector: pixels and their position on its canvas.
pub(super) struct DetectorInput {
    pub(super) frame: Arc<Frame>,
    pub(super) letterbox: Letterbox,
}

impl DetectorInput {
    fn from_canvas(canvas: Frame) -> Self {
        let letterbox = Letterbox::identity((canvas.width(), canvas.height()));
        Self { frame: Arc::new(canvas), letterbox }
    }
}

/// Returns `second` with the times of `first` added.
fn add_times<A, B>(first: Timed<A>, second: Timed<B>) -> Timed<B> {
    Timed { queued: first.queued + second.queued, ran: first.ran + second.ran, ..second }
}

/// Rotates the point clockwise together with its `width`x`height` image.
fn rotate_point(p: Point, (width, height): (f32, f32), degrees: u32) -> Point {
    match degrees {
        90 => Point { x: height - p.y, y: p.x },
        180 => Point { x: width - p.x, y: height - p.y },
        270 => Point { x: p.y, y: width - p.x },
        _ => p,
    }
}

/// Rotates a detection clockwise together with its image of `size` (width, height). Box sides
/// remain parallel to the axes, so the box remains exact.
pub(super) fn rotate(detection: &Detection, size: (u32, u32), degrees: u32) -> Detection {
    let size = (size.0 as f32, size.1 as f32);
    let Rect { x, y, width, height } = detection.bbox;
    let rotated = |p| rotate_point(p, size, degrees);
    let (a, b) = (rotated(Point { x, y }), rotated(Point { x: x + width, y: y + height }));
    let is_quarter_turn = matches!(degrees, 90 | 270);
    Detection {
        bbox: Rect {
            x: a.x.min(b.x),
            y: a.y.min(b.y),
            width: if is_quarter_turn { height } else { width },
            height: if is_quarter_turn { width } else { height },
        },
        det_score: detection.det_score,
        landmarks: detection.landmarks.map(rotated),
    }
}

/// Reverses [`rotate`]: maps a detection in the rotated image to the original of `size`.
pub(super) fn unrotate(detection: &Detection, size: (u32, u32), degrees: u32) -> Detection {
    let rotated = rotated_size(size, degrees);
    rotate(detection, rotated, (360 - degrees) % 360)
}

pub(super) fn rotated_size((width, height): (u32, u32), degrees: u32) -> (u32, u32) {
    if matches!(degrees, 90 | 270) { (height, width) } else { (width, height) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use vision::{Frame, crop};

    fn detection() -> Detection {
        Detection {
            bbox: Rect { x: 3.0, y: 5.0, width: 4.0, height: 7.0 },
            det_score: 0.9,
            landmarks: std::array::from_fn(|i| Point { x: 3.5 + i as f32, y: 6.5 - i as f32 }),
        }
    }

    #[test]
    fn unrotate_reverses_rotate() {
        for degrees in [0, 90, 180, 270] {
            let rotated = rotate(&detection(), (40, 30), degrees);
            assert_eq!(unrotate(&rotated, (40, 30), degrees), detection(), "{degrees}");
        }
    }

    #[test]
    fn rotated_points_match_rotated_pixels() {
        let mut frame = Frame::filled(5, 3, [0; 3]);
        let (x, y) = (4_u32, 1_u32);
        let at = ((y * 5 + x) * 3) as usize;
        frame.data_mut()[at..at + 3].copy_from_slice(&[255; 3]);
        for degrees in [0, 90, 180, 270] {
            let rotated = crop::rotate(&frame, degrees);
            let centre = Point { x: x as f32 + 0.5, y: y as f32 + 0.5 };
            let p = rotate_point(centre, (5.0, 3.0), degrees);
            assert_eq!(rotated_size((5, 3), degrees), (rotated.width(), rotated.height()));
            assert_eq!(rotated.pixel(p.x as u32, p.y as u32), [255; 3], "{degrees}");
        }
    }
}

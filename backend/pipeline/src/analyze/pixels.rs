//! Operations on whole pictures: where they run is decided here and nowhere else.

use super::{AnalyzeError, Analyzer};
use inference::{Lane, Operation, RunError, Timed, trace};
use std::sync::Arc;
use std::time::Duration;
use vision::enhance::Enhanced;
use vision::quality::GreyStatistics;
use vision::{Frame, Letterbox, View, crop};

/// `image_processing`, `image_enhancement` and `quality_checks` of one [`Analyzer`], each on the device that it was given, or on the
/// analyzer's bounded share of the CPU.
#[derive(Clone, Copy)]
pub struct Pixels<'a> {
    analyzer: &'a Analyzer,
}

impl Analyzer {
    /// Its operations on whole pictures.
    pub fn pixels(&self) -> Pixels<'_> {
        Pixels { analyzer: self }
    }
}

impl Pixels<'_> {
    /// Grey-level statistics of a picture (`quality_checks`).
    ///
    /// # Errors
    /// [`AnalyzeError::Run`] and [`AnalyzeError::Panicked`].
    pub async fn statistics(
        &self,
        frame: Arc<Frame>,
        lane: Lane,
    ) -> Result<Timed<GreyStatistics>, AnalyzeError> {
        let device = self.analyzer.engine().statistics(frame.clone(), lane);
        let code = move || vision::quality::grey_statistics(&frame);
        self.run(Operation::QualityChecks, device, code).await
    }

    /// The picture enhanced (`image_enhancement`), within the decoder's limits. It shares the picture's place in the memory for pixels.
    ///
    /// # Errors
    /// [`AnalyzeError::Run`] and [`AnalyzeError::Panicked`].
    pub async fn enhance(&self, frame: Arc<Frame>, lane: Lane) -> Result<Timed<Enhanced>, AnalyzeError> {
        let limits = self.analyzer.config().limits;
        let device = self.analyzer.engine().enhance(frame.clone(), limits, lane);
        let picture = frame.clone();
        let code = move || vision::enhance::enhance(&frame, &limits);
        let mut enhanced = self.run(Operation::ImageEnhancement, device, code).await?;
        let Enhanced { frame: pixels, scale } = enhanced.output;
        enhanced.output = Enhanced { frame: pixels.holding_as(&picture), scale };
        Ok(enhanced)
    }

    /// The detector's canvas (`image_processing`), as bytes.
    ///
    /// # Errors
    /// [`AnalyzeError::Run`] and [`AnalyzeError::Panicked`].
    pub async fn canvas(
        &self,
        frame: Arc<Frame>,
        letterbox: Letterbox,
        lane: Lane,
    ) -> Result<Timed<Arc<Frame>>, AnalyzeError> {
        let device = self.analyzer.engine().canvas(frame.clone(), letterbox, lane);
        let code = move || {
            let _span = tracing::trace_span!(target: trace::RUN, "letterbox").entered();
            Arc::new(letterbox.draw(&frame))
        };
        self.run(Operation::ImageProcessing, device, code).await
    }

    /// A view of a picture, turned clockwise by `rotation`, as the detector takes it. Where `image_processing` and `face_detection` share a device, its
    /// pixels are left as they are and become the canvas there; otherwise this is the canvas.
    pub(super) async fn shown(
        &self,
        frame: &Arc<Frame>,
        view: View,
        rotation: u32,
        lane: Lane,
    ) -> Result<Timed<Shown>, AnalyzeError> {
        let (engine, cpu) = (self.analyzer.engine(), self.analyzer.cpu());
        let frame = frame.clone();
        if !engine.on_device(Operation::ImageProcessing) {
            let draw = move || {
                let _span = tracing::trace_span!(target: trace::RUN, "letterbox").entered();
                let canvas = if view.is_whole() {
                    view.letterbox.draw(&frame)
                } else {
                    view.letterbox.draw(&view.cut(&frame))
                };
                Shown::canvas(if rotation == 0 { canvas } else { crop::rotate(&canvas, rotation) })
            };
            return cpu.run(draw).await;
        }
        let mut shown = Timed {
            output: Shown { frame, letterbox: view.letterbox },
            queued: Duration::ZERO,
            ran: Duration::ZERO,
        };
        if !view.is_whole() {
            let whole = shown.output.frame.clone();
            let cut = move || Shown { frame: Arc::new(view.cut(&whole)), letterbox: view.letterbox };
            shown = after(shown, cpu.run(cut).await?);
        }
        if rotation == 0 && engine.detects_frames() {
            return Ok(shown);
        }
        let canvas = self.canvas(shown.output.frame.clone(), view.letterbox, lane).await?;
        let turn = move |canvas: &Frame| Shown::canvas(crop::rotate(canvas, rotation));
        if rotation != 0 {
            let drawn = canvas.output.clone();
            let turned = cpu.run(move || turn(&drawn)).await?;
            return Ok(after(shown, after(canvas, turned)));
        }
        let letterbox = Letterbox::identity(view.letterbox.canvas);
        let Timed { output: frame, queued, ran } = canvas;
        Ok(after(shown, Timed { output: Shown { frame, letterbox }, queued, ran }))
    }

    /// On the operation's device if it has one, else `code` on the CPU; also `code` when the device fails and may be stood in for.
    async fn run<T: Send + 'static>(
        &self,
        operation: Operation,
        device: impl Future<Output = Result<Timed<T>, RunError>>,
        code: impl FnOnce() -> T + Send + 'static,
    ) -> Result<Timed<T>, AnalyzeError> {
        let engine = self.analyzer.engine();
        if engine.on_device(operation) {
            match device.await {
                Err(error) if engine.stands_in(operation, &error) => {}
                answer => return Ok(answer?),
            }
        }
        self.analyzer.cpu().run(code).await
    }
}

/// What the detector is shown: pixels and their place on its canvas.
pub(super) struct Shown {
    pub(super) frame: Arc<Frame>,
    pub(super) letterbox: Letterbox,
}

impl Shown {
    fn canvas(canvas: Frame) -> Self {
        let letterbox = Letterbox::identity((canvas.width(), canvas.height()));
        Self { frame: Arc::new(canvas), letterbox }
    }
}

/// `second` with the time of `first` added.
fn after<A, B>(first: Timed<A>, second: Timed<B>) -> Timed<B> {
    Timed { queued: first.queued + second.queued, ran: first.ran + second.ran, ..second }
}

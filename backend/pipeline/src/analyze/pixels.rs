//! Operations on whole pictures: where they run is decided here and nowhere else.

use super::{AnalyzeError, Analyzer};
use inference::{Lane, Timed};
use std::sync::Arc;
use vision::enhance::Enhanced;
use vision::quality::GreyStatistics;
use vision::{Frame, Letterbox};

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
        _lane: Lane,
    ) -> Result<Timed<GreyStatistics>, AnalyzeError> {
        self.analyzer.cpu().run(move || vision::quality::grey_statistics(&frame)).await
    }

    /// The picture enhanced (`image_enhancement`), within the decoder's limits.
    ///
    /// # Errors
    /// [`AnalyzeError::Run`] and [`AnalyzeError::Panicked`].
    pub async fn enhance(&self, frame: Arc<Frame>, _lane: Lane) -> Result<Timed<Enhanced>, AnalyzeError> {
        let limits = self.analyzer.config().limits;
        self.analyzer.cpu().run(move || vision::enhance::enhance(&frame, &limits)).await
    }

    /// The detector's canvas (`image_processing`), as bytes.
    ///
    /// # Errors
    /// [`AnalyzeError::Run`] and [`AnalyzeError::Panicked`].
    pub async fn canvas(
        &self,
        frame: Arc<Frame>,
        letterbox: Letterbox,
        _lane: Lane,
    ) -> Result<Timed<Arc<Frame>>, AnalyzeError> {
        self.analyzer.cpu().run(move || Arc::new(letterbox.draw(&frame))).await
    }
}

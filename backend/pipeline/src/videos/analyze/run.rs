//! Analyses the frames of a video one after the other, and ends its parts.

use super::ahead::{Ahead, AnalyzedFrame};
use super::frames::{Content, ReadFrame, ReadState, Reader, Source};
use super::parts::{Boundaries, VideoPart};
use super::result::FrameFaces;
use super::steps::Step;
use super::tracks::TrackCollector;
use super::{MAX_FRAMES, VideoAnalyzeError, VideoOptions, VideoParts};
use crate::images::analyze::{AnalyzeOptions, Analyzer};
use futures::StreamExt;
use inference::Priority;
use std::sync::Arc;

pub(super) struct Run<'a> {
    pub(super) analyzer: &'a Analyzer,
    pub(super) options: &'a VideoOptions,
    pub(super) frame_options: AnalyzeOptions,
    pub(super) high_score: f32,
    pub(super) priority: Priority,
    /// Number of frames that are analysed at the same time.
    pub(super) concurrency: usize,
    pub(super) tracks: TrackCollector<'a>,
    pub(super) boundaries: Boundaries,
    /// Number of frames that were analysed.
    pub(super) count: u64,
    pub(super) last_us: Option<i64>,
}

impl Run<'_> {
    /// Analyses the frames of the steps. Returns the state with which the next reader continues.
    pub(super) async fn analyze<P: VideoParts>(
        &mut self,
        source: &Source,
        steps: Vec<Step>,
        state: ReadState,
        parts: &mut P,
    ) -> Result<ReadState, P::Error> {
        let mut reader = Reader::start(source, steps, i64::MAX, state)
            .map_err(|error| VideoAnalyzeError::from(video::VideoError::Io(error)))?;
        let recycle = reader.recycler();
        let Self { analyzer, options, priority, high_score, .. } = *self;
        let frame_options = self.frame_options.clone();
        {
            let found = reader.frames().map(|read| async {
                let ReadFrame { at_us, content, reduced } = read?;
                let frame = match content {
                    Content::Pixels(frame) => Arc::new(frame),
                    Content::NoFace(size) => {
                        return Ok(AnalyzedFrame { at_us, size, faces: Vec::new(), reduced });
                    }
                };
                let size = (frame.width(), frame.height());
                let found = analyzer.find_faces_of_frame(&frame, &frame_options, priority).await?;
                let faces = analyzer.cut_pictures(&frame, found, options.pictures, high_score).await?;
                // Nothing else holds the pixels now, so the decoder can use the memory again.
                if let Ok(frame) = Arc::try_unwrap(frame) {
                    recycle.give(frame);
                }
                Ok(AnalyzedFrame { at_us, size, faces, reduced })
            });
            let found = std::pin::pin!(found.buffered(self.concurrency));
            let mut found = Ahead::new(found);
            while let Some(next) = found.next().await {
                let AnalyzedFrame { at_us, size, faces, reduced } = next?;
                let begins = self.boundaries.next(at_us, reduced, self.tracks.is_full());
                if begins.part
                    && let Some(part) = self.take_part().await?
                {
                    found.during(parts.part(part)).await?;
                }
                self.count += 1;
                if self.count > MAX_FRAMES {
                    return Err(VideoAnalyzeError::TooManyFrames.into());
                }
                parts.frame(FrameFaces { at_us, size, faces: &faces });
                self.tracks.add(at_us, faces, begins.shot).await?;
                self.last_us = Some(at_us);
            }
        }
        Ok(reader.end())
    }

    /// Ends the last part, if there is one.
    pub(super) async fn end<P: VideoParts>(&mut self, parts: &mut P) -> Result<(), P::Error> {
        match self.take_part().await? {
            Some(part) => parts.part(part).await,
            None => Ok(()),
        }
    }

    /// Ends all tracks. Returns what was found since the last part; `None` before any frame.
    async fn take_part(&mut self) -> Result<Option<VideoPart>, VideoAnalyzeError> {
        let Some(until_us) = self.last_us else { return Ok(None) };
        let tracks = self.tracks.end_part().await?;
        Ok(Some(VideoPart { until_us, frames: self.count, tracks }))
    }
}

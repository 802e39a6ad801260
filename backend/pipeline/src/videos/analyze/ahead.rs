//! Analyses further frames while a part is stored.

use super::VideoAnalyzeError;
use super::result::FrameFace;
use futures::{Stream, StreamExt};
use std::collections::VecDeque;
use std::pin::pin;
use video::shots::ReducedFrame;

/// Number of faces in frames that wait while a part is stored. It bounds the memory for their
/// pictures: 15 MB, or those of one frame.
const MAX_FACES: usize = 64;

pub(super) struct AnalyzedFrame {
    pub(super) at_us: i64,
    pub(super) size: (u32, u32),
    pub(super) faces: Vec<FrameFace>,
    pub(super) reduced: ReducedFrame,
}

type Analyzed = Result<AnalyzedFrame, VideoAnalyzeError>;

/// Returns analysed frames in order. Can analyse frames before they are requested.
pub(super) struct Ahead<S> {
    frames: S,
    waiting: VecDeque<Analyzed>,
}

impl<S: Stream<Item = Analyzed> + Unpin> Ahead<S> {
    pub(super) fn new(frames: S) -> Self {
        Self { frames, waiting: VecDeque::new() }
    }

    pub(super) async fn next(&mut self) -> Option<Analyzed> {
        match self.waiting.pop_front() {
            Some(next) => Some(next),
            None => self.frames.next().await,
        }
    }

    /// Waits for `work`, and analyses frames in the meantime.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let has_room = self.waiting.iter().map(weight).sum::<usize>() < MAX_FACES;
            tokio::select! {
                biased;
                done = &mut work => return done,
                Some(next) = self.frames.next(), if has_room => self.waiting.push_back(next),
            }
        }
    }
}

/// Returns the number of faces in a frame, at least 1. An error fills the room for waiting frames,
/// because no frame follows it.
fn weight(frame: &Analyzed) -> usize {
    frame.as_ref().map_or(MAX_FACES, |frame| frame.faces.len().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::stream;
    use tokio::sync::oneshot;

    fn frames(count: i64) -> impl Stream<Item = Analyzed> + Unpin {
        let reduced = ReducedFrame::of(&vision::Frame::filled(8, 8, [0; 3]));
        let frame = move |at_us| {
            Ok(AnalyzedFrame { at_us, size: (8, 8), faces: Vec::new(), reduced: reduced.clone() })
        };
        stream::iter((0..count).map(frame))
    }

    #[tokio::test]
    async fn frames_are_analysed_during_other_work_and_keep_their_order() {
        for count in [3, 200] {
            let (sender, receiver) = oneshot::channel();
            let mut seen = 0;
            let mut sender = Some(sender);
            // The work ends after the last frame that may wait.
            let source = frames(count).inspect(|_| {
                seen += 1;
                if seen == count.min(MAX_FACES as i64) {
                    let _ = sender.take().map(|sender| sender.send(()));
                }
            });
            let mut ahead = Ahead::new(source);
            assert_eq!(ahead.during(receiver).await, Ok(()));
            assert_eq!(ahead.waiting.len(), usize::min(count as usize, MAX_FACES));
            let mut times = Vec::new();
            while let Some(Ok(frame)) = ahead.next().await {
                times.push(frame.at_us);
            }
            assert_eq!(times, (0..count).collect::<Vec<_>>());
        }
    }
}

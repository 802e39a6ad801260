//! Reads frames on a thread of their own, because the decoder blocks and ends with its thread.

use futures::{Stream, ready};
use std::fs::File;
use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use tokio::sync::mpsc as async_mpsc;
use video::shots::ReducedFrame;
use video::{CancelOnDrop, Damage, Decoder, Index, Segment, VideoError};
use vision::Frame;

/// Number of frames that wait for their analysis.
pub(super) const QUEUE: usize = 2;

/// What a panic of the thread that reads is reported as.
const READER_FAILED: VideoError = VideoError::Output("the reader failed");

/// Reads the index, and returns the file again. The decoder ends when the future is dropped.
pub(super) async fn index(decoder: Decoder, file: File) -> Result<(Index, File), VideoError> {
    let (decoder, _cancel) = decoder.cancellable()?;
    let read = move || decoder.index(&file).map(|index| (index, file));
    tokio::task::spawn_blocking(read).await.unwrap_or(Err(READER_FAILED))
}

/// A frame as it was read.
pub(super) struct ReadFrame {
    pub(super) at_us: i64,
    pub(super) frame: Frame,
    /// What is compared with other frames to find cuts.
    pub(super) reduced: ReducedFrame,
}

type Read = Result<ReadFrame, VideoError>;

/// Returns the memory of frames to the decoder.
#[derive(Clone)]
pub(super) struct Recycler(SyncSender<Frame>);

impl Recycler {
    /// Gives the memory back, or frees it if enough is waiting.
    pub(super) fn give(&self, frame: Frame) {
        let _ = self.0.try_send(frame);
    }
}

/// Reads the frames of segments. Dropping it ends the decoder.
pub(super) struct Reader {
    frames: async_mpsc::Receiver<Read>,
    recycler: Recycler,
    /// What the decoder said about damage; empty until the last frame was read.
    outcome: Outcome,
    failed: bool,
    _cancel: Option<CancelOnDrop>,
}

type Outcome = Arc<OnceLock<Option<Damage>>>;

impl Reader {
    /// Starts to read. `resumed` is whether parts before the segments are stored.
    ///
    /// # Errors
    /// Fails if no thread or pipe can be created.
    pub(super) fn start(
        decoder: Decoder,
        file: File,
        index: Index,
        segments: Vec<Segment>,
        resumed: bool,
    ) -> io::Result<Self> {
        let (decoder, cancel) = decoder.cancellable()?;
        let (recycler, recycled) = mpsc::sync_channel(QUEUE);
        let task = ReadTask { decoder, file, index, recycled };
        Self::spawn(Recycler(recycler), Some(cancel), move |sender| task.run(&segments, resumed, sender))
    }

    /// Calls `read` on a thread of its own.
    fn spawn(
        recycler: Recycler,
        cancel: Option<CancelOnDrop>,
        read: impl FnOnce(&async_mpsc::Sender<Read>) -> Result<Option<Damage>, VideoError> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, frames) = async_mpsc::channel(QUEUE);
        let outcome = Outcome::default();
        let result = outcome.clone();
        std::thread::Builder::new().name("video".into()).spawn(move || {
            let damage = read(&sender).unwrap_or_else(|error| {
                // The receiver may have gone.
                let _ = sender.blocking_send(Err(error));
                None
            });
            let _ = result.set(damage);
        })?;
        Ok(Self { frames, recycler, outcome, failed: false, _cancel: cancel })
    }

    pub(super) fn recycler(&self) -> Recycler {
        self.recycler.clone()
    }

    /// Returns the frames in order.
    pub(super) fn frames(&mut self) -> impl Stream<Item = Read> {
        futures::stream::poll_fn(|context| {
            let next = ready!(self.frames.poll_recv(context));
            // After a panic, the channel ends without an outcome.
            let failed = next.is_none() && self.outcome.get().is_none() && !self.failed;
            self.failed |= failed;
            Poll::Ready(if failed { Some(Err(READER_FAILED)) } else { next })
        })
    }

    /// Returns what the decoder said about damage. It is complete after the last frame.
    pub(super) fn damage(&self) -> Option<Damage> {
        self.outcome.get().cloned().flatten()
    }
}

struct ReadTask {
    decoder: Decoder,
    file: File,
    index: Index,
    recycled: Receiver<Frame>,
}

impl ReadTask {
    /// Sends the frames of all segments, and returns what the decoder said about damage.
    fn run(
        self,
        segments: &[Segment],
        resumed: bool,
        sender: &async_mpsc::Sender<Read>,
    ) -> Result<Option<Damage>, VideoError> {
        // If the analysis is resumed, what was stored before remains valid.
        let mut any = resumed;
        let mut damage = None;
        for segment in segments {
            let mut frames = match self.decoder.frames(&self.file, &self.index, segment) {
                Err(error) if any && is_damage(&error) => return Ok(damage.or(Some(ended_by(&error)))),
                frames => frames?,
            };
            loop {
                if let Ok(frame) = self.recycled.try_recv() {
                    frames.recycle(frame);
                }
                let next = match frames.next_frame() {
                    // What was read before remains valid.
                    Err(error) if any && is_damage(&error) => return Ok(damage.or(Some(ended_by(&error)))),
                    next => next?,
                };
                let Some(next) = next else { break };
                any = true;
                let reduced = ReducedFrame::of(&next.frame);
                let read = ReadFrame { at_us: next.at_us, frame: next.frame, reduced };
                if sender.blocking_send(Ok(read)).is_err() {
                    return Ok(None);
                }
            }
            damage = damage.or_else(|| frames.damage().cloned());
        }
        Ok(damage)
    }
}

/// Returns whether the file is the cause of an error. Another attempt would fail in the same way.
fn is_damage(error: &VideoError) -> bool {
    use VideoError::{CpuLimit, Output, Stalled, Undecodable};
    matches!(error, Undecodable(_) | Output(_) | Stalled(_) | CpuLimit(_))
}

/// Describes an error after which no more frames are read.
fn ended_by(error: &VideoError) -> Damage {
    Damage { truncated: false, message: error.to_string() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures::StreamExt;

    #[tokio::test]
    async fn a_panic_of_the_thread_is_an_error_and_not_the_end() {
        let reader = |panics: bool| {
            let (recycler, _) = mpsc::sync_channel(1);
            let read = move |_: &_| if panics { panic!("for the test") } else { Ok(None) };
            Reader::spawn(Recycler(recycler), None, read).unwrap()
        };
        assert!(reader(false).frames().next().await.is_none());
        let mut failing = reader(true);
        let mut frames = std::pin::pin!(failing.frames());
        assert!(matches!(frames.next().await, Some(Err(VideoError::Output(_)))));
        assert!(frames.next().await.is_none());
    }
}

//! Reads frames on a thread of their own, because the decoder blocks and ends with its thread.

use super::steps::{KnownFrame, Step};
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
const QUEUE: usize = 2;
/// Maximum number of buffers for frames apart from those that are analysed: frames that wait,
/// returned buffers that wait, a spare one, and three frames among which keyframes are selected.
pub(super) const BUFFERS: usize = 2 * QUEUE + 4;

/// What a panic of the thread that reads is reported as.
const READER_FAILED: VideoError = VideoError::Output("the reader failed");

/// Reads the index, and returns the file again. The decoder ends when the future is dropped.
pub(super) async fn index(decoder: Decoder, file: File) -> Result<(Index, File), VideoError> {
    let (decoder, _cancel) = decoder.cancellable()?;
    let read = move || decoder.index(&file).map(|index| (index, file));
    tokio::task::spawn_blocking(read).await.unwrap_or(Err(READER_FAILED))
}

/// A video that is read.
#[derive(Clone)]
pub(super) struct Source {
    pub(super) decoder: Decoder,
    pub(super) file: Arc<File>,
    pub(super) index: Arc<Index>,
}

/// The content of a frame, as far as it is needed.
pub(super) enum Content {
    /// The pixels, for the detector.
    Pixels(Frame),
    /// The size. The frame has no face.
    NoFace((u32, u32)),
}

pub(super) struct ReadFrame {
    pub(super) at_us: i64,
    pub(super) content: Content,
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

/// The state at the end of a reader, with which another reader continues.
#[derive(Clone, Default)]
pub(super) struct ReadState {
    /// Whether frames were read or are stored. They remain valid if no more can be read.
    pub(super) any: bool,
    /// The first message of the decoder about damage.
    pub(super) damage: Option<Damage>,
    /// Whether damage prevents the reader from reading more frames.
    pub(super) ended: bool,
}

impl ReadState {
    /// Returns the state of a reader before its first frame. `any` is whether frames are stored.
    pub(super) fn new(any: bool, damage: Option<Damage>) -> Self {
        Self { any, damage, ended: false }
    }
}

/// Reads the frames of steps. Dropping it ends the decoder.
pub(super) struct Reader {
    frames: async_mpsc::Receiver<Read>,
    recycler: Recycler,
    /// Empty until the last frame was read.
    outcome: Outcome,
    failed: bool,
    _cancel: Option<CancelOnDrop>,
}

type Outcome = Arc<OnceLock<ReadState>>;

impl Reader {
    /// Starts to read the steps, up to the first frame at or after `until_us`, which is included.
    ///
    /// # Errors
    /// Fails if no thread or pipe can be created.
    pub(super) fn start(
        source: &Source,
        steps: Vec<Step>,
        until_us: i64,
        state: ReadState,
    ) -> io::Result<Self> {
        let mut source = source.clone();
        let (decoder, cancel) = source.decoder.cancellable()?;
        source.decoder = decoder;
        let (recycler, recycled) = mpsc::sync_channel(QUEUE);
        let task = ReadTask { source, recycled, until_us, state };
        Self::spawn(Recycler(recycler), Some(cancel), move |sender| task.run(steps, sender))
    }

    /// Calls `read` on a thread of its own.
    fn spawn(
        recycler: Recycler,
        cancel: Option<CancelOnDrop>,
        read: impl FnOnce(&async_mpsc::Sender<Read>) -> Result<ReadState, VideoError> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, frames) = async_mpsc::channel(QUEUE);
        let outcome = Outcome::default();
        let result = outcome.clone();
        std::thread::Builder::new().name("video".into()).spawn(move || {
            let state = read(&sender).unwrap_or_else(|error| {
                // The receiver may have gone.
                let _ = sender.blocking_send(Err(error));
                ReadState::default()
            });
            let _ = result.set(state);
        })?;
        Ok(Self { frames, recycler, outcome, failed: false, _cancel: cancel })
    }

    pub(super) fn recycler(&self) -> Recycler {
        self.recycler.clone()
    }

    pub(super) fn frames(&mut self) -> impl Stream<Item = Read> {
        futures::stream::poll_fn(|context| {
            let next = ready!(self.frames.poll_recv(context));
            // After a panic, the channel ends without an outcome.
            let failed = next.is_none() && self.outcome.get().is_none() && !self.failed;
            self.failed |= failed;
            Poll::Ready(if failed { Some(Err(READER_FAILED)) } else { next })
        })
    }

    /// Returns the state after the last frame, with which another reader continues.
    pub(super) fn end(self) -> ReadState {
        self.outcome.get().cloned().unwrap_or_default()
    }
}

struct ReadTask {
    source: Source,
    recycled: Receiver<Frame>,
    until_us: i64,
    state: ReadState,
}

/// Whether a reader continues after a frame or a segment.
enum Next {
    Continue,
    /// It has ended: the last frame was sent, or nobody receives frames.
    End,
}

impl ReadTask {
    /// Sends the frames of all steps, and returns the state after them.
    fn run(mut self, steps: Vec<Step>, sender: &async_mpsc::Sender<Read>) -> Result<ReadState, VideoError> {
        for step in steps {
            let next = match step {
                Step::Known(KnownFrame { at_us, size, reduced }) => {
                    self.send(ReadFrame { at_us, content: Content::NoFace(size), reduced }, sender)
                }
                Step::Decode(segment) => match self.decode(&segment, sender) {
                    // What was read before remains valid.
                    Err(error) if self.state.any && is_damage(&error) => {
                        self.state.damage.get_or_insert(ended_by(&error));
                        self.state.ended = true;
                        Next::End
                    }
                    next => next?,
                },
            };
            if matches!(next, Next::End) {
                break;
            }
        }
        Ok(self.state)
    }

    fn decode(&mut self, segment: &Segment, sender: &async_mpsc::Sender<Read>) -> Result<Next, VideoError> {
        let Source { decoder, file, index } = &self.source;
        let mut frames = decoder.frames(file, index, segment)?;
        loop {
            if let Ok(frame) = self.recycled.try_recv() {
                frames.recycle(frame);
            }
            let Some(read) = frames.next_frame()? else { break };
            let reduced = ReducedFrame::of(&read.frame);
            let read = ReadFrame { at_us: read.at_us, content: Content::Pixels(read.frame), reduced };
            let next = self.send(read, sender);
            if matches!(next, Next::End) {
                let damage = frames.stop();
                self.state.damage = self.state.damage.take().or(damage);
                return Ok(next);
            }
        }
        self.state.damage = self.state.damage.take().or_else(|| frames.damage().cloned());
        Ok(Next::Continue)
    }

    fn send(&mut self, read: ReadFrame, sender: &async_mpsc::Sender<Read>) -> Next {
        self.state.any = true;
        let at_us = read.at_us;
        let sent = sender.blocking_send(Ok(read));
        if sent.is_err() || at_us >= self.until_us { Next::End } else { Next::Continue }
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
            let read = move |_: &_| if panics { panic!("for the test") } else { Ok(ReadState::default()) };
            Reader::spawn(Recycler(recycler), None, read).unwrap()
        };
        assert!(reader(false).frames().next().await.is_none());
        let mut failing = reader(true);
        let mut frames = std::pin::pin!(failing.frames());
        assert!(matches!(frames.next().await, Some(Err(VideoError::Output(_)))));
        assert!(frames.next().await.is_none());
    }
}

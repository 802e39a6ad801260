//! Reads frames on a thread of their own, because the decoder blocks and ends with its thread.

use super::parts::PartClock;
use futures::Stream;
use std::fs::File;
use std::io;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, OnceLock};
use tokio::sync::mpsc as async_mpsc;
use video::shots::CutDetector;
use video::{Damage, Decoder, Index, Segment, VideoError};
use vision::Frame;

/// Number of frames that wait for their analysis.
pub(super) const QUEUE: usize = 2;

/// Reads the index, and returns the file again.
pub(super) async fn index(decoder: Decoder, file: File) -> Result<(Index, File), VideoError> {
    let read = move || decoder.index(&file).map(|index| (index, file));
    tokio::task::spawn_blocking(read).await.unwrap_or(Err(VideoError::Output("the reader failed")))
}

/// A frame as it was read.
pub(super) struct ReadFrame {
    pub(super) at_us: i64,
    pub(super) frame: Frame,
    /// Whether the frame begins a new shot.
    pub(super) cut: bool,
    /// Whether the frame begins a new part.
    pub(super) part: bool,
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
    damage: Arc<OnceLock<Damage>>,
}

impl Reader {
    /// Starts to read.
    ///
    /// # Errors
    /// Fails if no thread can be started.
    pub(super) fn start(
        decoder: Decoder,
        file: File,
        index: Index,
        segments: Vec<Segment>,
    ) -> io::Result<Self> {
        let (sender, frames) = async_mpsc::channel(QUEUE);
        let (recycler, recycled) = mpsc::sync_channel(QUEUE);
        let damage = Arc::new(OnceLock::new());
        let task = ReadTask { decoder, file, index, recycled, damage: damage.clone() };
        std::thread::Builder::new().name("video".into()).spawn(move || {
            if let Err(error) = task.run(&segments, &sender) {
                // The receiver may have gone.
                let _ = sender.blocking_send(Err(error));
            }
        })?;
        Ok(Self { frames, recycler: Recycler(recycler), damage })
    }

    pub(super) fn recycler(&self) -> Recycler {
        self.recycler.clone()
    }

    /// Returns the frames in order.
    pub(super) fn frames(&mut self) -> impl Stream<Item = Read> {
        futures::stream::poll_fn(|context| self.frames.poll_recv(context))
    }

    /// Returns what the decoder said about damage. It is complete after the last frame.
    pub(super) fn damage(&self) -> Option<Damage> {
        self.damage.get().cloned()
    }
}

struct ReadTask {
    decoder: Decoder,
    file: File,
    index: Index,
    recycled: Receiver<Frame>,
    damage: Arc<OnceLock<Damage>>,
}

impl ReadTask {
    fn run(self, segments: &[Segment], sender: &async_mpsc::Sender<Read>) -> Result<(), VideoError> {
        let (mut cuts, mut parts) = (CutDetector::default(), PartClock::default());
        let mut any = false;
        for segment in segments {
            let mut frames = self.decoder.frames(&self.file, &self.index, segment)?;
            loop {
                if let Ok(frame) = self.recycled.try_recv() {
                    frames.recycle(frame);
                }
                let next = match frames.next_frame() {
                    // What was read before remains valid.
                    Err(error) if any => {
                        let _ = self.damage.set(Damage { truncated: false, message: error.to_string() });
                        return Ok(());
                    }
                    next => next?,
                };
                let Some(next) = next else { break };
                any = true;
                let cut = cuts.is_cut(next.at_us, &next.frame);
                let part = parts.begins(next.at_us, cut);
                if part {
                    // An analysis that is resumed here does not know the frames before.
                    cuts = CutDetector::default();
                    cuts.is_cut(next.at_us, &next.frame);
                }
                let read = ReadFrame { at_us: next.at_us, frame: next.frame, cut, part };
                if sender.blocking_send(Ok(read)).is_err() {
                    return Ok(());
                }
            }
            if let Some(damage) = frames.damage() {
                let _ = self.damage.set(damage.clone());
            }
        }
        Ok(())
    }
}

//! Reads frames on a separate thread, because the decoder blocks its thread and ends with it.
use super::VideoAnalyzeError;
use crate::videos::analyze::FrameFace;
use futures::{Stream, StreamExt, ready};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::pin::pin;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, OnceLock, mpsc};
use std::task::Poll;
use tokio::sync::mpsc as async_mpsc;
use video::shots::ReducedFrame;
use video::{CancelOnDrop, Damage, Decoder, FrameSet, Index, Segment, VideoError};
use vision::Frame;

/// Number of frames that wait for their analysis.
const QUEUE_LENGTH: usize = 2;
/// Maximum number of buffers for frames apart from those that are analysed: frames that wait,
/// returned buffers that wait, a spare one, and three frames among which keyframes are selected.
pub(super) const BUFFERS: usize = 2 * QUEUE_LENGTH + 4;

/// The error that reports a panic of the reader thread.
const READER_FAILED: VideoError = VideoError::Output("the reader failed");

/// Reads the index, and returns the file again. The decoder ends when the future is dropped.
pub(super) async fn index(decoder: Decoder, file: File) -> Result<(Index, File), VideoError> {
    let (decoder, _cancel) = decoder.cancellable()?;
    let read = move || decoder.index(&file).map(|index| (index, file));
    tokio::task::spawn_blocking(read).await.unwrap_or(Err(READER_FAILED))
}

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
    /// The reduced frame, which is compared with others to find cuts.
    pub(super) reduced: ReducedFrame,
}

type ReadResult = Result<ReadFrame, VideoError>;

#[derive(Clone)]
pub(super) struct Recycler(SyncSender<Frame>);

impl Recycler {
    /// Returns the memory of a frame to the reader, or frees it if enough buffers wait.
    pub(super) fn recycle(&self, frame: Frame) {
        let _ = self.0.try_send(frame);
    }
}

/// The state at the end of a reader, with which another reader continues.
#[derive(Clone, Default)]
pub(super) struct ReadState {
    /// Whether frames were read or stored. They remain valid if no more frames can be read.
    pub(super) has_frames: bool,
    /// The first message of the decoder about damage.
    pub(super) damage: Option<Damage>,
    /// Whether damage prevents the reader from reading more frames.
    pub(super) has_ended: bool,
}

/// Reads the frames of steps. Dropping it ends the decoder.
pub(super) struct Reader {
    frames: async_mpsc::Receiver<ReadResult>,
    recycler: Recycler,
    /// Empty until the last frame was read.
    outcome: FinalReadState,
    has_failed: bool,
    _cancel: Option<CancelOnDrop>,
}

type FinalReadState = Arc<OnceLock<ReadState>>;

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
        let (recycler, recycled) = mpsc::sync_channel(QUEUE_LENGTH);
        let task = ReadTask { source, recycled, until_us, state };
        Self::spawn(Recycler(recycler), Some(cancel), move |sender| task.run(steps, sender))
    }

    fn spawn(
        recycler: Recycler,
        cancel: Option<CancelOnDrop>,
        read: impl FnOnce(&async_mpsc::Sender<ReadResult>) -> Result<ReadState, VideoError> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, frames) = async_mpsc::channel(QUEUE_LENGTH);
        let outcome = FinalReadState::default();
        let result = outcome.clone();
        std::thread::Builder::new().name("video".into()).spawn(move || {
            let state = read(&sender).unwrap_or_else(|error| {
                // The receiver may have been dropped.
                let _ = sender.blocking_send(Err(error));
                ReadState::default()
            });
            let _ = result.set(state);
        })?;
        Ok(Self { frames, recycler, outcome, has_failed: false, _cancel: cancel })
    }

    pub(super) fn recycler(&self) -> Recycler {
        self.recycler.clone()
    }

    pub(super) fn frames(&mut self) -> impl Stream<Item = ReadResult> {
        futures::stream::poll_fn(|context| {
            let next = ready!(self.frames.poll_recv(context));
            // After a panic, the channel ends without an outcome.
            let failed = next.is_none() && self.outcome.get().is_none() && !self.has_failed;
            self.has_failed |= failed;
            Poll::Ready(if failed { Some(Err(READER_FAILED)) } else { next })
        })
    }

    pub(super) fn into_state(self) -> ReadState {
        self.outcome.get().cloned().unwrap_or_default()
    }
}

struct ReadTask {
    source: Source,
    recycled: Receiver<Frame>,
    until_us: i64,
    state: ReadState,
}

/// A break means that the last frame was sent, or that the receiver was dropped.
type Next = ControlFlow<()>;

impl ReadTask {
    fn run(
        mut self,
        steps: Vec<Step>,
        sender: &async_mpsc::Sender<ReadResult>,
    ) -> Result<ReadState, VideoError> {
        for step in steps {
            let next = match step {
                Step::Known(KnownFrame { at_us, size, reduced }) => {
                    self.send(ReadFrame { at_us, content: Content::NoFace(size), reduced }, sender)
                }
                Step::Decode(segment) => match self.decode(&segment, sender) {
                    // Frames that were read before remain valid.
                    Err(error) if self.state.has_frames && is_damage(&error) => {
                        self.state.damage.get_or_insert(to_damage(&error));
                        self.state.has_ended = true;
                        Next::Break(())
                    }
                    next => next?,
                },
            };
            if next.is_break() {
                break;
            }
        }
        Ok(self.state)
    }

    fn decode(
        &mut self,
        segment: &Segment,
        sender: &async_mpsc::Sender<ReadResult>,
    ) -> Result<Next, VideoError> {
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
            if next.is_break() {
                let damage = frames.stop();
                self.state.damage = self.state.damage.take().or(damage);
                return Ok(next);
            }
        }
        self.state.damage = self.state.damage.take().or_else(|| frames.damage().cloned());
        Ok(Next::Continue(()))
    }

    fn send(&mut self, read: ReadFrame, sender: &async_mpsc::Sender<ReadResult>) -> Next {
        self.state.has_frames = true;
        let at_us = read.at_us;
        let sent = sender.blocking_send(Ok(read));
        if sent.is_err() || at_us >= self.until_us { Next::Break(()) } else { Next::Continue(()) }
    }
}

/// Returns `true` if the file is the cause of an error. Another attempt would fail in the same way.
fn is_damage(error: &VideoError) -> bool {
    use VideoError::{CpuLimit, Output, Stalled, Undecodable};
    matches!(error, Undecodable(_) | Output(_) | Stalled(_) | CpuLimit(_))
}

fn to_damage(error: &VideoError) -> Damage {
    Damage { truncated: false, message: error.to_string() }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// The frames of a segment.
    Decode(Segment),
    /// A frame that was analysed before and has no face.
    Known(KnownFrame),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct KnownFrame {
    pub(super) at_us: i64,
    /// Width and height of the frame in pixels.
    pub(super) size: (u32, u32),
    /// The reduced frame, which is compared with others to find cuts.
    pub(super) reduced: ReducedFrame,
}

/// Returns the remaining steps after the frame at `after_us`. They begin with the frame that would
/// have followed it.
pub(super) fn remaining(steps: Vec<Step>, after_us: i64) -> Vec<Step> {
    let rest = |step| match step {
        Step::Decode(segment) => remaining_segment(segment, after_us).map(Step::Decode),
        Step::Known(frame) => (frame.at_us > after_us).then_some(Step::Known(frame)),
    };
    steps.into_iter().filter_map(rest).collect()
}

fn remaining_segment(segment: Segment, after_us: i64) -> Option<Segment> {
    if segment.from_us > after_us {
        return Some(segment);
    }
    // Each cell yields one frame, and the frame of this cell was already returned. Cells are
    // counted with a tolerance of a millisecond.
    let cell = segment.cell_us.max(1);
    let next_cell = after_us.saturating_add(1_000).div_euclid(cell).saturating_add(1);
    let from_us = next_cell.saturating_mul(cell).saturating_sub(1_000).max(after_us.saturating_add(1));
    // A listed frame is returned at any position in its cell.
    let listed_us: Vec<i64> = segment.listed_us.iter().copied().filter(|at| *at > after_us).collect();
    let from_us = listed_us.first().map_or(from_us, |listed| from_us.min(*listed));
    let last_us = match segment.decoded {
        FrameSet::Keyframes => after_us,
        // The decoder may return a frame of the last cell, because its start is not exact.
        FrameSet::All => from_us - 1,
    };
    (from_us < segment.to_us).then_some(Segment { from_us, listed_us, last_us: Some(last_us), ..segment })
}

/// Maximum number of faces in the frames that wait while a part is stored. Their images take at
/// most 15 MB, or as much as the images of one frame.
const MAX_WAITING_FACES: usize = 64;

pub(super) struct AnalyzedFrame {
    pub(super) at_us: i64,
    pub(super) size: (u32, u32),
    pub(super) faces: Vec<FrameFace>,
    pub(super) reduced: ReducedFrame,
}

type Analyzed = Result<AnalyzedFrame, VideoAnalyzeError>;

/// Returns analysed frames in order. Can analyse frames before they are requested.
pub(super) struct PrefetchedFrames<S> {
    frames: S,
    waiting: VecDeque<Analyzed>,
}

impl<S: Stream<Item = Analyzed> + Unpin> PrefetchedFrames<S> {
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
    pub(super) async fn prefetch_during<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        loop {
            let can_read_ahead = self.waiting.iter().map(face_count).sum::<usize>() < MAX_WAITING_FACES;
            tokio::select! {
                biased;
                done = &mut work => return done,
                Some(next) = self.frames.next(), if can_read_ahead => self.waiting.push_back(next),
            }
        }
    }
}

/// Returns the number of faces in a frame, at least 1. An error counts as the maximum, because no
/// frame follows it.
fn face_count(frame: &Analyzed) -> usize {
    frame.as_ref().map_or(MAX_WAITING_FACES, |frame| frame.faces.len().max(1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use futures::{StreamExt, stream};
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn reader_thread_panic_returns_error() {
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

    fn segment(from_us: i64, to_us: i64, cell_us: i64) -> Segment {
        Segment {
            from_us,
            to_us,
            decoded: FrameSet::All,
            cell_us,
            listed_us: Vec::new(),
            max_gap_us: 0,
            last_us: None,
        }
    }

    #[test]
    fn remaining_steps_start_at_next_frame() {
        let tail = |from_us, to_us, cell_us| {
            Step::Decode(Segment { last_us: Some(from_us - 1), ..segment(from_us, to_us, cell_us) })
        };
        let steps = [segment(0, 4_000_000, 200_000), segment(4_000_000, i64::MAX, 2_000_000)];
        let steps = steps.map(Step::Decode).to_vec();
        // The frame at 1.04 s is the first one of the cell from 1.0 s.
        let expected = [tail(1_199_000, 4_000_000, 200_000), steps[1].clone()];
        assert_eq!(remaining(steps.clone(), 1_040_000), expected);
        // A frame at 0.9995 s counts to the cell from 1 s.
        assert_eq!(remaining(steps.clone(), 999_500)[0], expected[0]);
        assert_eq!(remaining(steps.clone(), 3_999_500), [steps[1].clone()]);
        assert_eq!(remaining(steps, 5_000_000), [tail(5_999_000, i64::MAX, 2_000_000)]);
    }

    #[test]
    fn remaining_steps_exclude_last_keyframe() {
        let keyframes = Segment { decoded: FrameSet::Keyframes, ..segment(0, i64::MAX, 1) };
        let tail = Segment { from_us: 78, last_us: Some(77), ..keyframes.clone() };
        assert_eq!(remaining(vec![Step::Decode(keyframes)], 77), [Step::Decode(tail)]);
    }

    #[test]
    fn remaining_steps_keep_later_listed_and_known_frames() {
        let reduced = ReducedFrame::of(&vision::Frame::filled(8, 8, [0; 3]));
        let known = |at_us| Step::Known(KnownFrame { at_us, size: (640, 360), reduced: reduced.clone() });
        let listed =
            Segment { listed_us: vec![500_000, 610_000, 910_000], ..segment(400_000, 2_000_000, 250_000) };
        let steps = vec![known(300_000), Step::Decode(listed.clone()), known(2_000_000)];
        let tail = |from_us: i64, listed_us: &[i64]| {
            let (listed_us, last_us) = (listed_us.to_vec(), Some(from_us - 1));
            Step::Decode(Segment { from_us, listed_us, last_us, ..listed.clone() })
        };
        assert_eq!(remaining(steps.clone(), 520_000), [tail(610_000, &[610_000, 910_000]), known(2_000_000)]);
        assert_eq!(remaining(steps.clone(), 610_000), [tail(749_000, &[910_000]), known(2_000_000)]);
        // This frame counts to the cell from 2 s.
        assert_eq!(remaining(steps.clone(), 1_999_500), [known(2_000_000)]);
        assert_eq!(remaining(steps.clone(), 299_999), steps);
    }

    fn frames(count: i64) -> impl Stream<Item = Analyzed> + Unpin {
        let reduced = ReducedFrame::of(&vision::Frame::filled(8, 8, [0; 3]));
        let frame = move |at_us| {
            Ok(AnalyzedFrame { at_us, size: (8, 8), faces: Vec::new(), reduced: reduced.clone() })
        };
        stream::iter((0..count).map(frame))
    }

    #[tokio::test]
    async fn analyses_frames_ahead_in_order() {
        for count in [3, 200] {
            let (sender, receiver) = oneshot::channel();
            let mut count_read = 0;
            let mut sender = Some(sender);
            // The work ends after the last frame that may wait.
            let source = frames(count).inspect(|_| {
                count_read += 1;
                if count_read == count.min(MAX_WAITING_FACES as i64) {
                    let _ = sender.take().map(|sender| sender.send(()));
                }
            });
            let mut ahead = PrefetchedFrames::new(source);
            assert_eq!(ahead.prefetch_during(receiver).await, Ok(()));
            assert_eq!(ahead.waiting.len(), usize::min(count as usize, MAX_WAITING_FACES));
            let mut times = Vec::new();
            while let Some(Ok(frame)) = ahead.next().await {
                times.push(frame.at_us);
            }
            assert_eq!(times, (0..count).collect::<Vec<_>>());
        }
    }
}

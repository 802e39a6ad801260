//! Receives the frames of one connection to a camera, and returns one decoded frame per interval.
//! Only the newest decoded frame is kept, so a slow analysis skips frames instead of falling
//! behind. The frames of a segment of HLS arrive together; the decoder waits until each of them was
//! taken, unless the next segment has arrived.
//!
//! Three steps run at the same time. A task reads from the network. A thread writes compressed
//! frames to the decoder. If they wait too long, it continues at the newest keyframe. Another
//! thread reads pictures from the decoder.
use crate::admission::budget::BudgetExhausted;
use crate::streams::backlog::{Backlog, Item};
use bytes::Bytes;
use camera::{CameraError, Format, Session, Unit};
use parking_lot::{Condvar, Mutex};
use std::convert::Infallible;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use video::{CancelOnDrop, Decoder, LiveContainer, LiveGpu, LiveInput, LiveStream, VideoError};
use vision::Frame;

/// A frame that was received, and is not analysed yet.
#[derive(Debug)]
pub(super) struct ReceivedFrame {
    /// When it arrived.
    pub(super) received: Instant,
    /// When it was shown, for tracks. It is later than `received` for the later frames of a segment
    /// of HLS, which arrive together.
    pub(super) shown: Instant,
    pub(super) picture: Picture,
}

#[derive(Debug)]
pub(super) enum Picture {
    Decoded(Frame),
    /// A JPEG image.
    Jpeg(Bytes),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum ReceiveError {
    #[error(transparent)]
    Camera(#[from] CameraError),
    #[error("the frames cannot be decoded: {0}")]
    Decoder(#[from] VideoError),
    #[error("the camera sends no frame that can be decoded")]
    NoPicture,
    #[error(transparent)]
    Memory(#[from] BudgetExhausted),
}

/// Counts of a stream, over all its connections.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) received: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) lost: AtomicU64,
}

impl Counts {
    fn drop_frames(&self, frames: u64) {
        self.dropped.fetch_add(frames, Ordering::Relaxed);
        metrics::counter!("facecrawl_stream_frames_total", "outcome" => "dropped").increment(frames);
    }
}

/// Longest time without a decoded picture. A camera that sends only damaged frames is reconnected.
const PICTURE_TIMEOUT: Duration = Duration::from_secs(15);

/// Number of decoded frames in memory: one waits, and the decoder has the next one.
const DECODED_FRAMES: u64 = 2;

/// The newest decoded frame, and the reason why none follows.
#[derive(Debug, Default)]
struct Newest {
    state: Mutex<NewestState>,
    changed: Notify,
    /// Notified when a frame was taken, or when no thread should wait for that any longer.
    taken: Condvar,
}

#[derive(Debug, Default)]
struct NewestState {
    frame: Option<ReceivedFrame>,
    error: Option<ReceiveError>,
}

impl Newest {
    /// Replaces the frame, and returns whether one was lost.
    fn put(&self, frame: ReceivedFrame) -> bool {
        let lost = self.state.lock().frame.replace(frame);
        self.changed.notify_one();
        lost.is_some()
    }

    /// Waits until the frame was taken, as long as `waits` returns `true`. The caller of
    /// [`Self::wake`] may have changed its result.
    fn wait_until_taken(&self, waits: impl Fn() -> bool) {
        let mut state = self.state.lock();
        while state.frame.is_some() && waits() {
            self.taken.wait(&mut state);
        }
    }

    fn take(&self) -> Option<Result<ReceivedFrame, ReceiveError>> {
        let mut state = self.state.lock();
        let taken = match state.frame.take() {
            Some(frame) => Some(Ok(frame)),
            None => state.error.take().map(Err),
        };
        self.taken.notify_all();
        taken
    }

    /// Lets the threads in [`Self::wait_until_taken`] check whether they still have to wait.
    fn wake(&self) {
        // A thread that has just checked this holds the lock until it waits.
        drop(self.state.lock());
        self.taken.notify_all();
    }

    fn fail(&self, error: ReceiveError) {
        self.state.lock().error.get_or_insert(error);
        self.changed.notify_one();
    }
}

/// One connection to a camera. Dropping it closes the connection and ends the decoder.
pub(super) struct Receiver {
    newest: Arc<Newest>,
    last_picture: Instant,
    task: AbortHandle,
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Receiver {
    /// Starts to receive. One frame per `interval` is decoded, for at most about `time`.
    pub(super) fn start(
        session: Session,
        (decoder, gpu): (&Decoder, &LiveGpu),
        (interval, time): (Duration, Duration),
        counts: Arc<Counts>,
    ) -> Self {
        let newest = Arc::new(Newest::default());
        let mut task = ReceiveTask {
            session,
            decoder: decoder.clone(),
            gpu: gpu.clone(),
            interval,
            time,
            counts,
            newest: newest.clone(),
            decoding: None,
            last_image: None,
        };
        let task = tokio::spawn(async move {
            let Err(error) = task.run().await;
            task.newest.fail(error);
        });
        Self { newest, last_picture: Instant::now(), task: task.abort_handle() }
    }

    /// Waits for the newest frame. Dropping the future loses no frame.
    ///
    /// # Errors
    /// Fails if the connection or the decoder fails, or if no frame can be decoded.
    pub(super) async fn next(&mut self) -> Result<ReceivedFrame, ReceiveError> {
        loop {
            if let Some(taken) = self.newest.take() {
                self.last_picture = Instant::now();
                return taken;
            }
            let left = PICTURE_TIMEOUT.saturating_sub(self.last_picture.elapsed());
            if tokio::time::timeout(left, self.newest.changed.notified()).await.is_err() {
                return Err(ReceiveError::NoPicture);
            }
        }
    }
}

/// Reads units from the network, and passes them to the decoder.
struct ReceiveTask {
    session: Session,
    decoder: Decoder,
    gpu: LiveGpu,
    interval: Duration,
    time: Duration,
    counts: Arc<Counts>,
    newest: Arc<Newest>,
    decoding: Option<Decoding>,
    /// When the last JPEG image was taken, for cameras that send images.
    last_image: Option<Instant>,
}

impl ReceiveTask {
    async fn run(&mut self) -> Result<Infallible, ReceiveError> {
        let header = self.session.header();
        self.start_decoding(header)?;
        loop {
            let unit = self.session.next().await?;
            self.accept(unit)?;
        }
    }

    fn start_decoding(&mut self, header: Bytes) -> Result<(), ReceiveError> {
        // The previous decoder ends first, so that the memory of only one is in use.
        self.decoding = None;
        let (format, gpu) = (self.session.format(), self.gpu.clone());
        let Some(stream) = live_stream(format, self.interval, self.time, gpu) else { return Ok(()) };
        let started = self.session.started().into();
        let input = DecoderInput { decoder: self.decoder.clone(), stream, started };
        let decoding = Decoding::start(input, header, self.newest.clone(), self.counts.clone());
        self.decoding = Some(decoding.map_err(VideoError::Io)?);
        Ok(())
    }

    fn accept(&mut self, unit: Unit) -> Result<(), ReceiveError> {
        self.counts.received.fetch_add(1, Ordering::Relaxed);
        self.counts.lost.fetch_add(unit.lost, Ordering::Relaxed);
        if matches!(self.session.format(), Format::Jpeg) {
            self.accept_image(unit);
            return Ok(());
        }
        if let Some(header) = unit.new_header {
            self.start_decoding(header)?;
        }
        if let Some(decoding) = &self.decoding {
            decoding.backlog.push(Item {
                bytes: unit.bytes,
                is_keyframe: unit.is_keyframe,
                received: unit.received.into(),
            });
            self.newest.wake();
        }
        Ok(())
    }

    fn accept_image(&mut self, unit: Unit) {
        let received: Instant = unit.received.into();
        let is_due = self
            .last_image
            .is_none_or(|last| received.saturating_duration_since(last) >= self.interval.mul_f32(0.9));
        if is_due {
            self.last_image = Some(received);
            let frame = ReceivedFrame { received, shown: received, picture: Picture::Jpeg(unit.bytes) };
            if self.newest.put(frame) {
                self.counts.drop_frames(1);
            }
        }
    }
}

/// Returns the memory in bytes that a connection needs for frames of this width and height in
/// pixels.
pub(super) fn memory_bytes(decoder: &Decoder, size: (u32, u32)) -> u64 {
    let frame = u64::from(size.0) * u64::from(size.1) * 3;
    decoder.live_memory_bytes(size) + DECODED_FRAMES * frame
}

/// Returns the settings of the decoder of a connection, with one frame per `interval` for at most
/// about `time`; `None` for JPEG images, which need no decoder.
pub(super) fn live_stream(
    format: &Format,
    interval: Duration,
    time: Duration,
    gpu: LiveGpu,
) -> Option<LiveStream> {
    let container = match format {
        Format::Jpeg => return None,
        Format::Matroska(_) => LiveContainer::Matroska,
        Format::MpegTs => LiveContainer::MpegTs,
        Format::Mp4 => LiveContainer::Mp4,
    };
    let interval_us = i64::try_from(interval.as_micros()).unwrap_or(i64::MAX);
    Some(LiveStream { container, interval_us, time, gpu })
}

struct DecoderInput {
    decoder: Decoder,
    stream: LiveStream,
    /// The time from which the timestamps of frames count.
    started: Instant,
}

/// A running decoder. Dropping it ends the decoder and its threads.
struct Decoding {
    backlog: Arc<Backlog>,
    newest: Arc<Newest>,
    _cancel: CancelOnDrop,
}

impl Drop for Decoding {
    fn drop(&mut self) {
        self.backlog.close();
        self.newest.wake();
    }
}

impl Decoding {
    fn start(
        input: DecoderInput,
        header: Bytes,
        newest: Arc<Newest>,
        counts: Arc<Counts>,
    ) -> io::Result<Self> {
        let backlog = Arc::new(Backlog::new());
        let (decoder, cancel) = input.decoder.cancellable()?;
        let reader = PictureReader {
            input: DecoderInput { decoder, ..input },
            backlog: backlog.clone(),
            newest: newest.clone(),
            counts,
        };
        std::thread::Builder::new().name("camera".into()).spawn(move || reader.run(&header))?;
        Ok(Self { backlog, newest, _cancel: cancel })
    }
}

/// Reads pictures from the decoder on its own thread. The decoder ends when this thread ends.
struct PictureReader {
    input: DecoderInput,
    backlog: Arc<Backlog>,
    newest: Arc<Newest>,
    counts: Arc<Counts>,
}

impl PictureReader {
    fn run(self, header: &Bytes) {
        if let Err(error) = self.read(header)
            && !matches!(error, VideoError::Cancelled)
        {
            self.newest.fail(error.into());
        }
        self.backlog.close();
    }

    fn read(&self, header: &Bytes) -> Result<(), VideoError> {
        let DecoderInput { decoder, stream, started } = &self.input;
        let (pipe, mut frames) = decoder.live(stream)?;
        let (backlog, counts, header) = (self.backlog.clone(), self.counts.clone(), header.clone());
        let writer = move || write_units(pipe, &header, &backlog, &counts);
        std::thread::Builder::new().name("camera input".into()).spawn(writer)?;
        let mut timeline = Timeline::default();
        while let Some(frame) = frames.next_frame()? {
            let (received, shown) = match stream.container {
                // These timestamps are times of arrival.
                LiveContainer::Matroska => {
                    let at = *started + Duration::from_micros(u64::try_from(frame.at_us).unwrap_or(0));
                    (at, at)
                }
                LiveContainer::MpegTs | LiveContainer::Mp4 => {
                    // The frames of a segment arrive together, and all of them are wanted. None is
                    // dropped until the next segment waits.
                    self.newest.wait_until_taken(|| self.backlog.is_waiting_for_input());
                    let received = self.backlog.last_written();
                    (received, timeline.shown(received, frame.at_us))
                }
            };
            let received = received.min(Instant::now());
            let frame = ReceivedFrame { received, shown, picture: Picture::Decoded(frame.frame) };
            if self.newest.put(frame) {
                self.counts.drop_frames(1);
            }
        }
        Ok(())
    }
}

/// Assigns times to the frames of segments, which arrive together.
#[derive(Debug, Default)]
struct Timeline {
    /// The time of the frame with the timestamp 0.
    origin: Option<Instant>,
}

impl Timeline {
    /// Returns the time of a frame: the distances between frames are those of the stream. Starts
    /// again if the stream is more than [`MAX_DEVIATION`] away from the time of arrival.
    fn shown(&mut self, received: Instant, at_us: i64) -> Instant {
        let offset = Duration::from_micros(u64::try_from(at_us).unwrap_or(0));
        let shown = self.origin.map(|origin| origin + offset);
        let is_near = |shown: &Instant| {
            shown.saturating_duration_since(received).max(received.saturating_duration_since(*shown))
                <= MAX_DEVIATION
        };
        if let Some(shown) = shown.filter(is_near) {
            return shown;
        }
        self.origin = received.checked_sub(offset);
        received
    }
}

/// Largest distance between the time of a frame and its arrival.
const MAX_DEVIATION: Duration = Duration::from_secs(20);

/// Writes units to the decoder until the backlog or the decoder ends.
fn write_units(mut pipe: LiveInput, header: &Bytes, backlog: &Backlog, counts: &Counts) {
    if pipe.write_all(header).is_err() {
        return;
    }
    while let Some(taken) = backlog.take() {
        counts.drop_frames(taken.dropped);
        if pipe.write_all(&taken.item.bytes).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn frame() -> ReceivedFrame {
        let now = Instant::now();
        ReceivedFrame { received: now, shown: now, picture: Picture::Jpeg(Bytes::new()) }
    }

    #[test]
    fn frames_of_a_segment_wait_until_the_next_segment_arrives() {
        let newest = Arc::new(Newest::default());
        let is_last = Arc::new(AtomicBool::new(true));
        let put = |count: usize| {
            let (newest, is_last) = (newest.clone(), is_last.clone());
            std::thread::spawn(move || {
                let put = |_| {
                    newest.wait_until_taken(|| is_last.load(Ordering::Relaxed));
                    newest.put(frame())
                };
                (0..count).map(put).filter(|lost| *lost).count()
            })
        };
        let decoder = put(20);
        let mut taken = 0;
        while taken < 20 {
            taken += usize::from(newest.take().is_some());
            std::thread::yield_now();
        }
        assert_eq!(decoder.join().unwrap(), 0);
        let decoder = put(20);
        is_last.store(false, Ordering::Relaxed);
        newest.wake();
        assert!(decoder.join().unwrap() > 0);
    }
}

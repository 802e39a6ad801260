//! Receives the frames of one connection to a camera, and returns one decoded frame per interval.
//! Only the newest decoded frame is kept, so a slow analysis skips frames instead of falling
//! behind.
//!
//! Three steps run at the same time. A task reads from the network. A thread writes compressed
//! frames to the decoder. If they wait too long, it continues at the newest keyframe. Another
//! thread reads pictures from the decoder.
use crate::admission::budget::BudgetExhausted;
use crate::streams::backlog::{Backlog, Item};
use bytes::Bytes;
use camera::{CameraError, Format, Session, Unit};
use parking_lot::Mutex;
use std::collections::VecDeque;
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

/// Longest time of the frames of a segment that wait for the analysis.
const MAX_BURST: Duration = Duration::from_secs(4);
/// Maximum number of these frames.
const MAX_BURST_FRAMES: usize = 8;

/// The newest decoded frames, and the reason why none follows.
#[derive(Debug, Default)]
struct Newest {
    state: Mutex<NewestState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct NewestState {
    frames: VecDeque<ReceivedFrame>,
    error: Option<ReceiveError>,
}

impl Newest {
    /// Adds a frame. Removes the oldest one if more than `limit` wait, and returns whether it did.
    fn put(&self, frame: ReceivedFrame, limit: usize) -> bool {
        let mut state = self.state.lock();
        state.frames.push_back(frame);
        let is_full = state.frames.len() > limit;
        if is_full {
            state.frames.pop_front();
        }
        drop(state);
        self.changed.notify_one();
        is_full
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
            {
                let mut state = self.newest.state.lock();
                if let Some(frame) = state.frames.pop_front() {
                    self.last_picture = Instant::now();
                    return Ok(frame);
                }
                if let Some(error) = state.error.take() {
                    return Err(error);
                }
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
            if self.newest.put(frame, 1) {
                self.counts.drop_frames(1);
            }
        }
    }
}

/// Returns what the decoder of a connection is told, with one frame per `interval` for at most
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
    _cancel: CancelOnDrop,
}

impl Drop for Decoding {
    fn drop(&mut self) {
        self.backlog.close();
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
            newest,
            counts,
        };
        std::thread::Builder::new().name("camera".into()).spawn(move || reader.run(&header))?;
        Ok(Self { backlog, _cancel: cancel })
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
            let (received, shown, limit) = match stream.container {
                // These timestamps are times of arrival.
                LiveContainer::Matroska => {
                    let at = *started + Duration::from_micros(u64::try_from(frame.at_us).unwrap_or(0));
                    (at, at, 1)
                }
                LiveContainer::MpegTs | LiveContainer::Mp4 => {
                    let received = self.backlog.last_written();
                    (received, timeline.shown(received, frame.at_us), burst_frames(stream.interval_us))
                }
            };
            let received = received.min(Instant::now());
            let frame = ReceivedFrame { received, shown, picture: Picture::Decoded(frame.frame) };
            if self.newest.put(frame, limit) {
                self.counts.drop_frames(1);
            }
        }
        Ok(())
    }
}

/// Returns the number of frames of a segment that may wait.
fn burst_frames(interval_us: i64) -> usize {
    let interval = u128::try_from(interval_us.max(1)).unwrap_or(1);
    usize::try_from(MAX_BURST.as_micros() / interval).unwrap_or(MAX_BURST_FRAMES).clamp(1, MAX_BURST_FRAMES)
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

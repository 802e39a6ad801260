//! Receives the frames of one connection to a camera, and decodes one in a while. Only the newest
//! decoded frame is kept: an analysis that is too slow never falls behind.
//!
//! Three steps run at the same time. A task reads from the network. A thread writes compressed
//! frames to the decoder: if they wait too long, it continues at the next keyframe. Another thread
//! reads pictures from the decoder.
use crate::admission::budget::BudgetExhausted;
use crate::streams::backlog::{Backlog, Item};
use bytes::Bytes;
use camera::{CameraError, Format, Session, Unit};
use parking_lot::Mutex;
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

/// Longest time without a decoded picture. A camera that sends only damaged frames is reconnected.
const PICTURE_TIMEOUT: Duration = Duration::from_secs(15);

/// The newest decoded frame, and the reason why none follows.
#[derive(Debug, Default)]
struct Newest {
    state: Mutex<NewestState>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct NewestState {
    frame: Option<ReceivedFrame>,
    error: Option<ReceiveError>,
}

impl Newest {
    /// Replaces a frame that was not analysed. Returns whether there was one.
    fn put(&self, frame: ReceivedFrame) -> bool {
        let replaced = self.state.lock().frame.replace(frame).is_some();
        self.changed.notify_one();
        replaced
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
                if let Some(frame) = state.frame.take() {
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
        let container = match self.session.format() {
            Format::Jpeg => return Ok(()),
            Format::Matroska(_) => LiveContainer::Matroska,
            Format::MpegTs => LiveContainer::MpegTs,
            Format::Mp4 => LiveContainer::Mp4,
        };
        let interval_us = i64::try_from(self.interval.as_micros()).unwrap_or(i64::MAX);
        let stream = LiveStream { container, interval_us, time: self.time, gpu: self.gpu.clone() };
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
            if self.newest.put(ReceivedFrame { received, picture: Picture::Jpeg(unit.bytes) }) {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
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

/// Reads pictures from the decoder, on its own thread, with which the decoder ends.
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
        while let Some(frame) = frames.next_frame()? {
            let received = match stream.container {
                // These timestamps are times of arrival.
                LiveContainer::Matroska => {
                    *started + Duration::from_micros(u64::try_from(frame.at_us).unwrap_or(0))
                }
                LiveContainer::MpegTs | LiveContainer::Mp4 => self.backlog.last_written(),
            };
            let received = received.min(Instant::now());
            if self.newest.put(ReceivedFrame { received, picture: Picture::Decoded(frame.frame) }) {
                self.counts.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

/// Writes units to the decoder until the backlog or the decoder ends.
fn write_units(mut pipe: LiveInput, header: &Bytes, backlog: &Backlog, counts: &Counts) {
    if pipe.write_all(header).is_err() {
        return;
    }
    while let Some(taken) = backlog.take() {
        counts.dropped.fetch_add(taken.dropped, Ordering::Relaxed);
        if pipe.write_all(&taken.item.bytes).is_err() {
            return;
        }
    }
}

//! Passes the units of a camera from the task that reads them to the caller.
use crate::CameraError;
use bytes::Bytes;
use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

/// Time limit for the first unit. Some steps of the readers have longer limits, which do not apply
/// before the first unit.
const START_TIMEOUT: Duration = Duration::from_secs(35);

/// The video codec of a Matroska stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    H264,
    H265,
}

/// The container of [`Unit::bytes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Each unit is a cluster with one frame. The times are the times of arrival since the start of
    /// the session, in milliseconds, and strictly increase.
    Matroska(Codec),
    /// Each unit is a segment of MPEG-TS, with the times of the camera.
    MpegTs,
    /// Each unit is a segment of fragmented MP4, with the times of the camera.
    Mp4,
    /// Each unit is a JPEG file.
    Jpeg,
}

/// A part of a stream.
#[derive(Clone)]
pub struct Unit {
    pub bytes: Bytes,
    /// Whether a decoder can start here.
    pub is_keyframe: bool,
    /// Time at which the last byte arrived.
    pub received: Instant,
    /// The encoding changed before this unit. The decoder must be restarted with this header, which
    /// can be empty.
    pub new_header: Option<Bytes>,
    /// Number of packets (of HLS: segments) that were lost before this unit.
    pub lost: u64,
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unit")
            .field("bytes", &self.bytes.len())
            .field("is_keyframe", &self.is_keyframe)
            .field("received", &self.received)
            .field("new_header", &self.new_header.as_ref().map(Bytes::len))
            .field("lost", &self.lost)
            .finish()
    }
}

/// What is known when the first unit has arrived.
pub(crate) struct Start {
    pub(crate) format: Format,
    pub(crate) header: Bytes,
    pub(crate) size: Option<(u32, u32)>,
    /// The time from which the times of Matroska count.
    pub(crate) started: Instant,
}

enum Event {
    Started(Start),
    Unit(Unit),
}

/// An open stream of a camera. Dropping it closes the connection.
pub struct Session {
    start: Start,
    events: mpsc::Receiver<Result<Event, CameraError>>,
    is_ended: bool,
    _reader: Reader,
}

/// Stops the reading task when the session is dropped.
struct Reader(AbortHandle);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("format", &self.start.format).finish_non_exhaustive()
    }
}

impl Session {
    /// Starts a task that reads a camera, and waits for the first unit. A panic in the task, such
    /// as one in the RTSP client, becomes an error.
    pub(crate) async fn start<R>(read: impl FnOnce(Sink) -> R) -> Result<Self, CameraError>
    where
        R: Future<Output = Result<Infallible, CameraError>> + Send + 'static,
    {
        // The reader waits for a slow caller. So at most three units are in memory: one each in the
        // reader, in the channel and in the caller.
        let (sender, mut events) = mpsc::channel(1);
        let reading = read(Sink(sender.clone()));
        let task = tokio::spawn(async move {
            let Err(error) = reading.await;
            let _ = sender.send(Err(error)).await;
        });
        let reader = Reader(task.abort_handle());
        let first = timeout(START_TIMEOUT, events.recv()).await;
        match first.map_err(|_| CameraError::Timeout("no frame within the time limit"))? {
            Some(Ok(Event::Started(start))) => Ok(Self { start, events, is_ended: false, _reader: reader }),
            Some(Err(error)) => Err(error),
            Some(Ok(Event::Unit(_))) | None => Err(reader_stopped()),
        }
    }

    /// Returns the container of the units.
    pub fn format(&self) -> &Format {
        &self.start.format
    }

    /// Returns the time from which the times of Matroska count.
    pub fn started(&self) -> Instant {
        self.start.started
    }

    /// Returns the bytes that a new decoder needs before the first unit. Empty for MPEG-TS and
    /// JPEG.
    pub fn header(&self) -> Bytes {
        self.start.header.clone()
    }

    /// Returns width and height at the start of the session, if the camera declares them.
    pub fn size(&self) -> Option<(u32, u32)> {
        self.start.size
    }

    /// Waits for the next unit. Cancel safe: a dropped call loses no unit.
    ///
    /// # Errors
    /// Fails once with the reason why the session ended, then with [`CameraError::Ended`].
    pub async fn next(&mut self) -> Result<Unit, CameraError> {
        match self.events.recv().await {
            Some(Ok(Event::Unit(unit))) => Ok(unit),
            Some(Err(error)) => {
                self.is_ended = true;
                Err(error)
            }
            Some(Ok(Event::Started(_))) => Err(reader_stopped()),
            None if self.is_ended => Err(CameraError::Ended),
            None => Err(reader_stopped()),
        }
    }
}

fn reader_stopped() -> CameraError {
    CameraError::protocol("the reader of the stream stopped unexpectedly")
}

/// Where a reading task puts what it read.
pub(crate) struct Sink(mpsc::Sender<Result<Event, CameraError>>);

impl Sink {
    /// Announces the stream. Must be called once, before the first unit.
    pub(crate) async fn start(&self, start: Start) -> Result<(), CameraError> {
        self.0.send(Ok(Event::Started(start))).await.map_err(|_| CameraError::Ended)
    }

    /// Passes a unit on. Waits while the caller is behind.
    pub(crate) async fn unit(&self, unit: Unit) -> Result<(), CameraError> {
        self.0.send(Ok(Event::Unit(unit))).await.map_err(|_| CameraError::Ended)
    }

    /// Waits until [`Self::unit`] would not wait.
    pub(crate) async fn ready(&self) -> Result<(), CameraError> {
        self.0.reserve().await.map(drop).map_err(|_| CameraError::Ended)
    }
}

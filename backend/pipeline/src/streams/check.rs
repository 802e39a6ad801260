//! Measures what a camera sends and what it costs to watch it. Stores nothing.
use crate::streams::config::StreamConfig;
use crate::streams::receiver::live_stream;
use crate::{AnalyzeError, AnalyzeOptions, Analyzer, Passes};
use bytes::Bytes;
use camera::{CameraError, Codec, Connector, Format, Session};
use inference::Priority;
use serde::Serialize;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use video::{Decoder, LiveGpu, LiveStream, VideoError};
use vision::Frame;

/// Maximum number of units that wait for the decoder.
const QUEUE_LENGTH: usize = 64;
/// Maximum number of pictures that are analysed.
const MAX_ANALYSED: usize = 20;

/// What a camera sends, and the cost of watching it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StreamCheck {
    /// `h264`, `h265`, `mpegts`, `mp4` or `jpeg`.
    pub format: &'static str,
    /// Width of a decoded frame in pixels.
    pub width: Option<u32>,
    /// Height of a decoded frame in pixels.
    pub height: Option<u32>,
    /// Seconds from the start of the connection to the first frame.
    pub first_frame_seconds: f64,
    /// Seconds of the measurement.
    pub seconds: f64,
    /// Number of received frames (of HLS: segments) per second.
    pub units_per_second: f64,
    /// Seconds between two keyframes; `None` if fewer than two arrived.
    pub keyframe_seconds: Option<f64>,
    pub kilobits_per_second: f64,
    /// Number of packets (of HLS: segments) that were lost.
    pub lost: u64,
    /// Number of decoded pictures, at the configured rate. For JPEG images, at most 20 are decoded.
    pub decoded: u64,
    /// Processor time of the decoder in milliseconds per second; `None` for JPEG images, whose
    /// decoding is part of the analysis.
    pub decoding_ms_per_second: Option<f64>,
    /// Milliseconds for the analysis of a picture, at the median.
    pub analysis_ms: Option<f64>,
    /// Largest number of faces in a picture.
    pub faces: usize,
    /// Number of processor cores that watching the camera takes.
    pub cores: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    #[error(transparent)]
    Camera(#[from] CameraError),
    #[error("the frames cannot be decoded: {0}")]
    Decoder(#[from] VideoError),
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
}

/// Connects to a camera, and measures it for `time`.
///
/// # Errors
/// Fails with [`CheckError`] if the camera cannot be reached, or if its frames cannot be decoded.
pub async fn check(
    connector: &Connector,
    decoder: &Decoder,
    analyzer: &Analyzer,
    config: &StreamConfig,
    time: Duration,
) -> Result<StreamCheck, CheckError> {
    let started = Instant::now();
    let mut session = connector.connect(&config.address).await?;
    let first_frame_seconds = started.elapsed().as_secs_f64();
    let decoding = Decoding::start(decoder, &session, config.interval(), time);
    let (mut units, mut bytes, mut lost, mut keyframes, mut images) = (0_u64, 0_u64, 0, 0_u32, Vec::new());
    let (begun, mut first_keyframe, mut last_keyframe) = (Instant::now(), None, None);
    let mut last_image: Option<Instant> = None;
    while begun.elapsed() < time {
        let unit = session.next().await?;
        units += 1;
        bytes += unit.bytes.len() as u64;
        lost += unit.lost;
        let received: Instant = unit.received.into();
        if unit.is_keyframe {
            keyframes += 1;
            first_keyframe.get_or_insert(received);
            last_keyframe = Some(received);
        }
        match &decoding {
            Some(decoding) => decoding.send(unit.bytes),
            None if last_image.is_none_or(|last| received - last >= config.interval().mul_f32(0.9)) => {
                last_image = Some(received);
                images.push(unit.bytes);
                images.truncate(MAX_ANALYSED);
            }
            None => {}
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    let (format, first_keyframe) = (format_name(&session), first_keyframe.unwrap_or(begun));
    drop(session);
    let decoded = match decoding {
        Some(decoding) => decoding.finish().await?,
        None => Decoded::default(),
    };
    let measured = measure(analyzer, decoded.frames, images).await?;
    let decoding_ms_per_second =
        decoded.processor_time.map(|time| time.as_secs_f64() * 1_000.0 / seconds.max(0.001));
    let analysis_ms = measured.median_ms();
    let cores = decoding_ms_per_second.unwrap_or(0.0) / 1_000.0
        + analysis_ms.unwrap_or(0.0) / 1_000.0 * f64::from(config.fps);
    let size = measured.size;
    Ok(StreamCheck {
        format,
        width: size.map(|size| size.0),
        height: size.map(|size| size.1),
        first_frame_seconds,
        seconds,
        units_per_second: units as f64 / seconds.max(0.001),
        keyframe_seconds: last_keyframe
            .filter(|_| keyframes > 1)
            .map(|last| (last - first_keyframe).as_secs_f64() / f64::from(keyframes - 1)),
        kilobits_per_second: bytes as f64 * 8.0 / 1_000.0 / seconds.max(0.001),
        lost,
        decoded: decoded.count.max(measured.times.len() as u64),
        decoding_ms_per_second,
        analysis_ms,
        faces: measured.faces,
        cores,
    })
}

fn format_name(session: &Session) -> &'static str {
    match session.format() {
        Format::Matroska(Codec::H264) => "h264",
        Format::Matroska(Codec::H265) => "h265",
        Format::MpegTs => "mpegts",
        Format::Mp4 => "mp4",
        Format::Jpeg => "jpeg",
    }
}

#[derive(Default)]
struct Decoded {
    frames: Vec<Frame>,
    count: u64,
    processor_time: Option<Duration>,
}

/// A decoder on its own threads.
struct Decoding {
    input: SyncSender<Bytes>,
    reader: JoinHandle<Result<Decoded, VideoError>>,
}

impl Decoding {
    /// Returns `None` for JPEG images.
    fn start(decoder: &Decoder, session: &Session, interval: Duration, time: Duration) -> Option<Self> {
        let stream = live_stream(session.format(), interval, time, LiveGpu::default())?;
        let (input, units) = sync_channel(QUEUE_LENGTH);
        let (decoder, header) = (decoder.clone(), session.header());
        let read = move || decode(&decoder, &stream, header, units);
        Some(Self { input, reader: std::thread::spawn(read) })
    }

    /// Passes bytes to the decoder, unless it is too slow.
    fn send(&self, bytes: Bytes) {
        let _ = self.input.try_send(bytes);
    }

    async fn finish(self) -> Result<Decoded, VideoError> {
        drop(self.input);
        let joined = tokio::task::spawn_blocking(move || self.reader.join()).await;
        joined.ok().and_then(Result::ok).unwrap_or(Err(VideoError::Output("the decoder failed")))
    }
}

fn decode(
    decoder: &Decoder,
    stream: &LiveStream,
    header: Bytes,
    units: Receiver<Bytes>,
) -> Result<Decoded, VideoError> {
    let (mut pipe, mut frames) = decoder.live(stream)?;
    let writer = std::thread::spawn(move || {
        let mut write = |bytes: Bytes| pipe.write_all(&bytes).is_ok();
        let _ = write(header) && units.into_iter().all(write);
    });
    let mut decoded = Decoded::default();
    while let Some(frame) = frames.next_frame()? {
        decoded.count += 1;
        decoded.processor_time = frames.processor_time().or(decoded.processor_time);
        if decoded.frames.len() < MAX_ANALYSED {
            decoded.frames.push(frame.frame);
        } else {
            frames.recycle(frame.frame);
        }
    }
    let _ = writer.join();
    Ok(decoded)
}

#[derive(Default)]
struct Measured {
    times: Vec<Duration>,
    faces: usize,
    size: Option<(u32, u32)>,
}

impl Measured {
    fn median_ms(&self) -> Option<f64> {
        let mut times = self.times.clone();
        times.sort();
        times.get(times.len() / 2).map(|time| time.as_secs_f64() * 1_000.0)
    }
}

/// Analyses pictures, one after the other.
async fn measure(
    analyzer: &Analyzer,
    frames: Vec<Frame>,
    images: Vec<Bytes>,
) -> Result<Measured, AnalyzeError> {
    let options = AnalyzeOptions { passes: Some(Passes::Single), chips: true, ..AnalyzeOptions::default() };
    let mut measured = Measured::default();
    let mut analyse = async |frame: Arc<Frame>, started: Instant| {
        let (faces, _) = analyzer.find_faces_of_frame(&frame, &options, Priority::Interactive).await?;
        measured.times.push(started.elapsed());
        measured.faces = measured.faces.max(faces.len());
        measured.size = Some((frame.width(), frame.height()));
        Ok::<_, AnalyzeError>(())
    };
    for frame in frames {
        analyse(Arc::new(frame), Instant::now()).await?;
    }
    for image in images {
        let started = Instant::now();
        let decoded = analyzer.decode(image, Priority::Interactive).await?;
        analyse(decoded.frame.clone(), started).await?;
    }
    Ok(measured)
}

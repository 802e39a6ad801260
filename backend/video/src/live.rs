//! Decodes frames of a camera while they arrive. The caller writes compressed frames, and reads
//! pictures on another thread.
use crate::arguments;
use crate::child::Process;
use crate::cpu::CpuBudget;
use crate::error::VideoError;
use crate::frames::{memory_bytes, read_frame};
use crate::gpu::{GpuFacts, GpuInput, GpuPlace, error_reason};
use crate::index::Timeline;
use crate::{Decoder, TimedFrame};
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;
use vision::Frame;

/// The container of the compressed frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiveContainer {
    /// Times of frames are those of the container.
    Matroska,
    /// Times of frames continue where those of the container jump.
    MpegTs,
    /// Fragments of MP4 after their header. Times as for MPEG-TS.
    Mp4,
}

/// What is decoded.
#[derive(Clone, Debug)]
pub struct LiveStream {
    pub container: LiveContainer,
    /// Time between two returned frames in microseconds.
    pub interval_us: i64,
    /// The decoder can be used for about this time: its processor time is limited.
    pub time: Duration,
    /// Use the same one for all decoders of a camera.
    pub gpu: LiveGpu,
}

/// Remembers whether a GPU has failed to decode a camera. Clones share it.
#[derive(Clone, Debug)]
pub struct LiveGpu(GpuFacts);

impl Default for LiveGpu {
    /// Assumes 8 bits and 4:2:0, which almost all cameras send. A GPU fails with another format.
    fn default() -> Self {
        Self(GpuFacts { pixel_format: "yuv420p".into(), ..GpuFacts::default() })
    }
}

/// The codec for which a GPU is selected. GPUs that decode H.264 also decode HEVC.
const CODEC: &str = "h264";

/// Accepts compressed frames. Dropping it ends the stream.
#[derive(Debug)]
pub struct LiveInput(PipeWriter);

impl Write for LiveInput {
    /// Blocks while the decoder is slower than the camera. Fails when the decoder has ended.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns pictures in the order in which they are shown. Dropping it ends the decoder.
pub struct LiveFrames {
    process: Option<Process>,
    /// The GPU that decodes.
    gpu: Option<(GpuPlace, LiveGpu)>,
    max_pixels: u64,
    frames_read: u64,
    /// A buffer for the pixels of the next frame.
    buffer: Vec<u8>,
}

impl Decoder {
    /// Returns the memory in bytes that the process of [`Self::live`] needs for frames of this size
    /// in pixels.
    pub fn live_memory_bytes(&self, (width, height): (u32, u32)) -> u64 {
        memory_bytes(u64::from(width) * u64::from(height), 1, 0)
    }

    /// Starts to decode H.264 or HEVC, on a GPU if the decoder has one, or else on one thread of
    /// the CPU. The calling thread must live as long as the frames.
    ///
    /// # Errors
    /// Fails with [`VideoError::Io`] if the process cannot be started, and with
    /// [`VideoError::GpuOnly`] if a GPU has failed and the CPU must not decode.
    pub fn live(&self, stream: &LiveStream) -> Result<(LiveInput, LiveFrames), VideoError> {
        let LiveStream { container, interval_us, time, gpu } = stream;
        let (format, timeline) = match container {
            LiveContainer::Matroska => ("matroska", Timeline::Stored),
            LiveContainer::MpegTs => ("mpegts", Timeline::Continued),
            LiveContainer::Mp4 => ("mov", Timeline::Continued),
        };
        let max_pixels = self.config().limits.max_pixels;
        let place = self.gpus.as_ref().map(|pool| pool.reserve(CODEC, &gpu.0)).transpose()?.flatten();
        // A damaged frame must not end the stream.
        let input = place.as_ref().map(|(place, layout)| GpuInput {
            id: place.id(),
            layout: *layout,
            stop_at_errors: false,
        });
        let arguments = arguments::live((format, timeline), max_pixels, *interval_us, input.as_ref());
        let variables = place.as_ref().map(|(place, _)| place.pool.gpus.variables.as_slice());
        let (reader, writer) = io::pipe()?;
        let reader = File::from(OwnedFd::from(reader));
        let process = self.start_reading(&arguments, Some(reader), &CpuBudget::for_live(*time), variables)?;
        let frames = LiveFrames {
            process: Some(process),
            gpu: place.map(|(place, _)| (place, gpu.clone())),
            max_pixels,
            frames_read: 0,
            buffer: Vec::new(),
        };
        Ok((LiveInput(writer), frames))
    }
}

impl LiveFrames {
    /// Returns the next frame, or `None` at the end. It blocks until a frame arrives.
    ///
    /// # Errors
    /// Fails with [`VideoError`]; no further frame follows. It fails with
    /// [`VideoError::Undecodable`] if the decoder ended with an error. After an error of a GPU, the
    /// next decoder of the camera uses the CPU, if the configuration allows this.
    pub fn next_frame(&mut self) -> Result<Option<TimedFrame>, VideoError> {
        let Some(process) = &mut self.process else { return Ok(None) };
        let read = read_frame(process, 0, self.frames_read, self.max_pixels, &mut self.buffer);
        match read {
            Ok(Some(frame)) => {
                self.frames_read += 1;
                Ok(Some(frame))
            }
            Ok(None) => match self.finish() {
                Ok(()) => Ok(None),
                Err(error) => Err(self.record(error)),
            },
            Err(error) => {
                self.process = None;
                Err(self.record(error))
            }
        }
    }

    /// Records a failure of the GPU.
    fn record(&mut self, error: VideoError) -> VideoError {
        let Some((place, gpu)) = self.gpu.take() else { return error };
        if matches!(error, VideoError::Cancelled | VideoError::CpuLimit(_) | VideoError::TooManyPixels { .. })
        {
            return error;
        }
        let reason = error_reason(error);
        match place.pool.fall_back(&gpu.0, &reason) {
            Ok(()) => VideoError::Undecodable(reason),
            Err(_) => VideoError::GpuFailed(reason),
        }
    }

    fn finish(&mut self) -> Result<(), VideoError> {
        let Some(process) = self.process.take() else { return Ok(()) };
        let (status, messages) = process.finish()?;
        if status.success() { Ok(()) } else { Err(messages.failure()) }
    }

    /// Returns the processor time that the decoder has used; `None` after its end.
    pub fn processor_time(&self) -> Option<Duration> {
        self.process.as_ref().and_then(Process::processor_time)
    }

    /// Reuses the memory of a frame that is no longer needed for the next frame.
    pub fn recycle(&mut self, frame: Frame) {
        self.buffer = frame.into_data();
    }
}

//! Decoders with GPUs, and the proof that a GPU decodes as the CPU does.

use crate::error::VideoError;
use crate::gpu::{Gpus, Pool, reason_of};
use crate::sampling::{MAX_FPS, MAX_GAP_US, plan};
use crate::{Decoder, Index, Sampling, TimedFrame};
use std::ffi::OsString;
use std::fs::File;

/// A second of ffmpeg's test pattern in H.264, with two groups of pictures and B-frames, 192x128:
/// `ffmpeg -f lavfi -i testsrc2=s=192x128:r=10:d=1 -pix_fmt yuv420p -c:v libx264 -g 5 -bf 2
/// -sc_threshold 0 -crf 45 -bsf:v filter_units=remove_types=6 -fflags +bitexact
/// -flags:v +bitexact clip.mkv`.
const CLIP: &[u8] = include_bytes!("proof/clip.mkv");

/// A GPU does not decode correctly.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// Its frames are not those of the CPU.
    #[error("{0}")]
    Differs(String),
    /// It cannot decode at all. The text is the message of ffmpeg.
    #[error("{0}")]
    Failed(String),
}

impl Decoder {
    #[must_use]
    pub fn with_gpus(&self, gpus: Gpus) -> Self {
        let mut with = self.clone();
        with.gpus = Some(Pool::new(gpus));
        with
    }

    #[must_use]
    pub fn without_gpus(&self) -> Self {
        let mut without = self.clone();
        without.gpus = None;
        without
    }

    /// Decodes a small video on the CPU and on a GPU, and compares the pixels. It takes about a
    /// second. `variables` are those of [`Gpus`].
    ///
    /// # Errors
    /// Fails if a pixel or a time differs, or if the GPU does not decode the video.
    pub fn check_gpu(&self, id: u32, variables: Vec<(&'static str, OsString)>) -> Result<(), GpuError> {
        let failed = |error: VideoError| GpuError::Failed(reason_of(error));
        let (cpu, file) = (self.without_gpus(), clip().map_err(failed)?);
        let index = cpu.index(&file).map_err(failed)?;
        let wanted = cpu.all_frames(&file, &index).map_err(failed)?;
        let gpus = Gpus { ids: vec![id], variables, only: true, on_fallback: Box::new(|_| {}) };
        let found = self.with_gpus(gpus).all_frames(&file, &index).map_err(failed)?;
        if found.len() != wanted.len() || wanted.is_empty() {
            return Err(GpuError::Differs(format!("{} frames instead of {}", found.len(), wanted.len())));
        }
        let different = wanted.iter().zip(&found).filter(|(wanted, found)| wanted != found).count();
        match different {
            0 => Ok(()),
            _ => Err(GpuError::Differs(format!("{different} of {} frames differ", wanted.len()))),
        }
    }

    fn all_frames(&self, file: &File, index: &Index) -> Result<Vec<TimedFrame>, VideoError> {
        let mut all = Vec::new();
        for segment in plan(index, Sampling::Fps(MAX_FPS), MAX_GAP_US) {
            let mut frames = self.frames(file, index, &segment)?;
            while let Some(frame) = frames.next_frame()? {
                all.push(frame);
            }
        }
        Ok(all)
    }
}

/// Returns the clip as a file without a name.
#[cfg(target_os = "linux")]
fn clip() -> Result<File, VideoError> {
    Ok(crate::memory::file(CLIP)?)
}

#[cfg(not(target_os = "linux"))]
fn clip() -> Result<File, VideoError> {
    Err(VideoError::Unavailable(format!("decoding on a GPU needs Linux ({} bytes)", CLIP.len())))
}

//! Decides which videos GPUs of NVIDIA decode (NVDEC), and distributes the videos to the GPUs.
//!
//! ffmpeg's decoders read the stream, and the GPU computes the pixels. Only selected frames are
//! copied from the GPU. The filters after that run on the CPU, so a codec whose standard defines
//! every bit gives the same pixels.

use crate::error::VideoError;
use std::ffi::OsString;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Codecs that ffmpeg can decode with NVDEC, as ffmpeg names them. Each generation of GPUs supports
/// only some of them.
const CODECS: [&str; 8] = ["h264", "hevc", "av1", "vp8", "vp9", "mpeg4", "mpeg2video", "mjpeg"];

/// Formats of pixels on the CPU, each with the format on the GPU that has the same values.
const LAYOUTS: [(&str, &str); 4] =
    [("yuv420p", "nv12"), ("yuvj420p", "nv12"), ("yuv420p10le", "p010le"), ("yuv420p12le", "p016le")];

/// The GPUs that a decoder uses, and the behaviour if they do not decode a video.
pub struct Gpus {
    /// CUDA's numbers of the GPUs, at least one. A new process uses the GPU with the fewest
    /// processes.
    pub ids: Vec<u32>,
    /// The variables of [`GPU_VARIABLES`](crate::sandbox::GPU_VARIABLES) that are set.
    pub variables: Vec<(&'static str, OsString)>,
    /// Whether a video that the GPUs do not decode is an error. Otherwise the CPU decodes it.
    pub force_gpu: bool,
    /// Called with the reason when the CPU takes over the rest of a video; at most once for each
    /// index of a video.
    pub on_fallback: Box<dyn Fn(&str) + Send + Sync>,
}

/// The GPUs of a decoder, with the number of processes on each.
pub(crate) struct GpuPool {
    pub(crate) gpus: Gpus,
    process_counts: Mutex<Vec<usize>>,
}

impl fmt::Debug for GpuPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuPool").field("ids", &self.gpus.ids).finish_non_exhaustive()
    }
}

impl GpuPool {
    pub(crate) fn new(gpus: Gpus) -> Arc<Self> {
        let process_counts = Mutex::new(vec![0; gpus.ids.len()]);
        Arc::new(Self { gpus, process_counts })
    }

    /// Reserves a place on the GPU with the fewest processes. Also returns how frames are copied
    /// from it. Returns `None` if the CPU decodes.
    ///
    /// # Errors
    /// Fails with [`VideoError::GpuOnly`] if no GPU decodes the video and the CPU must not.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        codec: &str,
        video: &GpuFacts,
    ) -> Result<Option<(GpuPlace, Layout)>, VideoError> {
        if video.has_failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match video.layout(codec) {
            Ok(layout) => Ok(GpuPlace::new(self).map(|place| (place, layout))),
            Err(reason) => self.fall_back(video, &reason).map(|()| None),
        }
    }

    /// Records that the CPU decodes the rest of a video, and reports the reason.
    ///
    /// # Errors
    /// Fails with [`VideoError::GpuOnly`] if the CPU must not decode.
    pub(crate) fn fall_back(&self, video: &GpuFacts, reason: &str) -> Result<(), VideoError> {
        if self.gpus.force_gpu {
            return Err(VideoError::GpuOnly(reason.to_owned()));
        }
        if !video.has_failed.swap(true, Ordering::Relaxed) {
            (self.gpus.on_fallback)(reason);
        }
        Ok(())
    }

    fn process_counts(&self) -> MutexGuard<'_, Vec<usize>> {
        self.process_counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reserved place on a GPU. Dropping it releases the place.
pub(crate) struct GpuPlace {
    pub(crate) pool: Arc<GpuPool>,
    index: usize,
}

impl GpuPlace {
    fn new(pool: &Arc<GpuPool>) -> Option<Self> {
        let mut process_counts = pool.process_counts();
        let (index, count) = process_counts.iter_mut().enumerate().min_by_key(|(_, count)| **count)?;
        *count += 1;
        Some(Self { pool: pool.clone(), index })
    }

    pub(crate) fn id(&self) -> u32 {
        self.pool.gpus.ids.get(self.index).copied().unwrap_or_default()
    }
}

impl Drop for GpuPlace {
    fn drop(&mut self) {
        if let Some(count) = self.pool.process_counts().get_mut(self.index) {
            *count -= 1;
        }
    }
}

/// The settings with which ffmpeg decodes on a GPU.
pub(crate) struct GpuInput {
    pub(crate) id: u32,
    pub(crate) layout: Layout,
    /// Whether the process ends at the first error, so that the CPU can continue there.
    pub(crate) stop_at_errors: bool,
}

/// The format of the pixels on the GPU, and the format to which the CPU decodes.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    on_gpu: &'static str,
    on_cpu: &'static str,
}

impl GpuInput {
    /// Returns the filters that copy a frame from the GPU. The second format has the same values,
    /// and makes the later filters compute exactly what they do on the CPU.
    pub(crate) fn download(&self) -> String {
        format!("hwdownload,format={},format={},", self.layout.on_gpu, self.layout.on_cpu)
    }
}

/// The properties that decide whether a GPU decodes a video.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuFacts {
    /// Format of the pixels in ffmpeg, such as `yuv420p10le`; empty if it is unknown.
    pub(crate) pixel_format: String,
    /// Whether a player rotates or mirrors the frames.
    pub(crate) is_rotated: bool,
    /// Whether the GPU has already failed to decode the video. Clones share it.
    pub(crate) has_failed: Arc<AtomicBool>,
}

impl GpuFacts {
    /// Returns how frames are copied from a GPU.
    ///
    /// # Errors
    /// Returns the reason if no GPU decodes the video.
    pub(crate) fn layout(&self, codec: &str) -> Result<Layout, String> {
        if !CODECS.contains(&codec) {
            return Err(format!("GPUs do not decode {codec}"));
        }
        // ffmpeg rotates frames before all other filters, and it cannot rotate frames that are on a
        // GPU. It reports the angle of the rotation, but not whether frames are also mirrored.
        if self.is_rotated {
            return Err("frames on a GPU cannot be rotated or mirrored".into());
        }
        let layout = LAYOUTS.iter().find(|(on_cpu, _)| *on_cpu == self.pixel_format);
        layout.map(|(on_cpu, on_gpu)| Layout { on_gpu, on_cpu }).ok_or_else(|| match &*self.pixel_format {
            "" => "the format of the pixels is unknown".into(),
            other => format!("pixels in {other} are not decoded on a GPU"),
        })
    }
}

/// Returns the reason of an error, without the rest of its message.
pub(crate) fn error_reason(error: VideoError) -> String {
    match error {
        VideoError::GpuOnly(reason) | VideoError::GpuFailed(reason) | VideoError::Undecodable(reason) => {
            reason
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn gpu_pool_spreads_processes_over_devices() {
        let gpus =
            Gpus { ids: vec![4, 7], variables: Vec::new(), force_gpu: false, on_fallback: Box::new(|_| {}) };
        let pool = GpuPool::new(gpus);
        let reserve = || GpuPlace::new(&pool).unwrap();
        let (first, second) = (reserve(), reserve());
        assert_eq!((first.id(), second.id()), (4, 7));
        let third = reserve();
        assert_eq!(third.id(), 4);
        drop((first, third));
        assert_eq!((reserve().id(), reserve().id()), (4, 4), "each place was dropped before the next one");
        drop(second);
    }

    #[test]
    fn unsupported_gpu_decoding_has_reason() {
        let video = |format: &str| GpuFacts { pixel_format: format.into(), ..GpuFacts::default() };
        assert!(video("yuv420p").layout("h264").is_ok());
        let reason = |video: GpuFacts, codec: &str| video.layout(codec).err().unwrap();
        assert!(reason(video("yuv420p"), "theora").contains("theora"));
        assert!(reason(video("yuv444p"), "h264").contains("yuv444p"));
        assert!(reason(video(""), "h264").contains("unknown"));
        assert!(reason(GpuFacts { is_rotated: true, ..video("yuv420p") }, "h264").contains("rotated"));
    }
}

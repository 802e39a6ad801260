//! Measures and limits the processor time that decoding one video or image takes.

use crate::error::VideoError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Processor time for any video. Starting ffmpeg takes 35 ms.
const BASE_TIME: Duration = Duration::from_secs(60);
/// Processor time for reading a mebibyte without decoding it. It takes a few milliseconds.
const TIME_PER_MEBIBYTE: Duration = Duration::from_secs(1);
/// Processor time for a frame. A frame of 4096x2304 pixels with high dynamic range takes about
/// half.
const TIME_PER_FRAME: Duration = Duration::from_secs(2);
/// Processor time for any image, however small. It limits decoders that never finish with a damaged
/// file.
const BASE_IMAGE_TIME: Duration = Duration::from_secs(5);
/// Processor time for a million pixels of an image. JPEG 2000 is the slowest format: a lossless
/// image of noise with 12 million pixels (27 MB) takes 9 s.
const TIME_PER_MEGAPIXEL: Duration = Duration::from_millis(500);

/// The processor time that the processes of one video or image may use together. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct CpuBudget {
    total: Duration,
    used_us: Arc<AtomicU64>,
}

impl CpuBudget {
    /// Returns a budget for listing the packets of a file with this number of bytes.
    pub(crate) fn for_listing(bytes: u64, limit: Duration) -> Self {
        let mebibytes = u32::try_from(bytes >> 20).unwrap_or(u32::MAX);
        let total = BASE_TIME.saturating_add(TIME_PER_MEBIBYTE.saturating_mul(mebibytes)).min(limit);
        Self { total, used_us: Arc::default() }
    }

    /// Returns a budget for frames that arrive during `time`.
    pub(crate) fn for_live(time: Duration) -> Self {
        Self { total: BASE_TIME.saturating_add(time), used_us: Arc::default() }
    }

    /// Returns a budget for an image whose pictures have this number of pixels.
    pub(crate) fn for_image(pixels: u64, limit: Duration) -> Self {
        let megapixels = u32::try_from(pixels.div_ceil(1_000_000)).unwrap_or(u32::MAX);
        let total = BASE_IMAGE_TIME.saturating_add(TIME_PER_MEGAPIXEL.saturating_mul(megapixels)).min(limit);
        Self { total, used_us: Arc::default() }
    }

    /// Returns the budget for a video with this number of frames. Earlier use counts too.
    pub(crate) fn for_frames(&self, frames: u64, limit: Duration) -> Self {
        let frames = u32::try_from(frames).unwrap_or(u32::MAX);
        let total = self.total.saturating_add(TIME_PER_FRAME.saturating_mul(frames)).min(limit);
        Self { total, used_us: self.used_us.clone() }
    }

    /// Returns the remaining processor time in whole seconds, at least one.
    ///
    /// # Errors
    /// Fails if no time remains.
    pub(crate) fn seconds_left(&self) -> Result<u32, VideoError> {
        let used = Duration::from_micros(self.used_us.load(Ordering::Relaxed));
        match self.total.checked_sub(used) {
            None | Some(Duration::ZERO) => Err(self.exceeded()),
            Some(remaining) => Ok(u32::try_from(remaining.as_secs()).unwrap_or(u32::MAX).max(1)),
        }
    }

    pub(crate) fn spend(&self, used: Duration) {
        let us = u64::try_from(used.as_micros()).unwrap_or(u64::MAX);
        let add = |before: u64| Some(before.saturating_add(us));
        let _ = self.used_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub(crate) fn exceeded(&self) -> VideoError {
        VideoError::CpuLimit(self.total)
    }
}

/// The clock of the processor time of all threads of a child. It is valid until the child is
/// reaped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CpuClock(#[cfg(target_os = "linux")] nix::time::ClockId);

impl CpuClock {
    /// Returns the clock of the process; `None` on systems without such clocks.
    pub(crate) fn new(pid: u32) -> Option<Self> {
        #[cfg(target_os = "linux")]
        return nix::time::clock_getcpuclockid(nix::unistd::Pid::from_raw(pid.try_into().ok()?))
            .ok()
            .map(Self);
        #[cfg(not(target_os = "linux"))]
        return Some(pid).and(None);
    }

    pub(crate) fn read(self) -> Option<Duration> {
        #[cfg(target_os = "linux")]
        return nix::time::clock_gettime(self.0).ok().map(Duration::from);
        #[cfg(not(target_os = "linux"))]
        return None;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn processes_of_one_video_share_cpu_budget() {
        let hours = Duration::from_secs(7_200);
        let listing = CpuBudget::for_listing(3 << 20, hours);
        assert_eq!(listing.seconds_left().unwrap(), 63);
        listing.spend(Duration::from_secs(13));
        let frames = listing.for_frames(25, hours);
        assert_eq!(frames.seconds_left().unwrap(), 100);
        frames.clone().spend(Duration::from_millis(99_999));
        assert_eq!(frames.seconds_left().unwrap(), 1);
        frames.spend(Duration::from_millis(1));
        assert!(matches!(frames.seconds_left(), Err(VideoError::CpuLimit(total)) if total.as_secs() == 113));
        assert_eq!(listing.for_frames(u64::MAX, hours).total, hours);
    }
}

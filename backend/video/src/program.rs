//! Finds ffmpeg, checks its version, and starts it. Checks that a GPU decodes the same frames as
//! the CPU before a decoder uses it.
use crate::child::{CancelOnDrop, Cancelled, Launcher, Process, ProcessConfig, ProcessLimits};
use crate::cpu::CpuBudget;
use crate::error::VideoError;
use crate::gpu::{GpuPool, Gpus, error_reason};
use crate::sampling::{MAX_FPS, MAX_GAP_US, plan};
use crate::sandbox::FileAccess;
use crate::{Index, Sampling, TimedFrame, arguments, child, sandbox};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
#[cfg(target_os = "linux")]
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use vision::Format;

/// The oldest ffmpeg that can be used. Older ones cannot write the timestamps of frames.
const MINIMUM_VERSION: &str = "6.0";
/// The version of libavutil in ffmpeg 6.0. Builds from its repository have no version of ffmpeg.
const MINIMUM_LIBAVUTIL: u32 = 58;

#[derive(Clone, Debug)]
pub struct Config {
    pub ffmpeg: PathBuf,
    pub launcher: Launcher,
    /// Number of threads that decode one video.
    pub threads: u32,
    pub limits: Limits,
}

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub max_duration: Duration,
    /// Maximum number of pixels of a frame.
    pub max_pixels: u64,
    /// Longest time in which a process neither writes output nor uses the processor. It is then
    /// killed.
    pub stall_timeout: Duration,
    /// Maximum processor time of all processes of one video. Files of a few megabytes and videos of
    /// a few frames have a lower limit.
    pub max_cpu: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_duration: Duration::from_secs(6 * 3600),
            max_pixels: 4096 * 2304,
            stall_timeout: Duration::from_secs(30),
            max_cpu: Duration::from_secs(2 * 3600),
        }
    }
}

/// The properties of the sandbox and of the program in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxInfo {
    /// First line of the program's description of itself, such as `ffmpeg version 7.1`.
    pub version: String,
    /// Which files the process can open.
    pub files: FileAccess,
}

/// Decodes videos with ffmpeg. Cloning it is cheap. The file is opened again for each process, only
/// for reading. A process shares no read position with other processes or with the caller.
#[derive(Clone, Debug)]
pub struct Decoder {
    config: Config,
    sandbox_info: SandboxInfo,
    cancelled: Option<Cancelled>,
    /// The GPUs that decode; `None` if the CPU does.
    pub(crate) gpus: Option<Arc<GpuPool>>,
}

impl Decoder {
    /// Starts ffmpeg in its sandbox once, to check that both work. If the kernel has no Landlock,
    /// the user can no longer debug this process, and it writes no core dumps. Otherwise its
    /// children could read its environment.
    ///
    /// # Errors
    /// Fails with [`VideoError::Unavailable`] if ffmpeg is missing, too old, or cannot run in the
    /// sandbox.
    pub fn open(config: Config) -> Result<Self, VideoError> {
        let program = config.ffmpeg.display().to_string();
        let unknown = SandboxInfo { version: String::new(), files: FileAccess::Unrestricted };
        let mut decoder = Self { config, sandbox_info: unknown, cancelled: None, gpus: None };
        let unavailable = |what: &str| VideoError::Unavailable(format!("{program} {what}"));
        let mut process =
            decoder.start(&arguments::version(), None, &decoder.listing_budget(0)).map_err(|error| {
                match error {
                    VideoError::Io(error) => unavailable(&format!("cannot be started: {error}")),
                    other => other,
                }
            })?;
        let mut text = String::new();
        let read = (&mut process.pixels).take(20_000).read_to_string(&mut text);
        let (status, messages) = process.finish()?;
        read.map_err(|_| unavailable("does not print its version"))?;
        if !status.success() {
            let reason = messages.first_line.unwrap_or_default();
            return Err(unavailable(&format!("does not run in the sandbox ({status}): {reason}")));
        }
        let version: String = text.lines().next().unwrap_or_default().chars().take(100).collect();
        if libavutil_version(&text).is_none_or(|version| version < MINIMUM_LIBAVUTIL) {
            return Err(unavailable(&format!(
                "is not ffmpeg {MINIMUM_VERSION} or newer (it says: {version}); set FFMPEG, or run ./scripts/video"
            )));
        }
        let files = match (&decoder.config.launcher, messages.landlock) {
            (Launcher::Direct, _) => FileAccess::Unrestricted,
            (Launcher::Sandbox { .. }, Some(true)) => FileAccess::LibrariesOnly,
            (Launcher::Sandbox { .. }, _) => FileAccess::ReadOnly,
        };
        if files == FileAccess::ReadOnly {
            sandbox::hide_from_user()?;
        }
        decoder.sandbox_info = SandboxInfo { version, files };
        Ok(decoder)
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn sandbox_info(&self) -> &SandboxInfo {
        &self.sandbox_info
    }

    /// Returns a decoder whose processes end when the guard is dropped. Its calls then fail with
    /// [`VideoError::Cancelled`].
    ///
    /// # Errors
    /// Fails if too many files are open.
    pub fn cancellable(&self) -> std::io::Result<(Self, CancelOnDrop)> {
        let (guard, cancelled) = child::cancellation_pair()?;
        Ok((Self { cancelled: Some(cancelled), ..self.clone() }, guard))
    }

    /// Returns this decoder for shorter videos: it rejects those that are longer than `duration`.
    pub fn with_max_duration(&self, duration: Duration) -> Self {
        let mut shorter = self.clone();
        shorter.config.limits.max_duration = shorter.config.limits.max_duration.min(duration);
        shorter
    }

    /// Returns the processor time for listing the packets of a file.
    pub(crate) fn listing_budget(&self, bytes: u64) -> CpuBudget {
        CpuBudget::for_listing(bytes, self.config.limits.max_cpu)
    }

    /// Starts ffmpeg to decode on the CPU.
    pub(crate) fn start(
        &self,
        arguments: &[String],
        video: Option<&File>,
        budget: &CpuBudget,
    ) -> Result<Process, VideoError> {
        self.start_with(arguments, video, budget, None)
    }

    /// Starts ffmpeg. With `gpu`, it can use GPUs and has this environment.
    pub(crate) fn start_with(
        &self,
        arguments: &[String],
        video: Option<&File>,
        budget: &CpuBudget,
        gpu: Option<&[(&'static str, OsString)]>,
    ) -> Result<Process, VideoError> {
        self.start_reading(arguments, video.map(reopen).transpose()?, budget, gpu)
    }

    /// Starts ffmpeg, which reads from `video`. It shares the read position with the caller.
    pub(crate) fn start_reading(
        &self,
        arguments: &[String],
        video: Option<File>,
        budget: &CpuBudget,
        gpu: Option<&[(&'static str, OsString)]>,
    ) -> Result<Process, VideoError> {
        let Config { ffmpeg, launcher, limits, .. } = &self.config;
        let (budget, cancelled) = (budget.clone(), self.cancelled.clone());
        let limits = ProcessLimits { budget, stall_timeout: limits.stall_timeout, cancelled };
        Process::start(ProcessConfig { launcher, program: ffmpeg, arguments, video, gpu }, limits)
    }
}

/// Opens a file again, only for reading. It works for files without a name too. Other systems have
/// no common way to do this, so the file is rewound there.
fn reopen(file: &File) -> std::io::Result<File> {
    #[cfg(target_os = "linux")]
    return File::open(format!("/proc/self/fd/{}", file.as_raw_fd()));
    #[cfg(not(target_os = "linux"))]
    return file.try_clone().and_then(|mut copy| std::io::Seek::rewind(&mut copy).map(|()| copy));
}

/// Reads the first number of the line `libavutil      61.  1.102 / 61.  1.102`.
fn libavutil_version(text: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.strip_prefix("libavutil"))?;
    line.trim().split('.').next()?.parse().ok()
}

/// Returns the path of ffmpeg: `configured`, if it is set. Otherwise `bundled`, if it exists, or
/// else the first file `ffmpeg` in the folders of `path`, which is the value of the variable
/// `PATH`. [`Decoder::open`] checks whether the program works.
pub fn find_ffmpeg(
    configured: Option<&Path>,
    bundled: Option<&Path>,
    path: Option<&std::ffi::OsStr>,
) -> Option<PathBuf> {
    if let Some(configured) = configured {
        return std::path::absolute(configured).ok();
    }
    let folders = path.map(std::env::split_paths).into_iter().flatten();
    let candidates = folders.map(|folder| folder.join("ffmpeg"));
    let program = bundled.map(Path::to_owned).into_iter().chain(candidates).find(|path| path.is_file())?;
    // The process has another working folder.
    std::path::absolute(program).ok()
}

/// Returns whether a file that begins with `head` is a video in an accepted container. 200 bytes
/// suffice. Other formats can begin with the same bytes, so the decoder makes the final check.
///
/// Sources: ISO/IEC 14496-12 (`ftyp`), RFC 8794 (EBML), ISO/IEC 13818-1 (a packet of 188 bytes
/// begins with 0x47; a program stream with a pack header), RIFF, FLV.
pub fn is_video(head: &[u8]) -> bool {
    let matches_at = |at: usize, bytes: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(bytes));
    let is_container = starts_with_movie_box(head)
        || matches_at(0, b"\x47") && matches_at(188, b"\x47")
        || matches_at(0, b"\x1a\x45\xdf\xa3")
        || matches_at(0, b"\0\0\x01\xba")
        || matches_at(0, b"RIFF") && matches_at(8, b"AVI ")
        || matches_at(0, b"FLV\x01");
    // Images in HEIC and AVIF files start with a movie box too.
    is_container && Format::sniff(head).is_none()
}

/// Returns whether `head` begins with a box of an MP4 or QuickTime file: its size, then its type. A
/// size is 0 (up to the end of the file), 1 (a number of 64 bits follows) or at least 8. Only
/// `mdat` can be long. The other boxes are shorter than [`MIN_TEXT_NUMBER`].
fn starts_with_movie_box(head: &[u8]) -> bool {
    let Some((size, rest)) = head.split_first_chunk() else { return false };
    let size = u32::from_be_bytes(*size);
    let is_short = [b"ftyp", b"moov", b"wide", b"free"].iter().any(|kind| rest.starts_with(*kind));
    !(2..8).contains(&size) && (rest.starts_with(b"mdat") || is_short && size < MIN_TEXT_NUMBER)
}

/// The smallest big-endian number that four characters of a text can represent. A text starts with
/// a tab or a greater character.
const MIN_TEXT_NUMBER: u32 = 0x0900_0000;

/// A second of ffmpeg's test pattern in H.264, with two groups of pictures and B-frames, 192x128:
/// `ffmpeg -f lavfi -i testsrc2=s=192x128:r=10:d=1 -pix_fmt yuv420p -c:v libx264 -g 5 -bf 2
/// -sc_threshold 0 -crf 45 -bsf:v filter_units=remove_types=6 -fflags +bitexact
/// -flags:v +bitexact clip.mkv`.
const CLIP: &[u8] = include_bytes!("proof/clip.mkv");

/// The error of a GPU that does not decode correctly.
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
        Self { gpus: Some(GpuPool::new(gpus)), ..self.clone() }
    }

    #[must_use]
    pub fn without_gpus(&self) -> Self {
        Self { gpus: None, ..self.clone() }
    }

    /// Decodes a small video on the CPU and on a GPU, and compares the pixels. It takes about a
    /// second. `variables` are those of [`Gpus`].
    ///
    /// # Errors
    /// Fails if a pixel or a time differs, or if the GPU does not decode the video.
    pub fn check_gpu(&self, id: u32, variables: Vec<(&'static str, OsString)>) -> Result<(), GpuError> {
        let failed = |error: VideoError| GpuError::Failed(error_reason(error));
        let (cpu, file) = (self.without_gpus(), clip_file().map_err(failed)?);
        let index = cpu.index(&file).map_err(failed)?;
        let expected = cpu.all_frames(&file, &index).map_err(failed)?;
        let gpus = Gpus { ids: vec![id], variables, force_gpu: true, on_fallback: Box::new(|_| {}) };
        let actual = self.with_gpus(gpus).all_frames(&file, &index).map_err(failed)?;
        if actual.len() != expected.len() || expected.is_empty() {
            return Err(GpuError::Differs(format!("{} frames instead of {}", actual.len(), expected.len())));
        }
        let different = expected.iter().zip(&actual).filter(|(expected, actual)| expected != actual).count();
        match different {
            0 => Ok(()),
            _ => Err(GpuError::Differs(format!("{different} of {} frames differ", expected.len()))),
        }
    }

    fn all_frames(&self, file: &File, index: &Index) -> Result<Vec<TimedFrame>, VideoError> {
        let mut decoded = Vec::new();
        for segment in plan(index, Sampling::Fps(MAX_FPS), MAX_GAP_US) {
            let mut frames = self.frames(file, index, &segment)?;
            while let Some(frame) = frames.next_frame()? {
                decoded.push(frame);
            }
        }
        Ok(decoded)
    }
}

/// Returns the clip as a file without a name.
#[cfg(target_os = "linux")]
fn clip_file() -> Result<File, VideoError> {
    Ok(child::memory_file(CLIP)?)
}

#[cfg(not(target_os = "linux"))]
fn clip_file() -> Result<File, VideoError> {
    Err(VideoError::Unavailable(format!("decoding on a GPU needs Linux ({} bytes)", CLIP.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn movie_box_needs_plausible_size() {
        for head in [
            b"\0\0\0\0mdat",
            b"\0\0\0\x01mdat",
            b"\x3c\x68\x31\x3emdat",
            b"\0\0\0\x08wide",
            b"\0\x10\0\0free",
            b"\0\xff\0\0moov",
        ] {
            assert!(is_video(head), "{head:?}");
        }
        for head in
            [b"<h1>free", b"<h1>wide", b"\t\t\t\tftyp", b"remomoov", b"\0\0\0\x02mdat", b"\0\0\0\x07free"]
        {
            assert!(!is_video(head), "{head:?}");
        }
        assert!(!is_video(b"\0\0mdat"));
    }

    #[test]
    fn image_brands_are_not_detected_as_video() {
        for brand in ["isom", "qt  ", "mp42", "M4V "] {
            assert!(is_video(format!("\0\0\0\x10ftyp{brand}\0\0\0\0").as_bytes()), "{brand}");
        }
        for brand in ["heic", "heim", "heis", "hevc", "hevx", "hevm", "hevs", "mif1", "msf1", "avif", "avis"]
        {
            assert!(!is_video(format!("\0\0\0\x10ftyp{brand}\0\0\0\0").as_bytes()), "{brand}");
        }
        assert!(!is_video(b"\0\0\0\x18ftypisom\0\0\0\0mif1heic"));
    }
}

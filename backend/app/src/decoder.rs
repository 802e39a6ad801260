//! Opens the decoder of videos and of some images, and chooses the device for videos.
use crate::config::Settings;
use crate::output;
use inference::{
    DeviceFailure, OperationReport, StartError, VIDEO_DECODING, missing_ffmpeg_report, place_video_decoding,
};
use pipeline::worker::VideoTools;
use std::ffi::OsString;
use std::path::Path;
use store::SpoolFolder;
use video::sandbox::{self, FileAccess};
use video::{Decoder, GpuError, Gpus, ImageDecoder, Launcher, VideoError};

const FFMPEG_MISSING: &str = "no ffmpeg was found, which decodes videos and some images; run ./scripts/video, install ffmpeg 6.0 or newer, \
                       or set FFMPEG to its path";

pub(crate) struct VideoDecoding {
    /// The decoder. The error is [`VideoError::Unavailable`] if ffmpeg is missing, too old, or
    /// cannot run in the sandbox.
    pub(crate) decoder: Result<Decoder, VideoError>,
    /// The operation `video_decoding` of `GET /gpu`.
    pub(crate) report: OperationReport,
}

/// Finds ffmpeg, and starts it once in its sandbox. If `VIDEO_DECODING_GPU` is set, also checks
/// that the GPUs decode correctly. Blocks the thread, for less than a second if no GPU is
/// requested. Fails if `FORCE_GPU_ONLY` is set and the GPUs do not decode as requested.
pub(crate) fn open_decoder(settings: &Settings) -> Result<VideoDecoding, StartError> {
    let (config, requested) = (settings.inference(), settings.requests_video_decoding_gpu());
    let decoder = match video_config(settings).and_then(open_and_log) {
        Ok(decoder) => decoder,
        Err(error) => {
            let report = missing_ffmpeg_report(&config, requested, error.to_string());
            return Ok(VideoDecoding { decoder: Err(error), report });
        }
    };
    let try_device = |id| {
        decoder.check_gpu(id, settings.gpu_variables()).map_err(|error| match error {
            GpuError::Differs(text) => DeviceFailure::Differs(text),
            GpuError::Failed(text) => DeviceFailure::Failed(text),
        })
    };
    let placement = place_video_decoding(&config, requested, try_device)?;
    let decoder = if placement.devices.is_empty() {
        decoder
    } else {
        decoder.with_gpus(Gpus {
            ids: placement.devices,
            variables: settings.gpu_variables(),
            force_gpu: config.force_gpu_only,
            on_fallback: Box::new(report_fallback),
        })
    };
    Ok(VideoDecoding { decoder: Ok(decoder), report: placement.report })
}

/// Creates the folder for uploads and copies of videos, and returns the tools that read videos. The
/// error names the setting of the folder.
pub(crate) fn create_video_tools(settings: &Settings, decoder: Decoder) -> Result<VideoTools, String> {
    create_spool(settings).map(|spool| settings.video_tools(decoder, spool))
}

/// Creates the folder for uploads and copies of videos. Warns if the folder is in memory. The error
/// names the setting of the folder.
pub(crate) fn create_spool(settings: &Settings) -> Result<SpoolFolder, String> {
    let folder = settings.video_spool();
    let open = || {
        // Only the folder itself is private, because the private Postgres needs access to its
        // parent.
        if let Some(parent) = folder.parent() {
            std::fs::create_dir_all(parent)?;
        }
        output::create_private_folder(&folder)?;
        tempfile::tempfile_in(&folder)?;
        is_in_memory(&folder)
    };
    let in_memory = open().map_err(|error: std::io::Error| {
        format!(
            "the folder for copies of videos, {}, cannot be written: {error}; set VIDEO_SPOOL",
            folder.display()
        )
    })?;
    if in_memory {
        tracing::warn!(
            folder = %folder.display(),
            "the folder for copies of videos is in memory (tmpfs); videos can fill the memory; set VIDEO_SPOOL to a folder on a disk"
        );
    }
    Ok(SpoolFolder::new(folder, settings.disk_reserve()))
}

/// Returns whether the files of a folder are in memory.
#[cfg(target_os = "linux")]
fn is_in_memory(folder: &Path) -> std::io::Result<bool> {
    // From linux/magic.h.
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    let kind = rustix::fs::statfs(folder)?.f_type;
    Ok(kind == TMPFS || kind == RAMFS)
}

/// Not implemented for other systems.
#[cfg(not(target_os = "linux"))]
fn is_in_memory(_: &Path) -> std::io::Result<bool> {
    Ok(false)
}

/// Returns the configuration of analyses. The image decoder is opened on first use.
pub(crate) fn pipeline_config(settings: &Settings) -> pipeline::Config {
    let config = video_config(settings);
    let open = move || match config.and_then(open_and_log) {
        Ok(decoder) => Some(decoder),
        Err(reason) => {
            tracing::info!(%reason, "AVIF, HEIC, JPEG XL, TIFF and JPEG 2000 cannot be decoded");
            None
        }
    };
    pipeline::Config { images: ImageDecoder::new(open), ..settings.pipeline() }
}

fn video_config(settings: &Settings) -> Result<video::Config, VideoError> {
    let program = std::env::current_exe()?;
    let launcher = Launcher::Sandbox { program, arguments: vec![OsString::from(sandbox::ARGUMENT)] };
    settings.video(launcher).ok_or_else(|| VideoError::Unavailable(FFMPEG_MISSING.into()))
}

fn open_and_log(config: video::Config) -> Result<Decoder, VideoError> {
    let decoder = Decoder::open(config)?;
    let sandbox = decoder.sandbox_info();
    match sandbox.files {
        FileAccess::LibrariesOnly => {}
        FileAccess::ReadOnly => tracing::warn!(
            "Landlock is not available: a video that exploits ffmpeg could read files of this user; {}",
            missing_landlock()
        ),
        FileAccess::Unrestricted => tracing::warn!("ffmpeg runs without a sandbox (VIDEO_SANDBOX=false)"),
    }
    tracing::debug!(version = sandbox.version, files = ?sandbox.files, "ffmpeg is ready");
    Ok(decoder)
}

/// Returns the probable reason why Landlock is missing.
fn missing_landlock() -> &'static str {
    if sandbox::has_seccomp_filter() {
        "a filter of system calls around this process may forbid it; allow landlock_* (with systemd, see \
         SystemCallFilter in deploy/facecrawl.service)"
    } else {
        "use Linux 5.13 or newer with Landlock"
    }
}

/// Logs and counts a video that the CPU decodes instead of the GPU.
fn report_fallback(reason: &str) {
    metrics::counter!("facecrawl_ep_fallback_total", "operation" => VIDEO_DECODING, "provider" => "cuda")
        .increment(1);
    tracing::warn!(
        operation = VIDEO_DECODING,
        reason,
        "the GPU does not decode this video; the CPU decodes the rest of it"
    );
}

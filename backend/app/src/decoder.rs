//! Opens the decoder of videos.
use crate::config::Settings;
use std::ffi::OsString;
use video::sandbox::{self, FileAccess};
use video::{Decoder, Launcher, VideoError};

/// What to do if there is no ffmpeg.
const MISSING: &str = "no ffmpeg was found, which decodes videos; run ./scripts/video, install ffmpeg 6.0 or newer, \
                       or set FFMPEG to its path";

/// Finds ffmpeg, and starts it once in its sandbox. It blocks for less than a second.
///
/// # Errors
/// Fails with [`VideoError::Unavailable`] if ffmpeg is missing, too old, or cannot run in the
/// sandbox.
pub(crate) fn open_decoder(settings: &Settings) -> Result<Decoder, VideoError> {
    let program = std::env::current_exe()?;
    let launcher = Launcher::Sandbox { program, arguments: vec![OsString::from(sandbox::ARGUMENT)] };
    let config = settings.video(launcher).ok_or_else(|| VideoError::Unavailable(MISSING.into()))?;
    let decoder = Decoder::open(config)?;
    let sandboxed = decoder.sandboxed();
    match sandboxed.files {
        FileAccess::LibrariesOnly => {}
        FileAccess::ReadOnly => tracing::warn!(
            "the kernel has no Landlock: a video that exploits ffmpeg could read files of this user; \
             use Linux 5.13 or newer with Landlock"
        ),
        FileAccess::Unrestricted => tracing::warn!("ffmpeg runs without a sandbox (VIDEO_SANDBOX=false)"),
    }
    tracing::debug!(version = sandboxed.version, files = ?sandboxed.files, "ffmpeg is ready");
    Ok(decoder)
}

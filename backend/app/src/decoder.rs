//! Opens the decoder of videos.
use crate::config::Settings;
use std::ffi::OsString;
use video::{Decoder, Launcher, VideoError, sandbox};

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
    tracing::debug!(version = sandboxed.version, files = ?sandboxed.files, "ffmpeg is ready");
    Ok(decoder)
}

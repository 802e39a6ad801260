//! Decodes the frames of a sampling without an analysis. No analysis of these frames can be faster.
use super::watch::{Usage, Watch};
use crate::Process;
use anyhow::Context;
use pipeline::VideoOptions;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use video::{Decoder, VideoError, sampling};

/// The result of decoding all frames once.
pub(super) struct Decoded {
    /// Time for the list of keyframes and all frames.
    pub(super) took: Duration,
    pub(super) usage: Usage,
}

/// Decodes the frames with the same calls as the analysis. The pixels of each frame are read from
/// the decoder's process, and nothing else happens to them.
///
/// # Errors
/// Fails if no frame can be decoded.
pub(super) async fn decode(
    file: File,
    decoder: &Decoder,
    options: &VideoOptions,
    process: &Process,
) -> anyhow::Result<Decoded> {
    let (decoder, options) = (decoder.clone(), options.clone());
    let watch = Arc::new(Watch::start(process)?);
    let position = watch.clone();
    // The decoder ends with its thread, so everything happens on one thread.
    let read = move || read_all(&decoder, &file, &options, &position);
    let frames = tokio::task::spawn_blocking(read).await??;
    let watch = Arc::into_inner(watch).context("the reader still runs")?;
    let (took, usage) = watch.stop();
    anyhow::ensure!(frames > 0, "the video has no frame that could be decoded");
    Ok(Decoded { took, usage })
}

fn read_all(
    decoder: &Decoder,
    file: &File,
    options: &VideoOptions,
    watch: &Watch,
) -> Result<u64, VideoError> {
    let index = decoder.index(file)?;
    let mut count = 0;
    for segment in sampling::plan(&index, options.sampling, options.max_gap_us) {
        let mut frames = decoder.frames(file, &index, &segment)?;
        loop {
            match frames.next_frame() {
                Ok(Some(frame)) => {
                    count += 1;
                    watch.at(frame.at_us);
                    frames.recycle(frame.frame);
                }
                Ok(None) => break,
                // A damaged video is used as far as it can be read, as in an analysis.
                Err(_) if count > 0 => return Ok(count),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(count)
}

//! Scans local video files, one after the other, because one video uses all cores.
use super::ScanArgs;
use super::video_summary::VideoOutcome;
use crate::cli::video::TimeBar;
use crate::config::Settings;
use crate::decoder::open_decoder;
use domain::{Reason, Unprocessed};
use pipeline::Scan;
use pipeline::images::ingest::{ScannedVideo, VideoFile};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tokio_util::sync::CancellationToken;
use video::Decoder;

/// Number of bytes of a file that are read and hashed at a time.
const BLOCK: usize = 1 << 20;

/// Scans the videos. After a stop signal, the current video is left where it is: its last part is
/// stored, and a later scan continues after it.
pub(super) async fn run(
    settings: &Settings,
    scan: &Scan,
    args: &ScanArgs,
    videos: &[PathBuf],
    signal: &CancellationToken,
) -> anyhow::Result<Vec<VideoOutcome>> {
    if videos.is_empty() || signal.is_cancelled() {
        return Ok(not_reached(videos));
    }
    let decoder = match tokio::task::block_in_place(|| open_decoder(settings))?.decoder {
        Ok(decoder) => decoder,
        Err(error) => {
            tracing::warn!(videos = videos.len(), "videos are not scanned: {error}");
            let (state, reason) = (Unprocessed::Skipped, Reason::VideoUnavailable);
            let skipped = |path: &PathBuf| {
                VideoOutcome::unprocessed(path.clone(), state, reason.clone(), error.to_string())
            };
            return Ok(videos.iter().map(skipped).collect());
        }
    };
    let mut outcomes = Vec::with_capacity(videos.len());
    for path in videos {
        let mut bar = TimeBar::start(path);
        let outcome = tokio::select! {
            outcome = one(scan, args, &decoder, path, &mut bar) => Some(outcome),
            () = signal.cancelled() => None,
        };
        bar.finish();
        let Some(outcome) = outcome else { break };
        outcomes.push(outcome?);
    }
    outcomes.extend(not_reached(&videos[outcomes.len()..]));
    Ok(outcomes)
}

fn not_reached(videos: &[PathBuf]) -> Vec<VideoOutcome> {
    let detail = "the scan was interrupted; scan the file again with the same options to continue";
    let outcome = |path: &PathBuf| {
        VideoOutcome::unprocessed(path.clone(), Unprocessed::Skipped, Reason::NotScanned, detail.into())
    };
    videos.iter().map(outcome).collect()
}

/// Scans one video. Fails only with errors that affect all files, such as those of the database.
async fn one(
    scan: &Scan,
    args: &ScanArgs,
    decoder: &Decoder,
    path: &Path,
    bar: &mut TimeBar,
) -> anyhow::Result<VideoOutcome> {
    let to_open = path.to_owned();
    let path = path.to_owned();
    let file = match tokio::task::spawn_blocking(move || open(&to_open)).await? {
        Ok(file) => file,
        Err(error) => {
            let (state, reason) = (Unprocessed::Failed, Reason::Unreadable);
            return Ok(VideoOutcome::unprocessed(path, state, reason, error.to_string()));
        }
    };
    let request = args.video.request(args.rotate())?;
    Ok(match scan.video(decoder, &path, file, request, bar).await? {
        ScannedVideo::Stored { video, counts } => VideoOutcome::processed(path, &video, counts),
        ScannedVideo::Duplicate(video) => VideoOutcome::duplicate(path, video),
        ScannedVideo::Suppressed => VideoOutcome::suppressed(path),
        ScannedVideo::Unprocessed { video, state, reason, detail } => {
            tracing::debug!(path = %path.display(), %reason, "video not read to its end");
            VideoOutcome::unprocessed(path, state, reason, detail).of(video)
        }
    })
}

/// Opens a file and computes its SHA-256.
fn open(path: &Path) -> io::Result<VideoFile> {
    let mut file = File::open(path)?;
    let (mut digest, mut bytes, mut block) = (Sha256::new(), 0, vec![0; BLOCK]);
    loop {
        match file.read(&mut block) {
            Ok(0) => return Ok(VideoFile { file, sha256: digest.finalize().into(), bytes }),
            Ok(read) => {
                digest.update(&block[..read]);
                bytes += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

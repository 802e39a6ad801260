//! Scans local files: images, several concurrently, and then videos.
use super::ScanArgs;
use super::summary::{FileScan, VideoScan};
use crate::cli::options::VideoProgressBar;
use crate::config::{Settings, cores};
use crate::decoder::open_decoder;
use crate::image_files::FoundFiles;
use crate::output;
use crate::service::Components;
use anyhow::Context;
use bytes::Bytes;
use domain::{ImageState, Reason, Unprocessed};
use futures::{StreamExt, TryStreamExt, stream};
use pipeline::scan::{Scan, ScannedVideo};
use pipeline::videos::store::VideoFile;
use pipeline::{AnalyzeOptions, IngestError, IngestOutcome};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::crawls::Crawl;
use store::crawls::pages::AdmittedUrl;
use tokio_util::sync::CancellationToken;
use url::Url;
use video::Decoder;
use vision::DecodeError;

/// Number of files that one statement inserts into the ledger.
const FILES_PER_STATEMENT: usize = 512;

/// A finished or interrupted scan.
pub(super) struct LocalScan {
    pub(super) crawl: Crawl,
    pub(super) files: Vec<FileScan>,
    pub(super) videos: Vec<VideoScan>,
    pub(super) video_time: Duration,
}

pub(super) async fn run(
    settings: &Settings,
    components: &Components,
    args: &ScanArgs,
    found: FoundFiles,
    signal: &CancellationToken,
) -> anyhow::Result<LocalScan> {
    let seeds: Vec<String> = found.inputs.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let options = AnalyzeOptions { rotate: args.rotate(), ..settings.pipeline().storage_options() };
    let scan =
        Scan::begin(components.services.face_store.clone(), &args.collection, &seeds, args.dedupe(), options)
            .await?;
    let mut video_time = Duration::ZERO;
    let result = async {
        let files = scan_images(settings, &scan, &found, signal).await?;
        let started = Instant::now();
        let videos = scan_videos(settings, &scan, args, &found.videos, signal).await?;
        video_time = started.elapsed();
        anyhow::Ok((files, videos))
    };
    let result = result.await;
    // The scan is finished even after a failure, because its record must not remain in a running
    // state.
    let crawl = scan.finish(signal.is_cancelled() || result.is_err()).await;
    let (files, videos) = result?;
    Ok(LocalScan { crawl: crawl?, files, videos, video_time })
}

async fn scan_images(
    settings: &Settings,
    scan: &Scan,
    found: &FoundFiles,
    signal: &CancellationToken,
) -> anyhow::Result<Vec<FileScan>> {
    let limit = settings.image_limits().max_bytes;
    let bar = output::image_bar((found.images.len() + found.unreadable.len()) as u64);
    let mut progress = ScanProgress::new(&bar);
    for (path, reason) in &found.unreadable {
        for row in scan.add(std::slice::from_ref(path)).await? {
            let (state, code) = (Unprocessed::Failed, Reason::Unreadable);
            scan.fail(row.id, code.clone(), reason).await?;
            progress.count(FileScan::unprocessed(path.clone(), state, code, reason.clone()));
        }
    }
    // One more file than the number of cores is decoded or stored at a time, while another one is
    // read.
    let concurrency = cores() + 2;
    let mut outcomes = stream::iter(found.images.chunks(FILES_PER_STATEMENT))
        .then(|chunk| async move { scan.add(chunk).await.context("cannot add files to the ledger") })
        .map_ok(|rows| stream::iter(rows.into_iter().map(anyhow::Ok)))
        .try_flatten()
        // After a stop signal no new file starts. Files in progress are finished and counted.
        .try_take_while(|_| std::future::ready(Ok(!signal.is_cancelled())))
        .map_ok(|row| scan_image(scan, row, limit))
        .try_buffer_unordered(concurrency)
        .boxed();
    while let Some(outcome) = outcomes.try_next().await? {
        progress.count(outcome);
    }
    drop(outcomes);
    bar.finish_and_clear();
    Ok(progress.files)
}

/// Processes one file and records its result. Fails only with errors that affect all files, such as
/// those of the database.
async fn scan_image(scan: &Scan, row: AdmittedUrl, limit: usize) -> anyhow::Result<FileScan> {
    let path = Url::parse(&row.url).ok().and_then(|url| url.to_file_path().ok());
    let path = path.with_context(|| format!("the ledger contains {}, which is not a file", row.url))?;
    let bytes = match read_image(path.clone(), limit).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(too_long)) => {
            let (reason, detail) = (too_long.reason(), too_long.to_string());
            scan.skip(row.id, reason.clone(), &detail).await?;
            return Ok(FileScan::unprocessed(path, Unprocessed::Skipped, reason, detail));
        }
        Err(error) => {
            let (reason, detail) = (Reason::Unreadable, error.to_string());
            scan.fail(row.id, reason.clone(), &detail).await?;
            return Ok(FileScan::unprocessed(path, Unprocessed::Failed, reason, detail));
        }
    };
    match scan.ingest(row.id, bytes).await {
        Ok(IngestOutcome::Stored { image, faces }) => Ok(FileScan::processed(path, image, faces)),
        Ok(IngestOutcome::Duplicate { image, reason }) => Ok(FileScan::duplicate(path, image, reason)),
        Ok(IngestOutcome::Suppressed { reason }) => Ok(FileScan::suppressed(path, reason)),
        Err(IngestError::Analyze(error)) => {
            let (state, reason) = (error.state(), error.reason());
            tracing::debug!(path = %path.display(), %reason, "image not stored");
            Ok(FileScan::unprocessed(path, state, reason, error.to_string()))
        }
        Err(error) => Err(error).with_context(|| format!("cannot store {}", path.display())),
    }
}

/// Reads the file. If it is longer than `limit`, reads nothing and returns the inner error.
async fn read_image(path: PathBuf, limit: usize) -> std::io::Result<Result<Bytes, DecodeError>> {
    tokio::task::spawn_blocking(move || {
        let bytes = std::fs::metadata(&path)?.len();
        if bytes > limit as u64 {
            let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
            return Ok(Err(DecodeError::TooManyBytes { bytes, limit }));
        }
        Ok(Ok(std::fs::read(&path)?.into()))
    })
    .await?
}

/// Counts outcomes and shows them on the progress bar.
struct ScanProgress<'a> {
    bar: &'a indicatif::ProgressBar,
    started: Instant,
    files: Vec<FileScan>,
    faces: usize,
    failed: usize,
}

impl<'a> ScanProgress<'a> {
    fn new(bar: &'a indicatif::ProgressBar) -> Self {
        Self { bar, started: Instant::now(), files: Vec::new(), faces: 0, failed: 0 }
    }

    fn count(&mut self, outcome: FileScan) {
        self.faces += outcome.faces;
        self.failed += usize::from(outcome.outcome == ImageState::Failed);
        self.files.push(outcome);
        self.bar.inc(1);
        let rate = self.files.len() as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        self.bar.set_message(format!("{rate:.1} images/s, {} faces, {} failed", self.faces, self.failed));
    }
}

/// Number of bytes of a file that are hashed at a time.
const HASH_BLOCK_BYTES: usize = 1 << 20;

/// Scans the videos. A stop signal interrupts the current video. A later scan continues after the
/// last stored part.
async fn scan_videos(
    settings: &Settings,
    scan: &Scan,
    args: &ScanArgs,
    videos: &[PathBuf],
    signal: &CancellationToken,
) -> anyhow::Result<Vec<VideoScan>> {
    if videos.is_empty() || signal.is_cancelled() {
        return Ok(interrupted_videos(videos));
    }
    let decoder = match tokio::task::block_in_place(|| open_decoder(settings))?.decoder {
        Ok(decoder) => decoder,
        Err(error) => {
            tracing::warn!(videos = videos.len(), "videos are not scanned: {error}");
            let (state, reason) = (Unprocessed::Skipped, Reason::VideoUnavailable);
            let skip = |path: &PathBuf| {
                VideoScan::unprocessed(path.clone(), state, reason.clone(), error.to_string())
            };
            return Ok(videos.iter().map(skip).collect());
        }
    };
    let mut outcomes = Vec::with_capacity(videos.len());
    for path in videos {
        let mut bar = VideoProgressBar::start(path);
        let outcome = tokio::select! {
            outcome = scan_video(scan, args, &decoder, path, &mut bar) => Some(outcome),
            () = signal.cancelled() => None,
        };
        bar.finish();
        let Some(outcome) = outcome else { break };
        outcomes.push(outcome?);
    }
    outcomes.extend(interrupted_videos(&videos[outcomes.len()..]));
    Ok(outcomes)
}

fn interrupted_videos(videos: &[PathBuf]) -> Vec<VideoScan> {
    let detail = "the scan was interrupted; scan the file again with the same options to continue";
    let outcome = |path: &PathBuf| {
        VideoScan::unprocessed(path.clone(), Unprocessed::Skipped, Reason::NotScanned, detail.into())
    };
    videos.iter().map(outcome).collect()
}

/// Scans one video. Fails only with errors that affect all files, such as those of the database.
async fn scan_video(
    scan: &Scan,
    args: &ScanArgs,
    decoder: &Decoder,
    path: &Path,
    bar: &mut VideoProgressBar,
) -> anyhow::Result<VideoScan> {
    let to_open = path.to_owned();
    let path = path.to_owned();
    let file = match tokio::task::spawn_blocking(move || open_video(&to_open)).await? {
        Ok(file) => file,
        Err(error) => {
            let (state, reason) = (Unprocessed::Failed, Reason::Unreadable);
            return Ok(VideoScan::unprocessed(path, state, reason, error.to_string()));
        }
    };
    let request = args.video.request(args.rotate())?;
    Ok(match scan.scan_video(decoder, &path, file, request, bar).await? {
        ScannedVideo::Stored { video, counts } => VideoScan::processed(path, &video, counts),
        ScannedVideo::Duplicate(video) => VideoScan::duplicate(path, video),
        ScannedVideo::Suppressed => VideoScan::suppressed(path),
        ScannedVideo::Unprocessed { video, state, reason, detail } => {
            tracing::debug!(path = %path.display(), %reason, "video not read to its end");
            VideoScan::unprocessed(path, state, reason, detail).with_video_id(video)
        }
    })
}

/// Opens a file and computes its SHA-256.
fn open_video(path: &Path) -> io::Result<VideoFile> {
    let mut file = File::open(path)?;
    let (mut digest, mut bytes, mut block) = (Sha256::new(), 0, vec![0; HASH_BLOCK_BYTES]);
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

//! Scans local files: images, several concurrently, and then videos.
use super::ScanArgs;
use super::summary::FileOutcome;
use super::video;
use super::video_summary::VideoOutcome;
use crate::config::{Settings, cores};
use crate::image_files::Found;
use crate::progress;
use crate::service::Foundation;
use anyhow::Context;
use bytes::Bytes;
use domain::{Reason, Unprocessed};
use futures::{StreamExt, TryStreamExt, stream};
use pipeline::images::ingest::{IngestError, Scan};
use pipeline::{AnalyzeOptions, Ingested};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use store::crawls::Crawl;
use store::crawls::pages::Admitted;
use tokio_util::sync::CancellationToken;
use url::Url;
use vision::DecodeError;

/// Number of files that one statement inserts into the ledger.
const CHUNK: usize = 512;

/// A finished or interrupted scan.
pub(super) struct LocalScan {
    pub(super) crawl: Crawl,
    pub(super) files: Vec<FileOutcome>,
    pub(super) videos: Vec<VideoOutcome>,
    pub(super) video_time: Duration,
}

pub(super) async fn run(
    settings: &Settings,
    foundation: &Foundation,
    args: &ScanArgs,
    found: Found,
    signal: &CancellationToken,
) -> anyhow::Result<LocalScan> {
    let seeds: Vec<String> = found.inputs.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let options = AnalyzeOptions { rotate: args.rotate(), ..settings.pipeline().storing_options() };
    let scan =
        Scan::begin(foundation.ingest.clone(), &args.collection, &seeds, args.dedupe(), options).await?;
    let mut video_time = Duration::ZERO;
    let result = async {
        let files = feed(settings, &scan, &found, signal).await?;
        let started = Instant::now();
        let videos = video::run(settings, &scan, args, &found.videos, signal).await?;
        video_time = started.elapsed();
        anyhow::Ok((files, videos))
    };
    let result = result.await;
    // The scan is finished even after a failure, because its record must not remain in the state of
    // a running scan.
    let crawl = scan.finish(signal.is_cancelled() || result.is_err()).await;
    let (files, videos) = result?;
    Ok(LocalScan { crawl: crawl?, files, videos, video_time })
}

async fn feed(
    settings: &Settings,
    scan: &Scan,
    found: &Found,
    signal: &CancellationToken,
) -> anyhow::Result<Vec<FileOutcome>> {
    let limit = settings.limits().max_bytes;
    let bar = progress::images((found.images.len() + found.unreadable.len()) as u64);
    let mut tally = Tally::new(&bar);
    for (path, reason) in &found.unreadable {
        for row in scan.add(std::slice::from_ref(path)).await? {
            let (state, code) = (Unprocessed::Failed, Reason::Unreadable);
            scan.fail(row.id, code.clone(), reason).await?;
            tally.count(FileOutcome::unprocessed(path.clone(), state, code, reason.clone()));
        }
    }
    // At any time, at most one file more than the number of cores is decoded or stored, and one
    // further file is read.
    let concurrency = cores() + 2;
    let mut outcomes = stream::iter(found.images.chunks(CHUNK))
        .then(|chunk| async move { scan.add(chunk).await.context("cannot add files to the ledger") })
        .map_ok(|rows| stream::iter(rows.into_iter().map(anyhow::Ok)))
        .try_flatten()
        // After a stop signal no new file starts. Files in progress are finished and counted.
        .try_take_while(|_| std::future::ready(Ok(!signal.is_cancelled())))
        .map_ok(|row| one(scan, row, limit))
        .try_buffer_unordered(concurrency)
        .boxed();
    while let Some(outcome) = outcomes.try_next().await? {
        tally.count(outcome);
    }
    drop(outcomes);
    bar.finish_and_clear();
    Ok(tally.files)
}

/// Processes one file and settles its row. Fails only with errors that affect all files, such as
/// those of the database.
async fn one(scan: &Scan, row: Admitted, limit: usize) -> anyhow::Result<FileOutcome> {
    let path = Url::parse(&row.url).ok().and_then(|url| url.to_file_path().ok());
    let path = path.with_context(|| format!("the ledger contains {}, which is not a file", row.url))?;
    let bytes = match read(path.clone(), limit).await {
        Ok(Ok(bytes)) => bytes,
        Ok(Err(too_long)) => {
            let (reason, detail) = (too_long.reason(), too_long.to_string());
            scan.skip(row.id, reason.clone(), &detail).await?;
            return Ok(FileOutcome::unprocessed(path, Unprocessed::Skipped, reason, detail));
        }
        Err(error) => {
            let (reason, detail) = (Reason::Unreadable, error.to_string());
            scan.fail(row.id, reason.clone(), &detail).await?;
            return Ok(FileOutcome::unprocessed(path, Unprocessed::Failed, reason, detail));
        }
    };
    match scan.ingest(row.id, bytes).await {
        Ok(Ingested::Stored { image, faces }) => Ok(FileOutcome::processed(path, image, faces)),
        Ok(Ingested::Duplicate { image, reason }) => Ok(FileOutcome::duplicate(path, image, reason)),
        Ok(Ingested::Suppressed { reason }) => Ok(FileOutcome::suppressed(path, reason)),
        Err(IngestError::Analyze(error)) => {
            let (state, reason) = (error.state(), error.reason());
            tracing::debug!(path = %path.display(), %reason, "image not stored");
            Ok(FileOutcome::unprocessed(path, state, reason, error.to_string()))
        }
        Err(error) => Err(error).with_context(|| format!("cannot store {}", path.display())),
    }
}

/// Reads the file. If it is longer than `limit`, reads nothing and returns the inner error.
async fn read(path: PathBuf, limit: usize) -> std::io::Result<Result<Bytes, DecodeError>> {
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
struct Tally<'a> {
    bar: &'a indicatif::ProgressBar,
    started: Instant,
    files: Vec<FileOutcome>,
    faces: usize,
    failed: usize,
}

impl<'a> Tally<'a> {
    fn new(bar: &'a indicatif::ProgressBar) -> Self {
        Self { bar, started: Instant::now(), files: Vec::new(), faces: 0, failed: 0 }
    }

    fn count(&mut self, outcome: FileOutcome) {
        self.faces += outcome.faces;
        self.failed += usize::from(outcome.is_failure());
        self.files.push(outcome);
        self.bar.inc(1);
        let rate = self.files.len() as f64 / self.started.elapsed().as_secs_f64().max(1e-3);
        self.bar.set_message(format!("{rate:.1} images/s, {} faces, {} failed", self.faces, self.failed));
    }
}

//! Starts the job runner of this process.
use super::Foundation;
use super::memory::{self, ImageSlots};
use crate::config::{Settings, cores};
use domain::JobKind;
use pipeline::worker::{DELIVERY_PLACES, handlers};
use pipeline::{Crawls, Maintenance, Videos};
use queue::{Runner, RunnerConfig};
use server::Services;
use std::collections::HashSet;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two repairs of crawls that cannot end by themselves.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);

/// How long a job that ended its process twice keeps other jobs from starting.
const ALONE_TIMEOUT: Duration = Duration::from_secs(300);

/// Files of videos that are fetched concurrently.
const FETCH_PLACES: usize = 8;
/// Recurring crawls that are started concurrently.
const START_PLACES: usize = 4;
/// Deleted collections that are erased concurrently.
const ERASE_PLACES: usize = 2;

/// Time between two attempts to run the storage maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(300);

/// Reports that outside input can need more memory than this process can have.
fn check_memory(settings: &Settings) {
    let limits: u64 = settings.memory_limits(cores()).iter().map(|limit| limit.bytes).sum();
    if let Some(memory) = memory::read().filter(|memory| memory.total < limits) {
        tracing::info!(
            limits_mb = limits / 1_000_000,
            memory_mb = memory.total / 1_000_000,
            "the limits of memory exceed the memory of this machine; lower them as docs/how-to/SIZING.md describes"
        );
    }
}

/// Starts claiming jobs. Stops when `shutdown` fires.
pub fn start_runner(foundation: &Foundation, settings: &Settings, shutdown: CancellationToken) -> Runner {
    check_memory(settings);
    let Services { store, blobs, queue, crawls, face_store, videos, video_tools, fetcher, .. } =
        foundation.services.clone();
    let handlers =
        handlers(store.clone(), queue.clone(), crawls.clone(), face_store, fetcher, video_tools.ok());
    let (pages, images) = (settings.page_workers(), settings.image_workers());
    let machine = rustix::system::uname();
    let config = RunnerConfig {
        concurrency: (JobKind::ALL.into_iter())
            .map(|kind| (kind.into(), places(kind, pages, images)))
            .collect(),
        keep_quarter: HashSet::from([JobKind::FetchVideo.into()]),
        // It writes what arrives to a file, and decodes nothing.
        never_alone: vec![JobKind::FetchVideo.into()],
        poll: Duration::from_secs(1),
        drain: settings.drain(),
        alone: ALONE_TIMEOUT,
        worker: format!("{}-{}", machine.nodename().to_string_lossy(), std::process::id()),
    };
    tracing::info!(pages, images, worker = config.worker, "worker started");
    tokio::spawn(reconcile(crawls, videos, shutdown.clone()));
    tokio::spawn(run_maintenance(Maintenance::new(store, blobs), shutdown.clone()));
    let runner = Runner::start(queue, handlers, config, shutdown.clone());
    if settings.crawl.memory_floor_mb != Some(0) {
        let floor = settings.crawl.memory_floor_mb.map(|megabytes| megabytes << 20);
        let slots = ImageSlots::new(images, floor);
        let kind = JobKind::ScanImage.as_str();
        tokio::spawn(memory::adapt_slots(memory::read, slots, kind, runner.concurrency(), shutdown));
    }
    runner
}

/// Returns the number of jobs of a kind that run concurrently.
fn places(kind: JobKind, pages: usize, images: usize) -> usize {
    match kind {
        JobKind::ScanPage => pages,
        JobKind::ScanImage => images,
        JobKind::FetchVideo => FETCH_PLACES,
        // One video uses all cores, and a clustering much of the database.
        JobKind::ScanVideo | JobKind::ClusterCollection => 1,
        JobKind::StartCrawl => START_PLACES,
        JobKind::DeliverWebhook => DELIVERY_PLACES,
        JobKind::EraseCollection => ERASE_PLACES,
    }
}

/// Ends crawls and videos that wait for jobs that will never run, and crawls that have no row left.
async fn reconcile(crawls: Crawls, videos: Videos, shutdown: CancellationToken) {
    let mut tick = tokio::time::interval(RECONCILE_INTERVAL);
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        if let Err(error) = crawls.reconcile().await {
            tracing::warn!(%error, "failed to reconcile crawls");
        }
        if let Err(error) = videos.reconcile().await {
            tracing::warn!(%error, "failed to reconcile videos");
        }
    }
}

/// Runs the storage maintenance whenever this process is selected for it. Incomplete files are
/// deleted at the start too: a process that was killed may have left large ones.
async fn run_maintenance(maintenance: Maintenance, shutdown: CancellationToken) {
    match maintenance.remove_abandoned().await {
        Ok(0) => {}
        Ok(count) => tracing::info!(count, "deleted incomplete files that a killed process left"),
        Err(error) => tracing::warn!(%error, "failed to delete incomplete files"),
    }
    let mut tick = tokio::time::interval(MAINTENANCE_INTERVAL);
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        // Each step of the maintenance can be cancelled at any time.
        if let Some(Err(error)) = shutdown.run_until_cancelled(maintenance.run_due()).await {
            tracing::warn!(%error, "storage maintenance failed");
        }
    }
}

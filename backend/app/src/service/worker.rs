//! The worker of this process: the job runner, and background tasks that are not jobs.
use super::Components;
use super::memory::{self, ImageSlots};
use crate::config::{Settings, cores};
use domain::JobKind;
use pipeline::streams::config::StreamConfigs;
use pipeline::watch::mqtt::publisher::{Publisher, warn_of_abandoned_messages};
use pipeline::worker::{DELIVERY_PLACES, StreamTools, handlers};
use pipeline::{Crawls, Deliverer, Maintenance, Matcher, Streams, Videos};
use queue::{Runner, RunnerConfig};
use server::Services;
use std::collections::HashSet;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Time between two repairs of crawls that cannot end by themselves.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(30);

/// Maximum time for which a job that ended its process twice prevents other jobs from starting.
const ALONE_TIMEOUT: Duration = Duration::from_secs(300);

/// Number of video files that are fetched concurrently.
const VIDEO_FETCH_JOBS: usize = 8;
/// Number of recurring crawls that are started concurrently.
const CRAWL_START_JOBS: usize = 4;
/// Number of deleted collections that are erased concurrently.
const COLLECTION_ERASURE_JOBS: usize = 2;

/// Time between two attempts to run the storage maintenance.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(300);

/// Logs a message if outside input can need more memory than this process can have.
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

/// A running worker. Dropping it aborts its background tasks.
pub struct Worker {
    runner: Runner,
    tasks: JoinSet<()>,
}

impl Worker {
    /// Starts the job runner and the background tasks. To stop them, cancel `shutdown` and call
    /// [`until_stopped`](Self::until_stopped).
    pub fn start(components: &Components, settings: &Settings, shutdown: CancellationToken) -> Self {
        check_memory(settings);
        let Services {
            store,
            blobs,
            queue,
            crawls,
            face_store,
            videos,
            video_tools,
            fetcher,
            streams,
            stills,
            ..
        } = components.services.clone();
        let machine = rustix::system::uname();
        let worker_name = format!("{}-{}", machine.nodename().to_string_lossy(), std::process::id());
        let stream_tools = match &video_tools {
            _ if components.stream_configs.is_empty() => None,
            Ok(tools) => Some(StreamTools {
                configs: components.stream_configs.clone(),
                connector: settings.camera_connector(),
                decoder: tools.decoder.clone(),
                stills,
                threshold: settings.service.match_threshold,
                worker: worker_name.clone(),
                shutdown: shutdown.clone(),
            }),
            Err(reason) => {
                tracing::error!(reason, "cameras are not watched, because videos cannot be decoded");
                None
            }
        };
        let mut tasks = JoinSet::new();
        let deliverer = Deliverer::new(store.clone(), &crawls, fetcher.clone());
        tasks.spawn(deliverer.run(shutdown.clone()));
        let handlers = handlers(
            store.clone(),
            queue.clone(),
            crawls.clone(),
            face_store,
            fetcher,
            video_tools.ok(),
            stream_tools,
        );
        let (pages, images) = (settings.page_workers(), settings.image_workers());
        let config = RunnerConfig {
            concurrency: (JobKind::ALL.into_iter())
                .map(|kind| (kind.into(), max_concurrency(kind, pages, images, settings.streams.slots)))
                .collect(),
            keep_quarter_free: HashSet::from([JobKind::FetchVideo.into()]),
            // `FetchVideo` only writes the received bytes to a file. `WatchStream` never ends.
            never_alone: vec![JobKind::FetchVideo.into(), JobKind::WatchStream.into()],
            poll_interval: Duration::from_secs(1),
            drain_timeout: settings.drain_timeout(),
            alone_timeout: ALONE_TIMEOUT,
            worker_name,
        };
        tracing::info!(pages, images, worker = config.worker_name, "worker started");
        let matcher = Matcher::new(store.clone(), settings.service.match_threshold);
        tasks.spawn(matcher.run(shutdown.clone()));
        match settings.mqtt() {
            Some(config) => tasks.spawn(Publisher::new(store.clone(), config).run(shutdown.clone())),
            None => tasks.spawn(warn_of_abandoned_messages(store.clone())),
        };
        tasks.spawn(reconcile(crawls, videos, shutdown.clone()));
        if settings.streams.file.is_some() {
            tasks.spawn(keep_streams(streams, components.stream_configs.clone(), shutdown.clone()));
        }
        tasks.spawn(run_maintenance(Maintenance::new(store, blobs), shutdown.clone()));
        let runner = Runner::start(queue, handlers, config, shutdown.clone());
        if settings.crawl.memory_floor_mb != Some(0) {
            let floor = settings.crawl.memory_floor_mb.map(|megabytes| megabytes << 20);
            let slots = ImageSlots::new(images, floor);
            let kind = JobKind::ScanImage.as_str();
            tasks.spawn(memory::adapt_slots(memory::read, slots, kind, runner.concurrency(), shutdown));
        }
        Self { runner, tasks }
    }

    /// Waits until all jobs are settled or released, and aborts the background tasks that still
    /// run. The worker does not use the database afterwards.
    pub async fn until_stopped(mut self) {
        self.runner.until_stopped().await;
        self.tasks.shutdown().await;
    }
}

/// Returns the maximum number of jobs of a kind that run concurrently.
fn max_concurrency(kind: JobKind, pages: usize, images: usize, streams: usize) -> usize {
    match kind {
        JobKind::ScanPage => pages,
        JobKind::ScanImage => images,
        JobKind::FetchVideo => VIDEO_FETCH_JOBS,
        // One video uses all cores, and one clustering uses much of the database.
        JobKind::ScanVideo | JobKind::ClusterCollection => 1,
        JobKind::StartCrawl => CRAWL_START_JOBS,
        JobKind::DeliverWebhook => DELIVERY_PLACES,
        JobKind::EraseCollection => COLLECTION_ERASURE_JOBS,
        JobKind::WatchStream => streams,
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

/// Adds the configured cameras to the database at each interval, because a collection can be
/// deleted and created again. Enqueues jobs that are missing.
async fn keep_streams(streams: Streams, configs: StreamConfigs, shutdown: CancellationToken) {
    let mut tick = tokio::time::interval(RECONCILE_INTERVAL);
    let (mut is_start, mut left_out) = (true, Vec::new());
    while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
        let entered = match is_start {
            true => streams.configure(&configs).await,
            false => streams.restore(&configs).await,
        };
        match entered {
            Ok(without_collection) => {
                is_start = false;
                for stream in without_collection.iter().filter(|stream| !left_out.contains(*stream)) {
                    let collection = configs.get(stream).map(|config| config.collection.as_str());
                    tracing::error!(
                        stream,
                        collection,
                        "the collection of the camera does not exist; create it"
                    );
                }
                left_out = without_collection;
            }
            Err(error) => tracing::warn!(%error, "failed to configure cameras; trying again"),
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

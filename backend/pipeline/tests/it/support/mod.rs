//! Provides one engine for all tests, and one [`World`] (database, blobs, worker) per test.

mod site;

pub(crate) use site::{Response, Site};

use domain::{CrawlState, JobKind};
use inference::{Engine, Manifest, Priority, ResolvedPack};
use pipeline::worker::{StreamTools, VideoTools};
use pipeline::{
    Analysis, AnalyzeOptions, Analyzer, CrawlOptions, Crawls, Dedupe, FaceStore, Rotate, Scan, VideoLimits,
    crawls, worker,
};
use queue::{ClaimedJob, Handler, Queue, RunEnd, Runner, RunnerConfig};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::crawls::{Crawl, CrawlProgress};
use store::faces::{Face, FaceListQuery};
use store::images::{Image, ImageFilter};
use store::{Blobs, Store, Tx};
use testing::TestDatabase;
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use video::Decoder;
use vision::{Frame, Limits};

static ENGINE: OnceCell<Engine> = OnceCell::const_new();

async fn start(pack: impl FnOnce() -> ResolvedPack + Send + 'static) -> Engine {
    let start = move || {
        let config =
            inference::Config { dylib_path: Some(testing::library()), ..inference::Config::default() };
        Engine::start(&config, &pack()).unwrap()
    };
    tokio::task::spawn_blocking(start).await.unwrap()
}

pub(crate) async fn engine() -> Engine {
    ENGINE.get_or_init(|| start(testing::pack)).await.clone()
}

pub(crate) async fn analyzer() -> Analyzer {
    Analyzer::new(engine().await, pipeline::Config::default())
}

pub(crate) async fn analyze(analyzer: &Analyzer, bytes: Vec<u8>, options: &AnalyzeOptions) -> Analysis {
    analyzer.analyze(bytes.into(), options, Priority::Interactive).await.unwrap()
}

/// Returns the options for images with faces that are not upright.
pub(crate) fn rotation_options() -> AnalyzeOptions {
    AnalyzeOptions { rotate: Rotate::Auto, ..AnalyzeOptions::default() }
}

pub(crate) fn pixels(file: &[u8]) -> Frame {
    vision::decode(file, &Limits::default()).unwrap().frame
}

/// Returns the similarity of the first faces.
pub(crate) fn similarity(a: &Analysis, b: &Analysis) -> f32 {
    let embedding = |analysis: &Analysis| analysis.faces[0].embedding.clone().unwrap();
    embedding(a).similarity(&embedding(b)).unwrap()
}

/// Returns an analyzer with a different pack, whose models are in ../shared: `compact` (YuNet),
/// `research` (SCRFD, with first looks by YuNet), `research-alone` (SCRFD without YuNet) or `fixed`
/// (MobileFaceNet and a smaller SCRFD with a fixed input size, without YuNet).
pub(crate) async fn analyzer_on(name: &str) -> Analyzer {
    let pack = if name == "compact" { name } else { "research" };
    let mut pack = Manifest::builtin().pack(pack).unwrap().clone();
    if name == "fixed" {
        pack.files[0].file = "scrfd_500m_kps_640.onnx".into();
        pack.files[0].sha256 = "517cb1980c72422e676738fc45431700fb7cbee56d0f825b623ee427b3e5ce58".into();
        pack.files[0].bytes = None;
    }
    if name != "research" {
        pack = pack.without_first_look();
    }
    let engine = start(move || ResolvedPack::verify(&pack, &testing::shared_models()).unwrap());
    Analyzer::new(engine.await, pipeline::Config::default())
}

/// The services that a crawl requires. Dropping it deletes the temporary folder and the database.
pub(crate) struct World {
    pub(crate) store: Store,
    pub(crate) queue: Queue,
    pub(crate) crawls: Crawls,
    pub(crate) face_store: FaceStore,
    pub(crate) blobs: Blobs,
    fetcher: crawler::Fetcher,
    folder: tempfile::TempDir,
    database: TestDatabase,
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(queue::Config::default(), fast_politeness()).await
    }

    pub(crate) async fn with_site() -> (Self, Site) {
        (Self::new().await, Site::start().await)
    }

    pub(crate) async fn with(queue_config: queue::Config, politeness: crawls::Config) -> Self {
        Self::on(TestDatabase::create().await, queue_config, politeness).await
    }

    pub(crate) async fn on(
        database: TestDatabase,
        queue_config: queue::Config,
        politeness: crawls::Config,
    ) -> Self {
        let analyzer = analyzer().await;
        let store = database.store();
        let queue = Queue::new(store.pool().clone(), queue_config);
        let folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(folder.path().to_str().unwrap()).unwrap();
        let face_store = FaceStore::new(analyzer, store.clone(), blobs.clone(), queue.clone()).await.unwrap();
        let fetcher = crawler::Fetcher::new(&crawler::Config {
            allow_private: vec!["127.0.0.0/8".parse().unwrap()],
            ..crawler::Config::default()
        });
        let crawls = Crawls::new(store.clone(), queue.clone()).with_config(politeness);
        Self { store, queue, crawls, face_store, blobs, fetcher, folder, database }
    }

    pub(crate) fn handlers(&self) -> HashMap<String, Arc<dyn Handler>> {
        self.handlers_with(None, None)
    }

    fn handlers_with(
        &self,
        videos: Option<VideoTools>,
        streams: Option<StreamTools>,
    ) -> HashMap<String, Arc<dyn Handler>> {
        worker::handlers(
            self.store.clone(),
            self.queue.clone(),
            self.crawls.clone(),
            self.face_store.clone(),
            self.fetcher.clone(),
            videos,
            streams,
        )
    }

    /// Starts a worker with its own handlers. [`Worker::stop`] stops it.
    pub(crate) fn worker(&self, name: &str) -> Worker {
        self.worker_with(name, None, None)
    }

    /// Starts a worker that also reads videos.
    pub(crate) fn video_worker(&self, name: &str, decoder: Decoder) -> Worker {
        self.video_worker_with(name, decoder, VideoLimits::default(), worker::TIME_SLICE)
    }

    /// Works like [`Self::video_worker`], with limits of collections and the length of a time
    /// slice.
    pub(crate) fn video_worker_with(
        &self,
        name: &str,
        decoder: Decoder,
        limits: VideoLimits,
        time_slice: Duration,
    ) -> Worker {
        let spool = self.folder.path().join("spool");
        std::fs::create_dir_all(&spool).unwrap();
        let spool = store::SpoolFolder::new(spool, 0);
        self.worker_with(name, Some(VideoTools { decoder, spool, limits, time_slice }), None)
    }

    /// Starts a worker that also watches cameras.
    pub(crate) fn stream_worker(&self, name: &str, tools: StreamTools) -> Worker {
        self.worker_with(name, None, Some(tools))
    }

    fn worker_with(&self, name: &str, videos: Option<VideoTools>, streams: Option<StreamTools>) -> Worker {
        let stop = CancellationToken::new();
        let config = RunnerConfig {
            concurrency: [
                (JobKind::ScanPage, 4),
                (JobKind::ScanImage, 4),
                (JobKind::FetchVideo, 4),
                (JobKind::DeliverWebhook, worker::DELIVERY_PLACES),
            ]
            .map(|(kind, places)| (kind.into(), places))
            .into(),
            keep_quarter_free: HashSet::from([JobKind::FetchVideo.into()]),
            never_alone: vec![JobKind::FetchVideo.into()],
            poll_interval: Duration::from_millis(50),
            // A video takes longer than a worker may take to stop.
            drain_timeout: if videos.is_some() { Duration::ZERO } else { Duration::from_secs(20) },
            alone_timeout: Duration::from_secs(60),
            worker_name: name.into(),
        };
        let runner =
            Runner::start(self.queue.clone(), self.handlers_with(videos, streams), config, stop.clone());
        Worker { runner, stop }
    }

    /// Starts a scan of a folder that does not exist.
    pub(crate) async fn scan(&self, dedupe: Dedupe, options: AnalyzeOptions) -> Scan {
        let seeds = ["/nowhere".to_owned()];
        Scan::begin(self.face_store.clone(), "default", &seeds, dedupe, options).await.unwrap()
    }

    /// Runs a job that this process claimed.
    pub(crate) async fn run(&self, job: ClaimedJob) -> RunEnd {
        self.handlers()[&job.kind].run(job, CancellationToken::new()).await
    }

    /// Runs `work` in a transaction and commits it.
    pub(crate) async fn commit<T, E: std::fmt::Debug>(
        &self,
        work: impl AsyncFnOnce(&mut Tx) -> Result<T, E>,
    ) -> T {
        let mut tx = self.store.begin().await.unwrap();
        let result = work(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        result
    }

    pub(crate) async fn create(&self, seeds: &[String], options: CrawlOptions) -> Crawl {
        self.crawls.create("default", seeds, options).await.unwrap()
    }

    /// Creates a crawl and runs a worker until the crawl ends.
    pub(crate) async fn crawl(&self, seeds: &[String], options: CrawlOptions) -> (Crawl, CrawlProgress) {
        let crawl = self.create(seeds, options).await;
        let worker = self.worker("one");
        let crawl = self.until_ended(crawl.id).await;
        worker.stop().await;
        let progress = self.progress(crawl.id).await;
        (crawl, progress)
    }

    /// Works like [`Self::crawl`] for a crawl that completes.
    pub(crate) async fn complete_crawl(&self, seeds: &[String], options: CrawlOptions) -> CrawlProgress {
        let (crawl, progress) = self.crawl(seeds, options).await;
        assert_eq!(crawl.state, CrawlState::Completed, "{progress:?}");
        progress
    }

    pub(crate) async fn until_ended(&self, id: Uuid) -> Crawl {
        let ended_crawl = wait_for(async || {
            let crawl = self.store.crawls().get(id).await.unwrap();
            (!crawl.state.is_live()).then_some(crawl)
        });
        match ended_crawl.await {
            Some(crawl) => crawl,
            None => panic!("the crawl did not end: {:?}", self.progress(id).await),
        }
    }

    pub(crate) async fn progress(&self, id: Uuid) -> CrawlProgress {
        self.store.crawls().progress(id).await.unwrap()
    }

    pub(crate) async fn images(&self) -> Vec<Image> {
        let filter = ImageFilter { collection: "default".into(), ..ImageFilter::default() };
        self.store.images().list(&filter, None, 1000).await.unwrap()
    }

    pub(crate) async fn faces(&self) -> Vec<Face> {
        let filter = FaceListQuery { collection: "default".into(), ..FaceListQuery::default() };
        self.store.faces().list(&filter, None, 10_000).await.unwrap()
    }

    /// Simulates a full disk for later workers. Returns the face store that has space.
    pub(crate) async fn fill_disk(&mut self) -> FaceStore {
        let blobs = self.blobs.clone().with_exact_reserve(u64::MAX);
        let (store, queue) = (self.store.clone(), self.queue.clone());
        let full = FaceStore::new(self.face_store.analyzer().clone(), store, blobs, queue).await.unwrap();
        std::mem::replace(&mut self.face_store, full)
    }

    /// Waits until the jobs of a kind are postponed.
    pub(crate) async fn until_postponed(&self, kind: JobKind) {
        let postponed = async || {
            let due = self.queue.next_due(&[kind.into()]).await.unwrap();
            due.filter(|due| *due > Duration::from_secs(30))
        };
        wait_for(postponed).await.expect("the job is postponed");
    }

    /// Returns the folder of the blobs.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Returns the number of files in that folder and its subfolders.
    pub(crate) fn count_files(&self) -> usize {
        testing::files_below(self.folder()).len()
    }

    pub(crate) async fn execute(&self, statement: &'static str) {
        self.database.execute(statement).await;
    }

    pub(crate) async fn number(&self, query: &'static str) -> i64 {
        self.database.number(query).await
    }

    /// Returns the number of live jobs of a crawl.
    pub(crate) async fn live_jobs(&self, crawl: Uuid) -> i64 {
        let mut tx = self.store.begin().await.unwrap();
        self.queue.groups().count_live(tx.conn(), crawl).await.unwrap()
    }
}

pub(crate) struct Worker {
    runner: Runner,
    stop: CancellationToken,
}

impl Worker {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.runner.until_stopped().await;
    }
}

/// Returns a politeness configuration without long waits.
pub(crate) fn fast_politeness() -> crawls::Config {
    crawls::Config {
        default_delay: Duration::ZERO,
        robots_retry: Duration::from_millis(20),
        ..crawls::Config::default()
    }
}

/// Returns a queue configuration with which a job that fails is tried again at once.
pub(crate) fn quick_retries() -> queue::Config {
    queue::Config {
        retry_base: Duration::from_millis(1),
        retry_max: Duration::from_millis(5),
        ..queue::Config::default()
    }
}

/// Waits until a session of the database waits for a lock, and fails after 30 s.
pub(crate) const WAIT_FOR_BLOCKED_SESSION: &str = "do $$ begin
    for attempt in 1..3000 loop
        if exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock') then
            return;
        end if;
        perform pg_stat_clear_snapshot();
        perform pg_sleep(0.01);
    end loop;
    raise 'no session waits for a lock';
end $$";

/// Returns options without a delay.
pub(crate) fn fast() -> CrawlOptions {
    CrawlOptions { delay_ms: Some(0), ..CrawlOptions::default() }
}

/// Polls until `probe` returns a value or four minutes have passed. On a busy machine, processing
/// all the photographs of crowds takes one minute.
pub(crate) async fn wait_for<T>(mut probe: impl AsyncFnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + Duration::from_secs(240);
    while Instant::now() < deadline {
        if let Some(value) = probe().await {
            return Some(value);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    None
}

/// Returns the counts that are not zero.
pub(crate) fn counts<S: Copy + Into<&'static str>>(counts: &BTreeMap<S, i64>) -> BTreeMap<&'static str, i64> {
    counts.iter().filter(|(_, n)| **n != 0).map(|(state, n)| ((*state).into(), *n)).collect()
}

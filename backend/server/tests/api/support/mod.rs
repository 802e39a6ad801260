//! Starts a service for a test.
pub(crate) mod images;
pub(crate) mod receiver;
mod requests;
pub(crate) mod site;

pub(crate) use requests::{
    Events, FAKE_ID, Json, add_stream, add_video, document, erase, erase_confirmed, export, field,
    image_urls, merge, new_video, ok, operations, parse_lines, parse_time, problem, tenant_scopes, to_json,
};

use crawler::Fetcher;
use inference::{Engine, Manifest, ResolvedPack};
use metrics_exporter_prometheus::{PrometheusHandle, PrometheusRecorder};
use pipeline::worker::VideoTools;
use pipeline::{
    Analyzer, Crawls, Deliverer, FaceStore, Matcher, Passes, Secret, VideoLimits, Videos, crawls,
};
use queue::{Queue, Runner, RunnerConfig};
use reqwest::Client;
use server::{AppState, Auth, Config, Services};
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;
use std::time::Duration;
use store::{Blobs, Tx};
use testing::TestDatabase;
use tokio_util::sync::CancellationToken;

/// Maximum wait for an event that should happen soon. A passing test never waits that long.
const DEADLINE: Duration = testing::MAX_WAIT;

/// Returns the engine with the default models. All tests of the process share it.
fn engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    let start = || {
        let config = inference::Config { dylib_path: Some(testing::library()), ..Default::default() };
        Engine::start(&config, &testing::pack()).expect("the engine does not start")
    };
    ENGINE.get_or_init(start).clone()
}

/// Returns the engine with the fixture models. All tests of the process share it.
fn fixture_engine() -> Engine {
    static ENGINE: OnceLock<Engine> = OnceLock::new();
    ENGINE.get_or_init(|| fixture_engine_with(false)).clone()
}

/// Starts an engine with fixture models, which have no trained weights. With `score`, it also
/// contains a learned quality score.
fn fixture_engine_with(score: bool) -> Engine {
    let folder = tempfile::tempdir().unwrap();
    let pack = testing::fixture_pack(folder.path());
    let manifest = Manifest::parse(&pack.manifest()).unwrap();
    let mut pack = manifest.pack("fixture").unwrap().clone();
    pack.files.extend(score.then(|| testing::fixture_quality(folder.path())));
    let pack = ResolvedPack::verify(&pack, folder.path()).unwrap();
    let config = inference::Config { dylib_path: Some(testing::library()), ..Default::default() };
    Engine::start(&config, &pack).expect("the engine does not start")
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Models {
    Default,
    Fixture,
    /// The fixture models and a learned quality score.
    Scored,
}

fn recorder() -> PrometheusHandle {
    static HANDLE: OnceLock<PrometheusHandle> = OnceLock::new();
    HANDLE.get_or_init(|| server::telemetry::prometheus().unwrap().install_recorder().unwrap()).clone()
}

/// Runs `build` with its metrics in `recorder`, or in the recorder of the process.
fn with_recorder<T>(recorder: Option<&PrometheusRecorder>, build: impl FnOnce() -> T) -> T {
    match recorder {
        Some(recorder) => metrics::with_local_recorder(recorder, build),
        None => build(),
    }
}

pub(crate) struct Options {
    pub(crate) config: Config,
    pub(crate) pipeline: pipeline::Config,
    /// Whether the service has its own memory gauges. Otherwise all services of the process share
    /// them.
    pub(crate) own_gauges: bool,
    pub(crate) worker: bool,
    pub(crate) videos: bool,
    pub(crate) models: Models,
    pub(crate) webhook_secret: Option<&'static str>,
    pub(crate) video_limits: VideoLimits,
    /// Free disk space, in bytes, below which nothing is stored.
    pub(crate) disk_reserve: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            config: Config { events_interval: Duration::from_millis(50), ..Config::default() },
            pipeline: pipeline::Config::default(),
            own_gauges: false,
            worker: true,
            videos: false,
            models: Models::Default,
            webhook_secret: None,
            video_limits: VideoLimits::default(),
            disk_reserve: 0,
        }
    }
}

impl Options {
    /// Returns the options of a service with this configuration and the fixture models, without a
    /// worker.
    pub(crate) fn bare(config: Config) -> Self {
        Self { config, worker: false, models: Models::Fixture, ..Self::default() }
    }
}

/// A service on 127.0.0.1 with its own database and blob folder.
pub(crate) struct App {
    pub(crate) url: String,
    pub(crate) client: Client,
    pub(crate) state: AppState,
    pub(crate) shutdown: CancellationToken,
    pub(crate) blob_folder: tempfile::TempDir,
    _spool_folder: tempfile::TempDir,
    runner: Option<Runner>,
    server: tokio::task::JoinHandle<std::io::Result<()>>,
    pub(crate) database: TestDatabase,
    /// Stops the worker and the server when the test ends.
    _stop: tokio_util::sync::DropGuard,
}

impl App {
    pub(crate) async fn spawn() -> Self {
        Self::spawn_with(Options::default()).await
    }

    pub(crate) async fn spawn_bare(config: Config) -> Self {
        Self::spawn_with(Options::bare(config)).await
    }

    pub(crate) async fn spawn_with(options: Options) -> Self {
        let engine = match options.models {
            Models::Default => tokio::task::spawn_blocking(engine).await.unwrap(),
            Models::Fixture => tokio::task::spawn_blocking(fixture_engine).await.unwrap(),
            Models::Scored => tokio::task::spawn_blocking(|| fixture_engine_with(true)).await.unwrap(),
        };
        let database = TestDatabase::create().await;
        let blob_folder = tempfile::tempdir().unwrap();
        let store = database.store();
        let spool_folder = tempfile::tempdir().unwrap();
        let blobs = Blobs::open(blob_folder.path().to_str().unwrap()).unwrap();
        let blobs = blobs.with_exact_reserve(options.disk_reserve);
        let queue = Queue::new(database.pool().clone(), queue::Config::default());
        let shared_recorder = recorder();
        let recorder = options.own_gauges.then(|| server::telemetry::prometheus().unwrap().build_recorder());
        let mut pipeline_config = options.pipeline;
        if !matches!(options.models, Models::Default) {
            // The fixture's detector finds faces only at the scale of the whole image.
            pipeline_config.passes = Passes::Single;
        }
        let analyzer = with_recorder(recorder.as_ref(), || Analyzer::new(engine, pipeline_config));
        let face_store =
            FaceStore::new(analyzer.clone(), store.clone(), blobs.clone(), queue.clone()).await.unwrap();
        let secret = Secret::new("a secret that only the tests know");
        let face_store = face_store.with_sketcher(pipeline::Sketcher::new(secret));
        let crawl_config = crawls::Config {
            webhook_secret: options.webhook_secret.map(Secret::new),
            webhook_retry: Duration::from_millis(10),
            ..crawls::Config::default()
        };
        let crawls = Crawls::new(store.clone(), queue.clone()).with_config(crawl_config);
        let fetcher = Fetcher::new(&crawler::Config {
            allow_private: vec!["127.0.0.0/8".parse().unwrap()],
            ..crawler::Config::default()
        });
        let shutdown = CancellationToken::new();
        let video_tools = options.videos.then(|| video_tools(blob_folder.path(), options.disk_reserve));
        let runner = options.worker.then(|| {
            let handlers = pipeline::worker::handlers(
                store.clone(),
                queue.clone(),
                crawls.clone(),
                face_store.clone(),
                fetcher.clone(),
                video_tools.clone(),
                None,
            );
            let matcher = Matcher::new(store.clone(), options.config.match_threshold);
            let deliverer = Deliverer::new(store.clone(), &crawls, fetcher.clone());
            tokio::spawn(deliverer.run(shutdown.clone()));
            tokio::spawn(matcher.run(shutdown.clone()));
            let config = RunnerConfig {
                concurrency: HashMap::from([
                    ("scan_page".into(), 2),
                    ("scan_image".into(), 2),
                    ("fetch_video".into(), 4),
                    ("scan_video".into(), 1),
                ]),
                keep_quarter_free: HashSet::new(),
                never_alone: Vec::new(),
                poll_interval: Duration::from_millis(100),
                drain_timeout: Duration::from_secs(5),
                alone_timeout: Duration::from_secs(60),
                worker_name: "test".into(),
            };
            Runner::start(queue.clone(), handlers, config, shutdown.clone())
        });
        let videos =
            Videos::new(store.clone(), queue.clone(), blobs.clone()).with_limits(options.video_limits);
        let video_decoding =
            inference::place_video_decoding(&inference::Config::default(), false, |_| Ok(()));
        let video_decoding = video_decoding.ok().map(|placement| placement.report);
        let services = Services {
            analyzer,
            streams: pipeline::Streams::new(store.clone(), queue.clone()),
            stills: pipeline::streams::still::Stills::default(),
            store,
            blobs,
            queue,
            crawls,
            videos,
            spool: Ok(store::SpoolFolder::with_exact_reserve(spool_folder.path(), options.disk_reserve)),
            video_tools: video_tools.ok_or_else(|| "this test has no ffmpeg".into()),
            video_decoding,
            face_store,
            fetcher,
        };
        let config = options.config.clone();
        let handle = recorder.as_ref().map_or(shared_recorder, PrometheusRecorder::handle);
        let state = with_recorder(recorder.as_ref(), || {
            AppState::new(services, options.config, handle, shutdown.clone())
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (router, stop) = (server::router(state.clone()), shutdown.clone());
        let server = tokio::spawn(async move { server::serve(listener, router, stop, &config).await });
        Self {
            url,
            client: client(),
            state,
            _stop: shutdown.clone().drop_guard(),
            shutdown,
            blob_folder,
            _spool_folder: spool_folder,
            runner,
            server,
            database,
        }
    }

    /// Stops the service in the same way as the process does. Returns the result of the server.
    pub(crate) async fn stop(self) -> std::io::Result<()> {
        self.shutdown.cancel();
        let result = self.server.await.unwrap();
        if let Some(runner) = self.runner {
            runner.until_stopped().await;
        }
        result
    }

    /// Runs `work` in a transaction and commits it.
    pub(crate) async fn commit<T, E: std::fmt::Debug>(
        &self,
        work: impl AsyncFnOnce(&mut Tx) -> Result<T, E>,
    ) -> T {
        let mut tx = self.state.services.store.begin().await.unwrap();
        let result = work(&mut tx).await.unwrap();
        tx.commit().await.unwrap();
        result
    }
}

/// Returns a video decoder without a sandbox. Other tests cover the sandbox.
fn video_tools(spool: &std::path::Path, reserve: u64) -> VideoTools {
    let (ffmpeg, limits) = (testing::ffmpeg(), video::Limits::default());
    let config = video::Config { ffmpeg, launcher: video::Launcher::Direct, threads: 2, limits };
    VideoTools {
        decoder: video::Decoder::open(config).unwrap(),
        spool: store::SpoolFolder::with_exact_reserve(spool, reserve),
        limits: VideoLimits::default(),
        time_slice: pipeline::worker::TIME_SLICE,
    }
}

fn client() -> Client {
    client_builder().build().unwrap()
}

/// Returns a client that connects from another loopback address.
pub(crate) fn other_client() -> Client {
    client_builder().local_address("127.0.0.2".parse::<std::net::IpAddr>().unwrap()).build().unwrap()
}

fn client_builder() -> reqwest::ClientBuilder {
    static PROVIDER: OnceLock<()> = OnceLock::new();
    PROVIDER.get_or_init(|| {
        // Other code of the process may have installed a provider already. Any provider works.
        let _ = rustls::crypto::ring::default_provider().install_default();
    });
    // This limit applies to each read. On a busy machine, an event stream may last longer than the
    // limit.
    Client::builder().read_timeout(DEADLINE).redirect(reqwest::redirect::Policy::none())
}

/// Returns the options of a service that requires keys.
pub(crate) fn key_options() -> Options {
    let options = Options::default();
    Options { config: Config { auth: Auth::Keys, ..options.config }, ..options }
}

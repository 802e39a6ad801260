//! Contains the components of the commands: database, models, worker and HTTP. Also defines the
//! order in which they start and stop.
mod database;
mod http;
mod memory;
pub mod search_index;
mod suppression;
mod worker;

pub use database::{Database, Sharing, run_postgres_program};
pub use http::{Routes, bind, serve};
pub(crate) use memory::read as read_memory;
pub use worker::Worker;

use crate::config::{LogFormat, Settings};
use crate::decoder::{create_spool, open_decoder};
use crate::models::ModelStore;
use anyhow::Context;
use crawler::Fetcher;
use inference::{Config, Engine, Manifest, ResolvedPack};
use pipeline::streams::config::StreamConfigs;
use pipeline::streams::still::Stills;
use pipeline::worker::VideoTools;
use pipeline::{Analyzer, Crawls, FaceStore, Streams, Videos};
use queue::Queue;
use server::Services;
use std::io::Write;
use store::db::schema::OlderProgramPolicy;
use store::index::external::ExternalIndex;
use store::{Blobs, SpoolFolder, Store, StoreError};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use video::{Decoder, VideoError};

/// The components that commands with a database and models need.
pub struct Components {
    pub database: Database,
    /// The search index outside the database, if this process applies changes to it.
    pub index: Option<ExternalIndex>,
    pub services: Services,
    /// The configured cameras.
    pub stream_configs: StreamConfigs,
}

impl Components {
    /// Opens the database and loads the models concurrently. `role` decides whether this process
    /// opens the search index.
    pub async fn start(
        settings: &Settings,
        sharing: Sharing,
        role: search_index::Role,
    ) -> anyhow::Result<Self> {
        let stream_configs = settings.streams()?;
        let blobs = open_blobs(settings)?;
        let ((), (database, index), engine) = tokio::try_join!(
            async { blobs.check().await.with_context(|| blob_location_setting(settings)) },
            async {
                let mut database = Database::open(settings, sharing).await?;
                let older_programs = match sharing {
                    Sharing::Exclusive => OlderProgramPolicy::Stop,
                    Sharing::Shared => OlderProgramPolicy::FailMigration,
                };
                database.migrate(older_programs).await?;
                // The registration of the embedding model prepares the index, so it is opened
                // first.
                let index = search_index::open(settings, &mut database.store, role).await?;
                Ok((database, index))
            },
            start_engine(settings)
        )?;
        let store = database.store.clone();
        let queue = Queue::new(
            store.pool().clone(),
            queue::Config { schema_version: store::db::schema::version(), ..queue::Config::default() },
        );
        let analyzer = Analyzer::new(engine, crate::decoder::pipeline_config(settings));
        let face_store = FaceStore::new(analyzer.clone(), store.clone(), blobs.clone(), queue.clone())
            .await
            .context("cannot register the embedding model")?;
        let face_store = suppression::with_secret(face_store, &store, settings).await?;
        let crawls = Crawls::new(store.clone(), queue.clone()).with_config(settings.crawls());
        let videos =
            Videos::new(store.clone(), queue.clone(), blobs.clone()).with_limits(settings.video_limits());
        let (mut video_tools, mut video_decoding) = (Err("this command decodes no videos".into()), None);
        let mut spool = Err("this command stores no uploads".into());
        if sharing == Sharing::Exclusive {
            let opened = tokio::task::block_in_place(|| open_decoder(settings))?;
            spool =
                create_spool(settings).inspect_err(|reason| tracing::warn!(reason, "uploads are disabled"));
            (video_tools, video_decoding) =
                (video_tools_or_reason(settings, opened.decoder, spool.clone()), Some(opened.report));
        }
        let streams = Streams::new(store.clone(), queue.clone());
        let fetcher = Fetcher::new(&settings.crawler());
        let services = Services {
            analyzer,
            store,
            blobs,
            queue,
            crawls,
            face_store,
            videos,
            spool,
            video_tools,
            video_decoding,
            streams,
            stills: Stills::default(),
            fetcher,
        };
        Ok(Self { database, index, services, stream_configs })
    }

    pub fn store(&self) -> &Store {
        &self.services.store
    }

    /// Warns if stored faces have embeddings of another model than the current one, because search
    /// does not find those faces.
    pub async fn warn_about_outdated_faces(&self, settings: &Settings) -> Result<(), StoreError> {
        let others = self.store().models().faces_of_other_models(self.services.face_store.model_id()).await?;
        let faces: i64 = others.iter().map(|(_, faces)| faces).sum();
        if faces == 0 {
            return Ok(());
        }
        let models: Vec<&str> = others.iter().map(|(name, _)| name.as_str()).collect();
        let (models, model) = (models.join(", "), &self.services.analyzer.engine().embedder().name);
        tracing::warn!(faces, models, model, "stored faces have embeddings of another model; reembed them");
        if settings.log.format == LogFormat::Text {
            eprintln!(
                "{faces} stored faces have embeddings of another model ({models}); search does not find them.\n\
                 Run `facecrawl reembed` (./scripts/run reembed) to recompute their embeddings with {model},\n\
                 or set MODEL_PACK to the previous pack."
            );
        }
        Ok(())
    }
}

/// Returns the tools that read videos, or the reason why there are none. Without them, a service
/// works, but reads no videos.
fn video_tools_or_reason(
    settings: &Settings,
    decoder: Result<Decoder, VideoError>,
    spool: Result<SpoolFolder, String>,
) -> Result<VideoTools, String> {
    let tools = decoder.map_err(|error| error.to_string());
    let tools = tools.and_then(|decoder| Ok(settings.video_tools(decoder, spool?)));
    tools.inspect_err(|reason| tracing::warn!(reason, "video decoding is disabled"))
}

pub fn open_blobs(settings: &Settings) -> anyhow::Result<Blobs> {
    let blobs = Blobs::open_with(&settings.blob_store_url(), &settings.bucket_variables());
    Ok(blobs.with_context(|| blob_location_setting(settings))?.with_reserve(settings.disk_reserve()))
}

/// Returns the setting that determines where blobs are stored, for error messages.
fn blob_location_setting(settings: &Settings) -> String {
    if settings.storage.blob_store_url.is_none() {
        return format!("DATA_DIR={}", settings.storage.data_dir.display());
    }
    let endpoint = settings.storage.aws_endpoint_url.as_ref().map(|url| format!(", AWS_ENDPOINT_URL={url}"));
    let url = settings.blob_store_url();
    let endpoint = endpoint.filter(|_| url.starts_with("s3:")).unwrap_or_default();
    format!("BLOB_STORE_URL={}{endpoint}", crate::config::mask_url(&url))
}

/// Fetches the missing files of the pack, and adds the quality model if it is installed.
pub async fn prepare_models(settings: &Settings) -> anyhow::Result<ResolvedPack> {
    let manifest = Manifest::load(&settings.models.dir).map_err(anyhow::Error::msg)?;
    let pack = manifest
        .pack(&settings.models.pack)
        .context("MODEL_PACK is not a pack of models.toml or packs.toml")?;
    let store = ModelStore::new(settings);
    let resolved = store.prepare(pack).await?;
    Ok(store.with_quality_model(resolved, &manifest).await?)
}

/// Fetches the missing files of the pack, loads the models and warms them up.
pub async fn start_engine(settings: &Settings) -> anyhow::Result<Engine> {
    start_engine_with(settings, settings.inference()).await
}

/// Works like [`start_engine`], with an inference configuration other than that of the settings.
pub async fn start_engine_with(settings: &Settings, config: Config) -> anyhow::Result<Engine> {
    let resolved = prepare_models(settings).await?;
    Ok(tokio::task::spawn_blocking(move || Engine::start(&config, &resolved)).await??)
}

/// Signal numbers (POSIX), for the exit status 128 + n that shells expect.
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// Returns a token that is cancelled by the first signal.
pub fn listen_for_signals() -> std::io::Result<CancellationToken> {
    let token = CancellationToken::new();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let signalled = token.clone();
    tokio::spawn(async move {
        let first = first_signal(&mut interrupt, &mut terminate).await;
        tracing::info!(signal = signal_name(first), "shutting down; a second signal exits immediately");
        signalled.cancel();
        let second = first_signal(&mut interrupt, &mut terminate).await;
        tracing::warn!(signal = signal_name(second), "second signal, exiting immediately");
        // `exit_process` would flush stdout, and another thread may hold stdout and wait for its
        // reader.
        signal_hook::low_level::exit(128 + second);
    });
    Ok(token)
}

async fn first_signal(interrupt: &mut Signal, terminate: &mut Signal) -> i32 {
    tokio::select! {
        _ = interrupt.recv() => SIGINT,
        _ = terminate.recv() => SIGTERM,
    }
}

fn signal_name(signal: i32) -> &'static str {
    if signal == SIGINT { "SIGINT" } else { "SIGTERM" }
}

/// Ends the process with this exit status, after writing the output that stdout has buffered.
///
/// Destructors of C++ libraries do not run. ONNX Runtime has static objects, and another thread may
/// still load or run a model when the command has its result: a command that fails early does not
/// wait for the models. A thread that uses an object after its destructor crashes the process, and
/// the caller sees a signal instead of the exit status.
pub fn exit_process(status: i32) -> ! {
    // If flushing fails, no program reads the output.
    let _unread = std::io::stdout().flush();
    signal_hook::low_level::exit(status)
}

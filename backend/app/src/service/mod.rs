//! Contains the components of the commands: database, engine, worker and HTTP. Also defines the
//! order in which they start and stop.

mod database;
mod engine;
mod http;
mod memory;
mod outdated;
pub mod postgres;
pub mod search_index;
mod shutdown;
mod suppression;
mod worker;

pub use database::{Database, Sharing};
pub use engine::{prepare_models, start_engine, start_engine_with};
pub use http::{Surface, bind, serve};
pub use shutdown::{exit_process, listen_for_signals};
pub use worker::start_runner;

use crate::config::Settings;
use crate::decoder::{open_decoder, video_tools_of};
use anyhow::Context;
use crawler::Fetcher;
use inference::OperationReport;
use pipeline::worker::VideoTools;
use pipeline::{Analyzer, Crawls, Ingest, Videos};
use queue::Queue;
use store::db::schema::OlderPrograms;
use store::index::external::ExternalIndex;
use store::{Blobs, Store};
use video::{Decoder, VideoError};

/// The components that commands with a database and models need.
pub struct Foundation {
    pub database: Database,
    /// The search index outside the database, if this process brings it up to the rows.
    pub index: Option<ExternalIndex>,
    /// Crops, chips and thumbnails.
    pub blobs: Blobs,
    pub queue: Queue,
    pub analyzer: Analyzer,
    pub ingest: Ingest,
    pub crawls: Crawls,
    pub videos: Videos,
    /// Decodes videos. The error is the reason why this process cannot.
    pub video_tools: Result<VideoTools, String>,
    /// The device that decodes videos; `None` if this process did not look for a decoder.
    pub video_decoding: Option<OperationReport>,
    pub fetcher: Fetcher,
}

impl Foundation {
    /// Opens the database and loads the models concurrently. `role` decides whether this process
    /// opens the search index.
    pub async fn start(
        settings: &Settings,
        sharing: Sharing,
        role: search_index::Role,
    ) -> anyhow::Result<Self> {
        let blobs = open_blobs(settings)?;
        let ((), (database, index), engine) = tokio::try_join!(
            async { blobs.check().await.with_context(|| place_of_blobs(settings)) },
            async {
                let mut database = Database::open(settings, sharing).await?;
                let service = sharing == Sharing::Exclusive;
                database.migrate(if service { OlderPrograms::Stop } else { OlderPrograms::Keep }).await?;
                // Before the embedding model is registered, which prepares the index.
                let index = search_index::open(settings, &mut database.store, role).await?;
                Ok((database, index))
            },
            start_engine(settings)
        )?;
        let store = database.store.clone();
        let queue = Queue::new(
            store.pool().clone(),
            queue::Config { schema_version: Store::schema_version(), ..queue::Config::default() },
        );
        let analyzer = Analyzer::new(engine, crate::decoder::pipeline_config(settings));
        let ingest = Ingest::new(analyzer.clone(), store.clone(), blobs.clone(), queue.clone())
            .await
            .context("cannot register the embedding model")?;
        let ingest = suppression::with_secret(ingest, &store, settings).await?;
        let crawls = Crawls::new(store.clone(), queue.clone()).with_config(settings.crawls());
        let videos = Videos::new(store, queue.clone(), blobs.clone()).with_limits(settings.video_limits());
        let (mut video_tools, mut video_decoding) = (Err("this command decodes no videos".into()), None);
        if sharing == Sharing::Exclusive {
            let opened = tokio::task::block_in_place(|| open_decoder(settings))?;
            (video_tools, video_decoding) = (tools_of(settings, opened.decoder), Some(opened.report));
        }
        let fetcher = Fetcher::new(&settings.crawler());
        Ok(Self {
            database,
            index,
            blobs,
            queue,
            analyzer,
            ingest,
            crawls,
            videos,
            video_tools,
            video_decoding,
            fetcher,
        })
    }

    pub fn store(&self) -> &Store {
        &self.database.store
    }
}

/// Returns the tools that read videos. A service without them works, but reads no videos; the error
/// is the reason.
fn tools_of(settings: &Settings, decoder: Result<Decoder, VideoError>) -> Result<VideoTools, String> {
    let tools = decoder.map_err(|error| error.to_string());
    let tools = tools.and_then(|decoder| video_tools_of(settings, decoder));
    tools.inspect_err(|reason| tracing::warn!(reason, "video decoding is disabled"))
}

pub fn open_blobs(settings: &Settings) -> anyhow::Result<Blobs> {
    let blobs = Blobs::open_with(&settings.blob_store(), &settings.bucket());
    Ok(blobs.with_context(|| place_of_blobs(settings))?.with_reserve(settings.disk_reserve()))
}

/// Returns the setting that determines where blobs are stored, for error messages.
fn place_of_blobs(settings: &Settings) -> String {
    if settings.storage.blob_store_url.is_none() {
        return format!("DATA_DIR={}", settings.storage.data_dir.display());
    }
    let endpoint = settings.storage.aws_endpoint_url.as_ref().map(|url| format!(", AWS_ENDPOINT_URL={url}"));
    let bucket = settings.blob_store();
    let endpoint = endpoint.filter(|_| bucket.starts_with("s3:")).unwrap_or_default();
    format!("BLOB_STORE_URL={}{endpoint}", crate::config::mask::mask_url(&bucket))
}

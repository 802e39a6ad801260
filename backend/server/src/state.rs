//! Contains the state that all handlers share. Shared state of a single module is defined in that
//! module.
use crate::admission::{Analyses, BodyMemory, EventStreams, FetchMemory, ResponseMemory, Shares, Uploads};
use crate::auth::{Keyring, Rates};
use crate::confirmation::{Confirmations, Secret};
use crate::follow::{AlertCount, Followers, Snapshot};
use crate::request::{self, CallerId};
use crate::{ApiError, Code, Config, Result};
use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use crawler::Fetcher;
use inference::OperationReport;
use metrics_exporter_prometheus::PrometheusHandle;
use pipeline::streams::still::Stills;
use pipeline::worker::VideoTools;
use pipeline::{Analyzer, Crawls, FaceStore, MatchThreshold, Streams, Videos};
use queue::Queue;
use std::collections::HashSet;
use std::convert::Infallible;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use store::videos::Video;
use store::{Blobs, SpoolFolder, Store};
use tokio_util::sync::CancellationToken;

#[derive(Clone)]
pub struct Services {
    pub analyzer: Analyzer,
    pub store: Store,
    /// Storage for face crops, aligned chips and thumbnails.
    pub blobs: Blobs,
    pub queue: Queue,
    pub crawls: Crawls,
    /// Stores analyzed images, and holds the registered embedding model.
    pub face_store: FaceStore,
    pub videos: Videos,
    /// The folder for uploaded files. The error is the reason why this service has none.
    pub spool: Result<SpoolFolder, String>,
    /// Decodes videos. The error is the reason why this service cannot.
    pub video_tools: Result<VideoTools, String>,
    /// The device that decodes videos; `None` if this service did not search for a decoder.
    pub video_decoding: Option<OperationReport>,
    pub streams: Streams,
    /// Still pictures of the cameras that this process watches.
    pub stills: Stills,
    /// Fetches images from URLs in requests, and rejects forbidden addresses.
    pub fetcher: Fetcher,
}

/// Holds the shared state of all handlers. It is cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

pub struct Shared {
    pub services: Services,
    pub config: Config,
    pub metrics: PrometheusHandle,
    /// Fires when a shutdown is requested. Readiness then fails, and event streams end.
    pub shutdown: CancellationToken,
    pub(crate) analyses: Analyses,
    pub(crate) connection_shares: Shares,
    pub(crate) body_memory: BodyMemory,
    pub(crate) fetch_memory: FetchMemory,
    pub(crate) response_memory: ResponseMemory,
    pub(crate) event_streams: EventStreams,
    pub(crate) crawl_followers: Followers<Snapshot>,
    pub(crate) video_followers: Followers<Video>,
    pub(crate) alert_followers: Followers<AlertCount>,
    pub(crate) uploads: Uploads,
    pub(crate) keyring: Keyring,
    pub(crate) rates: Rates,
    pub(crate) confirmation_secret: Secret,
    /// Labels of the queue gauges that were exported before. A gauge that is missing from the
    /// current counts is exported as 0.
    pub(crate) exported_gauges: Mutex<HashSet<(String, &'static str)>>,
}

impl AppState {
    /// Returns the state. `metrics` is the handle of the recorder that the process installed (see
    /// `telemetry::prometheus`).
    pub fn new(
        services: Services,
        config: Config,
        metrics: PrometheusHandle,
        shutdown: CancellationToken,
    ) -> Self {
        let connections = services.store.pool().options().get_max_connections();
        Self(Arc::new(Shared {
            body_memory: BodyMemory::new(config.body_budget),
            fetch_memory: FetchMemory::new(config.body_budget, config.image_limit as u64),
            response_memory: ResponseMemory::new(config.response_budget),
            event_streams: EventStreams::new(config.max_streams),
            crawl_followers: Followers::new(&config, shutdown.clone()),
            video_followers: Followers::new(&config, shutdown.clone()),
            alert_followers: Followers::new(&config, shutdown.clone()),
            uploads: Uploads::default(),
            analyses: Analyses::new(config.max_analyses),
            services,
            config,
            metrics,
            shutdown,
            connection_shares: Shares::three_quarters_of(connections.into(), 1),
            keyring: Keyring::default(),
            rates: Rates::default(),
            confirmation_secret: Secret::default(),
            exported_gauges: Mutex::default(),
        }))
    }

    /// Returns an analyzer for the current request. Its work is scheduled fairly with that of other
    /// callers, and no work starts after the request's deadline.
    pub(crate) fn analyzer(&self) -> Analyzer {
        let analyzer = self.services.analyzer.on_behalf_of(CallerId::current().into());
        match request::deadline() {
            Some(deadline) => analyzer.with_deadline(deadline),
            None => analyzer,
        }
    }

    /// Returns the folder for uploaded files.
    ///
    /// # Errors
    /// Fails with 503 `not_ready` and the reason if this service cannot write one.
    pub(crate) fn spool(&self) -> Result<&SpoolFolder> {
        let folder = self.services.spool.as_ref();
        folder.map_err(|reason| ApiError::new(Code::NotReady, reason.clone()))
    }

    /// Returns the tools that decode videos.
    ///
    /// # Errors
    /// Fails with 503 `video_unavailable` and the reason if this service cannot decode videos.
    pub(crate) fn video_tools(&self) -> Result<&VideoTools> {
        let tools = self.services.video_tools.as_ref();
        tools.map_err(|reason| ApiError::new(Code::VideoUnavailable, reason.clone()))
    }

    /// Returns the signer for confirmation tokens. Call it before a transaction begins
    /// ([`Secret::signer`]).
    pub(crate) async fn confirmations(&self) -> Result<Confirmations> {
        self.confirmation_secret.signer(&self.services.store, self.config.confirm_above).await
    }

    /// Returns the minimum similarity at which two faces are considered one person, for a request
    /// and a collection that may define one.
    pub(crate) fn match_threshold(&self, request: Option<f32>, collection: Option<f32>) -> MatchThreshold {
        let model = self.services.analyzer.engine().embedder().match_threshold;
        MatchThreshold::resolve(request, collection, self.config.match_threshold, model)
    }

    /// Returns the false match rate at `threshold`. It is known only for the model's own threshold,
    /// and only if it was measured.
    pub(crate) fn match_fmr(&self, threshold: f32) -> Option<f64> {
        let embedder = self.services.analyzer.engine().embedder();
        embedder.match_fmr.filter(|_| threshold == embedder.match_threshold)
    }
}

impl FromRequestParts<Self> for AppState {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut Parts, state: &Self) -> Result<Self, Infallible> {
        Ok(state.clone())
    }
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

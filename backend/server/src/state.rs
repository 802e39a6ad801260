//! Contains the state that all handlers share. Shared state of a single module is defined in that
//! module.
use crate::auth::{CallerId, Keyring, Rates};
use crate::body_memory::BodyMemory;
use crate::confirmation::{Confirmations, Secret};
use crate::follow::{EventStreams, Followers, Snapshot};
use crate::limit::KeyedLimit;
use crate::shares::{CallerShare, KIB, Shares};
use crate::{ApiError, Code, Config, request};
use crawler::Fetcher;
use inference::OperationReport;
use metrics_exporter_prometheus::PrometheusHandle;
use pipeline::worker::VideoTools;
use pipeline::{Analyzer, Budget, Crawls, Ingest, MatchThreshold, Videos};
use queue::Queue;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::videos::Video;
use store::{Blobs, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// Maximum number of uploads at the same time. Each one takes a file of the maximum size on disk.
const UPLOADS: usize = 8;
const UPLOADS_OF_A_CALLER: usize = 4;

#[derive(Clone)]
pub struct Services {
    pub analyzer: Analyzer,
    pub store: Store,
    /// Storage for face crops, aligned chips and thumbnails.
    pub blobs: Blobs,
    pub queue: Queue,
    pub crawls: Crawls,
    /// Stores analyzed images, and holds the registered embedding model.
    pub ingest: Ingest,
    pub videos: Videos,
    /// Decodes videos. The error is the reason why this service cannot.
    pub video_tools: Result<VideoTools, String>,
    /// The device that decodes videos; `None` if this service did not look for a decoder.
    pub video_decoding: Option<OperationReport>,
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
    /// Fires when the process is asked to stop. Readiness then fails, and event streams end.
    pub shutdown: CancellationToken,
    analyses: Arc<Semaphore>,
    analysis_shares: Shares,
    pub(crate) connection_shares: Shares,
    pub(crate) body_memory: BodyMemory,
    /// Memory for images that are fetched for callers. It is separate from `body_memory`, because a
    /// body is still held while its images are fetched.
    pub(crate) fetch_memory: Budget,
    pub(crate) fetch_shares: Shares,
    /// Memory for responses that are still being sent to callers.
    pub(crate) response_memory: Budget,
    pub(crate) response_shares: Shares,
    pub(crate) event_streams: EventStreams,
    pub(crate) crawl_followers: Followers<Snapshot>,
    pub(crate) video_followers: Followers<Video>,
    pub(crate) caller_uploads: KeyedLimit<CallerId>,
    pub(crate) uploads: Arc<Semaphore>,
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
        let analyses = Arc::new(Semaphore::new(config.max_analyses.clamp(1, Semaphore::MAX_PERMITS)));
        let connections = services.store.pool().options().get_max_connections();
        Self(Arc::new(Shared {
            body_memory: BodyMemory::new(config.body_budget),
            fetch_memory: Budget::new("fetched_images", config.body_budget),
            fetch_shares: Shares::three_quarters_of(config.body_budget, KIB),
            response_memory: Budget::new("answers", config.answer_budget),
            response_shares: Shares::three_quarters_of(config.answer_budget, KIB),
            event_streams: EventStreams::new(&config),
            crawl_followers: Followers::new(&config, shutdown.clone()),
            video_followers: Followers::new(&config, shutdown.clone()),
            caller_uploads: KeyedLimit::new(UPLOADS_OF_A_CALLER),
            uploads: Arc::new(Semaphore::new(UPLOADS)),
            services,
            config,
            metrics,
            shutdown,
            analysis_shares: Shares::three_quarters_of(analyses.available_permits() as u64, 1),
            analyses,
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
            Some(deadline) => analyzer.before(deadline),
            None => analyzer,
        }
    }

    /// Returns the tools that decode videos.
    ///
    /// # Errors
    /// Fails with 503 `video_unavailable` and the reason if this service cannot decode videos.
    pub(crate) fn video_tools(&self) -> Result<&VideoTools, ApiError> {
        let tools = self.services.video_tools.as_ref();
        tools.map_err(|reason| ApiError::new(Code::VideoUnavailable, reason.clone()))
    }

    /// Admits `images` analyses of the current caller. Hold the admission until they have ended.
    ///
    /// One caller gets at most three quarters of the admitted analyses. A batch that is larger than
    /// the limit is admitted only while no other analysis is admitted.
    ///
    /// # Errors
    /// Fails with 429 if the limit of all analyses or the caller's share is reached.
    pub(crate) fn admit(&self, images: usize) -> Result<Admission, ApiError> {
        let refused = |what: &str| ApiError::overloaded(what, Duration::from_secs(1));
        let wanted = images.clamp(1, self.config.max_analyses.max(1));
        let mut share = self.analysis_shares.open();
        if !share.grow(wanted as u64) {
            return Err(refused("the caller has too many analyses in progress"));
        }
        let all = self.analyses.clone().try_acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX));
        let all = all.map_err(|_| refused("too many analyses are in progress"))?;
        Ok(Admission { _all: all, _share: share })
    }

    /// Returns the signer for confirmation tokens. Call it before a transaction begins
    /// ([`Secret::signer`]).
    pub(crate) async fn confirmations(&self) -> Result<Confirmations, ApiError> {
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

/// Permits the admitted analyses to wait and run. Dropping it releases their permits.
pub(crate) struct Admission {
    _all: OwnedSemaphorePermit,
    _share: CallerShare,
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

//! What the handlers share.
use crate::auth::{CallerId, Keyring, Rates};
use crate::confirmation::Secret;
use crate::middleware::bodies::Elder;
use crate::routes::crawls::Follows;
use crate::shares::{KIB, Mine, Shares};
use crate::{ApiError, Config};
use crawler::Fetcher;
use metrics_exporter_prometheus::PrometheusHandle;
use pipeline::{Analyzer, Budget, Crawls, Ingest};
use queue::Queue;
use std::collections::HashSet;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{Blobs, Store};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// The parts of the product that the API calls.
#[derive(Clone)]
pub struct Services {
    /// Bytes to faces.
    pub analyzer: Analyzer,
    /// Rows.
    pub store: Store,
    /// Crops, chips and thumbnails.
    pub blobs: Blobs,
    /// Jobs.
    pub queue: Queue,
    /// Creates and steers crawls.
    pub crawls: Crawls,
    /// Knows the registered embedding model.
    pub ingest: Ingest,
    /// Guarded fetch of images that a caller names by URL.
    pub fetcher: Fetcher,
}

/// Everything a handler needs; cheap to clone.
#[derive(Clone)]
pub struct AppState(Arc<Shared>);

/// Behind `AppState`.
pub struct Shared {
    /// The parts of the product that the API calls.
    pub services: Services,
    /// Limits and manners.
    pub config: Config,
    /// Renders `/metrics`.
    pub metrics: PrometheusHandle,
    /// Fires when the process is asked to stop: not ready any more, event streams end.
    pub shutdown: CancellationToken,
    analyses: Arc<Semaphore>,
    /// Each caller's share of the analyses.
    analysis_shares: Shares,
    /// Each caller's share of the connections to the database.
    pub(crate) places: Shares,
    /// Memory for the bodies of requests.
    pub(crate) bodies: Budget,
    /// The body that waits for more of it.
    pub(crate) elder: Elder,
    /// What the bodies of each caller hold of it.
    pub(crate) shares: Shares,
    /// Memory for images that are fetched for callers. Apart from that for bodies: a body is still held while its images are fetched.
    pub(crate) fetched: Budget,
    /// Each caller's share of that memory.
    pub(crate) fetched_shares: Shares,
    /// Memory for enhanced pictures that have not been read yet.
    pub(crate) answers: Budget,
    /// What the answers of each caller hold of it.
    pub(crate) answer_shares: Shares,
    pub(crate) follows: Follows,
    pub(crate) keyring: Keyring,
    pub(crate) rates: Rates,
    pub(crate) confirmation_secret: Secret,
    /// Queue gauges that were shown once, so that one that vanishes from the counts is shown as 0.
    pub(crate) seen_gauges: Mutex<HashSet<(String, &'static str)>>,
}

impl AppState {
    /// `metrics` is the handle of the recorder that the process installed (see `telemetry::prometheus`).
    pub fn new(
        services: Services,
        config: Config,
        metrics: PrometheusHandle,
        shutdown: CancellationToken,
    ) -> Self {
        let analyses = Arc::new(Semaphore::new(config.max_analyses.clamp(1, Semaphore::MAX_PERMITS)));
        let connections = services.store.pool().options().get_max_connections();
        let bodies = Budget::new("request_bodies", config.body_budget);
        Self(Arc::new(Shared {
            shares: Shares::of(bodies.limit(), KIB),
            bodies,
            elder: Elder::default(),
            fetched: Budget::new("fetched_images", config.body_budget),
            fetched_shares: Shares::of(config.body_budget, KIB),
            answers: Budget::new("answers", config.answer_budget),
            answer_shares: Shares::of(config.answer_budget, KIB),
            follows: Follows::new(&config, shutdown.clone()),
            services,
            config,
            metrics,
            shutdown,
            analysis_shares: Shares::of(analyses.available_permits() as u64, 1),
            analyses,
            places: Shares::of(connections.into(), 1),
            keyring: Keyring::default(),
            rates: Rates::default(),
            confirmation_secret: Secret::default(),
            seen_gauges: Mutex::default(),
        }))
    }

    /// Returns the analyzer for the request that this task answers. Its work takes turns with that
    /// of other callers, and it starts no work after the request's deadline.
    pub(crate) fn analyzer(&self) -> Analyzer {
        let analyzer = self.services.analyzer.on_behalf_of(CallerId::current().into());
        match crate::middleware::timeout::deadline() {
            Some(deadline) => analyzer.before(deadline),
            None => analyzer,
        }
    }

    /// Admits `images` analyses of the current caller. One caller has at most three quarters of all
    /// analyses that may wait. Hold the admission until they are done.
    ///
    /// A batch larger than the limit itself is admitted when nothing else runs.
    ///
    /// # Errors
    /// Fails with 429 if there is no room for any caller, or none for this caller.
    pub(crate) fn admit(&self, images: usize) -> Result<Admission, ApiError> {
        let refused = |what: &str| ApiError::overloaded(what, Duration::from_secs(1));
        let wanted = images.clamp(1, self.config.max_analyses.max(1));
        let mut share = self.analysis_shares.open();
        if !share.grow(wanted as u64) {
            return Err(refused("too many analyses of this caller are waiting"));
        }
        let all = self.analyses.clone().try_acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX));
        let all = all.map_err(|_| refused("too many analyses are waiting"))?;
        Ok(Admission { _all: all, _share: share })
    }

    /// The similarity from which two faces count as one person, where no collection says otherwise.
    pub(crate) fn match_threshold(&self) -> f32 {
        self.config
            .match_threshold
            .unwrap_or_else(|| self.services.analyzer.engine().embedder().match_threshold)
    }

    /// The false-match rate of a threshold, if it is the model's own and was measured.
    pub(crate) fn match_fmr(&self, threshold: f32) -> Option<f64> {
        let embedder = self.services.analyzer.engine().embedder();
        embedder.match_fmr.filter(|_| threshold == embedder.match_threshold)
    }
}

/// Permits analyses to wait and run. Dropping it releases them.
pub(crate) struct Admission {
    _all: OwnedSemaphorePermit,
    _share: Mine,
}

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

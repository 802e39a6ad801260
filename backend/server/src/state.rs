//! What the handlers share.
use crate::auth::{Keyring, Rates};
use crate::confirmation::Secret;
use crate::middleware::bodies::{Elder, Shares};
use crate::routes::crawls::Follows;
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
    /// Memory for the bodies of requests.
    pub(crate) bodies: Budget,
    /// The body that waits for more of it.
    pub(crate) elder: Elder,
    /// What the bodies of each caller hold of it.
    pub(crate) shares: Shares,
    /// Memory for images that are fetched for callers. Apart from that for bodies: a body is still held while its images are fetched.
    pub(crate) fetched: Budget,
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
        let bodies = Budget::new("request_bodies", config.body_budget);
        Self(Arc::new(Shared {
            shares: Shares::of(bodies.limit()),
            bodies,
            elder: Elder::default(),
            fetched: Budget::new("fetched_images", config.body_budget),
            answers: Budget::new("answers", config.answer_budget),
            answer_shares: Shares::of(config.answer_budget),
            follows: Follows::new(&config, shutdown.clone()),
            services,
            config,
            metrics,
            shutdown,
            analyses,
            keyring: Keyring::default(),
            rates: Rates::default(),
            confirmation_secret: Secret::default(),
            seen_gauges: Mutex::default(),
        }))
    }

    /// The analyzer for the request that this task answers: it starts nothing once the request's time is over.
    pub(crate) fn analyzer(&self) -> Analyzer {
        let analyzer = &self.services.analyzer;
        crate::middleware::timeout::deadline()
            .map_or_else(|| analyzer.clone(), |deadline| analyzer.before(deadline))
    }

    /// Admits `images` analyses, or says that the service is overloaded. Hold the permit until they are done.
    ///
    /// A batch larger than the limit itself is admitted when nothing else runs.
    pub(crate) fn admit(&self, images: usize) -> Result<OwnedSemaphorePermit, ApiError> {
        let wanted = images.clamp(1, self.config.max_analyses.max(1));
        self.analyses
            .clone()
            .try_acquire_many_owned(u32::try_from(wanted).unwrap_or(u32::MAX))
            .map_err(|_| ApiError::overloaded("too many analyses are waiting", Duration::from_secs(1)))
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

impl Deref for AppState {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

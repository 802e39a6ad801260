//! Stores images. Recognises known files before any model runs, and other versions of known images
//! by their faces. Writes the blobs of a new image, and then its rows in one transaction. Fetching
//! is in the module `worker`.
//!
//! Blobs are named by their content. If the transaction is rolled back (stale claim, database
//! failure) or another transaction stores the image first, the blobs are not deleted. The next
//! attempt with the same image uses the same names. A sweep of the blob store removes blobs that no
//! row refers to.

pub(crate) mod blobs;
mod dedupe;
mod known;
pub(crate) mod outcome;
pub(crate) mod record;
mod same_people;
mod sketch;
pub(crate) mod suppress;
mod versions;

pub use crate::people::enrol::{EnrolError, Enrolled, Enrolment, unmet_requirements};
pub use crate::people::reembed::{NotReembedded, Reembedded};
pub use crate::scan::Scan;
pub use crate::scan::videos::ScannedVideo;
pub use crate::videos::read::{ReadVideoError, VideoFile};
pub use crate::videos::store::{StoredVideo, VideoReader};
pub use sketch::{Sketcher, max_differing_bits};

use crate::domain::ChangeError;
use crate::{AnalyzeError, AnalyzeOptions, Analyzer, Dedupe};
use bytes::Bytes;
use domain::Reason;
use inference::Priority;
use queue::{Claim, Queue, QueueError};
use record::Analyzed;
use same_people::ShownFaces;
use std::sync::Arc;
use store::crawls::http_cache::CachedResponse;
use store::{Blobs, Store, StoreError, retried};
use suppress::{ImageAddress, SuppressedParts};
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingested {
    /// The image was stored, possibly as the replacement of smaller versions. With [`Dedupe::Off`],
    /// this also applies to a file that was stored before.
    Stored { image: Uuid, faces: usize },
    /// The image is already stored, from a file with the same bytes or from another file of the
    /// same image. The source was added to the stored image.
    Duplicate {
        image: Uuid,
        /// `ExactDuplicate`, `NearDuplicate` or `NotModified`.
        reason: Reason,
    },
    /// The image was not stored, because the image, its address, or every person in it was erased
    /// and must not be stored again.
    Suppressed {
        /// `SuppressedUrl`, `SuppressedImage`, `SuppressedFace` or `SuppressedPerson`.
        reason: Reason,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The queue failed, or the claim is stale. Everything was rolled back.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

crate::domain::transient::transient!(IngestError);

impl From<ChangeError> for IngestError {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::Store(error) => error.into(),
            ChangeError::Queue(error) => error.into(),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Incoming {
    /// The file.
    pub bytes: Bytes,
    /// Whether the transfer of the file ended early.
    pub incomplete: bool,
    pub collection: Uuid,
    pub crawl: Uuid,
    /// The crawl's ledger row to settle.
    pub image_url: Uuid,
    pub dedupe: Dedupe,
    pub options: AnalyzeOptions,
    /// The final address of the fetch, if it differs from the one in the ledger row.
    pub moved_to: Option<String>,
    /// Where the file was fetched, so that the next crawl can send a conditional request.
    pub fetched: Option<FetchedFrom>,
}

#[derive(Clone, Debug)]
pub struct FetchedFrom {
    /// The requested address.
    pub url: String,
    /// The validators of the response, if it had any.
    pub visit: Option<CachedResponse>,
}

/// Analyses and stores images. Cloning it is cheap.
#[derive(Clone)]
pub struct Ingest {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) analyzer: Analyzer,
    pub(crate) store: Store,
    pub(crate) blobs: Blobs,
    pub(crate) queue: Queue,
    pub(crate) model_id: i32,
    pub(crate) sketcher: Option<Sketcher>,
}

/// Maximum number of attempts to find a stored image that other transactions replace.
const MAX_ATTEMPTS: usize = 5;

impl Ingest {
    /// Creates an ingest and registers the engine's embedding model in the store.
    pub async fn new(
        analyzer: Analyzer,
        store: Store,
        blobs: Blobs,
        queue: Queue,
    ) -> Result<Self, StoreError> {
        let embedder = analyzer.engine().embedder();
        let dimensions = i32::try_from(embedder.dimensions).unwrap_or(i32::MAX);
        let model = store.register_model(&embedder.identity, &embedder.name, dimensions).await?;
        store.record_match_threshold(model.id, embedder.match_threshold, embedder.match_fmr).await?;
        let inner = Inner { analyzer, store, blobs, queue, model_id: model.id, sketcher: None };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns an ingest that also suppresses people whose sketches were computed with this secret
    /// (`SUPPRESSION_SECRET`).
    #[must_use]
    pub fn with_sketcher(self, sketcher: Sketcher) -> Self {
        let Inner { analyzer, store, blobs, queue, model_id, .. } = &*self.inner;
        let inner = Inner {
            analyzer: analyzer.clone(),
            store: store.clone(),
            blobs: blobs.clone(),
            queue: queue.clone(),
            model_id: *model_id,
            sketcher: Some(sketcher),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Analyses and stores an image and settles its ledger row in one transaction. With a claim,
    /// the transaction also completes the job. The caller must end the crawl if this was its last
    /// row. If the call fails, nothing is stored and the row is not settled.
    ///
    /// # Errors
    /// Fails with [`IngestError`], for example with `QueueError::Stale` if the claim was lost in
    /// the meantime.
    pub async fn ingest(&self, incoming: Incoming, claim: Option<Claim>) -> Result<Ingested, IngestError> {
        let sha256 = self.inner.analyzer.digest(incoming.bytes.clone()).await?;
        // A larger version can replace the stored image before the source is linked to it. In that
        // case the loop searches again.
        for _ in 0..MAX_ATTEMPTS {
            // Usually a collection suppresses nothing, and the checks before the transaction of
            // `record` are not necessary. That transaction checks again, so no erasure is missed.
            let checks = self.suppresses(incoming.collection).await?;
            if checks && let Some(reason) = self.suppression_reason(&incoming, &sha256, None).await? {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            if let Some(known) = self.inner.store.image_by_sha256(incoming.collection, &sha256).await? {
                match self.settle_known(&incoming, claim, &known).await? {
                    Some(done) => return Ok(done),
                    None => continue,
                }
            }
            let (bytes, enhance) = (incoming.bytes.clone(), incoming.options.enhance);
            let picture =
                self.inner.analyzer.decode_hashed(bytes, Some(sha256), enhance, Priority::Background).await?;
            if checks
                && let Some(reason) =
                    self.suppression_reason(&incoming, &sha256, Some(&picture.hashes)).await?
            {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            let options = AnalyzeOptions { chips: true, ..incoming.options.clone() };
            let analysis = self.inner.analyzer.find_faces(picture, &options, Priority::Background).await?;
            let mut suppressed = SuppressedParts::default();
            if checks {
                let mut tx = self.inner.store.begin().await?;
                let address = Some(ImageAddress::of(&incoming));
                suppressed = self.suppressed_parts(&mut tx, incoming.collection, address, &analysis).await?;
            }
            if let Some(reason) = suppressed.whole {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            let analysis = self.without_faces(analysis, &suppressed.faces).await?;
            let (shown, duplicate) = match incoming.dedupe {
                Dedupe::Near => self.find_duplicate(incoming.collection, &analysis, &options).await?,
                _ => (ShownFaces::default(), None),
            };
            // The collection's first erasure may have been committed since `checks` was read. The
            // faces that it erased must not be written as blobs, so the loop starts again.
            if !checks && !analysis.faces.is_empty() && self.suppresses(incoming.collection).await? {
                continue;
            }
            if duplicate.is_some() {
                match retried("settle_near", || self.settle_near(&incoming, claim, &analysis, &shown)).await?
                {
                    Some(done) => return Ok(done),
                    None => continue,
                }
            }
            let blobs = self.write_blobs(&analysis).await?;
            let partly = !suppressed.faces.is_empty();
            let analyzed = Analyzed { analysis: &analysis, shown: &shown, blobs: &blobs, partly };
            // Only the transaction is repeated after a conflict, not the download and the analysis.
            let recorded = retried("store_image", || self.record(&incoming, claim, &analyzed)).await?;
            match recorded {
                Some(done) => return Ok(done),
                None => self.discard_blobs(blobs.keys()).await,
            }
        }
        Err(StoreError::Conflict("versions of the image replace each other repeatedly; try again".into())
            .into())
    }

    /// Returns the id of the registered embedding model in the store.
    pub fn model_id(&self) -> i32 {
        self.inner.model_id
    }

    /// Returns the blob store of crops, chips and thumbnails.
    pub(crate) fn blobs(&self) -> &Blobs {
        &self.inner.blobs
    }

    pub fn analyzer(&self) -> &Analyzer {
        &self.inner.analyzer
    }
}

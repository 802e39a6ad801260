//! A picture into the store: known ones are recognised before any model runs; blobs are written first, then rows in one transaction.
//!
//! Blobs are named by their content. When the transaction is rolled back (a stale claim, a database failure) or lost to a race, the blobs just
//! written stay: the next attempt at the same picture names the same blobs, and what nobody ever refers to is left to an orphan sweep of
//! the blob store.

mod blobs;
mod dedupe;
mod enrol;
mod known;
pub(crate) mod outcome;
mod record;
mod reembed;
pub(crate) mod scan;
mod sketch;
pub(crate) mod suppress;
mod versions;

pub use enrol::{EnrolError, Enrolled, Enrolment, lacks};
pub use reembed::{Left, Reembedded};
pub use scan::Scan;
pub use sketch::{Sketcher, most_differing_bits};

use crate::domain::NotificationError;
use crate::{AnalyzeError, AnalyzeOptions, Analyzer, Dedupe};
use bytes::Bytes;
use dedupe::Relation;
use inference::Priority;
use queue::{Claim, Queue, QueueError};
use std::sync::Arc;
use store::http_cache::Visit;
use store::{Blobs, Store, StoreError, retried};
use suppress::Place;
use uuid::Uuid;

/// What became of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingested {
    /// Stored anew, also in the place of smaller versions; with [`Dedupe::Off`] also a file that was stored before.
    Stored {
        /// The image.
        image: Uuid,
        /// Faces stored with it.
        faces: usize,
    },
    /// Known already (`exact`: same bytes; `near`: same picture); the source was added to that image.
    Duplicate {
        /// The known image.
        image: Uuid,
        /// `exact_duplicate` or `near_duplicate`.
        reason: &'static str,
    },
    /// Not stored: it, its address, or everyone in it was erased and must not come back.
    Suppressed {
        /// `suppressed_url`, `suppressed_image`, `suppressed_face` or `suppressed_person`.
        reason: &'static str,
    },
}

/// Why a picture was not stored.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// It cannot be analysed.
    #[error(transparent)]
    Analyze(#[from] AnalyzeError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The queue failed, or the claim is stale: everything was rolled back.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

crate::domain::transient::transient!(IngestError);

impl From<NotificationError> for IngestError {
    fn from(error: NotificationError) -> Self {
        match error {
            NotificationError::Store(error) => error.into(),
            NotificationError::Queue(error) => error.into(),
        }
    }
}

/// One picture on its way in.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// The file.
    pub bytes: Bytes,
    /// Whose it will be.
    pub collection: Uuid,
    /// The crawl of the ledger row.
    pub crawl: Uuid,
    /// The crawl's ledger row to settle.
    pub image_url: Uuid,
    /// How duplicates are told.
    pub dedupe: Dedupe,
    /// How to analyse it.
    pub options: AnalyzeOptions,
    /// The address that answered, if it is not the one of the ledger row.
    pub moved_to: Option<String>,
    /// Where it was fetched, so that the next crawl can ask whether it has changed.
    pub fetched: Option<FetchedFrom>,
}

/// Where a picture was fetched.
#[derive(Clone, Debug)]
pub struct FetchedFrom {
    /// The address that was asked for.
    pub url: String,
    /// What the answer said of itself, if it did.
    pub visit: Option<Visit>,
}

/// The way in; cheap to clone.
#[derive(Clone)]
pub struct Ingest {
    inner: Arc<Inner>,
}

struct Inner {
    analyzer: Analyzer,
    store: Store,
    blobs: Blobs,
    queue: Queue,
    model_id: i32,
    sketcher: Option<Sketcher>,
}

/// Times that a known image is looked for anew.
const LOOKS: usize = 5;

impl Ingest {
    /// Registers the engine's embedding model.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn new(
        analyzer: Analyzer,
        store: Store,
        blobs: Blobs,
        queue: Queue,
    ) -> Result<Self, StoreError> {
        let embedder = analyzer.engine().embedder();
        let dimensions = i32::try_from(embedder.dimensions).unwrap_or(i32::MAX);
        let model = store.register_model(&embedder.identity, &embedder.name, dimensions).await?;
        store.note_match(model.id, embedder.match_threshold, embedder.match_fmr).await?;
        let inner = Inner { analyzer, store, blobs, queue, model_id: model.id, sketcher: None };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The same, keeping out people whose sketches were made with this secret (`SUPPRESSION_SECRET`).
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

    /// Analyses and stores a picture, settles its ledger row and (with a claim) completes its job and, where this was its last row, the crawl, in one
    /// transaction.
    ///
    /// Without a claim the caller ends the crawl. On an error nothing is stored and the row is not settled.
    ///
    /// # Errors
    /// [`IngestError`]; `QueueError::Stale` when the claim was lost meanwhile.
    pub async fn ingest(&self, incoming: Incoming, claim: Option<Claim>) -> Result<Ingested, IngestError> {
        let sha256 = self.inner.analyzer.digest(incoming.bytes.clone()).await?;
        // A stored image that was found can be replaced by a larger version before it is linked to: then look again.
        for _ in 0..LOOKS {
            if let Some(reason) = self.refusal(&incoming, &sha256, None).await? {
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
            if let Some(reason) = self.refusal(&incoming, &sha256, Some(&picture.hashes)).await? {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            if incoming.dedupe == Dedupe::Near
                && let Relation::Duplicate(image) =
                    self.near(incoming.collection, &picture.hashes, &picture.frame).await?
            {
                match self.settle_near(&incoming, claim, image).await? {
                    Some(done) => return Ok(done),
                    None => continue,
                }
            }
            let options = AnalyzeOptions { chips: true, ..incoming.options.clone() };
            let analysis = self.inner.analyzer.find_faces(picture, &options, Priority::Background).await?;
            let mut tx = self.inner.store.begin().await?;
            let verdict =
                self.judge(&mut tx, incoming.collection, Some(Place::of(&incoming)), &analysis).await?;
            drop(tx);
            if let Some(reason) = verdict.whole {
                return self.settle_suppressed(&incoming, claim, reason).await;
            }
            let analysis = self.without(analysis, &verdict.faces).await?;
            let stored = self.write_blobs(&analysis).await?;
            let partly = !verdict.faces.is_empty();
            // Not the download and the analysis anew because two transactions met.
            let recorded =
                retried("store_image", || self.record(&incoming, claim, &analysis, &stored, partly)).await?;
            match recorded {
                Some(done) => return Ok(done),
                // Something was erased meanwhile.
                None => continue,
            }
        }
        Err(StoreError::Conflict("versions of the picture replace each other over and over".into()).into())
    }

    /// The registered embedding model's id in the store.
    pub fn model_id(&self) -> i32 {
        self.inner.model_id
    }

    /// Where crops, chips and thumbnails are.
    pub(crate) fn blobs(&self) -> &Blobs {
        &self.inner.blobs
    }

    /// The path from bytes to faces.
    pub fn analyzer(&self) -> &Analyzer {
        &self.inner.analyzer
    }
}

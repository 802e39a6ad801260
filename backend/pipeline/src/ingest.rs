//! An analysed picture into the store: blobs first, then rows in one transaction.
use crate::{AnalyzeError, AnalyzeOptions, Analyzer, Dedupe};
use bytes::Bytes;
use store::{Blobs, Store, StoreError};
use uuid::Uuid;

/// What became of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ingested {
    /// Stored anew.
    Stored {
        /// The new image.
        image: Uuid,
        /// Faces stored.
        faces: usize,
    },
    /// Known already (`exact`: same bytes; `near`: same picture); the source was added to that image.
    Duplicate {
        /// The known image.
        image: Uuid,
        /// `exact_duplicate` or `near_duplicate`.
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
    Queue(#[from] queue::QueueError),
}

/// One picture on its way in.
#[derive(Clone, Debug)]
pub struct Incoming {
    /// The file.
    pub bytes: Bytes,
    /// Whose it will be.
    pub collection: Uuid,
    /// The crawl's ledger row to settle.
    pub image_url: Uuid,
    /// How duplicates are told.
    pub dedupe: Dedupe,
    /// How to analyse it.
    pub options: AnalyzeOptions,
}

/// The way in; cheap to clone.
#[derive(Clone)]
pub struct Ingest {
    _analyzer: Analyzer,
    _store: Store,
    _blobs: Blobs,
}

impl Ingest {
    /// Registers the engine's embedding model.
    pub async fn new(
        _analyzer: Analyzer,
        _store: Store,
        _blobs: Blobs,
        _queue: queue::Queue,
    ) -> Result<Self, StoreError> {
        todo!()
    }
    /// Analyses and stores a picture, settles its ledger row and (with a claim) completes its job, in one transaction.
    pub async fn ingest(
        &self,
        _incoming: Incoming,
        _claim: Option<queue::Claim>,
    ) -> Result<Ingested, IngestError> {
        todo!()
    }
    /// The registered embedding model's id in the store.
    pub fn model_id(&self) -> i32 {
        todo!()
    }
}

//! The interface of a vector engine outside the database. It does not depend on Postgres. An engine
//! contains sets of faces, each with the embeddings of one model. An engine may be outdated, and
//! its results may be wrong: [`crate::index::external`] compares them with the rows.
use std::ops::RangeInclusive;
use uuid::Uuid;

/// Bounds of the number of candidates that a search in a graph keeps, and the number for each
/// million faces of the set. A larger set needs more candidates to find the same share of the
/// matches; see `docs/reference/PERFORMANCE.md`.
const CANDIDATES: RangeInclusive<usize> = 128..=2_048;
const CANDIDATES_PER_MILLION: usize = 256;

/// Returns the number of candidates of a search in a graph: `configured`, or else a number that
/// depends on the number of faces in the set. It is at most `max`, and at least twice `limit`.
pub fn search_candidates(configured: Option<usize>, limit: usize, faces: usize, max: usize) -> usize {
    let default = faces.saturating_mul(CANDIDATES_PER_MILLION) / 1_000_000;
    let default = default.clamp(*CANDIDATES.start(), *CANDIDATES.end());
    configured.unwrap_or(default).min(max).max(limit.saturating_mul(2))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaceSet {
    /// Its name in the engine.
    pub id: Uuid,
    pub dimensions: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EngineFace {
    pub id: Uuid,
    pub collection_id: Uuid,
    pub has_subject: bool,
    /// Its overall quality, 0 to 1.
    pub quality: Option<f32>,
    /// Whether it failed its quality profile.
    pub failed_quality: bool,
    /// When it was stored, in microseconds since 1970.
    pub stored_us: i64,
    /// Its embedding, as Postgres contains it: rounded to half precision.
    pub embedding: Vec<f32>,
}

/// The faces that a query compares with. Other filters are applied to the rows.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineFilter {
    pub collection_id: Uuid,
    pub min_quality: Option<f32>,
    /// Omits faces that failed their quality profile.
    pub omit_failed: bool,
    pub with_subject: bool,
    /// Only faces stored at this time or later, in microseconds since 1970.
    pub since_us: Option<i64>,
    /// Only faces stored before this time, in microseconds since 1970.
    pub until_us: Option<i64>,
}

impl EngineFilter {
    /// Returns whether the filter may select only a small part of the collection. A graph has too
    /// few links between the faces of such a part. The search must then also follow links through
    /// the other faces (ACORN, Patel et al. 2024): without this, a filter that selects a tenth of
    /// 40,000 faces loses a third of the matches.
    pub fn is_narrow(&self) -> bool {
        self.min_quality.is_some() || self.omit_failed || self.with_subject || self.has_period()
    }

    /// Returns whether the filter depends on the time at which a face was stored.
    pub fn has_period(&self) -> bool {
        self.since_us.is_some() || self.until_us.is_some()
    }
}

/// A query for the most similar faces. The comparison may be approximate.
#[derive(Clone, Debug)]
pub struct EngineQuery {
    pub filter: EngineFilter,
    /// The probe embedding. It has the number of components of the set.
    pub probe: Vec<f32>,
    pub limit: usize,
    /// Number of candidates that a search in a graph keeps, at least `limit`.
    pub candidates: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineHit {
    pub id: Uuid,
    /// Cosine similarity, -1 to 1.
    pub similarity: f32,
}

/// Changes of a set. No face is both stored and deleted.
#[derive(Clone, Debug)]
pub struct Update {
    /// The number of the transaction that read the rows. A later transaction has a greater number.
    /// The engine leaves a face unchanged if an update with the same or a greater number has
    /// already changed it. Otherwise a delayed request could bring a deleted face back.
    pub fence: i64,
    /// Faces to store or replace.
    pub stored: Vec<EngineFace>,
    pub deleted: Vec<Uuid>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct SetInfo {
    pub faces: u64,
    /// Number of faces in a graph. Searches compare with the other faces one by one.
    pub in_graph: u64,
    /// Whether the graphs are as complete as the engine requires. If not, the engine is building
    /// them.
    pub settled: bool,
}

/// The reason why an engine call failed, as a text for the log.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct EngineError(pub String);

/// A vector engine outside the database. Each method fails with [`EngineError`] if the engine is
/// not available.
#[async_trait::async_trait]
pub trait VectorEngine: std::fmt::Debug + Send + Sync {
    /// Returns the name of the implementation: the value of `SEARCH_INDEX`.
    fn name(&self) -> &'static str;

    /// Returns the random ids of the server that stores the sets.
    async fn server_ids(&self) -> Result<Vec<Uuid>, EngineError>;

    /// Returns the id that the database must record. `recorded` is the id that it contains. Fails
    /// if another installation uses the server.
    async fn claim(&self, recorded: Option<Uuid>) -> Result<Uuid, EngineError>;

    /// Stores an id that the database has recorded.
    async fn store_server_id(&self, id: Uuid) -> Result<(), EngineError>;

    async fn sets(&self) -> Result<Vec<Uuid>, EngineError>;

    /// Creates a set, or completes an interrupted creation. Does nothing if it is complete.
    async fn create(&self, set: &FaceSet) -> Result<(), EngineError>;

    /// Deletes a set. Does nothing if it does not exist.
    async fn remove(&self, set: Uuid) -> Result<(), EngineError>;

    /// Returns the result of each query, in their order. The faces of a result have any order.
    async fn search(
        &self,
        set: &FaceSet,
        queries: Vec<EngineQuery>,
    ) -> Result<Vec<Vec<EngineHit>>, EngineError>;

    /// Stores or replaces faces, and deletes others. The changes are durable when it returns.
    /// Repeating them changes nothing. After an error, a part of the changes may have been made.
    async fn update(&self, set: &FaceSet, update: Update) -> Result<(), EngineError>;

    /// Returns the faces after the id `after`, at most `limit`, in the order of their ids.
    async fn page(&self, set: &FaceSet, after: Uuid, limit: usize) -> Result<Vec<EngineFace>, EngineError>;

    /// Starts to build the graphs of a set, which now contains all faces that existed when it was
    /// created. Does nothing if the engine has no graphs. Repeating the call changes nothing.
    async fn start_graphs(&self, _: &FaceSet) -> Result<(), EngineError> {
        Ok(())
    }

    /// Returns the size and state of a set. After [`Self::start_graphs`], also continues to build
    /// graphs that are not complete.
    async fn info(&self, set: &FaceSet) -> Result<SetInfo, EngineError>;
}

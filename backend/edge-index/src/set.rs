//! One set of faces: a shard of the storage engine in its own folder.
use crate::filter;
use qdrant_edge::{
    CreateIndex, DEFAULT_VECTOR_NAME, Distance, EdgeConfig, EdgeOptimizersConfig, EdgeShard,
    EdgeVectorParams, FieldIndexOperations, HnswIndexConfig, NamedQuery, OperationError, PayloadFieldSchema,
    PointId, PointInsertOperations, PointOperations, PointStructPersisted, QueryEnum, ScrollRequest,
    SearchParams, SearchRequest, UpdateOperation, VectorInternal, VectorStorageDatatype,
    VectorStructInternal, VectorStructPersisted, WithPayloadInterface, WithVector,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use store::vector_engine::{Candidate, EngineError, EngineFace, EngineQuery, SetInfo};
use tokio::sync::{Mutex, OwnedMutexGuard};
use uuid::Uuid;

/// Parameters of the graph: the number of links per face and layer, and the number of candidates
/// considered when a face is added.
const LINKS: usize = 16;
const CANDIDATES: usize = 128;
/// Number of candidates that a search keeps, per requested face and at least.
const EF_PER_FACE: usize = 2;
const MIN_EF: usize = 128;
/// Number of changes after which the engine checks whether it must extend its graphs. Faces without
/// a graph are compared one by one.
const CHANGES_PER_CHECK: u64 = 5_000;
/// Extension of the folder of a set that is being created.
pub(crate) const UNFINISHED: &str = "new";
/// Operations that change a set are numbered, and the engine ignores an operation whose number is
/// lower than that of the stored face. After a crash, the highest number may be unknown, so this
/// many numbers are skipped. Each call of [`Set::update`] uses two of them before it is durable.
const SKIPPED_NUMBERS: usize = 16;

/// A set of faces.
#[derive(Debug)]
pub(crate) struct Set {
    shard: EdgeShard,
    path: PathBuf,
    order: Arc<Mutex<()>>,
    /// Number of changes since the last check of the graphs.
    changes: AtomicU64,
    optimising: AtomicBool,
    /// Held while graphs are built: the engine does not expect two such calls at a time.
    graphs: std::sync::Mutex<()>,
}

impl Set {
    /// Creates an empty set for embeddings with this number of components. The folder gets its name
    /// when the set is complete, so a crash leaves no set without indexes of its fields.
    pub(crate) fn create(path: &Path, dimensions: usize) -> Result<Self, EngineError> {
        let io = |error: std::io::Error| EngineError(error.to_string());
        let new = path.with_extension(UNFINISHED);
        if new.exists() {
            fs::remove_dir_all(&new).map_err(io)?;
        }
        create_files(&new, dimensions)?;
        fs::rename(&new, path).map_err(io)?;
        Self::load(path)
    }

    /// Opens a set that exists.
    pub(crate) fn load(path: &Path) -> Result<Self, EngineError> {
        let shard = EdgeShard::load(path, None).map_err(engine)?;
        for _ in 0..SKIPPED_NUMBERS {
            shard.update(points(PointOperations::DeletePoints { ids: Vec::new() })).map_err(engine)?;
        }
        Ok(Self::new(shard, path))
    }

    fn new(shard: EdgeShard, path: &Path) -> Self {
        Self {
            shard,
            path: path.to_owned(),
            order: Arc::default(),
            changes: AtomicU64::new(0),
            optimising: AtomicBool::new(false),
            graphs: std::sync::Mutex::default(),
        }
    }

    /// Waits for the changes of earlier callers. Later callers wait until the guard is dropped.
    pub(crate) async fn order(&self) -> OwnedMutexGuard<()> {
        self.order.clone().lock_owned().await
    }

    /// Returns the most similar faces that pass the filter.
    pub(crate) fn search(&self, query: &EngineQuery) -> Result<Vec<Candidate>, EngineError> {
        let probe = VectorInternal::Dense(query.probe.clone());
        let nearest = QueryEnum::Nearest(NamedQuery::new(probe, DEFAULT_VECTOR_NAME.to_owned()));
        let mut request = SearchRequest::new(nearest, query.limit);
        request.filter = Some(filter::conditions(&query.filter)?);
        let ef = query.limit.saturating_mul(EF_PER_FACE).max(MIN_EF);
        request.params = Some(SearchParams { hnsw_ef: Some(ef), ..SearchParams::default() });
        let found = self.shard.search(request).map_err(engine)?;
        let face = |id: PointId, similarity| Some(Candidate { id: uuid(id)?, similarity });
        Ok(found.into_iter().filter_map(|point| face(point.id, point.score)).collect())
    }

    /// Stores faces and deletes others. The changes are durable when it returns.
    pub(crate) fn update(&self, stored: Vec<EngineFace>, deleted: Vec<Uuid>) -> Result<(), EngineError> {
        let changes = stored.len() + deleted.len();
        if !deleted.is_empty() {
            let ids = deleted.into_iter().map(PointId::Uuid).collect();
            self.shard.update(points(PointOperations::DeletePoints { ids })).map_err(engine)?;
        }
        if !stored.is_empty() {
            let stored = stored.into_iter().map(point).collect();
            let upsert = PointOperations::UpsertPoints(PointInsertOperations::PointsList(stored));
            self.shard.update(points(upsert)).map_err(engine)?;
        }
        self.shard.flush().map_err(engine)?;
        self.changes.fetch_add(changes as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Extends the graphs on a thread of its own, if there were enough changes. The thread may run
    /// for minutes and ends with the process; a graph that is not complete then is built again.
    pub(crate) fn optimise_in_background(set: &Arc<Self>) {
        if set.changes.load(Ordering::Relaxed) < CHANGES_PER_CHECK
            || set.optimising.swap(true, Ordering::AcqRel)
        {
            return;
        }
        let shared = set.clone();
        let started = std::thread::Builder::new().name("index-graphs".into()).spawn(move || {
            shared.changes.store(0, Ordering::Relaxed);
            let _graphs = shared.graphs.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(error) = shared.shard.optimize() {
                tracing::error!(%error, "failed to build a graph of the search index");
            }
            shared.optimising.store(false, Ordering::Release);
        });
        if let Err(error) = started {
            set.optimising.store(false, Ordering::Release);
            tracing::error!(%error, "failed to start the thread that builds graphs");
        }
    }

    /// Writes the files of segments that contain deleted faces anew, without them.
    pub(crate) fn purge(&self) -> Result<(), EngineError> {
        let every = EdgeOptimizersConfig {
            deleted_threshold: Some(0.0),
            vacuum_min_vector_number: Some(1),
            ..EdgeOptimizersConfig::default()
        };
        let _graphs = self.graphs.lock().unwrap_or_else(PoisonError::into_inner);
        self.shard.set_optimizers_config(every).map_err(engine)?;
        let purged = self.shard.optimize();
        self.shard.set_optimizers_config(EdgeOptimizersConfig::default()).map_err(engine)?;
        purged.map_err(engine)?;
        self.shard.flush().map_err(engine)
    }

    /// Returns the faces after the id `after`, at most `limit`, in the order of their ids.
    pub(crate) fn page(&self, after: Uuid, limit: usize) -> Result<Vec<EngineFace>, EngineError> {
        let request = ScrollRequest {
            offset: Some(PointId::Uuid(after)),
            // The first face may be `after` itself.
            limit: Some(limit.saturating_add(1)),
            with_payload: Some(WithPayloadInterface::Bool(true)),
            with_vector: WithVector::Bool(true),
            ..ScrollRequest::new()
        };
        let (records, _) = self.shard.scroll(request).map_err(engine)?;
        let faces = records.into_iter().filter_map(|record| {
            let id = uuid(record.id).filter(|id| *id != after)?;
            let embedding = match record.vector {
                Some(VectorStructInternal::Single(embedding)) => embedding,
                _ => Vec::new(),
            };
            Some(filter::face(id, &record.payload.unwrap_or_default(), embedding))
        });
        faces.take(limit).collect()
    }

    /// Returns the number of faces, how many of them are in a graph, and the size of the files.
    pub(crate) fn info(&self) -> Result<SetInfo, EngineError> {
        let info = self.shard.info().map_err(engine)?;
        Ok(SetInfo {
            faces: info.points_count as u64,
            in_graph: info.indexed_vectors_count as u64,
            bytes: size(&self.path),
            building: self.optimising.load(Ordering::Acquire),
        })
    }
}

/// Creates the files of an empty set.
fn create_files(path: &Path, dimensions: usize) -> Result<(), EngineError> {
    let vector = EdgeVectorParams::builder(dimensions, Distance::Cosine)
        .datatype(VectorStorageDatatype::Float16)
        .build();
    let config = EdgeConfig::builder()
        .vector(DEFAULT_VECTOR_NAME, vector)
        .hnsw_config(graph())
        .wal_enabled(false)
        .build();
    let shard = EdgeShard::new(path, config).map_err(engine)?;
    for (name, kind) in filter::FIELDS {
        let index = CreateIndex {
            field_name: filter::path(name)?,
            field_schema: Some(PayloadFieldSchema::FieldType(kind)),
        };
        shard
            .update(UpdateOperation::FieldIndexOperation(FieldIndexOperations::CreateIndex(index)))
            .map_err(engine)?;
    }
    shard.flush().map_err(engine)?;
    Ok(())
}

/// Returns the parameters of the graphs. Half of the cores build them, so that the other half can
/// answer requests.
fn graph() -> HnswIndexConfig {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    HnswIndexConfig {
        m: LINKS,
        ef_construct: CANDIDATES,
        max_indexing_threads: (cores / 2).max(1),
        ..HnswIndexConfig::default()
    }
}

fn point(face: EngineFace) -> PointStructPersisted {
    PointStructPersisted {
        id: PointId::Uuid(face.id),
        payload: Some(filter::payload(&face)),
        vector: VectorStructPersisted::Single(face.embedding),
    }
}

fn points(operation: PointOperations) -> UpdateOperation {
    UpdateOperation::PointOperation(operation)
}

fn uuid(id: PointId) -> Option<Uuid> {
    match id {
        PointId::Uuid(id) => Some(id),
        PointId::NumId(_) => None,
    }
}

fn engine(error: OperationError) -> EngineError {
    EngineError(error.to_string())
}

/// Returns the space that the files in a folder occupy, in bytes. Files may be deleted meanwhile.
fn size(folder: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let size_of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => allocated(&metadata),
        Err(_) => 0,
    };
    entries.flatten().map(size_of).sum()
}

/// The engine creates files with holes, so the length of a file is not what it occupies.
#[cfg(unix)]
fn allocated(metadata: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(metadata) * 512
}

#[cfg(not(unix))]
fn allocated(metadata: &fs::Metadata) -> u64 {
    metadata.len()
}

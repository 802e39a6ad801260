//! One set of faces: a shard of the storage engine in its own folder.
use crate::filter;
use qdrant_edge::{
    AcornSearchParams, CreateIndex, DEFAULT_VECTOR_NAME, Distance, EdgeConfig, EdgeOptimizersConfig,
    EdgeShard, EdgeVectorParams, FieldIndexOperations, HnswIndexConfig, NamedQuery, OperationError, PointId,
    PointInsertOperations, PointOperations, PointStructPersisted, QueryEnum, ScrollRequest, SearchParams,
    SearchRequest, UpdateOperation, VectorInternal, VectorStorageDatatype, VectorStructInternal,
    VectorStructPersisted, WithPayloadInterface, WithVector,
};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;
use store::vector_engine::{
    Candidate, EngineError, EngineFace, EngineQuery, GRAPH_CANDIDATES, GRAPH_LINKS, SetInfo,
};
use tokio::sync::{Mutex, OwnedMutexGuard};
use uuid::Uuid;

/// Number of changes after which the engine checks whether it must extend its graphs. Faces without
/// a graph are compared one by one.
const CHANGES_PER_CHECK: u64 = 5_000;
/// Extension of the folder of a set that is being created.
pub(crate) const UNFINISHED: &str = "new";
/// Space that must be free on the disk, in bytes. The engine maps its files into memory, and a
/// write to a full disk would end the process.
const RESERVE: u64 = 512 << 20;
/// The value of `indexing_threshold` with which the engine builds no graphs.
const NEVER: usize = 0;
/// Time between two checks whether the last search has released a set.
const RELEASE_POLL: Duration = Duration::from_millis(20);

/// A set of faces.
#[derive(Debug)]
pub(crate) struct Set {
    /// `None` from a failed update until the next update.
    shard: RwLock<Option<Arc<EdgeShard>>>,
    /// The shard of the failed update. Searches that began before the failure may still use it.
    earlier: std::sync::Mutex<Weak<EdgeShard>>,
    path: PathBuf,
    order: Arc<Mutex<()>>,
    graphs: Graphs,
    removed: AtomicBool,
}

/// The state of the graphs of a set.
#[derive(Debug)]
struct Graphs {
    /// Number of changes since the last successful check of the graphs.
    changes: AtomicU64,
    running: AtomicBool,
}

impl Set {
    /// Creates an empty set for embeddings with this number of components. The folder is renamed to
    /// `path` when all indexes of its fields exist, so a crash leaves no incomplete set at `path`.
    pub(crate) fn create(path: &Path, dimensions: usize) -> Result<Self, EngineError> {
        let io = |error: std::io::Error| EngineError(error.to_string());
        let new = path.with_extension(UNFINISHED);
        if new.exists() {
            fs::remove_dir_all(&new).map_err(io)?;
        }
        create_files(&new, dimensions)?;
        fs::rename(&new, path).map_err(io)?;
        let set = Self::load(path)?;
        set.graphs.changes.store(0, Ordering::Relaxed);
        Ok(set)
    }

    /// Opens a set that exists. The next call of [`Self::optimise_in_background`] checks its
    /// graphs, because an earlier process may have been interrupted while it built them.
    pub(crate) fn load(path: &Path) -> Result<Self, EngineError> {
        Ok(Self {
            shard: RwLock::new(Some(Arc::new(open_shard(path)?))),
            earlier: std::sync::Mutex::default(),
            path: path.to_owned(),
            order: Arc::default(),
            graphs: Graphs { changes: AtomicU64::new(CHANGES_PER_CHECK), running: AtomicBool::new(false) },
            removed: AtomicBool::new(false),
        })
    }

    fn shard(&self) -> Result<Arc<EdgeShard>, EngineError> {
        let shard = self.shard.read().unwrap_or_else(PoisonError::into_inner);
        shard.clone().ok_or_else(|| EngineError("the set is being opened again".into()))
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
        let ef = query.candidates;
        let acorn =
            query.filter.is_narrow().then_some(AcornSearchParams { enable: true, max_selectivity: None });
        request.params = Some(SearchParams { hnsw_ef: Some(ef), acorn, ..SearchParams::default() });
        let found = self.shard()?.search(request).map_err(engine)?;
        let face = |id: PointId, similarity| Some(Candidate { id: uuid(id)?, similarity });
        Ok(found.into_iter().filter_map(|point| face(point.id, point.score)).collect())
    }

    /// Stores faces and deletes others. The changes are durable when it returns.
    ///
    /// After an error, the engine refuses every later operation. This function then closes the set,
    /// and the next update opens it again. New searches fail in between.
    pub(crate) fn update(&self, stored: Vec<EngineFace>, deleted: Vec<Uuid>) -> Result<(), EngineError> {
        check_room(&self.path, 0)?;
        if self.shard().is_err() {
            self.open_again()?;
        }
        let changes = stored.len() + deleted.len();
        if let Err(error) = change(&*self.shard()?, stored, deleted) {
            let failed = self.shard.write().unwrap_or_else(PoisonError::into_inner).take();
            let failed = failed.as_ref().map(Arc::downgrade).unwrap_or_default();
            *self.earlier.lock().unwrap_or_else(PoisonError::into_inner) = failed;
            return Err(error);
        }
        self.graphs.changes.fetch_add(changes as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Opens the set again. Waits until the searches and the thread that builds graphs have
    /// released the earlier shard, because two shards must not write to the same files.
    fn open_again(&self) -> Result<(), EngineError> {
        let earlier = self.earlier.lock().unwrap_or_else(PoisonError::into_inner).clone();
        while earlier.strong_count() > 0 || self.graphs.running.load(Ordering::Acquire) {
            std::thread::sleep(RELEASE_POLL);
        }
        let opened = Arc::new(open_shard(&self.path)?);
        *self.shard.write().unwrap_or_else(PoisonError::into_inner) = Some(opened);
        Ok(())
    }

    /// Builds graphs from now on. A new set has none until all existing faces are copied to it.
    /// Otherwise the engine would build graphs again whenever it merges segments, the parts of its
    /// storage.
    pub(crate) fn start_graphs(&self) -> Result<(), EngineError> {
        let shard = self.shard()?;
        let older = shard.config().optimizers();
        // `None` is the threshold of the engine: 10 MB of embeddings.
        let config = EdgeOptimizersConfig { indexing_threshold: None, ..older };
        shard.set_optimizers_config(config).map_err(engine)?;
        self.graphs.changes.fetch_add(CHANGES_PER_CHECK, Ordering::Relaxed);
        Ok(())
    }

    /// Extends the graphs on a thread of its own, if there were enough changes. The thread may run
    /// for minutes. It ends with the process, and the next process starts again.
    pub(crate) fn optimise_in_background(set: &Arc<Self>) {
        if set.is_settled() || set.graphs.running.swap(true, Ordering::AcqRel) {
            return;
        }
        let shared = set.clone();
        let started = std::thread::Builder::new().name("index-graphs".into()).spawn(move || {
            let _running = Running(&shared.graphs.running);
            if let Err(error) = shared.optimise() {
                tracing::error!(%error, "failed to build a graph of the search index");
            }
            // The engine may have written files after the removal.
            if shared.removed.load(Ordering::Acquire) {
                let _gone = fs::remove_dir_all(&shared.path);
            }
        });
        if let Err(error) = started {
            set.graphs.running.store(false, Ordering::Release);
            tracing::error!(%error, "failed to start the thread that builds graphs");
        }
    }

    fn optimise(&self) -> Result<(), EngineError> {
        // Segments are written anew beside the old ones.
        check_room(&self.path, size(&self.path))?;
        let before = self.graphs.changes.load(Ordering::Relaxed);
        self.shard()?.optimize().map_err(engine)?;
        self.graphs.changes.fetch_sub(before, Ordering::Relaxed);
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.graphs.changes.load(Ordering::Relaxed) < CHANGES_PER_CHECK
    }

    /// Deletes the files. Searches and graphs that are in progress may continue without them.
    pub(crate) fn remove(&self) -> std::io::Result<()> {
        self.removed.store(true, Ordering::Release);
        match fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            // A thread has created a file meanwhile. It deletes the rest.
            Err(error) if error.kind() == std::io::ErrorKind::DirectoryNotEmpty => Ok(()),
            removed => removed,
        }
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
        let (records, _) = self.shard()?.scroll(request).map_err(engine)?;
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
        let info = self.shard()?.info().map_err(engine)?;
        Ok(SetInfo {
            faces: info.points_count as u64,
            in_graph: info.indexed_vectors_count as u64,
            bytes: Some(size(&self.path)),
            settled: self.is_settled(),
        })
    }
}

/// Resets the flag when the thread ends, also after a panic.
struct Running<'a>(&'a AtomicBool);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Opens the files of a set.
fn open_shard(path: &Path) -> Result<EdgeShard, EngineError> {
    // Deletes the files of an interrupted build of a graph, because the engine keeps them.
    let unfinished = path.join("temp_segments");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(|error| EngineError(error.to_string()))?;
    }
    // Repeats the operations of the write-ahead log that the files lack.
    EdgeShard::load(path, None).map_err(engine)
}

/// Stores faces and deletes others, and writes the files to disk.
fn change(shard: &EdgeShard, stored: Vec<EngineFace>, deleted: Vec<Uuid>) -> Result<(), EngineError> {
    if !deleted.is_empty() {
        let ids = deleted.into_iter().map(PointId::Uuid).collect();
        shard.update(points(PointOperations::DeletePoints { ids })).map_err(engine)?;
    }
    if !stored.is_empty() {
        let stored = stored.into_iter().map(point).collect();
        let upsert = PointOperations::UpsertPoints(PointInsertOperations::PointsList(stored));
        shard.update(points(upsert)).map_err(engine)?;
    }
    shard.flush().map_err(engine)
}

/// Fails if the disk of the folder has less space than the reserve and `needed` bytes.
fn check_room(folder: &Path, needed: u64) -> Result<(), EngineError> {
    let disk = rustix::fs::statvfs(folder).map_err(|error| EngineError(error.to_string()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    if free < RESERVE.saturating_add(needed) {
        let needed = (RESERVE + needed) >> 20;
        return Err(EngineError(format!("the disk has {} MB free, and {needed} MB are needed", free >> 20)));
    }
    Ok(())
}

/// Creates the files of an empty set.
fn create_files(path: &Path, dimensions: usize) -> Result<(), EngineError> {
    let vector = EdgeVectorParams::builder(dimensions, Distance::Cosine)
        .datatype(VectorStorageDatatype::Float16)
        .build();
    let config = EdgeConfig::builder()
        .vector(DEFAULT_VECTOR_NAME, vector)
        .hnsw_config(graph())
        .optimizers(EdgeOptimizersConfig {
            indexing_threshold: Some(NEVER),
            ..EdgeOptimizersConfig::default()
        })
        // While a graph is built, the engine keeps changes in memory, even after `flush` returns.
        // The write-ahead log repeats them after a crash.
        .wal_enabled(true)
        .build();
    let shard = EdgeShard::new(path, config).map_err(engine)?;
    for (name, field_schema) in filter::fields() {
        let index = CreateIndex { field_name: filter::path(name)?, field_schema: Some(field_schema) };
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
        m: GRAPH_LINKS,
        ef_construct: GRAPH_CANDIDATES,
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

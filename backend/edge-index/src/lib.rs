//! A vector index in files of this process, with the storage engine of Qdrant. Reading rows and
//! following their changes is part of the crate `store`.
//!
//! The folder of the index contains a file `lock`, a file `id` with the random id of the folder,
//! and one subfolder for each set of faces. The name of the subfolder is the id of the set. Changes
//! are durable when an update returns: the engine writes them to a log, and repeats the log after a
//! crash.
mod filter;
mod set;

use set::{Set, UNFINISHED};
use std::collections::HashMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use store::vector_engine::{
    Candidate, EngineError, EngineFace, EngineQuery, FaceSet, SetInfo, Update, VectorEngine,
};
use uuid::Uuid;

/// Errors of the system that do not show that the files are damaged: no memory, no permission, no
/// free descriptor, no space, and a disk that fails.
const SYSTEM_ERRORS: [&str; 6] =
    ["(os error 5)", "(os error 12)", "(os error 13)", "(os error 23)", "(os error 24)", "(os error 28)"];

/// Why the folder of an index could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has opened the folder.
    #[error("the folder {} is in use by another process", .0.display())]
    InUse(PathBuf),
    /// The folder could not be read or written.
    #[error("cannot use the folder {}: {error}", folder.display())]
    Io {
        /// The folder.
        folder: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
}

/// The sets of faces in a folder. Only one process at a time can open a folder.
#[derive(Debug)]
pub struct Edge {
    folder: PathBuf,
    folder_id: Uuid,
    sets: RwLock<HashMap<Uuid, Arc<Set>>>,
    /// Locked until the process ends.
    _lock: File,
}

impl Edge {
    /// Opens the folder, and creates it if it does not exist. Deletes sets that are damaged, for
    /// example by a crash while they were created: the caller creates them again, and nothing is
    /// lost, because Postgres contains every face. This function reads files, so it blocks.
    ///
    /// # Errors
    /// Fails with [`OpenError::InUse`] if another process has opened the folder, and with the
    /// system's error if the folder cannot be read or written.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self, OpenError> {
        let folder = folder.into();
        let io = |error| OpenError::Io { folder: folder.clone(), error };
        fs::create_dir_all(&folder).map_err(io)?;
        let lock = File::create(folder.join("lock")).map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse(folder)),
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        let folder_id = id_of(&folder).map_err(io)?;
        let mut sets = HashMap::new();
        for entry in fs::read_dir(&folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|extension| extension == UNFINISHED) {
                fs::remove_dir_all(&path).map_err(io)?;
            }
            let Some(id) = set_of(&path) else { continue };
            // The engine panics on some damaged files.
            let loaded = catch_unwind(|| Set::load(&path))
                .unwrap_or_else(|_| Err(EngineError("the engine panicked".into())));
            match loaded {
                Ok(set) => {
                    sets.insert(id, Arc::new(set));
                }
                // The error does not show that the files are damaged, so they stay.
                Err(EngineError(error)) if SYSTEM_ERRORS.iter().any(|code| error.contains(code)) => {
                    return Err(io(io::Error::other(error)));
                }
                Err(error) => {
                    tracing::error!(set = %id, %error, "deleted a damaged set of the search index");
                    fs::remove_dir_all(&path).map_err(io)?;
                }
            }
        }
        sets.values().for_each(Set::optimise_in_background);
        Ok(Self { folder, folder_id, sets: RwLock::new(sets), _lock: lock })
    }

    fn set(&self, id: Uuid) -> Result<Arc<Set>, EngineError> {
        let sets = self.sets.read().unwrap_or_else(PoisonError::into_inner);
        sets.get(&id).cloned().ok_or_else(|| EngineError(format!("there is no set {id}")))
    }
}

/// Returns the random id of the folder, which is created with the folder.
fn id_of(folder: &Path) -> io::Result<Uuid> {
    let file = folder.join("id");
    if let Some(id) = fs::read_to_string(&file).ok().and_then(|text| text.trim().parse().ok()) {
        return Ok(id);
    }
    let (id, new) = (Uuid::new_v4(), file.with_extension(UNFINISHED));
    fs::write(&new, id.to_string())?;
    fs::rename(new, file)?;
    Ok(id)
}

/// Returns the id of the set in the folder `path`; `None` if it is something else.
fn set_of(path: &Path) -> Option<Uuid> {
    path.is_dir().then(|| path.file_name()?.to_str()?.parse().ok()).flatten()
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EngineError> + Send + 'static,
) -> Result<T, EngineError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(EngineError(format!("the engine stopped: {error}"))),
    }
}

#[async_trait::async_trait]
impl VectorEngine for Edge {
    fn name(&self) -> &'static str {
        "edge"
    }

    async fn ids(&self) -> Result<Vec<Uuid>, EngineError> {
        Ok(vec![self.folder_id])
    }

    async fn claim(&self, _: Option<Uuid>) -> Result<Uuid, EngineError> {
        Ok(self.folder_id)
    }

    async fn sets(&self) -> Result<Vec<Uuid>, EngineError> {
        Ok(self.sets.read().unwrap_or_else(PoisonError::into_inner).keys().copied().collect())
    }

    async fn create(&self, set: &FaceSet) -> Result<(), EngineError> {
        if self.set(set.id).is_ok() {
            return Ok(());
        }
        let (path, dimensions) = (self.folder.join(set.id.to_string()), set.dimensions);
        let created = blocking(move || Set::create(&path, dimensions)).await?;
        let mut sets = self.sets.write().unwrap_or_else(PoisonError::into_inner);
        sets.entry(set.id).or_insert_with(|| Arc::new(created));
        Ok(())
    }

    async fn remove(&self, id: Uuid) -> Result<(), EngineError> {
        let removed = self.sets.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
        let Some(set) = removed else { return Ok(()) };
        blocking(move || set.remove().map_err(|error| EngineError(format!("cannot delete a set: {error}"))))
            .await
    }

    async fn search(
        &self,
        set: &FaceSet,
        queries: Vec<EngineQuery>,
    ) -> Result<Vec<Vec<Candidate>>, EngineError> {
        let set = self.set(set.id)?;
        blocking(move || queries.iter().map(|query| set.search(query)).collect()).await
    }

    /// Ignores [`Update::fence`]: only the process that has locked the folder can change the files.
    async fn update(&self, set: &FaceSet, update: Update) -> Result<(), EngineError> {
        let set = self.set(set.id)?;
        // The guard moves into the work. If the caller is cancelled, a later call still waits for
        // this one, so changes are applied in the order of the calls.
        let order = set.order().await;
        blocking(move || {
            let _order = order;
            set.update(update.stored, update.deleted)?;
            Set::optimise_in_background(&set);
            Ok(())
        })
        .await
    }

    async fn page(&self, set: &FaceSet, after: Uuid, limit: usize) -> Result<Vec<EngineFace>, EngineError> {
        let set = self.set(set.id)?;
        blocking(move || set.page(after, limit)).await
    }

    async fn start_graphs(&self, set: &FaceSet) -> Result<(), EngineError> {
        let set = self.set(set.id)?;
        let started = set.clone();
        blocking(move || started.start_graphs()).await?;
        Set::optimise_in_background(&set);
        Ok(())
    }

    async fn info(&self, set: &FaceSet) -> Result<SetInfo, EngineError> {
        let set = self.set(set.id)?;
        Set::optimise_in_background(&set);
        blocking(move || set.info()).await
    }
}

//! Opens the search index that `SEARCH_INDEX` selects, and brings it up to the rows.
use crate::config::{SearchIndex, Settings};
use anyhow::Context;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use store::external_index::{ExternalIndex, Followed};
use store::vector_engine::{Candidate, EngineError, EngineFace, EngineQuery, FaceSet, SetInfo, VectorEngine};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Number of changes that are applied in one step. A face becomes visible to the engine when its
/// step ends.
pub const STEP: i64 = 1_000;
/// Time between two steps while no change is left.
pub const IDLE: Duration = Duration::from_millis(200);
/// Time after a failed step. It doubles with each further failure, up to the maximum.
const PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// What a process does with the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It answers searches. It opens the index and brings it up to the rows.
    Searches,
    /// It stores faces while another process answers searches.
    StoresFaces,
}

/// Lets the store use the index that the settings select. Returns the index if this process must
/// bring it up to the rows with [`follow`].
pub async fn open(
    settings: &Settings,
    store: &mut Store,
    role: Role,
) -> anyhow::Result<Option<ExternalIndex>> {
    if settings.storage.search_index == SearchIndex::Pgvector {
        if role == Role::Searches {
            remove_unused(settings, store).await?;
        }
        return Ok(None);
    }
    let engine = match role {
        Role::Searches => open_engine(settings)?,
        Role::StoresFaces => Arc::new(RemoteEngine),
    };
    let index = ExternalIndex::new(store.clone(), engine).with_config(settings.search_index());
    match role {
        Role::Searches => index.take_over().await.context("cannot record the changes of faces")?,
        Role::StoresFaces if !store.records_index_changes().await? => {
            tracing::warn!("SEARCH_INDEX=edge, but no process that serves the API has started with it");
        }
        Role::StoresFaces => {}
    }
    *store = store.clone().with_index(Arc::new(index.clone()));
    Ok((role == Role::Searches).then_some(index))
}

/// Stops recording changes and deletes the index folder that an earlier `SEARCH_INDEX=edge` has
/// left. No process applies changes to it any more, so it would keep erased faces.
async fn remove_unused(settings: &Settings, store: &Store) -> anyhow::Result<()> {
    if store.records_index_changes().await? {
        store.stop_index_changes().await.context("cannot stop recording the changes of faces")?;
        store.forget_index_sets().await?;
        tracing::info!("the search index edge is no longer in use");
    }
    let folder = settings.index_dir();
    if !folder.exists() {
        return Ok(());
    }
    let removed = tokio::task::block_in_place(|| {
        let lock = File::create(folder.join("lock"))?;
        lock.try_lock()?;
        std::fs::remove_dir_all(&folder)
    });
    removed.with_context(|| format!("cannot delete the unused search index {}", folder.display()))?;
    tracing::info!(folder = %folder.display(), "deleted the unused search index");
    Ok(())
}

/// Opens the engine of `SEARCH_INDEX=edge`. Fails if another process has opened it.
#[cfg(feature = "edge")]
pub fn open_engine(settings: &Settings) -> anyhow::Result<Arc<dyn VectorEngine>> {
    let opened = tokio::task::block_in_place(|| edge_index::Edge::open(settings.index_dir()));
    let engine = opened
        .context("cannot open the search index (SEARCH_INDEX=edge), which one process at a time can use")?;
    Ok(Arc::new(engine))
}

/// Opens the engine like [`open_engine`]; `None` if another process has opened it.
#[cfg(feature = "edge")]
pub fn open_unused_engine(settings: &Settings) -> anyhow::Result<Option<Arc<dyn VectorEngine>>> {
    match open_engine(settings) {
        Ok(engine) => Ok(Some(engine)),
        Err(error) => match error.downcast_ref() {
            Some(edge_index::OpenError::InUse(_)) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Fails like [`open_engine`].
#[cfg(not(feature = "edge"))]
pub fn open_unused_engine(settings: &Settings) -> anyhow::Result<Option<Arc<dyn VectorEngine>>> {
    open_engine(settings).map(Some)
}

/// Fails, because this program was built without the engine. The configuration was checked before.
#[cfg(not(feature = "edge"))]
pub fn open_engine(_: &Settings) -> anyhow::Result<Arc<dyn VectorEngine>> {
    anyhow::bail!("this program was built without the Cargo feature edge, which SEARCH_INDEX=edge needs")
}

/// Brings the index up to the rows until `shutdown` fires. A step that is interrupted is repeated
/// by the next start.
pub fn follow(index: ExternalIndex, shutdown: CancellationToken) {
    tokio::spawn(shutdown.run_until_cancelled_owned(follow_changes(index)));
}

async fn follow_changes(index: ExternalIndex) {
    let mut pause = PAUSE;
    loop {
        let wait = match index.step(STEP).await {
            Ok(Followed::Applied(1..)) => Duration::ZERO,
            Ok(Followed::Applied(0) | Followed::Busy) => IDLE,
            Err(error) => {
                tracing::warn!(%error, seconds = pause.as_secs_f64(), "failed to update the search index; trying again");
                let wait = pause;
                pause = (pause * 2).min(MAX_PAUSE);
                wait
            }
        };
        if wait <= IDLE {
            pause = PAUSE;
        }
        tokio::time::sleep(wait).await;
    }
}

/// The engine of an index that another process has opened.
#[derive(Debug)]
struct RemoteEngine;

impl RemoteEngine {
    fn error<T>() -> Result<T, EngineError> {
        Err(EngineError("only the process that serves the API can search this index".into()))
    }
}

#[async_trait::async_trait]
impl VectorEngine for RemoteEngine {
    fn name(&self) -> &'static str {
        "edge"
    }

    fn folder_id(&self) -> Uuid {
        Uuid::nil()
    }

    async fn sets(&self) -> Result<Vec<Uuid>, EngineError> {
        Self::error()
    }

    async fn create(&self, _: &FaceSet) -> Result<(), EngineError> {
        Self::error()
    }

    async fn remove(&self, _: Uuid) -> Result<(), EngineError> {
        Self::error()
    }

    async fn search(&self, _: &FaceSet, _: Vec<EngineQuery>) -> Result<Vec<Vec<Candidate>>, EngineError> {
        Self::error()
    }

    async fn update(&self, _: &FaceSet, _: Vec<EngineFace>, _: Vec<Uuid>) -> Result<(), EngineError> {
        Self::error()
    }

    async fn page(&self, _: &FaceSet, _: Uuid, _: usize) -> Result<Vec<EngineFace>, EngineError> {
        Self::error()
    }

    async fn info(&self, _: &FaceSet) -> Result<SetInfo, EngineError> {
        Self::error()
    }
}

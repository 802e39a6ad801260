//! Opens the search index that `SEARCH_INDEX` selects, applies the changes of faces to it or builds
//! it, and deletes the indexes that an earlier setting or version has left.
use crate::config::{SearchIndex, Settings};
use anyhow::Context;
use qdrant_index::Server;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;
use store::index::builds::IndexBuilds;
use store::index::changes::{IndexSet, IndexSetState};
use store::index::engine::VectorEngine;
use store::index::external::{ExternalIndex, StepOutcome};
use store::{Store, StoreError};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Number of changes that are applied in one step. A face becomes visible to the engine when its
/// step ends.
pub const CHANGES_PER_STEP: i64 = 1_000;
/// Time between two steps while no change is left.
pub const IDLE_PAUSE: Duration = Duration::from_millis(200);
/// Time between two checks whether an index of pgvector must be built. It is long enough to see
/// whether the number of faces grows fast.
const BUILDS_INTERVAL: Duration = Duration::from_secs(300);
/// Maximum time between two attempts to build an index. The time doubles with each failure, because
/// a build of millions of faces can fail after hours, for example if the disk is full.
const MAX_BUILDS_INTERVAL: Duration = Duration::from_secs(6 * 3600);
/// Time after a failed step. It doubles with each further failure, up to the maximum.
const RETRY_PAUSE: Duration = Duration::from_millis(500);
const MAX_RETRY_PAUSE: Duration = Duration::from_secs(30);

/// How a process uses the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It serves searches. It opens the index and applies changes to it.
    Searches,
    /// It stores faces while another process serves searches.
    StoresFaces,
}

/// Lets the store use the index that the settings select. Returns the index if this process must
/// apply changes to it with [`start_updates`].
///
/// # Errors
/// Fails if the index of an earlier setting cannot be deleted. Does not fail if the Qdrant server
/// of the selected index does not respond: [`start_updates`] tries again.
pub async fn open(
    settings: &Settings,
    store: &mut Store,
    role: Role,
) -> anyhow::Result<Option<ExternalIndex>> {
    if role == Role::Searches {
        remove_unused_indexes(settings, store).await?;
    }
    let Some(engine) = open_engine(settings)? else { return Ok(None) };
    let index = ExternalIndex::new(store.pool().clone(), engine).with_config(settings.search_index());
    match role {
        Role::Searches => match index.take_over().await {
            Err(StoreError::IndexUnavailable(reason)) => {
                tracing::warn!(
                    reason,
                    "search index not available; searches use pgvector or compare with all faces"
                );
            }
            result => result.context("cannot record the changes of faces")?,
        },
        Role::StoresFaces if !store.index().records_changes().await? => {
            let index = settings.storage.search_index.name();
            tracing::warn!(index, "no process that serves the API has started with this SEARCH_INDEX");
        }
        Role::StoresFaces => {}
    }
    *store = store.clone().with_index(Arc::new(index.clone()));
    Ok((role == Role::Searches).then_some(index))
}

/// Adds to `tasks` a task that applies changes to the index until `shutdown` is cancelled. The next
/// start repeats a step that was interrupted.
pub fn start_updates(tasks: &mut JoinSet<()>, index: ExternalIndex, shutdown: CancellationToken) {
    tasks.spawn(async move {
        shutdown.run_until_cancelled(apply_changes(index)).await;
    });
}

/// Adds to `tasks` a task that builds the indexes of pgvector when they are due, until `shutdown`
/// is cancelled. Does nothing with another `SEARCH_INDEX`. The next start repeats a build that was
/// interrupted.
pub fn start_builds(
    tasks: &mut JoinSet<()>,
    settings: &Settings,
    store: &Store,
    shutdown: CancellationToken,
) {
    if settings.storage.search_index == SearchIndex::Pgvector {
        let builds = IndexBuilds::new(store.pool().clone(), settings.storage.search_exact_limit);
        tasks.spawn(async move {
            shutdown.run_until_cancelled(build_indexes(builds)).await;
        });
    }
}

async fn build_indexes(mut builds: IndexBuilds) {
    let mut pause = BUILDS_INTERVAL;
    loop {
        match builds.run_due().await {
            Ok(_) => pause = BUILDS_INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "failed to build the search index");
                pause = (pause * 2).min(MAX_BUILDS_INTERVAL);
            }
        }
        tokio::time::sleep(pause).await;
    }
}

async fn apply_changes(index: ExternalIndex) {
    let mut pause = RETRY_PAUSE;
    let mut is_claimed = false;
    loop {
        let step = async {
            if !is_claimed {
                index.claim().await?;
                is_claimed = true;
            }
            index.step(CHANGES_PER_STEP).await
        };
        let wait = match step.await {
            Ok(StepOutcome::Applied(1..)) => Duration::ZERO,
            Ok(StepOutcome::Applied(0) | StepOutcome::Busy) => IDLE_PAUSE,
            Err(error) => {
                tracing::warn!(%error, seconds = pause.as_secs_f64(), "failed to update the search index; trying again");
                let wait = pause;
                pause = (pause * 2).min(MAX_RETRY_PAUSE);
                wait
            }
        };
        if wait <= IDLE_PAUSE {
            pause = RETRY_PAUSE;
        }
        tokio::time::sleep(wait).await;
    }
}

/// Opens the engine of `SEARCH_INDEX`; `None` with `pgvector`. The Qdrant server is not contacted
/// yet.
///
/// # Errors
/// With `qdrant`, fails if `QDRANT_URL` is missing or not valid.
pub fn open_engine(settings: &Settings) -> anyhow::Result<Option<Arc<dyn VectorEngine>>> {
    match settings.storage.search_index {
        SearchIndex::Pgvector => Ok(None),
        SearchIndex::Qdrant => {
            Ok(Some(Arc::new(qdrant_server(settings)?.context("SEARCH_INDEX=qdrant needs QDRANT_URL")?)))
        }
    }
}

/// Returns the server of `QDRANT_URL`; `None` if it is not set. Fails if an address is not valid.
fn qdrant_server(settings: &Settings) -> anyhow::Result<Option<Server>> {
    let server = settings.qdrant().map(Server::new).transpose();
    server.context("QDRANT_URL is not valid")
}

/// Returns the sets of the search index outside Postgres.
pub async fn sets(store: &Store) -> anyhow::Result<Vec<IndexSet>> {
    let mut conn = store.pool().acquire().await?;
    Ok(store.index().sets(&mut conn).await?)
}

/// Returns whether searches use a set of this index for the model.
pub fn is_serving(sets: &[IndexSet], index: SearchIndex, model_id: i32) -> bool {
    sets.iter().any(|set| {
        (set.index_name.as_str(), set.model_id, set.state) == (index.name(), model_id, IndexSetState::Serving)
    })
}

/// The name under which the database records the index in files of earlier versions.
const FILE_ENGINE_NAME: &str = "edge";

/// Stops recording changes if no index needs them. Deletes the index in files of earlier versions,
/// and the collections of `qdrant` if it is not the selected index. Fails if the files or the
/// collections cannot be deleted, or with the database's error.
async fn remove_unused_indexes(settings: &Settings, store: &Store) -> anyhow::Result<()> {
    let selected = settings.storage.search_index;
    // The indexes are released first, so that no process applies changes while recording stops.
    let mut server_id = None;
    ExternalIndex::release(store.pool(), FILE_ENGINE_NAME).await?;
    if selected != SearchIndex::Qdrant {
        server_id = ExternalIndex::release(store.pool(), SearchIndex::Qdrant.name()).await?;
    }
    if selected == SearchIndex::Pgvector && store.index().records_changes().await? {
        store.index().stop_changes().await.context("cannot stop recording the changes of faces")?;
    }
    remove_index_files(settings, store).await?;
    if let Some(id) = server_id {
        remove_collections(settings, store, id).await?;
    }
    Ok(())
}

async fn remove_index_files(settings: &Settings, store: &Store) -> anyhow::Result<()> {
    store.index().delete_records(FILE_ENGINE_NAME).await?;
    let folder = settings.storage.data_dir.join("index");
    if !folder.exists() {
        return Ok(());
    }
    let removed = tokio::task::block_in_place(|| {
        // A process of an earlier version holds this lock while it uses the files.
        let lock = File::create(folder.join("lock"))?;
        lock.try_lock()?;
        std::fs::remove_dir_all(&folder)
    });
    removed.with_context(|| format!("cannot delete the unused search index {}", folder.display()))?;
    tracing::info!(folder = %folder.display(), "deleted the unused search index");
    Ok(())
}

/// Deletes the collections, and then the records, so that the next start repeats a failed deletion.
async fn remove_collections(settings: &Settings, store: &Store, id: Uuid) -> anyhow::Result<()> {
    const EXPLANATION: &str = "a Qdrant server still contains embeddings of faces from an earlier SEARCH_INDEX=qdrant, \
        and the service must delete them; allowed: QDRANT_URL and QDRANT_PREFIX of this server, or, if it no longer exists, \
        `facecrawl index drop --index qdrant --forget`";
    let server = qdrant_server(settings)?.context(EXPLANATION)?;
    // Another server or prefix belongs to another installation.
    let ids = server.server_ids().await.context(EXPLANATION)?;
    if !ids.contains(&id) {
        let found_ids = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(anyhow::anyhow!(
            "QDRANT_URL and QDRANT_PREFIX lead to the index [{found_ids}], and the one to delete is {id}"
        ))
        .context(EXPLANATION);
    }
    server.remove_all().await.context(EXPLANATION)?;
    store.index().delete_records(SearchIndex::Qdrant.name()).await?;
    tracing::info!("deleted the unused search index in the Qdrant server");
    Ok(())
}

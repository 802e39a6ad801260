//! Deletes the indexes that an earlier `SEARCH_INDEX`, or an earlier version, has left. No process
//! applies changes to them any more, so they would keep erased faces.
use super::engines;
use crate::config::{SearchIndex, Settings};
use anyhow::Context;
use std::fs::File;
use store::Store;
use store::index::engine::VectorEngine;
use store::index::external::ExternalIndex;
use uuid::Uuid;

/// The name under which the database records the index in files of earlier versions.
const IN_FILES: &str = "edge";

/// Stops recording changes if no index needs them. Deletes the index in files of earlier versions,
/// and the collections of `qdrant` if it is not the selected index.
///
/// # Errors
/// Fails if the files or the collections cannot be deleted, or with the database's error.
pub(super) async fn remove(settings: &Settings, store: &Store) -> anyhow::Result<()> {
    let used = settings.storage.search_index;
    // First, so that no process applies changes while recording stops.
    let mut server_id = None;
    ExternalIndex::release(store, IN_FILES).await?;
    if used != SearchIndex::Qdrant {
        server_id = ExternalIndex::release(store, SearchIndex::Qdrant.name()).await?;
    }
    if used == SearchIndex::Pgvector && store.records_index_changes().await? {
        store.stop_index_changes().await.context("cannot stop recording the changes of faces")?;
    }
    remove_files(settings, store).await?;
    if let Some(id) = server_id {
        remove_collections(settings, store, id).await?;
    }
    Ok(())
}

async fn remove_files(settings: &Settings, store: &Store) -> anyhow::Result<()> {
    store.forget_index(IN_FILES).await?;
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
    let server = engines::server(settings)?.context(EXPLANATION)?;
    // Another server or prefix belongs to another installation.
    let ids = server.ids().await.context(EXPLANATION)?;
    if !ids.contains(&id) {
        let found = ids.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(anyhow::anyhow!(
            "QDRANT_URL and QDRANT_PREFIX lead to the index [{found}], and the one to delete is {id}"
        ))
        .context(EXPLANATION);
    }
    server.remove_all().await.context(EXPLANATION)?;
    store.forget_index(SearchIndex::Qdrant.name()).await?;
    tracing::info!("deleted the unused search index in the Qdrant server");
    Ok(())
}

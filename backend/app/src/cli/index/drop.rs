use super::super::UsageError;
use crate::config::{SearchIndex, Settings};
use anyhow::Context;
use store::Store;
use store::index::Pgvector;

/// Drops the indexes of pgvector. Fails if the index outside Postgres is not complete. With
/// `forget`, deletes only the records of the index `qdrant`.
pub(super) async fn run(
    settings: &Settings,
    store: &Store,
    index: SearchIndex,
    forget: bool,
) -> anyhow::Result<()> {
    let name = index.name();
    let used = settings.storage.search_index;
    if index == used {
        let other = if index == SearchIndex::Pgvector { ", or add --bulk-load" } else { "" };
        return Err(
            UsageError(format!("SEARCH_INDEX={name} uses the index {name}; change it first{other}")).into()
        );
    }
    if forget {
        if index != SearchIndex::Qdrant {
            return Err(UsageError(format!("--forget is for --index qdrant, not for {name}")).into());
        }
        anyhow::ensure!(store.forget_index(name).await?, "the database has no record of the index qdrant");
        return Ok(());
    }
    if index != SearchIndex::Pgvector {
        return Err(UsageError(format!(
            "the service deletes the index {name} when it starts with another SEARCH_INDEX"
        ))
        .into());
    }
    let pgvector = Pgvector::new(store.pool().clone());
    let sets = super::sets(store).await?;
    for index in pgvector.indexes().await?.into_iter().filter(|index| index.bytes.is_some()) {
        anyhow::ensure!(
            super::is_serving(&sets, used, index.model_id),
            "the index {} of {} is not complete; run `facecrawl index status` to see its progress",
            used.name(),
            index.model
        );
        pgvector
            .drop_index(index.model_id)
            .await
            .with_context(|| format!("cannot drop the index of {}", index.model))?;
    }
    Ok(())
}

/// Drops the indexes that searches use. Building them again after many faces were stored takes a
/// small part of the time to add the faces one by one.
pub(super) async fn for_bulk_load(
    settings: &Settings,
    store: &Store,
    index: SearchIndex,
) -> anyhow::Result<()> {
    let used = settings.storage.search_index;
    if index != SearchIndex::Pgvector || used != index {
        let (index, used) = (index.name(), used.name());
        return Err(UsageError(format!(
            "--bulk-load is for --index pgvector with SEARCH_INDEX=pgvector, not for --index {index} with SEARCH_INDEX={used}"
        ))
        .into());
    }
    let pgvector = Pgvector::new(store.pool().clone());
    for index in pgvector.indexes().await? {
        pgvector
            .drop_for_bulk_load(index.model_id)
            .await
            .with_context(|| format!("cannot drop the index of {}", index.model))?;
        eprintln!("dropped the index of {}; `facecrawl index rebuild` builds it again", index.model);
    }
    Ok(())
}

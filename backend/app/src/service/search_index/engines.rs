//! Opens the engine of the search index outside Postgres.
use crate::config::{SearchIndex, Settings};
use anyhow::Context;
use qdrant_index::Server;
use std::sync::Arc;
use store::index::engine::VectorEngine;

/// Opens the engine of `SEARCH_INDEX`; `None` with `pgvector`. The Qdrant server is not contacted
/// yet.
///
/// # Errors
/// With `qdrant`, fails if `QDRANT_URL` is missing or not valid.
pub fn open(settings: &Settings) -> anyhow::Result<Option<Arc<dyn VectorEngine>>> {
    match settings.storage.search_index {
        SearchIndex::Pgvector => Ok(None),
        SearchIndex::Qdrant => {
            Ok(Some(Arc::new(server(settings)?.context("SEARCH_INDEX=qdrant needs QDRANT_URL")?)))
        }
    }
}

/// Returns the server of `QDRANT_URL`; `None` if it is not set.
///
/// # Errors
/// Fails if an address is not valid.
pub(super) fn server(settings: &Settings) -> anyhow::Result<Option<Server>> {
    let server = settings.qdrant().map(Server::new).transpose();
    server.context("QDRANT_URL is not valid")
}

//! Opens the engines of the search indexes outside Postgres.
use super::remote::RemoteEngine;
use crate::config::{SearchIndex, Settings};
use anyhow::Context;
use qdrant_index::Server;
use std::sync::Arc;
use store::vector_engine::VectorEngine;

/// An engine, if this process can use it.
pub enum Opened {
    /// The engine.
    Engine(Arc<dyn VectorEngine>),
    /// The engine is in files, and another process has opened them.
    InUse(anyhow::Error),
}

impl Opened {
    /// Returns the engine.
    ///
    /// # Errors
    /// Fails if the engine is `edge`, and another process has opened its files.
    pub fn exclusively(self) -> anyhow::Result<Arc<dyn VectorEngine>> {
        match self {
            Self::Engine(engine) => Ok(engine),
            Self::InUse(error) => Err(error),
        }
    }
}

/// Opens the engine of `SEARCH_INDEX`. A Qdrant server is not contacted yet.
///
/// # Errors
/// Fails with `pgvector`. With `edge`, fails if this program lacks the engine or cannot open the
/// files. With `qdrant`, fails if `QDRANT_URL` is missing or not valid.
pub fn open(settings: &Settings) -> anyhow::Result<Opened> {
    match settings.storage.search_index {
        SearchIndex::Pgvector => anyhow::bail!("SEARCH_INDEX=pgvector has no engine outside Postgres"),
        SearchIndex::Edge => open_files(settings),
        SearchIndex::Qdrant => {
            let server = server(settings)?.context("SEARCH_INDEX=qdrant needs QDRANT_URL")?;
            Ok(Opened::Engine(Arc::new(server)))
        }
    }
}

/// Returns the engine for a process that does not serve the API. With `edge`, every operation of
/// this engine fails, because the process that serves the API has opened the files.
///
/// # Errors
/// Fails if the address of the server is not valid.
pub(super) fn of_worker(settings: &Settings) -> anyhow::Result<Arc<dyn VectorEngine>> {
    match settings.storage.search_index {
        SearchIndex::Edge => Ok(Arc::new(RemoteEngine)),
        SearchIndex::Pgvector | SearchIndex::Qdrant => open(settings)?.exclusively(),
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

#[cfg(feature = "edge")]
fn open_files(settings: &Settings) -> anyhow::Result<Opened> {
    let opened = tokio::task::block_in_place(|| edge_index::Edge::open(settings.index_dir()));
    let explain = |error| {
        anyhow::Error::new(error)
            .context("cannot open the search index (SEARCH_INDEX=edge), which one process at a time can use")
    };
    match opened {
        Ok(engine) => Ok(Opened::Engine(Arc::new(engine))),
        Err(error @ edge_index::OpenError::InUse(_)) => Ok(Opened::InUse(explain(error))),
        Err(error) => Err(explain(error)),
    }
}

/// Fails, because this program was built without the engine. The check of the configuration fails
/// earlier.
#[cfg(not(feature = "edge"))]
fn open_files(_: &Settings) -> anyhow::Result<Opened> {
    anyhow::bail!("this program was built without the Cargo feature edge, which SEARCH_INDEX=edge needs")
}

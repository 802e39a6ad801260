//! The index that is measured: how it is built, updated and deleted.
use super::Arguments;
use anyhow::{Result, ensure};
use qdrant_index::{GRAPH_THRESHOLD, Quantization, Server};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use store::index::Pgvector;
use store::index::changes::IndexSetState;
use store::index::engine::VectorEngine;
use store::index::external::{ExternalIndex, Followed};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use uuid::Uuid;

/// Number of faces that are copied, or of changes that are applied, in one step.
const COPIED: i64 = 5_000;
const FOLLOWED: i64 = 1_000;
/// Time between two attempts while an index has nothing to do.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Kind {
    Exact,
    Pgvector,
    Qdrant,
}

pub(crate) enum Engine {
    /// None: each search compares with every face of its collection.
    Exact,
    Pgvector,
    Qdrant(Arc<Server>),
}

impl Engine {
    pub(crate) fn new(kind: Kind, arguments: &Arguments) -> Result<Self> {
        Ok(match kind {
            Kind::Exact => Self::Exact,
            Kind::Pgvector => Self::Pgvector,
            Kind::Qdrant => {
                ensure!(!arguments.qdrant.is_empty(), "--engine qdrant needs --qdrant");
                let int8 = arguments.quantization == "int8";
                Self::Qdrant(Arc::new(Server::new(qdrant_index::Config {
                    urls: arguments.qdrant.clone(),
                    api_key: None,
                    prefix: format!("gallery{}", Uuid::now_v7().simple()),
                    replicas: arguments.replicas,
                    quantization: if int8 { Quantization::Int8 } else { Quantization::None },
                    graph_threshold: GRAPH_THRESHOLD,
                })?))
            }
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Pgvector => "pgvector",
            Self::Qdrant(_) => "qdrant",
        }
    }

    /// Builds the index of the store's faces, and applies changes to it from then on.
    pub(crate) async fn build(&self, store: &Store, model: i32) -> Result<Built> {
        let Self::Qdrant(server) = self else {
            if matches!(self, Self::Pgvector) {
                Pgvector::new(store.pool().clone()).rebuild(&store.models().get(model).await?).await?;
            }
            return Ok(Built { store: store.clone(), follower: None });
        };
        let index = ExternalIndex::new(store.pool().clone(), server.clone());
        index.take_over().await?;
        copy(&index, store).await?;
        let store = store.clone().with_index(Arc::new(index.clone()));
        Ok(Built { store, follower: Some(tokio::spawn(follow(index))) })
    }

    /// Returns the space of an index in Postgres.
    pub(crate) async fn size_mb(&self, store: &Store, index: &str) -> Result<Value> {
        let Self::Pgvector = self else { return Ok(Value::Null) };
        let size = sqlx::query_scalar("select coalesce(pg_relation_size(to_regclass($1)), 0)").bind(index);
        let bytes: i64 = size.fetch_one(store.pool()).await?;
        Ok(json!(bytes >> 20))
    }

    /// Deletes the index, so that the next one can be built. `built` is absent if the build failed.
    pub(crate) async fn remove(&self, store: &Store, built: Option<Built>, index: &str) -> Result<()> {
        match self {
            Self::Exact => Ok(()),
            Self::Pgvector => drop_index(store, index).await,
            Self::Qdrant(server) => {
                if let Some(follower) = built.and_then(|built| built.follower) {
                    follower.abort();
                    let _aborted = follower.await;
                    settle(server, store).await?;
                }
                server.remove_all().await?;
                ExternalIndex::release(store.pool(), self.name()).await?;
                store.index().stop_changes().await?;
                store.index().forget(self.name()).await?;
                Ok(())
            }
        }
    }
}

/// A built index, and the task that applies later changes of faces to it.
pub(crate) struct Built {
    /// The store whose searches use the index.
    pub(crate) store: Store,
    follower: Option<JoinHandle<()>>,
}

pub(crate) async fn drop_index(store: &Store, index: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(format!("drop index if exists {index}"))).execute(store.pool()).await?;
    Ok(())
}

/// Waits until the engine builds no graphs any more.
async fn settle(engine: &Server, store: &Store) -> Result<()> {
    let mut conn = store.pool().acquire().await?;
    for set in store.index().sets(&mut conn).await? {
        while !engine.info(&set.face_set()).await?.settled {
            sleep(PAUSE).await;
        }
    }
    Ok(())
}

/// Copies all faces to the index, and waits until searches use it. Up to 50,000 faces may then be
/// outside the graphs.
async fn copy(index: &ExternalIndex, store: &Store) -> Result<()> {
    loop {
        index.step(COPIED).await?;
        let mut conn = store.pool().acquire().await?;
        let sets = store.index().sets(&mut conn).await?;
        if !sets.is_empty() && sets.iter().all(|set| set.state == IndexSetState::Serving) {
            return Ok(());
        }
        if sets.iter().all(|set| set.copied) {
            sleep(PAUSE).await;
        }
    }
}

async fn follow(index: ExternalIndex) {
    loop {
        match index.step(FOLLOWED).await {
            Ok(Followed::Applied(1..)) => continue,
            Ok(_) => {}
            Err(error) => eprintln!("the index cannot follow: {error}"),
        }
        sleep(PAUSE).await;
    }
}

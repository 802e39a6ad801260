//! The index that is measured: how it is built, followed and deleted.
use crate::machine::{disk_usage, resident_mb};
use anyhow::{Context, Result, bail};
use qdrant_index::{GRAPH_THRESHOLD, Quantization, Server};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgConnection};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use store::external_index::{ExternalIndex, Followed};
use store::face_index::Pgvector;
use store::index_sets::IndexSetState;
use store::vector_engine::VectorEngine;
use tokio::task::JoinHandle;
use uuid::Uuid;

/// Number of faces that are copied, or of changes that are applied, in one step.
const COPIED: i64 = 5_000;
const FOLLOWED: i64 = 1_000;

/// An index.
pub(crate) enum Engine {
    /// None: each search compares with every face of its collection.
    Exact,
    /// With storage parameters that replace the product's, such as `m = 16, ef_construction = 64`.
    Pgvector(Option<String>),
    Qdrant(qdrant_index::Config),
}

impl Engine {
    pub(crate) fn of(name: &str, options: &HashMap<String, String>) -> Result<Self> {
        Ok(match name {
            "exact" => Self::Exact,
            "pgvector" => Self::Pgvector(options.get("index").cloned()),
            "qdrant" => Self::Qdrant(qdrant_index::Config {
                urls: options
                    .get("qdrant")
                    .context("--engine qdrant needs --qdrant")?
                    .split(',')
                    .map(str::to_owned)
                    .collect(),
                api_key: None,
                prefix: format!("gallery{}", Uuid::now_v7().simple()),
                replicas: options.get("replicas").map_or(Ok(1), |text| text.parse())?,
                quantization: match options.get("quantization").map(String::as_str) {
                    None | Some("none") => Quantization::None,
                    Some("int8") => Quantization::Int8,
                    Some(other) => bail!("--quantization is {other:?}, it must be none or int8"),
                },
                graph_threshold: options
                    .get("graph-threshold")
                    .map_or(Ok(GRAPH_THRESHOLD), |text| text.parse())
                    .context("--graph-threshold must be a number of kB")?,
            }),
            other => {
                bail!("--engine is {other:?}, it must be exact, pgvector or qdrant, or a list of them")
            }
        })
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Pgvector(_) => "pgvector",
            Self::Qdrant(_) => "qdrant",
        }
    }

    fn open(&self) -> Result<Option<Arc<dyn VectorEngine>>> {
        Ok(match self {
            Self::Exact | Self::Pgvector(_) => None,
            Self::Qdrant(config) => Some(Arc::new(Server::new(config.clone())?)),
        })
    }

    /// Builds the index of the store's faces, and applies changes to it from then on.
    pub(crate) async fn build(&self, store: &Store, model: i32, definition: &str) -> Result<Built> {
        match self {
            Self::Pgvector(None) => {
                Pgvector::new(store.pool().clone()).rebuild(&store.model(model).await?).await?;
            }
            Self::Pgvector(Some(parameters)) => {
                create_index(store, &with_parameters(definition, parameters)?).await?;
            }
            Self::Exact | Self::Qdrant(_) => {}
        }
        let Some(engine) = self.open()? else {
            return Ok(Built { store: store.clone(), engine: None, follower: None });
        };
        let index = ExternalIndex::new(store.clone(), engine.clone());
        index.take_over().await?;
        copy(&index, store).await?;
        let store = store.clone().with_index(Arc::new(index.clone()));
        Ok(Built { store, engine: Some(engine), follower: Some(tokio::spawn(follow(index))) })
    }

    /// Returns the space and the memory of the index. `options` can name the process and the folder
    /// of a Qdrant server.
    pub(crate) async fn size(
        &self,
        store: &Store,
        index: &str,
        options: &HashMap<String, String>,
    ) -> Result<Value> {
        Ok(match self {
            Self::Exact => Value::Null,
            Self::Pgvector(_) => {
                let bytes: i64 = sqlx::query_scalar("select coalesce(pg_relation_size(to_regclass($1)), 0)")
                    .bind(index)
                    .fetch_one(store.pool())
                    .await?;
                json!({"index_mb": bytes >> 20})
            }
            Self::Qdrant(_) => json!({
                "index_mb": options.get("server-folder").map(|folder| disk_usage(folder.as_ref()) >> 20),
                "server_mb": options.get("server-pid").map(|process| resident_mb(process).round()),
            }),
        })
    }

    /// Deletes the index, so that the next one can be built. `built` is absent if the build failed.
    pub(crate) async fn remove(&self, store: &Store, built: Option<Built>, index: &str) -> Result<()> {
        if let Some(built) = built {
            built.stop().await?;
        }
        match self {
            Self::Exact => return Ok(()),
            Self::Pgvector(_) => return drop_index(store, index).await,
            Self::Qdrant(config) => Server::new(config.clone())?.remove_all().await?,
        }
        ExternalIndex::release(store, self.name()).await?;
        store.stop_index_changes().await?;
        store.forget_index(self.name()).await?;
        Ok(())
    }
}

/// An index that follows the changes of faces.
pub(crate) struct Built {
    /// The store whose searches use the index.
    pub(crate) store: Store,
    engine: Option<Arc<dyn VectorEngine>>,
    follower: Option<JoinHandle<()>>,
}

impl Built {
    /// Stops applying changes, and waits until the engine builds no graphs any more.
    async fn stop(self) -> Result<()> {
        if let Some(follower) = self.follower {
            follower.abort();
            let _aborted = follower.await;
        }
        let Some(engine) = self.engine else { return Ok(()) };
        let mut conn = self.store.pool().acquire().await?;
        for set in self.store.index_sets(&mut conn).await? {
            while !engine.info(&set.face_set()).await?.settled {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        }
        Ok(())
    }
}

/// Returns the name of pgvector's index of a model, and the statement that creates it.
pub(crate) async fn definition(conn: &mut PgConnection, model: i32) -> Result<(String, String)> {
    let index = format!("faces_embedding_hnsw_{model}");
    let definition = sqlx::query_scalar("select indexdef from pg_indexes where indexname = $1")
        .bind(&index)
        .fetch_one(conn)
        .await?;
    Ok((index, definition))
}

pub(crate) async fn drop_index(store: &Store, index: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(format!("drop index if exists {index}"))).execute(store.pool()).await?;
    Ok(())
}

fn with_parameters(definition: &str, other: &str) -> Result<String> {
    let (before, after) = definition.split_once(" WITH (").context("the index has storage parameters")?;
    let (own, after) = after.split_once(')').context("the storage parameters end")?;
    eprintln!("{other} instead of {own}");
    Ok(format!("{before} WITH ({other}) {after}"))
}

async fn create_index(store: &Store, definition: &str) -> Result<()> {
    let mut conn = store.pool().acquire().await?;
    sqlx::raw_sql("set statement_timeout = 0; set maintenance_work_mem = '2GB'").execute(&mut *conn).await?;
    let created = sqlx::raw_sql(AssertSqlSafe(definition.to_owned())).execute(&mut *conn).await;
    sqlx::raw_sql("reset statement_timeout; reset maintenance_work_mem").execute(&mut *conn).await?;
    created?;
    Ok(())
}

/// Copies all faces to the index, and waits until searches use it. Up to 50,000 faces may then be
/// outside the graphs.
async fn copy(index: &ExternalIndex, store: &Store) -> Result<()> {
    let mut copied = false;
    loop {
        index.step(COPIED).await?;
        let mut conn = store.pool().acquire().await?;
        let sets = store.index_sets(&mut conn).await?;
        if !sets.is_empty() && sets.iter().all(|set| set.state == IndexSetState::Serving) {
            return Ok(());
        }
        if sets.iter().all(|set| set.copied) {
            if !copied {
                eprintln!("all faces copied");
                copied = true;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn follow(index: ExternalIndex) {
    loop {
        match index.step(FOLLOWED).await {
            Ok(Followed::Applied(1..)) => {}
            Ok(_) => tokio::time::sleep(Duration::from_millis(200)).await,
            Err(error) => {
                eprintln!("the index cannot follow: {error}");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    }
}

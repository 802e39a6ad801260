//! Measures search in many faces with each index, one after the other. Reports the recall against
//! the exact result, and the latency without other load, with a filter, and while faces are being
//! stored. Also measures the time and size of the index, and the comparisons of an erasure by
//! likeness.
//!
//! A person is a random unit vector. Faces and probes are random vectors near people.
mod gallery;

use crate::common::{busy_seconds, per_second, rounded};
use anyhow::{Result, ensure};
use gallery::{Gallery, People};
use qdrant_index::{GRAPH_THRESHOLD, Quantization, Server};
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::index::Pgvector;
use store::index::changes::IndexSetState;
use store::index::engine::VectorEngine;
use store::index::external::{ExternalIndex, StepOutcome};
use store::{Config, Store};
use testing::TestDatabase;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use uuid::Uuid;

/// Minimum quality of the filtered search. A tenth of the faces have at least this quality.
const MIN_QUALITY: f32 = 0.9;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[arg(long, default_value_t = 1_000_000)]
    faces: usize,
    /// Number of searches that are compared with the exact result
    #[arg(long, default_value_t = 200)]
    probes: usize,
    /// Number of timed searches in each case
    #[arg(long, default_value_t = 2000)]
    searches: usize,
    /// Number of faces stored per second during the searches of the last case
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    writes: u32,
    /// Number of searches per second while faces are stored; 0: each follows the one before
    #[arg(long, default_value_t = 0)]
    rate: u32,
    /// Number of components of an embedding
    #[arg(long, default_value_t = 128)]
    dimensions: usize,
    /// Variance of a component divided by that of the previous one
    ///
    /// With 1, all components vary equally, and a search is as hard as possible. 0.957 gives 128
    /// components the effective number of dimensions of real embeddings, 45.
    #[arg(long, default_value_t = 1.0)]
    variance_ratio: f32,
    /// Number of collections among which the faces are divided; each search is in one of them
    #[arg(long, default_value = "1")]
    tenants: std::num::NonZeroUsize,
    /// Number of faces in scope up to which a search compares with every face
    #[arg(long, default_value_t = store::db::DEFAULT_EXACT_LIMIT)]
    exact_limit: i64,
    /// The indexes to measure with the same faces; exact uses no index
    #[arg(long, value_delimiter = ',', default_value = "pgvector")]
    engine: Vec<Kind>,
    /// Addresses of the gRPC interface of the Qdrant server, whose collections are deleted at the
    /// end
    #[arg(long, value_delimiter = ',')]
    qdrant: Vec<String>,
    /// How the Qdrant server stores embeddings
    #[arg(long, default_value = "none", value_parser = ["none", "int8"])]
    quantization: String,
    /// Number of nodes that store each face
    #[arg(long, default_value_t = 1)]
    replicas: u32,
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Value> {
    let engines: Vec<Engine> =
        arguments.engine.iter().map(|kind| Engine::new(*kind, arguments)).collect::<Result<_>>()?;
    let database = TestDatabase::create().await;
    let exact_limit = arguments.exact_limit;
    let store = Store::connect(&Config { url: database.url(), exact_limit, ..Config::default() }).await?;
    let people = Arc::new(People::new(&store, arguments).await?);
    let index = format!("faces_embedding_hnsw_{}", people.model);

    let started = Instant::now();
    gallery::load(&store, &people, arguments.faces).await?;
    let load_faces_per_s = per_second(arguments.faces, started).round();
    eprintln!("{} faces stored, {load_faces_per_s} a second", arguments.faces);
    database.execute("vacuum analyze").await;
    let rows = database.number("select pg_total_relation_size('faces')").await;
    let probes = gallery::probes(&store, &people, arguments.probes).await?;
    let mut reports = Vec::new();
    for engine in engines {
        eprintln!("engine {}", engine.name());
        let mut built = None;
        let report = measure_engine(arguments, &engine, &store, &people, &probes, &mut built).await;
        let report = match (report, &built) {
            (Ok(mut report), Some(_)) => {
                report["index_mb"] = engine.size_mb(&store, &index).await?;
                Ok(report)
            }
            (report, _) => report,
        };
        let removed = engine.remove(&store, built, &index).await;
        reports.push(report?);
        removed?;
        database.execute("vacuum analyze").await;
    }
    Ok(json!({
        "faces": arguments.faces, "people": people.count, "dimensions": arguments.dimensions,
        "variance_ratio": arguments.variance_ratio, "tenants": arguments.tenants, "probes": arguments.probes,
        "load_faces_per_s": load_faces_per_s, "faces_with_other_indexes_mb": rows >> 20, "engines": reports,
    }))
}

/// Builds and measures an index. It is in `built` even if the measurement fails.
async fn measure_engine(
    arguments: &Arguments,
    engine: &Engine,
    store: &Store,
    people: &Arc<People>,
    probes: &[gallery::Probe],
    built: &mut Option<Built>,
) -> Result<Value> {
    let (started, busy) = (Instant::now(), busy_seconds());
    let store = built.insert(engine.build(store, people.model).await?).store.clone();
    let mut report = json!({
        "engine": engine.name(),
        "build_s": started.elapsed().as_secs(),
        "build_cpu_s": (busy_seconds() - busy).round(),
    });
    eprintln!("{report}");
    let gallery = Arc::new(Gallery::new(store, Arc::clone(people), matches!(engine, Engine::Exact)));
    for (name, min_quality) in [("all", None), ("a_tenth", Some(MIN_QUALITY))] {
        let recall = gallery.measure_recall(probes, min_quality).await?;
        report[name] = gallery.measure_latency(arguments.searches, min_quality, 0).await?;
        report[name]["recall_at_10"] = json!(rounded(recall, 4));
        eprintln!("{name}: {}", report[name]);
    }
    report["while_storing"] =
        gallery.measure_while_storing(arguments.searches, arguments.rate, arguments.writes).await?;
    report["storing_alone_ms_per_face"] = json!(gallery.measure_storing().await?);
    report["erasure_planned_s"] = json!(gallery.plan_erasure().await?);
    gallery.clean_up().await?;
    Ok(report)
}

/// Number of faces that are copied, or of changes that are applied, in one step.
const COPY_BATCH: i64 = 5_000;
const CHANGE_BATCH: i64 = 1_000;
/// Time between two checks of an index that has no work.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    Exact,
    Pgvector,
    Qdrant,
}

enum Engine {
    /// No index: each search compares with every face of its collection.
    Exact,
    Pgvector,
    Qdrant(Arc<Server>),
}

impl Engine {
    fn new(kind: Kind, arguments: &Arguments) -> Result<Self> {
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

    fn name(&self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Pgvector => "pgvector",
            Self::Qdrant(_) => "qdrant",
        }
    }

    /// Builds the index of the store's faces, and applies changes to it from then on.
    async fn build(&self, store: &Store, model: i32) -> Result<Built> {
        let Self::Qdrant(server) = self else {
            if matches!(self, Self::Pgvector) {
                Pgvector::new(store.pool().clone()).rebuild(&store.models().get(model).await?).await?;
            }
            return Ok(Built { store: store.clone(), follower: None });
        };
        let index = ExternalIndex::new(store.pool().clone(), server.clone());
        index.take_over().await?;
        copy_faces(&index, store).await?;
        let store = store.clone().with_index(Arc::new(index.clone()));
        Ok(Built { store, follower: Some(tokio::spawn(apply_changes(index))) })
    }

    /// Returns the space of an index in Postgres.
    async fn size_mb(&self, store: &Store, index: &str) -> Result<Value> {
        let Self::Pgvector = self else { return Ok(Value::Null) };
        let size = sqlx::query_scalar("select coalesce(pg_relation_size(to_regclass($1)), 0)").bind(index);
        let bytes: i64 = size.fetch_one(store.pool()).await?;
        Ok(json!(bytes >> 20))
    }

    /// Deletes the index, so that the next one can be built. `built` is absent if the build failed.
    async fn remove(&self, store: &Store, built: Option<Built>, index: &str) -> Result<()> {
        match self {
            Self::Exact => Ok(()),
            Self::Pgvector => drop_index(store, index).await,
            Self::Qdrant(server) => {
                if let Some(follower) = built.and_then(|built| built.follower) {
                    follower.abort();
                    let _result = follower.await;
                    wait_for_graphs(server, store).await?;
                }
                server.remove_all().await?;
                ExternalIndex::release(store.pool(), self.name()).await?;
                store.index().stop_changes().await?;
                store.index().delete_records(self.name()).await?;
                Ok(())
            }
        }
    }
}

/// A built index, and the task that applies later changes of faces to it.
struct Built {
    /// The store whose searches use the index.
    store: Store,
    follower: Option<JoinHandle<()>>,
}

async fn drop_index(store: &Store, index: &str) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(format!("drop index if exists {index}"))).execute(store.pool()).await?;
    Ok(())
}

/// Waits until the engine has built all graphs.
async fn wait_for_graphs(engine: &Server, store: &Store) -> Result<()> {
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
async fn copy_faces(index: &ExternalIndex, store: &Store) -> Result<()> {
    loop {
        index.step(COPY_BATCH).await?;
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

async fn apply_changes(index: ExternalIndex) {
    loop {
        match index.step(CHANGE_BATCH).await {
            Ok(StepOutcome::Applied(1..)) => continue,
            Ok(_) => {}
            Err(error) => eprintln!("the index cannot follow: {error}"),
        }
        sleep(PAUSE).await;
    }
}

//! Measures search in many faces with each index, one after the other: recall against the exact
//! result, latency without other load, with a filter, and while faces are being stored. Also
//! measures the time and size of the index, and the comparisons of an erasure by likeness.
//!
//! A person is a random unit vector. Faces and probes are random vectors near people.
mod gallery;
mod index;
mod people;

use crate::common::{busy_seconds, per_second, rounded};
use anyhow::Result;
use gallery::Gallery;
use index::{Built, Engine};
use people::People;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;
use store::{Config, Store};
use testing::TestDatabase;

/// Minimum quality of the filtered search. A tenth of the faces have at least this quality.
const LEAST_QUALITY: f32 = 0.9;

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
    engine: Vec<index::Kind>,
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
    index::drop_index(&store, &index).await?;

    let started = Instant::now();
    people::load(&store, &people, arguments.faces).await?;
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
    for (name, least_quality) in [("all", None), ("a_tenth", Some(LEAST_QUALITY))] {
        let recall = gallery.recall(probes, least_quality).await?;
        report[name] = gallery.latency(arguments.searches, least_quality, 0).await?;
        report[name]["recall_at_10"] = json!(rounded(recall, 4));
        eprintln!("{name}: {}", report[name]);
    }
    report["while_storing"] =
        gallery.while_storing(arguments.searches, arguments.rate, arguments.writes).await?;
    report["storing_alone_ms_per_face"] = json!(gallery.storing().await?);
    report["erasure_planned_s"] = json!(gallery.plan_erasure().await?);
    gallery.clean_up().await?;
    Ok(report)
}

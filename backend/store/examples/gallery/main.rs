//! Measures search in a large gallery: recall against the exact result, and latency without other
//! load, with a filter, and while faces are being stored. Also measures the time and size of the
//! index, and the comparisons of an erasure by likeness.
//!
//!     cargo run --release -p facecrawl-store --example gallery -- \
//!         --url postgres://… --faces 1000000
//!
//! `--engine LIST` measures several indexes with the same faces, one after the other: `pgvector`,
//! `qdrant`, or `exact` for none. `qdrant` needs `--qdrant URL[,URL]`, and deletes its collections
//! at the end. `--server-pid` and `--server-folder` name the process and the folder of this server,
//! whose memory and files are then part of the report. `--tenants N` divides the faces among N
//! collections, and each search is in one of them.
//!
//! A person is a random unit vector. Faces and probes are random vectors near people. `--dimensions
//! D` sets the number of components.
//!
//! `--variance-ratio R` gives each component R times the variance of the previous one. With 1, the
//! default, all components vary equally, and a search is as hard as possible. Components of a
//! model's embeddings depend on each other. A ratio below 1 has a similar effect.
//!
//! The program works in its own database, which it drops at the end, and prints one JSON document.
#![allow(missing_docs)]

mod engines;
mod machine;
mod measure;
mod people;

use anyhow::{Context, Result, bail};
use engines::{Built, Engine, drop_index};
use machine::busy_seconds;
use measure::{Gallery, Probe};
use people::People;
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::collections::HashMap;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;
use store::schema::OlderPrograms;
use store::{Config, Store};
use uuid::Uuid;

/// Minimum quality of the filtered search. A tenth of the faces have at least this quality.
const LEAST_QUALITY: f32 = 0.9;

struct Size {
    faces: usize,
    /// Number of searches that are compared with the exact result.
    probes: usize,
    /// Number of measured searches.
    searches: usize,
    /// Number of faces stored per second during the searches.
    writes: usize,
    /// Number of searches per second while faces are stored; 0 for as many as possible.
    rate: usize,
    /// Number of components of an embedding.
    dimensions: usize,
    /// Variance of a component divided by that of the previous one.
    variance_ratio: f32,
    /// Number of collections.
    tenants: usize,
    /// Number of faces in scope up to which a search compares with every face.
    exact_limit: usize,
}

#[tokio::main]
async fn main() -> Result<()> {
    let options = options()?;
    let number = |name: &str, default: usize| {
        let given = options.get(name).map(|text| {
            text.parse().with_context(|| format!("--{name} is {text:?}, it must be a whole number"))
        });
        given.unwrap_or(Ok(default))
    };
    let size = Size {
        faces: number("faces", 1_000_000)?,
        probes: number("probes", 200)?,
        searches: number("searches", 2000)?,
        writes: number("writes", 200)?.max(1),
        rate: number("rate", 0)?,
        dimensions: number("dimensions", 128)?,
        variance_ratio: options
            .get("variance-ratio")
            .map_or(Ok(1.0), |text| text.parse())
            .context("--variance-ratio must be a number")?,
        tenants: number("tenants", 1)?.max(1),
        exact_limit: number("exact-limit", 50_000)?,
    };
    let names = options.get("engine").map_or("pgvector", String::as_str).split(',');
    let engines: Vec<Engine> = names.map(|name| Engine::of(name, &options)).collect::<Result<_>>()?;
    let url = options.get("url").cloned().or_else(|| std::env::var("DATABASE_URL").ok());
    let mut url = url::Url::parse(&url.context("--url (or DATABASE_URL) is missing")?)?;
    let server = PgConnectOptions::from_str(url.as_str())?;
    let mut admin = PgConnection::connect_with(&server).await.context("the server does not answer")?;
    let name = format!("gallery_{}", Uuid::now_v7().simple());
    sqlx::query(AssertSqlSafe(format!("create database {name}"))).execute(&mut admin).await?;
    url.set_path(&name);
    let report = measure(&size, &engines, url.to_string(), &options).await;
    sqlx::query(AssertSqlSafe(format!("drop database {name} with (force)"))).execute(&mut admin).await?;
    println!("{}", serde_json::to_string_pretty(&report?)?);
    Ok(())
}

async fn measure(
    size: &Size,
    engines: &[Engine],
    url: String,
    options: &HashMap<String, String>,
) -> Result<Value> {
    let exact_limit = size.exact_limit.try_into()?;
    let store = Store::connect(&Config { url, exact_limit, ..Config::default() }).await?;
    let _schema = store.migrate(OlderPrograms::Stop).await?;
    let mut collections = Vec::new();
    for tenant in 0..size.tenants {
        collections.push(store.ensure_collection(&format!("gallery{tenant}")).await?.id);
    }
    let model = store.register_model("gallery", "gallery", size.dimensions.try_into()?).await?.id;
    let count = People::in_gallery(size.faces);
    let deviations = People::deviations(size.dimensions, size.variance_ratio);
    let people = Arc::new(People { count, deviations, collections, model });
    let mut conn = store.pool().acquire().await?;
    let (index, definition) = engines::definition(&mut conn, model).await?;
    drop_index(&store, &index).await?;

    let started = Instant::now();
    people::load(&store, &people, size.faces).await?;
    let load_seconds = started.elapsed().as_secs_f64();
    eprintln!("{} faces stored in {load_seconds:.0} s", size.faces);
    drop(conn);
    vacuum(&store).await?;
    let rows: i64 =
        sqlx::query_scalar("select pg_total_relation_size('faces')").fetch_one(store.pool()).await?;
    let started = Instant::now();
    let probes = measure::probes(&people, size.faces, size.probes, LEAST_QUALITY);
    eprintln!("probes compared with every face in {:.0} s", started.elapsed().as_secs_f64());

    let mut reports = Vec::new();
    for engine in engines {
        eprintln!("engine {}", engine.name());
        let mut built = None;
        let report = measure_engine(size, engine, &store, &people, &probes, &definition, &mut built).await;
        let report = match (report, &built) {
            (Ok(mut report), Some(built)) => {
                report["size"] = engine.size(&built.store, &index, options).await?;
                eprintln!("{report}");
                Ok(report)
            }
            (report, _) => report,
        };
        let removed = engine.remove(&store, built, &index).await;
        reports.push(report?);
        removed?;
        vacuum(&store).await?;
    }
    Ok(json!({
        "faces": size.faces, "people": count, "dimensions": size.dimensions,
        "variance_ratio": size.variance_ratio, "tenants": size.tenants, "probes": size.probes,
        "load_faces_per_s": (size.faces as f64 / load_seconds).round(),
        "faces_with_other_indexes_mb": rows >> 20,
        "engines": reports,
    }))
}

async fn vacuum(store: &Store) -> Result<()> {
    let mut conn = store.pool().acquire().await?;
    // Each on its own, because Postgres refuses a vacuum together with other statements.
    for statement in ["set statement_timeout = 0", "vacuum analyze", "reset statement_timeout"] {
        sqlx::raw_sql(statement).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Builds and measures an index.
async fn measure_engine(
    size: &Size,
    engine: &Engine,
    store: &Store,
    people: &Arc<People>,
    probes: &[Probe],
    definition: &str,
    built: &mut Option<Built>,
) -> Result<Value> {
    let (started, busy) = (Instant::now(), busy_seconds());
    let store = built.insert(engine.build(store, people.model, definition).await?).store.clone();
    let mut report = json!({
        "engine": engine.name(),
        "build_s": started.elapsed().as_secs_f64().round(),
        "build_cpu_s": (busy_seconds() - busy).round(),
    });
    eprintln!("{report}");
    let exact = matches!(engine, Engine::Exact);
    let gallery = Arc::new(Gallery::new(store, Arc::clone(people), size.faces, exact));
    for (name, least_quality) in [("all", None), ("a_tenth", Some(LEAST_QUALITY))] {
        let (recall, exact) = gallery.recall(probes, least_quality).await?;
        let mut latency = gallery.latency(size.searches, least_quality, 0).await?;
        latency["recall_at_10"] = json!(recall);
        latency["recall_exact"] = json!(exact);
        eprintln!("{name}: {latency}");
        report[name] = latency;
    }
    report["while_storing"] = gallery.while_storing(size.searches, size.rate, size.writes).await?;
    report["storing_alone_ms_per_face"] = json!(gallery.storing().await?);
    report["erasure_planned_s"] = json!(gallery.plan_erasure().await?);
    gallery.clean_up().await?;
    Ok(report)
}

fn options() -> Result<HashMap<String, String>> {
    const NAMES: [&str; 18] = [
        "url",
        "faces",
        "probes",
        "searches",
        "writes",
        "index",
        "engine",
        "rate",
        "dimensions",
        "variance-ratio",
        "tenants",
        "exact-limit",
        "qdrant",
        "quantization",
        "replicas",
        "graph-threshold",
        "server-pid",
        "server-folder",
    ];
    let mut options = HashMap::new();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let Some(name) = word.strip_prefix("--").filter(|name| NAMES.contains(name)) else {
            bail!("{word:?} is not an option; there are --{}", NAMES.join(", --"));
        };
        options.insert(name.to_owned(), words.next().with_context(|| format!("--{name} needs a value"))?);
    }
    Ok(options)
}

//! Measures search in a large gallery: recall against the exact result, and latency without other
//! load, with a filter, and while faces are being stored. Also measures the time and size of the
//! index, and the comparisons of an erasure by likeness.
//!
//!     cargo run --release -p facecrawl-store --example gallery -- \
//!         --url postgres://… --faces 1000000
//!
//! With `--engine edge --folder FOLDER`, the index is in files in a new folder, as with
//! `SEARCH_INDEX=edge`. With `--engine qdrant --qdrant URL[,URL]`, it is in a Qdrant server, in
//! collections that are deleted at the end. `--tenants N` divides the faces among N collections,
//! and each search is in one of them.
//!
//! The faces are points around cluster centres on the sphere, like those of one person. The probes
//! are further points around these centres. The program works in its own database, which it drops
//! at the end, and prints one JSON document.
#![allow(missing_docs)]

use anyhow::{Context, Result, bail};
use edge_index::Edge;
use qdrant_index::{Quantization, Server};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use store::erasures::Target;
use store::external_index::{ExternalIndex, Followed};
use store::faces::NewFace;
use store::index_sets::IndexSetState;
use store::schema::OlderPrograms;
use store::search::SearchQuery;
use store::vector_engine::VectorEngine;
use store::{Config, Store};
use testing::embeddings::Random;
use tokio::task::JoinSet;
use uuid::Uuid;

const RESULTS: i64 = 10;
/// Number of faces per person. Two of them have a mean similarity of 0.6.
const PER_CLUSTER: usize = 20;
const SPREAD: f64 = 0.82;
const PER_IMAGE: usize = 100;
/// Number of searches before the first measured search. They open connections and warm up caches.
const WARMUP: usize = 50;
/// Number of faces stored while no search runs.
const STORED_ALONE: usize = 2000;
/// Number of connections that store faces while searches run.
const WRITERS: usize = 4;
/// Minimum quality of the filtered search. One percent of the faces have at least this quality.
const LEAST_QUALITY: f32 = 0.99;

/// Minimum similarity at which an erasure matches a face.
const ALIKE: f32 = 0.5;

struct Gallery {
    store: Store,
    collections: Vec<Uuid>,
    model: i32,
    centres: Vec<Vec<f32>>,
}

struct Size {
    faces: usize,
    /// Number of searches that are compared with the exact result.
    probes: usize,
    /// Number of measured searches.
    searches: usize,
    /// Number of faces stored per second during the searches.
    writes: usize,
    /// Storage parameters of the index that replace the product's, such as `m = 16, ef_construction
    /// = 64`.
    index: Option<String>,
    engine: Engine,
    /// Number of searches per second while faces are stored; 0 for as many as possible.
    rate: usize,
    /// Number of components of an embedding.
    dimensions: usize,
    /// Number of collections.
    tenants: usize,
    /// Number of faces in scope up to which a search compares with every face.
    exact_limit: usize,
}

/// The index that is measured.
enum Engine {
    Pgvector,
    /// In files in this folder.
    Edge(PathBuf),
    Qdrant(qdrant_index::Config),
}

impl Engine {
    fn of(options: &HashMap<String, String>) -> Result<Self> {
        match options.get("engine").map(String::as_str) {
            None | Some("pgvector") => Ok(Self::Pgvector),
            Some("edge") => {
                Ok(Self::Edge(options.get("folder").context("--engine edge needs --folder")?.into()))
            }
            Some("qdrant") => Ok(Self::Qdrant(qdrant_index::Config {
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
            })),
            Some(other) => bail!("--engine is {other:?}, it must be pgvector, edge or qdrant"),
        }
    }

    fn open(&self) -> Result<Option<Arc<dyn VectorEngine>>> {
        Ok(match self {
            Self::Pgvector => None,
            Self::Edge(folder) => Some(Arc::new(Edge::open(folder)?)),
            Self::Qdrant(config) => Some(Arc::new(Server::new(config.clone())?)),
        })
    }

    async fn remove(&self) -> Result<()> {
        if let Self::Qdrant(config) = self {
            Server::new(config.clone())?.remove_all().await?;
        }
        Ok(())
    }
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
        writes: number("writes", 200)?,
        index: options.get("index").cloned(),
        engine: Engine::of(&options)?,
        rate: number("rate", 0)?,
        dimensions: number("dimensions", 128)?,
        tenants: number("tenants", 1)?.max(1),
        exact_limit: number("exact-limit", 50_000)?,
    };
    let url = options.get("url").cloned().or_else(|| std::env::var("DATABASE_URL").ok());
    let mut url = url::Url::parse(&url.context("--url (or DATABASE_URL) is missing")?)?;
    let server = PgConnectOptions::from_str(url.as_str())?;
    let mut admin = PgConnection::connect_with(&server).await.context("the server does not answer")?;
    let name = format!("gallery_{}", Uuid::now_v7().simple());
    sqlx::query(AssertSqlSafe(format!("create database {name}"))).execute(&mut admin).await?;
    url.set_path(&name);
    let report = measure(&size, url.to_string()).await;
    sqlx::query(AssertSqlSafe(format!("drop database {name} with (force)"))).execute(&mut admin).await?;
    let removed = size.engine.remove().await;
    println!("{}", serde_json::to_string_pretty(&report?)?);
    removed?;
    Ok(())
}

async fn measure(size: &Size, url: String) -> Result<Value> {
    let exact_limit = size.exact_limit.try_into()?;
    let mut store = Store::connect(&Config { url, exact_limit, ..Config::default() }).await?;
    let external = size.engine.open()?.map(|engine| ExternalIndex::new(store.clone(), engine));
    if let Some(index) = &external {
        store = store.with_index(Arc::new(index.clone()));
    }
    let _schema = store.migrate(OlderPrograms::Stop).await?;
    let mut collections = Vec::new();
    for tenant in 0..size.tenants {
        collections.push(store.ensure_collection(&format!("gallery{tenant}")).await?.id);
    }
    let dimensions = size.dimensions;
    let model = store.register_model("gallery", "gallery", dimensions.try_into()?).await?.id;
    let mut random = Random(1);
    let clusters = size.faces.div_ceil(PER_CLUSTER).max(1);
    let centres = (0..clusters).map(|_| random.direction(dimensions)).collect();
    let gallery = Arc::new(Gallery { store, collections, model, centres });

    let mut conn = gallery.store.pool().acquire().await?;
    sqlx::raw_sql("set statement_timeout = 0; set maintenance_work_mem = '2GB'").execute(&mut *conn).await?;
    let index = format!("faces_embedding_hnsw_{model}");
    let definition: Option<String> =
        sqlx::query_scalar("select indexdef from pg_indexes where indexname = $1")
            .bind(&index)
            .fetch_optional(&mut *conn)
            .await?;
    sqlx::raw_sql(AssertSqlSafe(format!("drop index if exists {index}"))).execute(&mut *conn).await?;
    let started = Instant::now();
    let mut stored = 0;
    while stored < size.faces {
        stored += gallery.store_image(&mut random, PER_IMAGE.min(size.faces - stored)).await?;
        if stored.is_multiple_of(100_000) {
            eprintln!("{stored} faces stored");
        }
    }
    let load_seconds = started.elapsed().as_secs_f64();
    let (started, busy) = (Instant::now(), busy_seconds());
    let definition = match (&size.index, definition.as_deref().unwrap_or_default().split_once(" WITH (")) {
        (Some(other), Some((before, after))) => {
            let (own, after) = after.split_once(')').context("the index has storage parameters")?;
            eprintln!("{other} instead of {own}");
            format!("{before} WITH ({other}) {after}")
        }
        _ => definition.unwrap_or_default(),
    };
    match &external {
        Some(index) => {
            index.take_over().await?;
            build(index, &gallery.store).await?;
        }
        None => {
            sqlx::raw_sql(AssertSqlSafe(definition.clone())).execute(&mut *conn).await?;
        }
    }
    let build_seconds = started.elapsed().as_secs_f64();
    let build_cpu = busy_seconds() - busy;
    eprintln!("index built in {build_seconds:.0} s");
    sqlx::raw_sql("vacuum analyze").execute(&mut *conn).await?;
    let (index_bytes, all_bytes): (i64, i64) = sqlx::query_as(
        "select coalesce(pg_relation_size(to_regclass($1)), 0), pg_total_relation_size('faces')",
    )
    .bind(&index)
    .fetch_one(&mut *conn)
    .await?;
    drop(conn);
    let index_bytes = match &size.engine {
        Engine::Pgvector => Some(index_bytes),
        Engine::Edge(folder) => Some(disk_usage(folder) as i64),
        Engine::Qdrant(_) => None,
    };
    let follower = external.map(|index| {
        tokio::spawn(async move {
            loop {
                match index.step(1_000).await {
                    Ok(Followed::Applied(1..)) => {}
                    Ok(_) => tokio::time::sleep(Duration::from_millis(200)).await,
                    Err(error) => {
                        eprintln!("the index cannot follow: {error}");
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                }
            }
        })
    });

    let recall = gallery.recall(&mut random, size.probes).await?;
    eprintln!("recall {recall}");
    let alone = gallery.latency(&mut random, size.searches, None, 0).await?;
    let filtered = gallery.latency(&mut random, size.searches.min(500), Some(LEAST_QUALITY), 0).await?;
    let writer = gallery.writer(size.writes);
    let busy = busy_seconds();
    let while_storing = gallery.latency(&mut random, size.searches, None, size.rate).await?;
    let (stored, stored_per_s) = writer.stop().await?;
    let storing_cpu = busy_seconds() - busy;
    let lag = gallery.store.index_lag().await?.as_secs_f64();
    let report = json!({
        "faces": size.faces, "clusters": clusters, "dimensions": dimensions, "tenants": size.tenants,
        "index": definition,
        "load_faces_per_s": (size.faces as f64 / load_seconds).round(),
        "build_s": build_seconds.round(), "build_cpu_s": build_cpu.round(),
        "index_mb": index_bytes.map(|bytes| bytes >> 20), "faces_with_indexes_mb": all_bytes >> 20,
        "recall_at_10": recall, "recall_probes": size.probes,
        "alone": alone, "filtered_to_1_percent": filtered, "while_storing": while_storing,
        "stored_faces_per_s": stored_per_s, "cpu_ms_per_stored_face": storing_cpu * 1e3 / stored as f64,
        "lag_s": lag, "process_mb": resident_mb(),
        "storing_alone_ms_per_face": gallery.storing(&mut random).await?,
        "erasure_planned_s": gallery.plan_erasure(&mut random).await?,
    });
    if let Some(follower) = follower {
        // The database is dropped next.
        follower.abort();
        let _aborted = follower.await;
    }
    Ok(report)
}

impl Gallery {
    /// Returns an embedding near one of the people.
    fn someone(&self, random: &mut Random) -> Vec<f32> {
        let centre = random.below(self.centres.len());
        random.near(&self.centres[centre], SPREAD)
    }

    async fn store_image(&self, random: &mut Random, faces: usize) -> Result<usize> {
        let image = Uuid::now_v7();
        let collection = self.collections[random.below(self.collections.len())];
        let face = |_| NewFace {
            id: Uuid::now_v7(),
            bbox: [0.0, 0.0, 64.0, 64.0],
            det_score: 0.9,
            landmarks: [0.0; 10],
            quality: None,
            quality_overall: Some(random.uniform() as f32),
            quality_passed: Some(true),
            embedding: self.someone(random),
            model_id: self.model,
            chip_key: None,
            crop_key: None,
        };
        let faces: Vec<NewFace> = (0..faces).map(face).collect();
        let mut tx = self.store.begin().await?;
        sqlx::query(
            "insert into images (id, collection_id, sha256, phash, dhash, ahash, width, height, format, bytes, rotation)
             values ($1, $2, sha256($1::text::bytea), 0, 0, 0, 640, 480, 'jpeg', 1, 0)",
        )
        .bind(image)
        .bind(collection)
        .execute(tx.conn())
        .await?;
        self.store.insert_faces(tx.conn(), collection, image, &faces).await?;
        tx.commit().await?;
        Ok(faces.len())
    }

    fn query(&self, random: &mut Random, min_quality: Option<f32>) -> SearchQuery {
        SearchQuery {
            collection_id: self.collections[random.below(self.collections.len())],
            embedding: self.someone(random),
            model_id: self.model,
            threshold: -1.0,
            limit: RESULTS,
            exact: false,
            crawl_id: None,
            min_quality,
            with_subject: false,
            exclude_face: None,
        }
    }

    /// Returns the fraction of the ten exact results that the index finds.
    async fn recall(&self, random: &mut Random, probes: usize) -> Result<f64> {
        let (mut found, mut all) = (0, 0);
        for _ in 0..probes {
            let query = self.query(random, None);
            let (hits, exact) = self.store.search(&query).await?;
            if exact && self.collections.len() == 1 {
                bail!("the search was exact: the gallery is too small to need its index");
            }
            let (truth, _) = self.store.search(&SearchQuery { exact: true, ..query.clone() }).await?;
            let ids: Vec<Uuid> = hits.iter().map(|hit| hit.face.id).collect();
            let foreign: i64 =
                sqlx::query_scalar("select count(*) from faces where id = any($1) and collection_id <> $2")
                    .bind(&ids)
                    .bind(query.collection_id)
                    .fetch_one(self.store.pool())
                    .await?;
            if foreign > 0 {
                bail!("a search returned {foreign} faces of another collection");
            }
            let truth: HashSet<Uuid> = truth.into_iter().map(|hit| hit.face.id).collect();
            all += truth.len();
            found += hits.iter().filter(|hit| truth.contains(&hit.face.id)).count();
        }
        Ok((found as f64 / all as f64 * 1e4).round() / 1e4)
    }

    /// Measures searches that run one after the other.
    /// `rate` is their number per second; with 0, each follows the one before.
    async fn latency(
        &self,
        random: &mut Random,
        searches: usize,
        min_quality: Option<f32>,
        rate: usize,
    ) -> Result<Value> {
        let mut tick = (rate > 0).then(|| tokio::time::interval(Duration::from_secs(1) / rate as u32));
        let (mut times, mut exact_ones) = (Vec::with_capacity(searches), 0);
        for index in 0..WARMUP + searches {
            let query = self.query(random, min_quality);
            if let Some(tick) = &mut tick {
                tick.tick().await;
            }
            let started = Instant::now();
            let (_, exact) = self.store.search(&query).await?;
            if index >= WARMUP {
                times.push(started.elapsed());
                exact_ones += usize::from(exact);
            }
            if exact && self.collections.len() == 1 && min_quality.is_none() {
                eprintln!("search {index} was answered without the index, in {:?}", started.elapsed());
            }
        }
        times.sort_unstable();
        let ms = |share: f64| {
            let time = times[((times.len() - 1) as f64 * share) as usize];
            (time.as_secs_f64() * 1e5).round() / 100.0
        };
        let report = json!({"p50_ms": ms(0.5), "p99_ms": ms(0.99), "max_ms": ms(1.0), "searches": searches, "exact": exact_ones});
        eprintln!("{report}");
        Ok(report)
    }

    /// Returns the milliseconds per face on one connection without other load. Nearly all of that
    /// time is spent inserting into the index.
    async fn storing(&self, random: &mut Random) -> Result<f64> {
        let started = Instant::now();
        let mut stored = 0;
        while stored < STORED_ALONE {
            stored += self.store_image(random, PER_IMAGE).await?;
        }
        Ok((started.elapsed().as_secs_f64() * 1e5 / stored as f64).round() / 100.0)
    }

    /// Measures the plan of an erasure by likeness of one of the people. The erasure is not carried
    /// out.
    async fn plan_erasure(&self, random: &mut Random) -> Result<f64> {
        let target =
            Target::Likeness { embedding: self.someone(random), model_id: self.model, threshold: ALIKE };
        let started = Instant::now();
        let mut tx = self.store.begin().await?;
        let plan = self.store.plan_erasure(tx.conn(), self.collections[0], &target).await?;
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("an erasure would take {} faces", plan.faces.len());
        Ok((seconds * 100.0).round() / 100.0)
    }

    /// Stores faces at a constant rate over several connections, ten images per second on each, as
    /// image workers do.
    fn writer(self: &Arc<Self>, per_second: usize) -> Writer {
        let (stop, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut tasks = JoinSet::new();
        for task in 0..WRITERS {
            let (gallery, stop, stored) = (Arc::clone(self), Arc::clone(&stop), Arc::clone(&stored));
            tasks.spawn(async move {
                let mut random = Random(2 + task as u64);
                let mut tick = tokio::time::interval(Duration::from_millis(100));
                while !stop.load(Ordering::Relaxed) {
                    tick.tick().await;
                    let faces = gallery.store_image(&mut random, per_second.div_ceil(10 * WRITERS)).await?;
                    stored.fetch_add(faces as u64, Ordering::Relaxed);
                }
                Ok(())
            });
        }
        Writer { started: Instant::now(), stop, stored, tasks }
    }
}

struct Writer {
    started: Instant,
    stop: Arc<AtomicBool>,
    stored: Arc<AtomicU64>,
    tasks: JoinSet<Result<()>>,
}

impl Writer {
    /// Stops the writers and returns the faces stored, and the faces stored per second.
    async fn stop(mut self) -> Result<(u64, f64)> {
        let rate = self.stored.load(Ordering::Relaxed) as f64 / self.started.elapsed().as_secs_f64();
        self.stop.store(true, Ordering::Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok((self.stored.load(Ordering::Relaxed), (rate * 10.0).round() / 10.0))
    }
}

/// Copies all faces to the index, and waits until searches use it and its graphs are built.
async fn build(index: &ExternalIndex, store: &Store) -> Result<()> {
    loop {
        index.step(5_000).await?;
        let mut conn = store.pool().acquire().await?;
        let sets = store.index_sets(&mut conn).await?;
        if !sets.is_empty() && sets.iter().all(|set| set.state == IndexSetState::Serving) {
            return Ok(());
        }
        if sets.iter().all(|set| set.copied) {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

/// Returns the CPU time that all processes of the machine have used, in seconds.
fn busy_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: Vec<f64> =
        text.lines().next().unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
    // user, nice, system; 100 ticks per second.
    ticks.iter().take(3).sum::<f64>() / 100.0
}

/// Returns the resident memory of this process, in MB.
fn resident_mb() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kb| kb.parse::<f64>().ok()).unwrap_or_default() / 1024.0
}

/// Returns the space that the files of a folder occupy, in bytes.
fn disk_usage(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(data) if data.is_dir() => disk_usage(&entry.path()),
        Ok(data) => std::os::unix::fs::MetadataExt::blocks(&data) * 512,
        Err(_) => 0,
    });
    sizes.sum()
}

fn options() -> Result<HashMap<String, String>> {
    const NAMES: [&str; 15] = [
        "url",
        "faces",
        "probes",
        "searches",
        "writes",
        "index",
        "engine",
        "folder",
        "rate",
        "dimensions",
        "tenants",
        "exact-limit",
        "qdrant",
        "quantization",
        "replicas",
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

//! Draws the faces of a gallery and stores them. Measures an index with them: recall, latency, and
//! storing.
use super::{Arguments, MIN_QUALITY};
use crate::common::{busy_seconds, per_second, rounded};
use anyhow::{Result, anyhow, ensure};
use bench::Tail;
use futures::{StreamExt, TryStreamExt, stream};
use half::f16;
use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use store::Store;
use store::erasures::Target;
use store::faces::search::SearchQuery;
use store::index::scope::{Assignment, FaceFilter};
use testing::embeddings::{Random, displace, normalize};
use testing::rows;
use tokio::task::JoinSet;
use tokio::time::interval;
use uuid::Uuid;

const RESULTS: i64 = 10;
/// Number of searches before the first measured search. They open connections and warm up caches.
const WARMUP: usize = 50;
/// Number of images stored while no search runs.
const IMAGES_STORED_ALONE: usize = 20;
/// Number of connections that store faces while searches run.
const WRITERS: usize = 4;
/// Seeds of the probes and of the timed searches. They are greater than the numbers of all images.
const PROBE_SEED: u64 = 1 << 40;
const LATENCY_SEED: u64 = 2 << 40;
/// Number of the first image that a measurement stores. It is greater than those of the gallery.
const FIRST_STORED_IMAGE: usize = 1 << 32;
/// Minimum similarity of a match.
const MATCH_THRESHOLD: f32 = 0.5;

/// A gallery, and the store whose index is measured.
pub(crate) struct Gallery {
    store: Store,
    people: Arc<People>,
    /// Whether each search compares with every face.
    exact: bool,
    /// Number of the next image.
    next_image: AtomicUsize,
    /// An id of the start time. Rows with this or a later id are deleted at the end.
    start_id: Uuid,
}

/// A probe and its exact results in its collection: the ten most similar faces, and the ten most
/// similar matches with the minimum quality.
pub(crate) struct Probe {
    collection: Uuid,
    embedding: Vec<f32>,
    nearest: HashSet<Uuid>,
    nearest_good: HashSet<Uuid>,
}

/// Draws probes, and compares each with every face.
pub(crate) async fn probes(store: &Store, people: &Arc<People>, count: usize) -> Result<Vec<Probe>> {
    let gallery = Gallery::new(store.clone(), Arc::clone(people), true);
    let mut random = Random(PROBE_SEED);
    let mut probes = Vec::with_capacity(count);
    for _ in 0..count {
        let (collection, embedding) = (people.collection(&mut random), people.random_face(&mut random));
        let nearest = gallery.search(collection, &embedding, None, -1.0).await?;
        let nearest_good = gallery.search(collection, &embedding, Some(MIN_QUALITY), MATCH_THRESHOLD).await?;
        probes.push(Probe { collection, embedding, nearest, nearest_good });
    }
    Ok(probes)
}

impl Gallery {
    pub(crate) fn new(store: Store, people: Arc<People>, exact: bool) -> Self {
        Self {
            store,
            people,
            exact,
            next_image: AtomicUsize::new(FIRST_STORED_IMAGE),
            start_id: Uuid::now_v7(),
        }
    }

    fn query(&self, collection_id: Uuid, embedding: Vec<f32>, min_quality: Option<f32>) -> SearchQuery {
        SearchQuery {
            collection_id,
            embedding,
            model_id: self.people.model,
            threshold: -1.0,
            limit: RESULTS,
            exact: self.exact,
            filter: FaceFilter { min_quality, ..FaceFilter::default() },
            assignment: Assignment::Any,
            exclude_face: None,
        }
    }

    /// Returns the faces that a search finds, with at least this similarity.
    async fn search(
        &self,
        collection: Uuid,
        embedding: &[f32],
        min_quality: Option<f32>,
        min_similarity: f32,
    ) -> Result<HashSet<Uuid>> {
        let query = self.query(collection, embedding.to_owned(), min_quality);
        let (hits, _) = self.store.faces().search(&query).await?;
        let foreign = hits.iter().find(|hit| hit.face.collection_id != collection);
        ensure!(foreign.is_none(), "a search returned a face of another collection");
        Ok(hits.into_iter().filter(|hit| hit.similarity >= min_similarity).map(|hit| hit.face.id).collect())
    }

    /// Returns the fraction of the ten exact results that the index finds. With a minimum quality,
    /// only matches count: most of the ten results are then faces of other people, which are all
    /// about equally similar.
    pub(crate) async fn measure_recall(&self, probes: &[Probe], min_quality: Option<f32>) -> Result<f64> {
        let (mut found, mut total) = (0, 0);
        for probe in probes {
            let hits = self.search(probe.collection, &probe.embedding, min_quality, -1.0).await?;
            let expected = if min_quality.is_some() { &probe.nearest_good } else { &probe.nearest };
            total += expected.len();
            found += hits.intersection(expected).count();
        }
        Ok(found as f64 / total as f64)
    }

    /// Measures searches that run one after the other. `rate` is their number per second; with 0,
    /// each follows the one before.
    pub(crate) async fn measure_latency(
        &self,
        searches: usize,
        min_quality: Option<f32>,
        rate: u32,
    ) -> Result<Value> {
        let mut random = Random(LATENCY_SEED);
        let mut tick = (rate > 0).then(|| interval(Duration::from_secs(1) / rate));
        let (mut times, mut exact_count) = (Vec::with_capacity(searches), 0);
        for index in 0..WARMUP + searches {
            let collection = self.people.collection(&mut random);
            let query = self.query(collection, self.people.random_face(&mut random), min_quality);
            if let Some(tick) = &mut tick {
                tick.tick().await;
            }
            let started = Instant::now();
            let (_, exact) = self.store.faces().search(&query).await?;
            if index >= WARMUP {
                times.push(rounded(started.elapsed().as_secs_f64() * 1e3, 2));
                exact_count += usize::from(exact);
            }
        }
        // `exact` is the number of searches that compared with every face.
        Ok(json!({"ms": Tail::of(&times), "searches": searches, "exact": exact_count}))
    }

    /// Measures searches while `writes` faces per second are stored: ten images per second over
    /// each of several connections, as image workers do.
    pub(crate) async fn measure_while_storing(
        self: &Arc<Self>,
        searches: usize,
        rate: u32,
        writes: u32,
    ) -> Result<Value> {
        let (busy, started) = (busy_seconds(), Instant::now());
        let (stop, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let faces = (writes as usize).div_ceil(10 * WRITERS);
        let mut writers = JoinSet::new();
        for _ in 0..WRITERS {
            let (gallery, stop, stored) = (Arc::clone(self), Arc::clone(&stop), Arc::clone(&stored));
            writers.spawn(async move {
                let mut tick = interval(Duration::from_millis(100));
                while !stop.load(Ordering::Relaxed) {
                    tick.tick().await;
                    gallery.store_next(faces).await?;
                    stored.fetch_add(faces, Ordering::Relaxed);
                }
                anyhow::Ok(())
            });
        }
        let mut report = self.measure_latency(searches, None, rate).await?;
        let stored_per_s = per_second(stored.load(Ordering::Relaxed), started);
        stop.store(true, Ordering::Relaxed);
        writers.join_all().await.into_iter().collect::<Result<()>>()?;
        let cpu_ms = (busy_seconds() - busy) * 1e3 / stored.load(Ordering::Relaxed) as f64;
        report["stored_faces_per_s"] = json!(rounded(stored_per_s, 1));
        report["cpu_ms_per_stored_face"] = json!(rounded(cpu_ms, 2));
        report["lag_s"] = json!(self.store.faces().index_lag().await?.as_secs_f64());
        Ok(report)
    }

    /// Returns the milliseconds per face on one connection without other load.
    pub(crate) async fn measure_storing(&self) -> Result<f64> {
        let started = Instant::now();
        for _ in 0..IMAGES_STORED_ALONE {
            self.store_next(FACES_PER_IMAGE).await?;
        }
        Ok(rounded(started.elapsed().as_secs_f64() * 1e3 / (IMAGES_STORED_ALONE * FACES_PER_IMAGE) as f64, 2))
    }

    async fn store_next(&self, faces: usize) -> Result<()> {
        let number = self.next_image.fetch_add(1, Ordering::Relaxed);
        self.people.store_image(&self.store, number, faces).await
    }

    /// Measures the plan of an erasure by likeness of one of the people, without the erasure
    /// itself.
    pub(crate) async fn plan_erasure(&self) -> Result<f64> {
        let mut random = Random(PROBE_SEED);
        let collection = self.people.collection(&mut random);
        let embedding = self.people.random_face(&mut random);
        let target = Target::Likeness { embedding, model_id: self.people.model, threshold: MATCH_THRESHOLD };
        let started = Instant::now();
        let mut tx = self.store.begin().await?;
        let plan = self.store.erasures().plan(tx.conn(), collection, &target).await?;
        eprintln!("an erasure would delete {} faces", plan.faces.len());
        Ok(rounded(started.elapsed().as_secs_f64(), 2))
    }

    pub(crate) async fn clean_up(&self) -> Result<()> {
        let mut tx = self.store.begin().await?;
        for (table, column) in [("faces", "image_id"), ("images", "id")] {
            let delete = AssertSqlSafe(format!("delete from {table} where {column} >= $1"));
            sqlx::query(delete).bind(self.start_id).execute(tx.conn()).await?;
        }
        tx.commit().await?;
        Ok(())
    }
}

/// Average number of faces per person. The mean similarity of two faces of one person is 0.6.
const FACES_PER_PERSON: usize = 20;
const SPREAD: f64 = 0.82;
/// Number of faces of an image.
const FACES_PER_IMAGE: usize = 100;
/// Number of connections that store the faces of the gallery.
const LOADERS: usize = 2;

/// The people of a gallery. A person is a random unit vector, and a face is a random vector near
/// it.
pub(crate) struct People {
    pub(crate) count: usize,
    /// Standard deviation of each component of an embedding, as a multiple of the first one.
    deviations: Vec<f64>,
    collections: Vec<Uuid>,
    pub(crate) model: i32,
}

impl People {
    pub(crate) async fn new(store: &Store, arguments: &Arguments) -> Result<Self> {
        let mut collections = Vec::new();
        for tenant in 0..arguments.tenants.get() {
            collections.push(store.collections().ensure(&format!("gallery{tenant}")).await?.id);
        }
        let model = store.models().register("gallery", "gallery", arguments.dimensions.try_into()?).await?.id;
        let deviation = |component: usize| f64::from(arguments.variance_ratio).sqrt().powi(component as i32);
        let deviations = (0..arguments.dimensions).map(deviation).collect();
        let count = arguments.faces.div_ceil(FACES_PER_PERSON).max(1);
        Ok(Self { count, deviations, collections, model })
    }

    /// Returns a new embedding of one of the people, in half precision like the rows.
    fn random_face(&self, random: &mut Random) -> Vec<f32> {
        let person = random.below(self.count) as u64;
        let centre = self.direction(&mut Random(u64::MAX - person));
        let embedding = displace(&centre, &self.direction(random), SPREAD);
        embedding.into_iter().map(|x| f16::from_f32(x).to_f32()).collect()
    }

    /// Returns a random unit vector.
    fn direction(&self, random: &mut Random) -> Vec<f32> {
        let plain = random.unit_vector(self.deviations.len());
        normalize(
            &plain.iter().zip(&self.deviations).map(|(x, scale)| f64::from(*x) * scale).collect::<Vec<_>>(),
        )
    }

    pub(crate) fn collection(&self, random: &mut Random) -> Uuid {
        self.collections[random.below(self.collections.len())]
    }

    async fn store_image(&self, store: &Store, number: usize, faces: usize) -> Result<()> {
        let mut random = Random(number as u64);
        let (collection, image) = (self.collection(&mut random), rows::image(&mut random));
        let faces: Vec<_> = (0..faces)
            .map(|_| rows::face(self.random_face(&mut random), self.model, random.uniform() as f32))
            .collect();
        let mut tx = store.begin().await?;
        let inserted = store.images().insert(tx.conn(), collection, &image).await?;
        inserted.map_err(|_| anyhow!("two images have the same bytes"))?;
        store.faces().insert(tx.conn(), collection, image.id, &faces).await?;
        tx.commit().await?;
        Ok(())
    }
}

pub(crate) async fn load(store: &Store, people: &Arc<People>, faces: usize) -> Result<()> {
    let images = stream::iter((0..faces).step_by(FACES_PER_IMAGE)).map(|first| {
        let (store, people) = (store.clone(), Arc::clone(people));
        tokio::spawn(async move {
            if first > 0 && first.is_multiple_of(500_000) {
                eprintln!("{first} faces stored");
            }
            people.store_image(&store, first / FACES_PER_IMAGE, FACES_PER_IMAGE.min(faces - first)).await
        })
    });
    images.buffer_unordered(LOADERS).map(|stored| stored?).try_collect().await
}

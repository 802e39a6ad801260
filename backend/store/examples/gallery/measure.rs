//! What is measured of an index: recall, latency, and storing.
use crate::machine::busy_seconds;
use crate::people::{PER_IMAGE, People, delete_from, store_image};
use anyhow::{Result, bail};
use serde_json::{Value, json};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use store::Store;
use store::erasures::Target;
use store::face_scope::FaceFilter;
use store::search::SearchQuery;
use testing::embeddings::Random;
use tokio::task::JoinSet;
use uuid::Uuid;

const RESULTS: usize = 10;
/// Number of searches before the first measured search. They open connections and warm up caches.
const WARMUP: usize = 50;
/// Number of faces stored while no search runs.
const STORED_ALONE: usize = 2_000;
/// Number of connections that store faces while searches run.
const WRITERS: usize = 4;
/// Seeds of the probes and of the timed searches. They are greater than every number of an image.
const PROBES: u64 = 1 << 40;
const LATENCIES: u64 = 2 << 40;
/// Minimum similarity of a match.
const ALIKE: f32 = 0.5;

/// A gallery, and the store whose index is measured.
pub(crate) struct Gallery {
    store: Store,
    people: Arc<People>,
    /// Number of images of the gallery, without those that a measurement stores.
    images: usize,
    /// Whether each search compares with every face.
    exact: bool,
    /// Number of the next image.
    next: AtomicUsize,
}

/// A probe, and the ten most similar faces of its collection.
pub(crate) struct Probe {
    collection: Uuid,
    embedding: Vec<f32>,
    best: Best,
}

/// The ten most similar faces: of all, and of those with the minimum quality.
#[derive(Clone, Default)]
struct Best {
    of_all: Vec<(f32, Uuid)>,
    of_good: Vec<(f32, Uuid)>,
}

impl Best {
    fn extend(&mut self, other: Self) {
        self.of_all.extend(other.of_all);
        self.of_good.extend(other.of_good);
        cut(&mut self.of_all);
        cut(&mut self.of_good);
    }
}

/// Compares probes with every face of a gallery. The faces are drawn again, on all cores.
pub(crate) fn probes(people: &People, faces: usize, count: usize, least_quality: f32) -> Vec<Probe> {
    let mut random = Random(PROBES);
    let probe = |_| Probe {
        collection: people.collection(&mut random),
        embedding: people.someone(&mut random),
        best: Best::default(),
    };
    let mut probes: Vec<Probe> = (0..count).map(probe).collect();
    let images = faces.div_ceil(PER_IMAGE);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let shared = &probes;
    let parts: Vec<Vec<Best>> = std::thread::scope(|scope| {
        let part = |first: usize| {
            let images = (first..images).step_by(threads);
            scope.spawn(move || compare(people, shared, images, faces, least_quality))
        };
        let workers: Vec<_> = (0..threads).map(part).collect();
        workers.into_iter().map(|worker| worker.join().expect("a comparison does not panic")).collect()
    });
    for part in parts {
        for (probe, best) in probes.iter_mut().zip(part) {
            probe.best.extend(best);
        }
    }
    probes
}

fn compare(
    people: &People,
    probes: &[Probe],
    images: impl Iterator<Item = usize>,
    faces: usize,
    least_quality: f32,
) -> Vec<Best> {
    let mut best = vec![Best::default(); probes.len()];
    for image in images {
        let (collection, drawn) = people.image(image, PER_IMAGE.min(faces - image * PER_IMAGE));
        for (probe, best) in probes.iter().zip(&mut best) {
            if probe.collection == collection {
                let of_all: Vec<_> =
                    drawn.iter().map(|face| (cosine(&face.embedding, &probe.embedding), face.id)).collect();
                let compared = drawn.iter().zip(&of_all);
                let of_good = compared
                    .filter(|(face, _)| face.quality >= least_quality)
                    .map(|(_, face)| *face)
                    .collect();
                best.extend(Best { of_all, of_good });
            }
        }
    }
    best
}

/// Returns the cosine of the angle between a face and a probe, times the length of the probe.
fn cosine(face: &[f32], probe: &[f32]) -> f32 {
    let length = face.iter().map(|x| x * x).sum::<f32>().sqrt();
    face.iter().zip(probe).map(|(a, b)| a * b).sum::<f32>() / length
}

/// Keeps the most similar faces.
fn cut(faces: &mut Vec<(f32, Uuid)>) {
    faces.sort_by(|a, b| b.0.total_cmp(&a.0));
    faces.truncate(RESULTS);
}

impl Gallery {
    pub(crate) fn new(store: Store, people: Arc<People>, faces: usize, exact: bool) -> Self {
        let images = faces.div_ceil(PER_IMAGE);
        Self { store, people, images, exact, next: AtomicUsize::new(images) }
    }

    fn query(&self, collection_id: Uuid, embedding: Vec<f32>, min_quality: Option<f32>) -> SearchQuery {
        SearchQuery {
            collection_id,
            embedding,
            model_id: self.people.model,
            threshold: -1.0,
            limit: RESULTS as i64,
            exact: self.exact,
            filter: FaceFilter { min_quality, ..FaceFilter::default() },
            with_subject: false,
            exclude_face: None,
        }
    }

    /// Returns the fraction of the ten exact results that the index finds, and how many searches
    /// compared with every face. With a minimum quality, only matches count: most of the ten
    /// results are then faces of other people, which are all about equally similar.
    pub(crate) async fn recall(&self, probes: &[Probe], min_quality: Option<f32>) -> Result<(f64, usize)> {
        let (mut found, mut all, mut exact_ones) = (0, 0, 0);
        for probe in probes {
            let query = self.query(probe.collection, probe.embedding.clone(), min_quality);
            let (hits, exact) = self.store.search(&query).await?;
            exact_ones += usize::from(exact);
            if let Some(foreign) = hits.iter().find(|hit| hit.face.collection_id != probe.collection) {
                bail!("a search returned the face {} of another collection", foreign.face.id);
            }
            let best = if min_quality.is_some() { &probe.best.of_good } else { &probe.best.of_all };
            let counts = |similarity: f32| min_quality.is_none() || similarity >= ALIKE;
            let truth: HashSet<Uuid> =
                best.iter().filter(|(similarity, _)| counts(*similarity)).map(|(_, id)| *id).collect();
            all += truth.len();
            found += hits.iter().filter(|hit| truth.contains(&hit.face.id)).count();
        }
        Ok(((found as f64 / all as f64 * 1e4).round() / 1e4, exact_ones))
    }

    /// Measures searches that run one after the other. `rate` is their number per second; with 0,
    /// each follows the one before.
    pub(crate) async fn latency(
        &self,
        searches: usize,
        min_quality: Option<f32>,
        rate: usize,
    ) -> Result<Value> {
        let mut random = Random(LATENCIES);
        let mut tick = (rate > 0).then(|| tokio::time::interval(Duration::from_secs(1) / rate as u32));
        let (mut times, mut exact_ones) = (Vec::with_capacity(searches), 0);
        for index in 0..WARMUP + searches {
            let collection = self.people.collection(&mut random);
            let query = self.query(collection, self.people.someone(&mut random), min_quality);
            if let Some(tick) = &mut tick {
                tick.tick().await;
            }
            let started = Instant::now();
            let (hits, exact) = self.store.search(&query).await?;
            if index >= WARMUP {
                times.push(started.elapsed());
                exact_ones += usize::from(exact);
            }
            if let Some(foreign) = hits.iter().find(|hit| hit.face.collection_id != collection) {
                bail!("a search returned the face {} of another collection", foreign.face.id);
            }
        }
        times.sort_unstable();
        let ms = |share: f64| {
            let time = times[((times.len() - 1) as f64 * share) as usize];
            (time.as_secs_f64() * 1e5).round() / 100.0
        };
        let report = json!({
            "p50_ms": ms(0.5), "p99_ms": ms(0.99), "max_ms": ms(1.0), "searches": searches,
            // Searches that compared with every face.
            "exact": exact_ones,
        });
        Ok(report)
    }

    /// Measures searches while `per_second` faces are stored.
    pub(crate) async fn while_storing(
        self: &Arc<Self>,
        searches: usize,
        rate: usize,
        per_second: usize,
    ) -> Result<Value> {
        let (busy, writer) = (busy_seconds(), self.writer(per_second));
        let mut report = self.latency(searches, None, rate).await?;
        let (stored, stored_per_s) = writer.stop().await?;
        let cpu = busy_seconds() - busy;
        report["stored_faces_per_s"] = json!(stored_per_s);
        report["cpu_ms_per_stored_face"] = json!((cpu * 1e5 / stored as f64).round() / 100.0);
        report["lag_s"] = json!(self.store.index_lag().await?.as_secs_f64());
        Ok(report)
    }

    /// Returns the milliseconds per face on one connection without other load.
    pub(crate) async fn storing(&self) -> Result<f64> {
        let started = Instant::now();
        for _ in 0..STORED_ALONE / PER_IMAGE {
            self.store_next(PER_IMAGE).await?;
        }
        Ok((started.elapsed().as_secs_f64() * 1e5 / STORED_ALONE as f64).round() / 100.0)
    }

    async fn store_next(&self, faces: usize) -> Result<()> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        store_image(&self.store, &self.people, number, faces).await
    }

    /// Measures the plan of an erasure by likeness of one of the people. The erasure is not carried
    /// out.
    pub(crate) async fn plan_erasure(&self) -> Result<f64> {
        let mut random = Random(PROBES);
        let collection = self.people.collection(&mut random);
        let embedding = self.people.someone(&mut random);
        let target = Target::Likeness { embedding, model_id: self.people.model, threshold: ALIKE };
        let started = Instant::now();
        let mut tx = self.store.begin().await?;
        let plan = self.store.plan_erasure(tx.conn(), collection, &target).await?;
        let seconds = started.elapsed().as_secs_f64();
        eprintln!("an erasure would take {} faces", plan.faces.len());
        Ok((seconds * 100.0).round() / 100.0)
    }

    /// Deletes what the measurements have stored.
    pub(crate) async fn clean_up(&self) -> Result<()> {
        delete_from(&self.store, self.images).await
    }

    /// Stores faces at a constant rate over several connections, ten images per second on each, as
    /// image workers do.
    fn writer(self: &Arc<Self>, per_second: usize) -> Writer {
        let (stop, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let faces = per_second.div_ceil(10 * WRITERS);
        let mut tasks = JoinSet::new();
        for _ in 0..WRITERS {
            let (gallery, stop, stored) = (Arc::clone(self), Arc::clone(&stop), Arc::clone(&stored));
            tasks.spawn(async move {
                let mut tick = tokio::time::interval(Duration::from_millis(100));
                while !stop.load(Ordering::Relaxed) {
                    tick.tick().await;
                    gallery.store_next(faces).await?;
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

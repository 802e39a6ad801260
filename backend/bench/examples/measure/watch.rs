//! Measures what watchlists cost a stored face: the transactions that store it, its comparison with
//! the watched faces, and the time from the first commit to the last alert.
//!
//! Each image has four faces with random embeddings; every hundredth face resembles a watched one.
//! Nothing is fetched and no model runs. The matcher runs after the faces are stored, so that both
//! are measured alone. docs/explanation/WATCH.md contains the results.
use crate::common::rounded;
use anyhow::{Result, anyhow};
use domain::WatchNotify;
use pipeline::Matcher;
use serde_json::{Value, json};
use std::time::Instant;
use store::Store;
use store::faces::NewFace;
use store::watch::{NewWatchlist, Watched};
use testing::embeddings::Random;
use testing::{TestDatabase, rows};
use uuid::Uuid;

const FACES_PER_IMAGE: usize = 4;
const IMAGES_PER_TRANSACTION: usize = 64;
/// One of this number of new faces resembles a watched face.
const FACES_PER_MATCH: usize = 100;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Number of faces to store
    #[arg(long, default_value_t = 10_240)]
    faces: usize,
    /// Number of watched faces; 0 measures a collection without a watchlist
    #[arg(long, default_value_t = 10_000)]
    watched: usize,
    /// Number of components of an embedding
    #[arg(long, default_value_t = 128)]
    dimensions: i32,
}

pub(crate) async fn measure(arguments: &Arguments) -> Result<Value> {
    let Arguments { faces, watched, dimensions } = *arguments;
    let database = TestDatabase::create().await;
    let store = database.store();
    let collection = store.collections().ensure("default").await?.id;
    let model = store.models().register("measured", "measured", dimensions).await?.id;
    let mut random = Random(1);
    let components = usize::try_from(dimensions)?;
    let gallery: Vec<Vec<f32>> = (0..watched).map(|_| random.unit_vector(components)).collect();
    let mut watched_faces = Vec::new();
    for part in gallery.chunks(IMAGES_PER_TRANSACTION * FACES_PER_IMAGE) {
        let part: Vec<NewFace> =
            part.iter().map(|embedding| rows::face(embedding.clone(), model, 0.9)).collect();
        watched_faces.extend(part.iter().map(|face| face.id));
        store_faces(&store, collection, &mut random, &part).await?;
    }
    if watched > 0 {
        create_watchlist(&store, collection, watched_faces).await?;
    }
    database.execute("vacuum analyze").await;

    let mut storing = 0.0;
    for first in (0..faces).step_by(IMAGES_PER_TRANSACTION * FACES_PER_IMAGE) {
        let count = (faces - first).min(IMAGES_PER_TRANSACTION * FACES_PER_IMAGE);
        let new: Vec<NewFace> = (first..first + count)
            .map(|number| {
                let watched = gallery.get(number % watched.max(1)).filter(|_| number % FACES_PER_MATCH == 0);
                let embedding = watched.cloned().unwrap_or_else(|| random.unit_vector(components));
                rows::face(embedding, model, 0.9)
            })
            .collect();
        let started = Instant::now();
        store_faces(&store, collection, &mut random, &new).await?;
        storing += started.elapsed().as_secs_f64();
    }
    let mut matcher = Matcher::new(store.clone(), Some(0.6));
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let (mut compared, mut alerts, mut first_step) = (0, 0, 0.0);
    loop {
        let step = matcher.step().await?;
        if step.compared == 0 {
            break;
        }
        if compared == 0 {
            first_step = started.elapsed().as_secs_f64();
        }
        compared += step.compared;
        alerts += step.alerts;
    }
    let per_face = |seconds: f64, count: usize| rounded(seconds * 1e6 / count.max(1) as f64, 1);
    Ok(json!({
        "faces": faces, "watched": watched, "dimensions": dimensions,
        "store_us_per_face": per_face(storing, faces),
        "compared": compared, "alerts": alerts,
        // The first batch also reads the watched faces.
        "first_batch_ms": rounded(first_step * 1e3, 1),
        "compare_us_per_face": per_face(started.elapsed().as_secs_f64() - first_step, compared.saturating_sub(256)),
        "matcher_cpu_us_per_face": per_face(cpu_seconds() - cpu, compared),
    }))
}

async fn store_faces(store: &Store, collection: Uuid, random: &mut Random, faces: &[NewFace]) -> Result<()> {
    let mut tx = store.begin().await?;
    store.suppressions().lock(tx.conn(), collection, false).await?;
    let mut rows = Vec::new();
    for faces in faces.chunks(FACES_PER_IMAGE) {
        let image = rows::image(random);
        let inserted = store.images().insert(tx.conn(), collection, &image).await?;
        inserted.map_err(|_| anyhow!("two images have one hash"))?;
        rows.extend(faces.iter().map(|face| (collection, image.id, face)));
    }
    store.faces().insert_for_new_images(tx.conn(), &rows).await?;
    Ok(tx.commit().await?)
}

async fn create_watchlist(store: &Store, collection: Uuid, faces: Vec<Uuid>) -> Result<()> {
    let new = NewWatchlist {
        name: "measured".into(),
        purpose: "a measurement".into(),
        notify: WatchNotify::Match,
        threshold: None,
        quality_profile: None,
        webhook: None,
        cooldown_seconds: 0,
        expires_at: None,
    };
    let watched = Watched { subjects: Vec::new(), faces };
    let mut tx = store.begin().await?;
    store.suppressions().lock(tx.conn(), collection, true).await?;
    store.watchlists().insert(tx.conn(), collection, &new, &watched).await?;
    Ok(tx.commit().await?)
}

/// Returns the CPU time that this process has used, in seconds.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = text.rsplit(") ").next().unwrap_or_default().split_whitespace();
    // utime and stime are fields 14 and 15 of the file; 100 ticks per second.
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

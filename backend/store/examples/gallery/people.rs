//! Draws the faces of a gallery and stores them. Every number of an image always gives the same
//! faces, so they can be drawn again instead of being kept in memory.
use anyhow::Result;
use half::f16;
use sqlx::AssertSqlSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use store::Store;
use store::faces::NewFace;
use testing::embeddings::{Random, displaced, unit};
use tokio::task::JoinSet;
use uuid::{Builder, Uuid};

/// Average number of faces per person. The mean similarity of two faces of one person is 0.6.
const PER_PERSON: usize = 20;
const SPREAD: f64 = 0.82;
/// Number of faces of an image.
pub(crate) const PER_IMAGE: usize = 100;
/// Number of connections that store the faces of the gallery.
const LOADERS: usize = 2;

/// The people of a gallery. A person is a random unit vector, and a face is a random vector near
/// it.
pub(crate) struct People {
    pub(crate) count: usize,
    /// Standard deviation of each component of an embedding, as a multiple of the first one.
    pub(crate) deviations: Vec<f32>,
    pub(crate) collections: Vec<Uuid>,
    pub(crate) model: i32,
}

/// A drawn face.
pub(crate) struct Face {
    pub(crate) id: Uuid,
    pub(crate) quality: f32,
    /// Rounded to half precision, as the rows are.
    pub(crate) embedding: Vec<f32>,
}

impl People {
    /// Returns the number of people in a gallery with this number of faces.
    pub(crate) fn in_gallery(faces: usize) -> usize {
        faces.div_ceil(PER_PERSON).max(1)
    }

    /// Returns the deviations of components of which each has `ratio` times the variance of the
    /// previous one.
    pub(crate) fn deviations(dimensions: usize, ratio: f32) -> Vec<f32> {
        (0..dimensions).map(|component| ratio.sqrt().powi(component as i32)).collect()
    }

    /// Returns a new embedding of one of the people.
    pub(crate) fn someone(&self, random: &mut Random) -> Vec<f32> {
        let person = random.below(self.count) as u64;
        let centre = self.direction(&mut Random(u64::MAX - person));
        let near = displaced(&centre, &self.direction(random), SPREAD);
        near.into_iter().map(|x| f16::from_f32(x).to_f32()).collect()
    }

    /// Returns a random unit vector.
    fn direction(&self, random: &mut Random) -> Vec<f32> {
        let equal = random.unit(self.deviations.len());
        let scaled: Vec<f64> =
            equal.iter().zip(&self.deviations).map(|(x, scale)| f64::from(x * scale)).collect();
        unit(&scaled)
    }

    /// Returns one of the collections.
    pub(crate) fn collection(&self, random: &mut Random) -> Uuid {
        self.collections[random.below(self.collections.len())]
    }

    /// Returns the collection and the faces of an image.
    pub(crate) fn image(&self, number: usize, faces: usize) -> (Uuid, Vec<Face>) {
        let mut random = Random(number as u64);
        let collection = self.collection(&mut random);
        let face = |place| Face {
            id: id(number, place),
            quality: random.uniform() as f32,
            embedding: self.someone(&mut random),
        };
        (collection, (1..=faces).map(face).collect())
    }
}

/// Returns the id of a face, or of an image at `place` 0. Ids increase with the number of the
/// image, as those of the service increase with time (RFC 9562, version 7).
pub(crate) fn id(image: usize, place: usize) -> Uuid {
    const START_MS: u64 = 1_700_000_000_000;
    let mut random = Random((image * (PER_IMAGE + 1) + place) as u64);
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&random.bits().to_be_bytes());
    Builder::from_unix_timestamp_millis(START_MS + image as u64, &bytes).into_uuid()
}

/// Stores an image with its faces.
pub(crate) async fn store_image(store: &Store, people: &People, number: usize, faces: usize) -> Result<()> {
    let (collection, drawn) = people.image(number, faces);
    let image = id(number, 0);
    let faces: Vec<NewFace> = drawn
        .into_iter()
        .map(|face| NewFace {
            id: face.id,
            bbox: [0.0, 0.0, 64.0, 64.0],
            det_score: 0.9,
            landmarks: [0.0; 10],
            quality: None,
            quality_overall: Some(face.quality),
            quality_passed: Some(true),
            embedding: face.embedding,
            model_id: people.model,
            chip_key: None,
            crop_key: None,
        })
        .collect();
    let mut tx = store.begin().await?;
    sqlx::query(
        "insert into images (id, collection_id, sha256, phash, dhash, ahash, width, height, format, bytes, rotation)
         values ($1, $2, sha256($1::text::bytea), 0, 0, 0, 640, 480, 'jpeg', 1, 0)",
    )
    .bind(image)
    .bind(collection)
    .execute(tx.conn())
    .await?;
    store.insert_faces(tx.conn(), collection, image, &faces).await?;
    tx.commit().await?;
    Ok(())
}

/// Stores the faces of the gallery.
pub(crate) async fn load(store: &Store, people: &Arc<People>, faces: usize) -> Result<()> {
    let next = Arc::new(AtomicUsize::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..LOADERS {
        let (store, people, next) = (store.clone(), Arc::clone(people), Arc::clone(&next));
        tasks.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let stored = number * PER_IMAGE;
                if stored >= faces {
                    return Ok(());
                }
                store_image(&store, &people, number, PER_IMAGE.min(faces - stored)).await?;
                if stored > 0 && stored.is_multiple_of(500_000) {
                    eprintln!("{stored} faces stored");
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(anyhow::Error::from).and_then(|loaded: Result<()>| loaded)?;
    }
    Ok(())
}

/// Deletes the images from the number `from` on, with their faces.
pub(crate) async fn delete_from(store: &Store, from: usize) -> Result<()> {
    let mut tx = store.begin().await?;
    for (table, column) in [("faces", "image_id"), ("images", "id")] {
        sqlx::query(AssertSqlSafe(format!("delete from {table} where {column} >= $1")))
            .bind(id(from, 0))
            .execute(tx.conn())
            .await?;
    }
    tx.commit().await?;
    Ok(())
}

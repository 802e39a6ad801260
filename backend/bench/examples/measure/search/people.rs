//! Draws the faces of a gallery and stores them.
use super::Arguments;
use crate::common;
use anyhow::{Result, anyhow};
use futures::{StreamExt, TryStreamExt, stream};
use half::f16;
use std::sync::Arc;
use store::Store;
use testing::embeddings::{Random, displaced, unit};
use uuid::Uuid;

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
        let count = arguments.faces.div_ceil(PER_PERSON).max(1);
        Ok(Self { count, deviations, collections, model })
    }

    /// Returns a new embedding of one of the people, in half precision like the rows.
    pub(crate) fn someone(&self, random: &mut Random) -> Vec<f32> {
        let person = random.below(self.count) as u64;
        let centre = self.direction(&mut Random(u64::MAX - person));
        let near = displaced(&centre, &self.direction(random), SPREAD);
        near.into_iter().map(|x| f16::from_f32(x).to_f32()).collect()
    }

    /// Returns a random unit vector.
    fn direction(&self, random: &mut Random) -> Vec<f32> {
        let equal = random.unit(self.deviations.len());
        unit(&equal.iter().zip(&self.deviations).map(|(x, scale)| f64::from(*x) * scale).collect::<Vec<_>>())
    }

    pub(crate) fn collection(&self, random: &mut Random) -> Uuid {
        self.collections[random.below(self.collections.len())]
    }

    pub(crate) async fn store_image(&self, store: &Store, number: usize, faces: usize) -> Result<()> {
        let mut random = Random(number as u64);
        let (collection, image) = (self.collection(&mut random), common::image(&mut random));
        let faces: Vec<_> = (0..faces)
            .map(|_| common::face(self.someone(&mut random), self.model, random.uniform() as f32))
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
    let images = stream::iter((0..faces).step_by(PER_IMAGE)).map(|first| {
        let (store, people) = (store.clone(), Arc::clone(people));
        tokio::spawn(async move {
            if first > 0 && first.is_multiple_of(500_000) {
                eprintln!("{first} faces stored");
            }
            people.store_image(&store, first / PER_IMAGE, PER_IMAGE.min(faces - first)).await
        })
    });
    images.buffer_unordered(LOADERS).map(|stored| stored?).try_collect().await
}

//! What a crawl found, image by image, in pages of bounded size.
use crate::faces::Face;
use crate::images::{Image, Source};
use crate::{Store, StoreError};
use pgvector::HalfVector;
use std::collections::HashMap;
use uuid::Uuid;

/// An image that a crawl found.
#[derive(Clone, Debug)]
pub struct ExportedImage {
    /// The image.
    pub image: Image,
    /// Where this crawl found it, in the order of the finds; at most [`crate::images::MOST_SOURCES`].
    pub sources: Vec<Source>,
    /// Its faces in the order of their ids.
    pub faces: Vec<ExportedFace>,
}

/// A face, and its embedding where that was asked for.
pub type ExportedFace = (Face, Option<Vec<f32>>);

impl Store {
    /// The next `limit` images of a crawl after the image `after`, oldest first, each once.
    pub async fn export_images(
        &self,
        crawl: Uuid,
        after: Option<Uuid>,
        limit: i64,
        embeddings: bool,
    ) -> Result<Vec<ExportedImage>, StoreError> {
        let ids: Vec<Uuid> = sqlx::query_scalar(
            "select distinct image_id from image_urls
             where crawl_id = $1 and image_id is not null and image_id > $2
               and ($4::uuid is null or exists (select 1 from crawls where id = $1 and collection_id = $4))
             order by image_id limit $3",
        )
        .bind(crawl)
        .bind(after.unwrap_or(Uuid::nil()))
        .bind(limit.max(0))
        .bind(self.reach)
        .fetch_all(&self.pool)
        .await?;
        let mut sources: HashMap<Uuid, Vec<Source>> = HashMap::new();
        for (image, source) in self.sources_in_crawl(&ids, crawl).await? {
            sources.entry(image).or_default().push(source);
        }
        let mut vectors = if embeddings { self.embeddings_of(&ids).await? } else { HashMap::new() };
        let mut faces: HashMap<Uuid, Vec<ExportedFace>> = HashMap::new();
        for face in self.faces_of(&ids).await? {
            let vector = vectors.remove(&face.id);
            faces.entry(face.image_id).or_default().push((face, vector));
        }
        // An image that was deleted since its id was read is left out.
        let images = self.images_by_id(&ids).await?;
        Ok(images
            .into_iter()
            .map(|image| ExportedImage {
                sources: sources.remove(&image.id).unwrap_or_default(),
                faces: faces.remove(&image.id).unwrap_or_default(),
                image,
            })
            .collect())
    }

    async fn embeddings_of(&self, images: &[Uuid]) -> Result<HashMap<Uuid, Vec<f32>>, StoreError> {
        let rows: Vec<(Uuid, HalfVector)> =
            sqlx::query_as("select id, embedding from faces where image_id = any($1)")
                .bind(images)
                .fetch_all(&self.pool)
                .await?;
        let components = |vector: HalfVector| vector.as_slice().iter().map(|c| c.to_f32()).collect();
        Ok(rows.into_iter().map(|(face, vector)| (face, components(vector))).collect())
    }
}

//! Reads the images that a crawl found, in pages of limited size. Videos and their tracks are in
//! the submodule `videos`.

pub use crate::videos::export::{ExportedTrack, ExportedTracks, ExportedVideo, VideoSource};

use crate::faces::Face;
use crate::images::Image;
use crate::images::sources::SourceList;
use crate::{Store, StoreError};
use pgvector::HalfVector;
use std::collections::HashMap;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct ExportedImage {
    pub image: Image,
    /// Where this crawl found it.
    pub sources: SourceList,
    /// Its faces in the order of their ids.
    pub faces: Vec<ExportedFace>,
}

#[derive(Clone, Debug)]
pub struct ExportedPage {
    /// Images in id order.
    pub images: Vec<ExportedImage>,
    /// The cursor of the next page; `None` after the last page.
    pub next: Option<Uuid>,
}

/// Maximum number of faces in one page, unless a single image has more. An embedding takes several
/// kilobytes, and an image of a crowd contains hundreds of faces.
const MAX_FACES: i64 = 2_000;

/// A face, and its embedding if requested.
pub type ExportedFace = (Face, Option<Vec<f32>>);

impl Store {
    /// Returns the next images of a crawl after the image `after`, oldest first, each once. Returns
    /// `limit` images, or fewer if they have many faces.
    pub async fn export_images(
        &self,
        crawl: Uuid,
        after: Option<Uuid>,
        limit: i64,
        embeddings: bool,
    ) -> Result<ExportedPage, StoreError> {
        // The sum counts the faces of all preceding images, so that the page can end before it has
        // too many faces.
        let found: Vec<(Uuid, i64)> = sqlx::query_as(
            "select u.image_id, sum(coalesce(i.face_count, 0)) over (order by u.image_id) - coalesce(i.face_count, 0)
             from (select distinct image_id from image_urls
                   where crawl_id = $1 and image_id is not null and image_id > $2
                     and ($4::uuid is null or exists (select 1 from crawls where id = $1 and collection_id = $4))
                   order by image_id limit $3) u
             left join images i on i.id = u.image_id
             order by u.image_id",
        )
        .bind(crawl)
        .bind(after.unwrap_or(Uuid::nil()))
        .bind(limit.max(0))
        .bind(self.collection_scope)
        .fetch_all(&self.pool)
        .await?;
        let ids: Vec<Uuid> =
            found.iter().take_while(|(_, faces)| *faces < MAX_FACES).map(|(id, _)| *id).collect();
        let is_last = ids.len() == found.len() && (ids.len() as i64) < limit;
        let next = ids.last().copied().filter(|_| !is_last);
        let mut sources = self.source_lists_in_crawl(&ids, crawl).await?;
        let mut vectors = if embeddings { self.embeddings_of_images(&ids).await? } else { HashMap::new() };
        let mut faces: HashMap<Uuid, Vec<ExportedFace>> = HashMap::new();
        for face in self.faces_of(&ids).await? {
            let vector = vectors.remove(&face.id);
            faces.entry(face.image_id).or_default().push((face, vector));
        }
        // Images that were deleted after their ids were read are omitted.
        let images = self.images_by_id(&ids).await?;
        let images = images
            .into_iter()
            .map(|image| ExportedImage {
                sources: sources.remove(&image.id).unwrap_or_default(),
                faces: faces.remove(&image.id).unwrap_or_default(),
                image,
            })
            .collect();
        Ok(ExportedPage { images, next })
    }

    async fn embeddings_of_images(&self, images: &[Uuid]) -> Result<HashMap<Uuid, Vec<f32>>, StoreError> {
        let rows = "select id, embedding from faces where image_id = any($1)";
        Ok(components(sqlx::query_as(rows).bind(images).fetch_all(&self.pool).await?))
    }
}

pub(crate) fn components(rows: Vec<(Uuid, HalfVector)>) -> HashMap<Uuid, Vec<f32>> {
    let components = |vector: HalfVector| vector.as_slice().iter().map(|c| c.to_f32()).collect();
    rows.into_iter().map(|(face, vector)| (face, components(vector))).collect()
}

//! Reads the sources of images (the first sources of many images, or all sources of one image in
//! pages), and the images of an export. An image can be on every page of a site, and URLs can be
//! long. So every result is limited in rows and bytes.
use crate::StoreError;
use crate::db::values::floats;
use crate::faces::Face;
use crate::images::Image;
use crate::store::Images;
use pgvector::HalfVector;
use std::collections::HashMap;
use time::OffsetDateTime;
use uuid::Uuid;

/// Maximum number of sources per image that one call returns. A logo, for example, can be on every
/// page of a site.
pub const MAX_SOURCES: i64 = 100;
/// Maximum number up to which the sources of an image are counted.
pub const MAX_COUNTED_SOURCES: i64 = 1_000;
/// Maximum total size in bytes of URLs and alternative texts that one call returns, divided evenly
/// among its images. The result contains at least one source of each image.
pub const MAX_SOURCES_BYTES: usize = 16 << 20;

#[derive(Clone, Debug, PartialEq, serde::Serialize, sqlx::FromRow)]
pub struct Source {
    pub page_url: Option<String>,
    /// URL or path of the file.
    pub image_url: String,
    /// The crawl that found it, while the crawl exists.
    pub crawl_id: Option<Uuid>,
    /// Alternative text of the image on the page.
    pub alt: Option<String>,
    /// `crawl` (also for scans), or `enrolment` for an image that was sent to enrol a person.
    pub kind: String,
    #[serde(with = "time::serde::rfc3339")]
    pub found_at: OffsetDateTime,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SourceList {
    /// The sources in the order in which they were found. At most [`MAX_SOURCES`], and at most the
    /// image's share of [`MAX_SOURCES_BYTES`].
    pub sources: Vec<Source>,
    /// Number of sources, counted up to [`MAX_COUNTED_SOURCES`].
    pub total: i64,
}

#[derive(sqlx::FromRow)]
struct SourceRow {
    id: i64,
    image_id: Uuid,
    total: i64,
    #[sqlx(flatten)]
    source: Source,
}

impl Images<'_> {
    /// Returns the sources of several images, by image and in the order in which they were found.
    /// At most [`MAX_SOURCES`] per image and [`MAX_SOURCES_BYTES`] in total. Does not check the
    /// store's scope, because the caller has already read the images.
    pub async fn sources(self, images: &[Uuid]) -> Result<Vec<(Uuid, Source)>, StoreError> {
        let rows = self.sources_where(images, None).await?;
        Ok(rows.into_iter().map(|row| (row.image_id, row.source)).collect())
    }

    /// Returns the sources of [`Self::sources`] by image, with the number of sources of each image;
    /// with `crawl`, only those that this crawl found. An image without sources has no entry.
    pub async fn source_lists(
        self,
        images: &[Uuid],
        crawl: Option<Uuid>,
    ) -> Result<HashMap<Uuid, SourceList>, StoreError> {
        let mut lists: HashMap<Uuid, SourceList> = HashMap::new();
        for row in self.sources_where(images, crawl).await? {
            let list = lists.entry(row.image_id).or_default();
            list.total = row.total;
            list.sources.push(row.source);
        }
        Ok(lists)
    }

    /// Returns the next `limit` sources of an image after the source `after`, in the order in which
    /// they were found. Each source is returned with its id, for the next call. Does not check the
    /// store's scope, because the caller has already read the image.
    pub async fn sources_of(
        self,
        image: Uuid,
        after: Option<i64>,
        limit: i64,
    ) -> Result<Vec<(i64, Source)>, StoreError> {
        let rows: Vec<SourceRow> = sqlx::query_as(
            "select id, image_id, 0::bigint as total, page_url, image_url, crawl_id, alt, kind, found_at
             from image_sources where image_id = $1 and id > $2 order by id limit $3",
        )
        .bind(image)
        .bind(after.unwrap_or(0))
        .bind(limit.max(0))
        .fetch_all(&self.0.pool)
        .await?;
        Ok(rows.into_iter().map(|row| (row.id, row.source)).collect())
    }

    async fn sources_where(self, images: &[Uuid], crawl: Option<Uuid>) -> Result<Vec<SourceRow>, StoreError> {
        if images.is_empty() {
            return Ok(Vec::new());
        }
        Ok(sqlx::query_as(
            "select s.id, s.image_id, counted.total, s.page_url, s.image_url, s.crawl_id, s.alt, s.kind, s.found_at
             from (select distinct unnest($1::uuid[]) as id) requested
             cross join lateral (
                 select count(*) as total from (
                     select 1 from image_sources where image_id = requested.id and ($3::uuid is null or crawl_id = $3)
                     limit $4) found
             ) counted
             cross join lateral (
                 select first.*, row_number() over by_id as position,
                        sum(octet_length(image_url) + coalesce(octet_length(page_url), 0) + coalesce(octet_length(alt), 0))
                            over by_id as bytes
                 from (select * from image_sources where image_id = requested.id and ($3::uuid is null or crawl_id = $3)
                       order by id limit $2) first
                 window by_id as (order by id)
             ) s
             where s.position = 1 or s.bytes <= $5
             order by s.image_id, s.id",
        )
        .bind(images)
        .bind(MAX_SOURCES)
        .bind(crawl)
        .bind(MAX_COUNTED_SOURCES)
        .bind((MAX_SOURCES_BYTES / images.len()) as i64)
        .fetch_all(&self.0.pool)
        .await?)
    }
}

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

impl Images<'_> {
    /// Returns the next images of a crawl after the image `after`, oldest first, each once. Returns
    /// `limit` images, or fewer if they have many faces.
    pub async fn export(
        self,
        crawl: Uuid,
        after: Option<Uuid>,
        limit: i64,
        embeddings: bool,
    ) -> Result<ExportedPage, StoreError> {
        // The sum counts the faces of all preceding images, so that the page can end before it has
        // too many faces.
        let rows: Vec<(Uuid, i64)> = sqlx::query_as(
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
        .bind(self.0.collection_scope)
        .fetch_all(&self.0.pool)
        .await?;
        let ids: Vec<Uuid> =
            rows.iter().take_while(|(_, faces)| *faces < MAX_FACES).map(|(id, _)| *id).collect();
        let is_last = ids.len() == rows.len() && (ids.len() as i64) < limit;
        let next = ids.last().copied().filter(|_| !is_last);
        let mut sources = self.source_lists(&ids, Some(crawl)).await?;
        let mut vectors = if embeddings { self.embeddings_of_images(&ids).await? } else { HashMap::new() };
        let mut faces: HashMap<Uuid, Vec<ExportedFace>> = HashMap::new();
        for face in self.0.faces().of_images(&ids).await? {
            let vector = vectors.remove(&face.id);
            faces.entry(face.image_id).or_default().push((face, vector));
        }
        // Images that were deleted after their ids were read are omitted.
        let images = self.by_ids(&ids).await?;
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

    async fn embeddings_of_images(self, images: &[Uuid]) -> Result<HashMap<Uuid, Vec<f32>>, StoreError> {
        let query = "select id, embedding from faces where image_id = any($1)";
        Ok(embeddings_by_face(sqlx::query_as(query).bind(images).fetch_all(&self.0.pool).await?))
    }
}

pub(crate) fn embeddings_by_face(rows: Vec<(Uuid, HalfVector)>) -> HashMap<Uuid, Vec<f32>> {
    rows.into_iter().map(|(face, vector)| (face, floats(&vector))).collect()
}

//! Counts the rows that a deletion or a shorter retention would delete, and provides the secret
//! that signs such a count for the caller's confirmation.
use crate::crawls::deletion::{images_of_crawl_alone, videos_of_crawl_alone};
use crate::erasures::retention::expired_image;
use crate::videos::frames_of;
use crate::{Store, StoreError};
use uuid::Uuid;

/// Maximum count per kind. Above it, the exact number makes no difference.
const MAX_COUNT: i64 = 1_000_000;

/// Number of rows that would be deleted, each kind counted up to a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    pub images: i64,
    pub faces: i64,
    pub videos: i64,
    /// Enrolled people and clusters.
    pub subjects: i64,
    /// Suppressions of erased images and people.
    pub suppressions: i64,
}

impl Extent {
    /// Returns the sum over all kinds.
    pub fn rows(&self) -> u64 {
        let rows = [self.images, self.faces, self.videos, self.subjects, self.suppressions];
        rows.into_iter().map(|count| u64::try_from(count).unwrap_or(0)).sum()
    }
}

impl Store {
    /// Counts what is deleted with a collection.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn extent_of_collection(&self, id: Uuid) -> Result<Extent, StoreError> {
        self.collection_by_id(id).await?;
        let (images, faces, videos, subjects, suppressions) = sqlx::query_as(
            "select (select count(*) from (select 1 from images where collection_id = $1 limit $2) i),
                    (select count(*) from (select 1 from faces where collection_id = $1 limit $2) f),
                    (select count(*) from (select 1 from videos where collection_id = $1 limit $2) v),
                    (select count(*) from (select 1 from subjects where collection_id = $1 limit $2) s),
                    (select count(*) from (select 1 from suppressions where collection_id = $1 limit $2) o)",
        )
        .bind(id)
        .bind(MAX_COUNT)
        .fetch_one(&self.pool)
        .await?;
        Ok(Extent { images, faces, videos, subjects, suppressions })
    }

    /// Counts the suppressions of an erasure.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn extent_of_suppressions(&self, erasure: Uuid) -> Result<Extent, StoreError> {
        let suppressions: Option<i64> = sqlx::query_scalar(
            "select (select count(*) from (select 1 from suppressions where erasure_id = e.id limit $3) s)
             from erasures e where e.id = $1 and ($2::uuid is null or e.collection_id = $2)",
        )
        .bind(erasure)
        .bind(self.collection_scope)
        .bind(MAX_COUNT)
        .fetch_optional(&self.pool)
        .await?;
        let suppressions = suppressions.ok_or_else(|| StoreError::not_found("erasure", erasure))?;
        Ok(Extent { suppressions, ..Extent::default() })
    }

    /// Counts what is deleted with a crawl, its images and its videos.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn extent_of_crawl(&self, id: Uuid) -> Result<Extent, StoreError> {
        self.crawl(id).await?;
        let mut conn = self.pool.acquire().await?;
        let mut images = images_of_crawl_alone(&mut conn, id).await?;
        let videos = videos_of_crawl_alone(&mut conn, id).await?;
        images.extend(frames_of(&mut conn, &videos).await?);
        let faces = "select count(*) from (select 1 from faces where image_id = any($1) limit $2) f";
        let faces = sqlx::query_scalar(faces).bind(&images).bind(MAX_COUNT).fetch_one(&mut *conn).await?;
        let [images, videos] =
            [images.len(), videos.len()].map(|count| i64::try_from(count).unwrap_or(MAX_COUNT));
        Ok(Extent { images, faces, videos, ..Extent::default() })
    }

    /// Counts what is deleted with a video.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn extent_of_video(&self, id: Uuid) -> Result<Extent, StoreError> {
        self.video(id).await?;
        let (images, faces) = sqlx::query_as(
            "select (select count(*) from (select 1 from video_frames where video_id = $1 limit $2) i),
                    (select count(*) from (select 1 from video_frames v join faces f on f.image_id = v.image_id
                                           where v.video_id = $1 limit $2) f)",
        )
        .bind(id)
        .bind(MAX_COUNT)
        .fetch_one(&self.pool)
        .await?;
        Ok(Extent { images, faces, videos: 1, ..Extent::default() })
    }

    /// Counts what is deleted with an image.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn extent_of_image(&self, id: Uuid) -> Result<Extent, StoreError> {
        let image = self.image(id).await?;
        Ok(Extent { images: 1, faces: i64::from(image.face_count), ..Extent::default() })
    }

    /// Counts what [`Store::delete_face`] deletes.
    ///
    /// # Errors
    /// Fails with `NotFound` if the face does not exist or is outside the store's scope.
    pub async fn extent_of_face(&self, id: Uuid) -> Result<Extent, StoreError> {
        self.face(id).await?;
        let enrolled = self.extent_of_enrolled(None, Some(id)).await?;
        Ok(Extent { faces: enrolled.faces.max(1), ..enrolled })
    }

    /// Counts what is deleted with the faces of a subject, or with one of them: the images that
    /// were sent only for enrolment, with their faces.
    ///
    /// # Errors
    /// Fails with the errors of the database.
    pub async fn extent_of_enrolled(
        &self,
        subject: Option<Uuid>,
        face: Option<Uuid>,
    ) -> Result<Extent, StoreError> {
        // The same condition as in `drop_enrolled`, without the assignments that are deleted.
        let (images, faces) = sqlx::query_as(
            "with gone as (
                 select f.id, f.image_id from subject_faces s join faces f on f.id = s.face_id
                 where ($1::uuid is null or s.subject_id = $1) and ($2::uuid is null or s.face_id = $2)
                   and ($1::uuid is not null or $2::uuid is not null)),
             unused as (
                 select distinct i.id from gone join images i on i.id = gone.image_id
                 where exists (select 1 from image_sources s where s.image_id = i.id and s.kind = 'enrolment')
                   and not exists (select 1 from image_sources s where s.image_id = i.id and s.kind <> 'enrolment')
                   and not exists (select 1 from image_urls u where u.image_id = i.id)
                   and not exists (select 1 from faces f join subject_faces sf on sf.face_id = f.id
                                   where f.image_id = i.id and f.id not in (select id from gone))
                 limit $3)
             select (select count(*) from unused),
                    (select count(*) from (select 1 from faces f where f.image_id in (select id from unused) limit $3) f)",
        )
        .bind(subject)
        .bind(face)
        .bind(MAX_COUNT)
        .fetch_one(&self.pool)
        .await?;
        Ok(Extent { images, faces, ..Extent::default() })
    }

    /// Counts the images and faces that a retention of `days` days would delete immediately.
    ///
    /// # Errors
    /// Fails with `NotFound` if the collection does not exist or is outside the store's scope.
    pub async fn extent_of_retention(&self, id: Uuid, days: i32) -> Result<Extent, StoreError> {
        self.collection_by_id(id).await?;
        let (images, faces) = sqlx::query_as(concat!(
            "select count(*), coalesce(sum(face_count), 0)::bigint from (
                 select i.face_count from images i
                 left join video_frames f on f.image_id = i.id left join videos v on v.id = f.video_id
                 where i.collection_id = $1 and ",
            expired_image!("$2"),
            " limit $3) i",
        ))
        .bind(id)
        .bind(days)
        .bind(MAX_COUNT)
        .fetch_one(&self.pool)
        .await?;
        Ok(Extent { images, faces, ..Extent::default() })
    }

    /// Returns the secret that signs confirmations, the same in every process on this database.
    pub async fn confirmation_secret(&self) -> Result<Vec<u8>, StoreError> {
        let secret = "select secret from service_secrets where name = 'confirmations'";
        Ok(sqlx::query_scalar(secret).fetch_one(&self.pool).await?)
    }
}

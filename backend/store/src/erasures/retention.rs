//! Deletes content whose last sighting is older than its collection's retention period, and counts
//! what a deletion or a shorter retention would delete.
//!
//! The deletion is done in small transactions that can be interrupted at any time and repeated. One
//! process at a time runs the task.
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::crawls::closing::{images_found_only_by, videos_found_only_by};
use crate::images::delete_images;
use crate::store::{DeletionCounter, Retention};
use crate::videos::{delete_video_rows, frames_of};
use sqlx::PgConnection;
use std::time::Duration;
use uuid::Uuid;

/// Number of images per call.
const IMAGES_PER_STEP: i64 = 200;
/// Number of ledger rows per call.
const ROWS_PER_STEP: i64 = 5_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpiryStep {
    /// Number of images, deleted with their faces and sources.
    pub images: u64,
    pub faces: u64,
    /// Number of videos that have no frames left.
    pub videos: u64,
    /// Number of crawls that had ended.
    pub crawls: u64,
    /// Number of ledger rows of such crawls.
    pub rows: u64,
    /// Number of alerts about faces that are kept.
    pub alerts: u64,
    /// Blobs to delete after the commit.
    pub blobs: Vec<String>,
}

/// Condition that an image `i` was stored and last seen before the retention period, and shows no
/// enrolled person. For a frame, the file of its video `v` must also have been last found before
/// the period. The argument is the number of days.
macro_rules! expired_image {
    ($days:literal) => {
        concat!(
            "i.created_at < now() - make_interval(days => ",
            $days,
            ") and not exists (select 1 from image_sources s where s.image_id = i.id
                               and s.found_at >= now() - make_interval(days => ",
            $days,
            "))
             and not exists (select 1 from faces x join subject_faces e on e.face_id = x.id
                             join subjects p on p.id = e.subject_id where x.image_id = i.id and p.origin = 'enrolled')
             and (v.id is null or v.found_at < now() - make_interval(days => ",
            $days,
            "))"
        )
    };
}

impl ExpiryStep {
    pub fn is_empty(&self) -> bool {
        self.images + self.videos + self.crawls + self.rows + self.alerts == 0
    }
}

impl Retention<'_> {
    /// Claims a run of a periodic task for this process. Returns `true` if the task is due and no
    /// other process has claimed this run. The task is due again after `interval`, even if the
    /// process that claimed it dies.
    pub async fn claim_maintenance(self, task: &str, interval: Duration) -> Result<bool, StoreError> {
        let claimed = sqlx::query(
            "insert into upkeep (task, due_at) values ($1, now() + make_interval(secs => $2))
             on conflict (task) do update set due_at = excluded.due_at where upkeep.due_at <= now()",
        )
        .bind(task)
        .bind(interval.as_secs_f64())
        .execute(&self.0.pool)
        .await?;
        Ok(claimed.rows_affected() == 1)
    }

    pub async fn collections(self) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from collections where retention_days is not null and deleting_at is null order by id",
        )
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Deletes a part of the expired content. Call it until the result is empty.
    ///
    /// First deletes images that were stored and last seen before the retention period, including
    /// frames of videos whose file was last found before it. Such a file can be read again, even if
    /// frames with enrolled faces remain. Then deletes the records of videos and crawls that ended
    /// before this period, and alerts that were created before it. Images with an enrolled face and
    /// crawls with a scheduled next run are kept.
    pub async fn expire_step(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
    ) -> Result<ExpiryStep, StoreError> {
        let mut expired = ExpiryStep::default();
        // An erasure locks images before videos, and this transaction locks videos before images.
        // The lock prevents both from running at the same time.
        self.0.suppressions().lock(conn, collection, false).await?;
        let candidates: Vec<(Uuid, Option<Uuid>)> = sqlx::query_as(concat!(
            "select i.id, v.id from collections c join images i on i.collection_id = c.id
             left join video_frames f on f.image_id = i.id left join videos v on v.id = f.video_id
             where c.id = $1 and c.deleting_at is null and ",
            expired_image!("c.retention_days"),
            " order by i.id limit $2",
        ))
        .bind(collection)
        .bind(IMAGES_PER_STEP)
        .fetch_all(&mut *conn)
        .await?;
        let (candidates, videos): (Vec<Uuid>, Vec<Option<Uuid>>) = candidates.into_iter().unzip();
        let videos: Vec<Uuid> = videos.into_iter().flatten().collect();
        // Other transactions lock videos before their frames too.
        sqlx::query("select 1 from videos where id = any($1) order by id for update")
            .bind(&videos)
            .execute(&mut *conn)
            .await?;
        // The video may have been found again before it was locked.
        let images: Vec<(Uuid, i32)> = sqlx::query_as(concat!(
            "select i.id, i.face_count from collections c join images i on i.collection_id = c.id
             left join video_frames f on f.image_id = i.id left join videos v on v.id = f.video_id
             where c.id = $1 and i.id = any($2) and ",
            expired_image!("c.retention_days"),
            " order by i.id for update of i skip locked",
        ))
        .bind(collection)
        .bind(&candidates)
        .fetch_all(&mut *conn)
        .await?;
        if !images.is_empty() {
            let ids: Vec<Uuid> = images.iter().map(|(id, _)| *id).collect();
            // A later crawl or scan reads the file again.
            sqlx::query(
                "update videos set expired_at = now()
                 where id in (select video_id from video_frames where image_id = any($1)) and expired_at is null",
            )
            .bind(&ids)
            .execute(&mut *conn)
            .await?;
            let (deleted, keys) = delete_images(conn, &ids).await?;
            expired.images = deleted;
            expired.faces = images.iter().map(|(_, faces)| u64::from(faces.unsigned_abs())).sum();
            expired.blobs = enqueue_blob_deletions(conn, keys).await?;
            return Ok(expired);
        }
        let videos: Vec<Uuid> = sqlx::query_scalar(
            "select v.id from videos v join collections c on c.id = v.collection_id
             where c.id = $1 and c.deleting_at is null
               and greatest(v.finished_at, v.found_at) < now() - make_interval(days => c.retention_days)
               and v.finished_at is not null
               and not exists (select 1 from video_frames f where f.video_id = v.id)
             order by v.id limit $2 for update of v skip locked",
        )
        .bind(collection)
        .bind(IMAGES_PER_STEP)
        .fetch_all(&mut *conn)
        .await?;
        if !videos.is_empty() {
            expired.videos = videos.len() as u64;
            let keys = delete_video_rows(conn, &videos).await?;
            expired.blobs = enqueue_blob_deletions(conn, keys).await?;
            return Ok(expired);
        }
        let crawl: Option<Uuid> = sqlx::query_scalar(
            "select r.id from crawls r join collections c on c.id = r.collection_id
             where c.id = $1 and c.deleting_at is null and r.finished_at < now() - make_interval(days => c.retention_days)
               and r.next_run_at is null and not r.closing
               and not exists (select from videos v where v.crawl_id = r.id and v.finished_at is null)
             order by r.id limit 1 for update of r skip locked",
        )
        .bind(collection)
        .fetch_optional(&mut *conn)
        .await?;
        let Some(crawl) = crawl else {
            // Alerts about faces that are kept, because a person is enrolled.
            expired.alerts = sqlx::query(
                "delete from alerts where id in (
                     select a.id from collections c join alerts a on a.collection_id = c.id
                     where c.id = $1 and a.created_at < now() - make_interval(days => c.retention_days)
                     limit $2 for update of a skip locked)",
            )
            .bind(collection)
            .bind(ROWS_PER_STEP)
            .execute(conn)
            .await?
            .rows_affected();
            return Ok(expired);
        };
        for statement in [
            "delete from image_urls where id in (select id from image_urls where crawl_id = $1 limit $2)",
            "delete from pages where id in (select id from pages where crawl_id = $1 limit $2)",
        ] {
            expired.rows += sqlx::query(statement)
                .bind(crawl)
                .bind(ROWS_PER_STEP)
                .execute(&mut *conn)
                .await?
                .rows_affected();
        }
        if expired.rows == 0 {
            // The crawl has no live video, so no records of jobs have to be cleared.
            expired.blobs = self.0.crawls().delete(conn, crawl, false).await?.blobs;
            expired.crawls = 1;
        }
        Ok(expired)
    }
}

/// Maximum count per kind. Above it, the exact number makes no difference.
const MAX_COUNT: i64 = 1_000_000;

/// Number of rows that would be deleted, each kind counted up to a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeletionCounts {
    pub images: i64,
    pub faces: i64,
    pub videos: i64,
    /// Enrolled people and clusters.
    pub subjects: i64,
    /// Suppressions of erased images and people.
    pub suppressions: i64,
}

impl DeletionCounts {
    /// Returns the sum over all kinds.
    pub fn rows(&self) -> u64 {
        let rows = [self.images, self.faces, self.videos, self.subjects, self.suppressions];
        rows.into_iter().map(|count| u64::try_from(count).unwrap_or(0)).sum()
    }
}

/// Fails with `NotFound` if the given row does not exist or is outside the store's scope.
/// [`Self::of_enrolled`] does not check this.
impl DeletionCounter<'_> {
    /// Counts what is deleted with a collection.
    pub async fn of_collection(self, id: Uuid) -> Result<DeletionCounts, StoreError> {
        self.0.collections().by_id(id).await?;
        let (images, faces, videos, subjects, suppressions) = sqlx::query_as(
            "select (select count(*) from (select 1 from images where collection_id = $1 limit $2) i),
                    (select count(*) from (select 1 from faces where collection_id = $1 limit $2) f),
                    (select count(*) from (select 1 from videos where collection_id = $1 limit $2) v),
                    (select count(*) from (select 1 from subjects where collection_id = $1 limit $2) s),
                    (select count(*) from (select 1 from suppressions where collection_id = $1 limit $2) o)",
        )
        .bind(id)
        .bind(MAX_COUNT)
        .fetch_one(&self.0.pool)
        .await?;
        Ok(DeletionCounts { images, faces, videos, subjects, suppressions })
    }

    pub async fn of_suppressions(self, erasure: Uuid) -> Result<DeletionCounts, StoreError> {
        let suppressions: Option<i64> = sqlx::query_scalar(
            "select (select count(*) from (select 1 from suppressions where erasure_id = e.id limit $3) s)
             from erasures e where e.id = $1 and ($2::uuid is null or e.collection_id = $2)",
        )
        .bind(erasure)
        .bind(self.0.collection_scope)
        .bind(MAX_COUNT)
        .fetch_optional(&self.0.pool)
        .await?;
        let suppressions = suppressions.ok_or_else(|| StoreError::not_found("erasure", erasure))?;
        Ok(DeletionCounts { suppressions, ..DeletionCounts::default() })
    }

    /// Counts what is deleted with a crawl, its images and its videos.
    pub async fn of_crawl(self, id: Uuid) -> Result<DeletionCounts, StoreError> {
        self.0.crawls().get(id).await?;
        let mut conn = self.0.pool.acquire().await?;
        let mut images = images_found_only_by(&mut conn, id).await?;
        let videos = videos_found_only_by(&mut conn, id).await?;
        images.extend(frames_of(&mut conn, &videos).await?);
        let faces = "select count(*) from (select 1 from faces where image_id = any($1) limit $2) f";
        let faces = sqlx::query_scalar(faces).bind(&images).bind(MAX_COUNT).fetch_one(&mut *conn).await?;
        let [images, videos] =
            [images.len(), videos.len()].map(|count| i64::try_from(count).unwrap_or(MAX_COUNT));
        Ok(DeletionCounts { images, faces, videos, ..DeletionCounts::default() })
    }

    /// Counts what is deleted with a video.
    pub async fn of_video(self, id: Uuid) -> Result<DeletionCounts, StoreError> {
        self.0.videos().get(id).await?;
        let (images, faces) = sqlx::query_as(
            "select (select count(*) from (select 1 from video_frames where video_id = $1 limit $2) i),
                    (select count(*) from (select 1 from video_frames v join faces f on f.image_id = v.image_id
                                           where v.video_id = $1 limit $2) f)",
        )
        .bind(id)
        .bind(MAX_COUNT)
        .fetch_one(&self.0.pool)
        .await?;
        Ok(DeletionCounts { images, faces, videos: 1, ..DeletionCounts::default() })
    }

    /// Counts what is deleted with an image.
    pub async fn of_image(self, id: Uuid) -> Result<DeletionCounts, StoreError> {
        let image = self.0.images().get(id).await?;
        Ok(DeletionCounts { images: 1, faces: i64::from(image.face_count), ..DeletionCounts::default() })
    }

    /// Counts what `store.faces().delete` deletes.
    pub async fn of_face(self, id: Uuid) -> Result<DeletionCounts, StoreError> {
        self.0.faces().get(id).await?;
        let enrolled = self.of_enrolled(None, Some(id)).await?;
        Ok(DeletionCounts { faces: enrolled.faces.max(1), ..enrolled })
    }

    /// Counts what is deleted with the faces of a subject, or with one of them: the images that
    /// were sent only for enrolment, with their faces.
    pub async fn of_enrolled(
        self,
        subject: Option<Uuid>,
        face: Option<Uuid>,
    ) -> Result<DeletionCounts, StoreError> {
        // The condition is that of `delete_enrolled_images`, without the assignments that are
        // deleted.
        let (images, faces) = sqlx::query_as(
            "with assigned as (
                 select f.id, f.image_id from subject_faces s join faces f on f.id = s.face_id
                 where ($1::uuid is null or s.subject_id = $1) and ($2::uuid is null or s.face_id = $2)
                   and ($1::uuid is not null or $2::uuid is not null)),
             unused as (
                 select distinct i.id from assigned join images i on i.id = assigned.image_id
                 where exists (select 1 from image_sources s where s.image_id = i.id and s.kind = 'enrolment')
                   and not exists (select 1 from image_sources s where s.image_id = i.id and s.kind <> 'enrolment')
                   and not exists (select 1 from image_urls u where u.image_id = i.id)
                   and not exists (select 1 from faces f join subject_faces sf on sf.face_id = f.id
                                   where f.image_id = i.id and f.id not in (select id from assigned))
                 limit $3)
             select (select count(*) from unused),
                    (select count(*) from (select 1 from faces f where f.image_id in (select id from unused) limit $3) f)",
        )
        .bind(subject)
        .bind(face)
        .bind(MAX_COUNT)
        .fetch_one(&self.0.pool)
        .await?;
        Ok(DeletionCounts { images, faces, ..DeletionCounts::default() })
    }

    /// Counts the images and faces that a retention of `days` days would delete immediately.
    pub async fn of_retention(self, id: Uuid, days: i32) -> Result<DeletionCounts, StoreError> {
        self.0.collections().by_id(id).await?;
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
        .fetch_one(&self.0.pool)
        .await?;
        Ok(DeletionCounts { images, faces, ..DeletionCounts::default() })
    }

    /// Returns the secret that signs confirmations. It is the same in every process on this
    /// database.
    pub async fn confirmation_secret(self) -> Result<Vec<u8>, StoreError> {
        let query = "select secret from service_secrets where name = 'confirmations'";
        Ok(sqlx::query_scalar(query).fetch_one(&self.0.pool).await?)
    }
}

//! Videos that a scan of local files reads. They have no job: the lease of the scan's crawl shows
//! that a process reads them. Videos with jobs are in the module `videos`.
use crate::db::text::without_nul;
use crate::erasures::traces::LedgerJobs;
use crate::videos::{NewVideo, found_again};
use crate::{Store, StoreError};
use domain::Reason;
use sqlx::{Connection, PgConnection};
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct VideoCounts {
    pub tracks: i64,
    /// Number of faces, which are the best shots of the tracks.
    pub faces: i64,
}

impl Store {
    /// Assigns an ended video to a scan that continues it, and returns its id. Its file, collection
    /// and options are those of `video`, it was cancelled or failed, and all its faces have
    /// embeddings of `model`. No crawl found it, and no caller named its address: both have rules
    /// and an origin of their own. Returns `None` if there is no such video.
    pub async fn continue_video(
        &self,
        conn: &mut PgConnection,
        video: &NewVideo,
        model: i32,
    ) -> Result<Option<Uuid>, StoreError> {
        let mut savepoint = conn.begin().await?;
        // The video with the most parts loses the least. The index on the file's hash permits only
        // one live video of a file.
        let continued = sqlx::query_scalar(
            "update videos set state = 'running', scan_id = $5, source_url = $6, reason = null, detail = null,
                    finished_at = null
             where id = (
                 select v.id from videos v
                 where v.collection_id = $1 and v.sha256 = $2 and v.options = $3
                   and v.state in ('cancelled', 'failed') and v.expired_at is null
                   and v.crawl_id is null and (v.source_url is null or v.source_url not like 'http%')
                   and not exists (
                       select 1 from tracks t
                       join track_faces s on s.track_id = t.id join faces f on f.id = s.face_id
                       where t.video_id = v.id and f.model_id <> $4)
                   and not exists (
                       select 1 from videos o
                       where o.collection_id = $1 and o.sha256 = $2 and o.state not in ('cancelled', 'failed')
                         and o.expired_at is null)
                 order by v.checkpoint_us desc nulls last, v.id limit 1 for update of v)
             returning id",
        )
        .bind(video.collection)
        .bind(video.sha256.as_ref().map(<[u8; 32]>::as_slice))
        .bind(&video.options)
        .bind(model)
        .bind(video.scan)
        .bind(video.source_url.as_deref().map(without_nul))
        .fetch_optional(&mut *savepoint)
        .await;
        match continued {
            Ok(continued) => {
                savepoint.commit().await?;
                Ok(continued)
            }
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                // Another process added a video of the file in the meantime.
                savepoint.rollback().await?;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Records that a scan found a file that the collection already has as the video `original`.
    /// Does nothing if `original` was deleted in the meantime.
    ///
    /// The record has no hash: the file is that of `original`. `id` is the id of the record. Does
    /// nothing if the record exists, so the call can be repeated.
    pub async fn record_duplicate_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        video: &NewVideo,
        original: Uuid,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "insert into videos (id, collection_id, bytes, source_url, scan_id, options, state, reason, original_id, finished_at)
             select $1, o.collection_id, $3, $4, $5, $6, 'failed', $7, o.id, now()
             from (select id, collection_id from videos where id = $2 for key share) o
             on conflict (id) do nothing",
        )
        .bind(id)
        .bind(original)
        .bind(video.bytes)
        .bind(video.source_url.as_deref().map(without_nul))
        .bind(video.scan)
        .bind(&video.options)
        .bind(Reason::ExactDuplicate)
        .execute(&mut *conn)
        .await?;
        found_again(conn, original).await
    }

    /// Locks a video that a scan reads, until the transaction ends.
    ///
    /// # Errors
    /// Fails with `Conflict` if the video has ended, or if another scan continues it.
    pub async fn hold_scanned_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        scan: Uuid,
    ) -> Result<(), StoreError> {
        let held = sqlx::query(
            "select 1 from videos where id = $1 and scan_id = $2 and state = 'running' for update",
        )
        .bind(id)
        .bind(scan)
        .fetch_optional(conn)
        .await?;
        match held {
            Some(_) => Ok(()),
            None => Err(StoreError::Conflict("another process ended the video or continues it".into())),
        }
    }

    /// Returns the end of the lease of the scan that reads a video; `None` if no scan does.
    pub async fn lease_of_scanned_video(&self, id: Uuid) -> Result<Option<OffsetDateTime>, StoreError> {
        let lease: Option<Option<OffsetDateTime>> = sqlx::query_scalar(
            "select c.lease_until from videos v join crawls c on c.id = v.scan_id
             where v.id = $1 and v.state = 'running' and c.state = 'running'",
        )
        .bind(id)
        .fetch_optional(&self.pool)
        .await?;
        Ok(lease.flatten())
    }

    /// Ends the videos that ended scans were reading, with `detail`: as failed if the scan failed,
    /// else as cancelled. What is stored of the videos remains. Returns the jobs of other videos of
    /// the same files, if nothing is left of them.
    pub async fn end_scanned_videos(
        &self,
        conn: &mut PgConnection,
        detail: &str,
    ) -> Result<LedgerJobs, StoreError> {
        let collections: Vec<Uuid> = sqlx::query_scalar(
            "select distinct v.collection_id from videos v join crawls c on c.id = v.scan_id
             where v.state in ('queued', 'running', 'paused') and c.state <> 'running' order by v.collection_id",
        )
        .fetch_all(&mut *conn)
        .await?;
        for collection in collections {
            // An erasure finds the videos ended, or this transaction finds what was erased.
            self.lock_suppressions(conn, collection, false).await?;
        }
        let ended: Vec<Uuid> = sqlx::query_scalar(
            "update videos v set state = case when c.state = 'failed' then 'failed' else 'cancelled' end,
                    reason = $1, detail = $2, finished_at = now()
             from crawls c
             where c.id = v.scan_id and v.state in ('queued', 'running', 'paused') and c.state <> 'running'
             returning v.id",
        )
        .bind(Reason::NotScanned)
        .bind(detail)
        .fetch_all(&mut *conn)
        .await?;
        let mut jobs = LedgerJobs::default();
        for video in &ended {
            jobs.extend(self.erase_emptied_video(conn, *video).await?);
        }
        Ok(jobs)
    }

    pub async fn video_counts(&self, id: Uuid) -> Result<VideoCounts, StoreError> {
        Ok(sqlx::query_as(
            "select count(distinct t.id) as tracks, count(s.face_id) as faces
             from tracks t left join track_faces s on s.track_id = t.id where t.video_id = $1",
        )
        .bind(id)
        .fetch_one(&self.pool)
        .await?)
    }
}

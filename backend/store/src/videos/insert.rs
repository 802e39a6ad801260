//! Adds videos, and finds those of the same file or address.
use crate::db::text::without_nul;
use crate::{Store, StoreError};
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct NewVideo {
    pub collection: Uuid,
    /// SHA-256 of the file, if the file is known.
    pub sha256: Option<[u8; 32]>,
    /// Size of the file in bytes, if it is known.
    pub bytes: Option<i64>,
    pub source_url: Option<String>,
    /// The blob of an uploaded file. It is deleted when the video has ended.
    pub source_key: Option<String>,
    /// The scan that reads the file, if no job does.
    pub scan: Option<Uuid>,
    /// The options of the analysis (`pipeline::VideoRequest`).
    pub options: Value,
}

/// What occupies disk space and workers in a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct WaitingVideos {
    /// Number of live videos that callers added.
    pub videos: i64,
    /// Size of the stored files, in bytes: of live videos, and of failed ones that can be retried.
    pub bytes: i64,
}

impl Store {
    /// Adds a video in the state `queued` and returns its id. Returns `Err` with the id of the
    /// collection's video of this file, if any. Cancelled and failed videos do not count.
    ///
    /// # Errors
    /// Fails with `NotFound` if the collection does not exist.
    pub async fn insert_video(
        &self,
        conn: &mut PgConnection,
        video: &NewVideo,
    ) -> Result<Result<Uuid, Uuid>, StoreError> {
        // The lock prevents the deletion of the collection until the video is stored.
        sqlx::query_scalar::<_, Uuid>(
            "select id from collections where id = $1 and deleting_at is null for share",
        )
        .bind(video.collection)
        .fetch_optional(&mut *conn)
        .await?
        .ok_or_else(|| StoreError::not_found("collection", video.collection))?;
        // The existing video may be deleted before it can be read. The insert is then retried.
        for _ in 0..3 {
            let id = Uuid::now_v7();
            let inserted = sqlx::query(
                "insert into videos (id, collection_id, sha256, bytes, source_url, source_key, scan_id, options)
                 values ($1, $2, $3, $4, $5, $6, $7, $8)
                 on conflict (collection_id, sha256)
                     where sha256 is not null and state not in ('cancelled', 'failed') and expired_at is null do nothing",
            )
            .bind(id)
            .bind(video.collection)
            .bind(video.sha256.as_ref().map(<[u8; 32]>::as_slice))
            .bind(video.bytes)
            .bind(video.source_url.as_deref().map(without_nul))
            .bind(&video.source_key)
            .bind(video.scan)
            .bind(&video.options)
            .execute(&mut *conn)
            .await?;
            if inserted.rows_affected() == 1 {
                return Ok(Ok(id));
            }
            if let Some(sha256) = &video.sha256
                && let Some(existing) = self.video_of_file(&mut *conn, video.collection, sha256).await?
            {
                found_again(conn, existing).await?;
                return Ok(Err(existing));
            }
        }
        Err(repeated_video())
    }

    /// Returns the video of a file. Ignores videos that were cancelled or failed, and those of
    /// which retention deleted a part.
    pub async fn video_of_file(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        sha256: &[u8; 32],
    ) -> Result<Option<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from videos
             where collection_id = $1 and sha256 = $2 and state not in ('cancelled', 'failed')
               and expired_at is null",
        )
        .bind(collection)
        .bind(sha256.as_slice())
        .fetch_optional(conn)
        .await?)
    }

    /// Returns the live video that a caller added with an address in a collection.
    pub async fn video_of_address(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        address: &str,
    ) -> Result<Option<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from videos
             where collection_id = $1 and md5(source_url) = md5($2) and source_url = $2 and crawl_id is null
               and state in ('queued', 'running', 'paused')
             order by id limit 1",
        )
        .bind(collection)
        .bind(address)
        .fetch_optional(conn)
        .await?)
    }

    /// Returns what waits in a collection. Call [`Self::lock_waiting_videos`] before, in the
    /// transaction that adds a video.
    pub async fn waiting_in_collection(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
    ) -> Result<WaitingVideos, StoreError> {
        Ok(sqlx::query_as(
            "select count(*) filter (where state in ('queued', 'running', 'paused')
                                     and crawl_id is null and scan_id is null) as videos,
                    coalesce(sum(bytes) filter (where source_key is not null), 0)::bigint as bytes
             from videos
             where collection_id = $1 and (source_key is not null or state in ('queued', 'running', 'paused'))",
        )
        .bind(collection)
        .fetch_one(conn)
        .await?)
    }

    /// Locks the adding of videos to the collection: other transactions that take this lock wait
    /// until this one ends.
    pub async fn lock_waiting_videos(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
    ) -> Result<(), StoreError> {
        sqlx::query("select pg_advisory_xact_lock(hashtextextended('waiting videos ' || $1::text, 0))")
            .bind(collection)
            .execute(conn)
            .await?;
        Ok(())
    }
}

/// Records that the file of a video was found again.
pub(crate) async fn found_again(conn: &mut PgConnection, video: Uuid) -> Result<(), StoreError> {
    sqlx::query("update videos set found_at = now() where id = $1").bind(video).execute(conn).await?;
    Ok(())
}

pub(super) fn repeated_video() -> StoreError {
    StoreError::Conflict("the same video is stored and deleted repeatedly; try again".into())
}

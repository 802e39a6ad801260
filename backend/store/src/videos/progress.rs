//! Inserts a video, and records its file, its checkpoint and its states while it is read.
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::db::values::without_nul;
use crate::store::Videos;
use domain::{Reason, VideoState};
use serde_json::Value;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, Postgres};
use time::OffsetDateTime;
use uuid::Uuid;

/// Properties that a video file reports.
#[derive(Clone, Debug)]
pub struct VideoFileInfo {
    pub sha256: [u8; 32],
    pub bytes: i64,
    pub codec: String,
    /// Duration in microseconds, if the file reports it.
    pub duration_us: Option<i64>,
}

/// The stored part of a video.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// Time of the last frame in microseconds.
    pub until_us: i64,
    /// Number of frames that were analysed up to then.
    pub frames: i64,
    /// Highest number of a track.
    pub last_track: i32,
    /// Number of tracks without a recognisable face.
    pub unidentified: i64,
    /// Width of a frame as a player shows it, in pixels.
    pub width: i32,
    /// Height of a frame as a player shows it, in pixels.
    pub height: i32,
}

impl Videos<'_> {
    /// Records what the file reports about itself. Returns `Err` with the id of another video of
    /// the same file in the collection.
    pub async fn record_file_info(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        info: &VideoFileInfo,
    ) -> Result<Result<(), Uuid>, StoreError> {
        let update = sqlx::query(
            "update videos set sha256 = $2, bytes = $3, codec = $4, duration_us = $5, original_id = null
             where id = $1",
        )
        .bind(id)
        .bind(info.sha256.as_slice())
        .bind(info.bytes)
        .bind(without_nul(&info.codec))
        .bind(info.duration_us);
        set_file(conn, id, &info.sha256, update).await
    }

    /// Records that the file of a running video was fetched and is stored as the blob `key`, and
    /// that the video waits again. Returns `Err` with the id of another video of the same file in
    /// the collection.
    ///
    /// # Errors
    /// Fails with `Conflict` if the video is not running, and with `NotFound` if it does not exist.
    pub async fn record_fetched(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        sha256: &[u8; 32],
        bytes: i64,
        key: &str,
    ) -> Result<Result<(), Uuid>, StoreError> {
        self.set_state(&mut *conn, id, &[VideoState::Running], VideoState::Queued).await?;
        let update = sqlx::query(
            "update videos set sha256 = $2, bytes = $3, source_key = $4, original_id = null where id = $1",
        )
        .bind(id)
        .bind(sha256.as_slice())
        .bind(bytes)
        .bind(key);
        set_file(conn, id, sha256, update).await
    }

    /// Returns the time up to which a video is stored, in microseconds.
    pub async fn checkpoint(self, id: Uuid) -> Result<Option<i64>, StoreError> {
        let checkpoint: Option<Option<i64>> =
            sqlx::query_scalar("select checkpoint_us from videos where id = $1")
                .bind(id)
                .fetch_optional(&self.0.pool)
                .await?;
        Ok(checkpoint.flatten())
    }

    /// Records that everything up to a frame is stored, in the transaction that stores it. Returns
    /// `false` and changes nothing if it was recorded before.
    ///
    /// # Errors
    /// Fails with `Conflict` if the video is not running, and with `NotFound` if it does not exist.
    pub async fn set_checkpoint(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        self.set_state(&mut *conn, id, &[VideoState::Running], VideoState::Running).await?;
        let changed = sqlx::query(
            "update videos set checkpoint_us = $2, frames = $3, last_track = $4, unidentified = $5, width = $6, height = $7
             where id = $1 and (checkpoint_us is null or checkpoint_us < $2)",
        )
        .bind(id)
        .bind(checkpoint.until_us)
        .bind(checkpoint.frames)
        .bind(checkpoint.last_track)
        .bind(checkpoint.unidentified)
        .bind(checkpoint.width)
        .bind(checkpoint.height)
        .execute(conn)
        .await?;
        Ok(changed.rows_affected() == 1)
    }
}

/// Runs a statement that sets the hash of a video, unless the collection has another video of the
/// file.
async fn set_file(
    conn: &mut PgConnection,
    id: Uuid,
    sha256: &[u8; 32],
    update: Query<'_, Postgres, PgArguments>,
) -> Result<Result<(), Uuid>, StoreError> {
    if let Some(other) = find_other_video_of_file(&mut *conn, id, sha256).await? {
        return Ok(Err(other));
    }
    let mut savepoint = conn.begin().await?;
    match update.execute(&mut *savepoint).await {
        Ok(result) if result.rows_affected() == 0 => Err(StoreError::not_found("video", id)),
        Ok(_) => {
            savepoint.commit().await?;
            Ok(Ok(()))
        }
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
            // The index waited for another transaction that stored a video of the same file.
            savepoint.rollback().await?;
            match find_other_video_of_file(conn, id, sha256).await? {
                Some(other) => Ok(Err(other)),
                None => Err(repeated_video_error()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns another video of the same file and collection that was not cancelled and did not fail,
/// and whose content was not deleted by retention.
async fn find_other_video_of_file(
    conn: &mut PgConnection,
    id: Uuid,
    sha256: &[u8; 32],
) -> Result<Option<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "select o.id from videos v join videos o on o.collection_id = v.collection_id
         where v.id = $1 and o.id <> v.id and o.sha256 = $2 and o.state not in ('cancelled', 'failed')
           and o.expired_at is null",
    )
    .bind(id)
    .bind(sha256.as_slice())
    .fetch_optional(conn)
    .await?)
}

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

/// The videos that occupy disk space and workers in a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, sqlx::FromRow)]
pub struct WaitingVideos {
    /// Number of live videos that callers added.
    pub videos: i64,
    /// Size of the stored files, in bytes: of live videos, and of failed ones that can be retried.
    pub bytes: i64,
}

impl Videos<'_> {
    /// Adds a video in the state `queued` and returns its id. Returns `Err` with the id of the
    /// collection's video of this file, if any. Cancelled and failed videos do not count.
    ///
    /// # Errors
    /// Fails with `NotFound` if the collection does not exist.
    pub async fn insert(
        self,
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
                && let Some(existing) = self.find_by_file(&mut *conn, video.collection, sha256).await?
            {
                record_found_again(conn, existing).await?;
                return Ok(Err(existing));
            }
        }
        Err(repeated_video_error())
    }

    /// Returns the video of a file. Ignores videos that were cancelled or failed, and those with
    /// content deleted by retention.
    pub async fn find_by_file(
        self,
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
    pub async fn find_by_address(
        self,
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

    /// Returns the number and size of the waiting videos of a collection. Call
    /// [`Self::lock_waiting`] before, in the transaction that adds a video.
    pub async fn waiting_in_collection(
        self,
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

    /// Locks the insertion of videos into the collection. Other transactions that acquire this lock
    /// wait until this one ends.
    pub async fn lock_waiting(self, conn: &mut PgConnection, collection: Uuid) -> Result<(), StoreError> {
        sqlx::query("select pg_advisory_xact_lock(hashtextextended('waiting videos ' || $1::text, 0))")
            .bind(collection)
            .execute(conn)
            .await?;
        Ok(())
    }
}

/// Records that the file of a video was found again.
pub(crate) async fn record_found_again(conn: &mut PgConnection, video: Uuid) -> Result<(), StoreError> {
    sqlx::query("update videos set found_at = now() where id = $1").bind(video).execute(conn).await?;
    Ok(())
}

pub(super) fn repeated_video_error() -> StoreError {
    StoreError::Conflict("the same video is stored and deleted repeatedly; try again".into())
}

#[derive(Clone, Debug)]
pub struct VideoEnd<'a> {
    pub state: VideoState,
    /// Number of people, if the whole video was read.
    pub people: Option<i32>,
    /// The reason why the video could not be read completely.
    pub reason: Option<Reason>,
    pub detail: Option<&'a str>,
    /// The video of the same file, if the collection had one before.
    pub original: Option<Uuid>,
    /// Whether the blob of the file is kept, so that the video can be read again.
    pub keep_file: bool,
}

impl Videos<'_> {
    /// Changes the state of a video that is in one of the states `from`. Locks its row until the
    /// transaction ends.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope. Fails with
    /// `Conflict`, which contains the state, if it is in another state.
    pub async fn set_state(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        from: &[VideoState],
        to: VideoState,
    ) -> Result<(), StoreError> {
        let state: Option<VideoState> = sqlx::query_scalar(
            "select state from videos where id = $1 and ($2::uuid is null or collection_id = $2) for update",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let state = state.ok_or_else(|| StoreError::not_found("video", id))?;
        if !from.contains(&state) {
            return Err(StoreError::Conflict(format!("the video is {state}")));
        }
        sqlx::query("update videos set state = $2 where id = $1").bind(id).bind(to).execute(conn).await?;
        Ok(())
    }

    /// Records that a video waits until `original`, which has the same file, has ended; `None` if
    /// it waits no longer.
    pub async fn set_original(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        original: Option<Uuid>,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update videos set original_id = (select o.id from videos o where o.id = $2) where id = $1",
        )
        .bind(id)
        .bind(original)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns a failed video to the state `queued`. It continues after its last part.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope. Fails with
    /// `Conflict` if it did not fail, if its file is neither kept nor at an address that a caller
    /// sent, or if the collection has another video of the file.
    pub async fn requeue(self, conn: &mut PgConnection, id: Uuid) -> Result<(), StoreError> {
        self.set_state(&mut *conn, id, &[VideoState::Failed], VideoState::Failed).await?;
        let requeued = sqlx::query(
            "update videos set state = 'queued', reason = null, detail = null, finished_at = null, original_id = null
             where id = $1 and scan_id is null
               and (source_key is not null or (crawl_id is null and source_url is not null))",
        )
        .bind(id)
        .execute(conn)
        .await;
        let conflict = |message: &str| Err(StoreError::Conflict(message.into()));
        match requeued {
            Ok(result) if result.rows_affected() == 1 => Ok(()),
            Ok(_) => conflict("the file of the video is not kept; send it again"),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                conflict("the collection has another video of the same file")
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the references to the files of at most `limit` videos that failed before the time
    /// `before`. Returns the blobs to delete after the commit.
    pub async fn delete_failed_files(
        self,
        conn: &mut PgConnection,
        before: OffsetDateTime,
        limit: i64,
    ) -> Result<Vec<String>, StoreError> {
        let keys: Vec<String> = sqlx::query_scalar(
            "with old as materialized (
                 select id, source_key from videos
                 where source_key is not null and state = 'failed' and finished_at < $1
                 order by source_key limit $2 for update skip locked
             )
             update videos set source_key = null where id in (select id from old)
             returning (select source_key from old where old.id = videos.id)",
        )
        .bind(before)
        .bind(limit)
        .fetch_all(&mut *conn)
        .await?;
        enqueue_blob_deletions(conn, keys).await
    }

    /// Ends a live video. Returns the blobs to delete after the commit.
    ///
    /// # Errors
    /// Fails with `NotFound`, and with `Conflict` if it has ended already.
    pub async fn end(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        end: VideoEnd<'_>,
    ) -> Result<Vec<String>, StoreError> {
        self.set_state(&mut *conn, id, &VideoState::LIVE, VideoState::Running).await?;
        let key: Option<String> = sqlx::query_scalar(
            "with before as (select source_key from videos where id = $1)
             update videos set state = $2, people = $3, reason = $4, detail = $5, finished_at = now(),
                    original_id = (select o.id from videos o where o.id = $6),
                    source_key = case when $7 then source_key end
             where id = $1 returning (select source_key from before where not $7)",
        )
        .bind(id)
        .bind(end.state)
        .bind(end.people)
        .bind(&end.reason)
        .bind(end.detail.map(without_nul))
        .bind(end.original)
        .bind(end.keep_file)
        .fetch_one(&mut *conn)
        .await?;
        if let Some(original) = end.original {
            record_found_again(conn, original).await?;
        }
        enqueue_blob_deletions(conn, key.into_iter().collect()).await
    }
}

/// Removes the references to the stored files of the videos that have ended, and records the
/// deletion of these files.
pub(crate) async fn delete_ended_files(conn: &mut PgConnection, videos: &[Uuid]) -> Result<(), StoreError> {
    let keys: Vec<String> = sqlx::query_scalar(
        "with kept as materialized (
             select id, source_key from videos
             where id = any($1) and source_key is not null and finished_at is not null for update
         )
         update videos v set source_key = null from kept where v.id = kept.id returning kept.source_key",
    )
    .bind(videos)
    .fetch_all(&mut *conn)
    .await?;
    enqueue_blob_deletions(conn, keys).await.map(drop)
}

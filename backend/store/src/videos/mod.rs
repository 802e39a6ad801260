//! Reads and deletes the rows of videos. `progress` changes a video while it is read. `tracks`
//! contains its tracks and the faces of their best shots.
pub mod crawled;
pub mod export;
mod progress;
pub mod tracks;
use crate::StoreError;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::db::deletions::set_tombstones;
use crate::images::delete_images;
use crate::store::Videos;
use domain::{Reason, VideoState};
pub use progress::{Checkpoint, NewVideo, VideoEnd, VideoFileInfo, WaitingVideos};
pub(crate) use progress::{delete_ended_files, record_found_again};
use serde_json::Value;
use sqlx::{PgConnection, Postgres, QueryBuilder};
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Video {
    /// Its id, which is also its group in the queue.
    pub id: Uuid,
    pub collection_id: Uuid,
    pub collection: String,
    pub state: VideoState,
    /// SHA-256 of the file; `None` until the file is known.
    pub sha256: Option<Vec<u8>>,
    /// Size of the file in bytes; `None` until the file is known.
    pub bytes: Option<i64>,
    pub source_url: Option<String>,
    /// The crawl that found the file.
    pub crawl_id: Option<Uuid>,
    /// The scan that reads the file, or read it last.
    pub scan_id: Option<Uuid>,
    /// The page on which the crawl first found it.
    pub page_url: Option<String>,
    /// The collection's earlier video of the same file. A live video waits for its end.
    pub original_id: Option<Uuid>,
    /// The blob of a file that is kept; `None` after the video has ended, unless it may be retried.
    pub source_key: Option<String>,
    /// The options of the analysis (`pipeline::VideoRequest`).
    pub options: Value,
    /// The codec; `None` until the file was opened.
    pub codec: Option<String>,
    /// Width of a frame as a player shows it, in pixels.
    pub width: Option<i32>,
    /// Height of a frame as a player shows it, in pixels.
    pub height: Option<i32>,
    /// Duration in microseconds, if the file reports it.
    pub duration_us: Option<i64>,
    /// Time of the last frame whose tracks are stored, in microseconds.
    pub checkpoint_us: Option<i64>,
    /// Number of analysed frames.
    pub frames: i64,
    /// Highest number of a track.
    pub last_track: i32,
    /// Number of tracks without a recognisable face. They are not stored.
    pub unidentified: i64,
    /// Number of people; `None` until the whole video was read.
    pub people: Option<i32>,
    /// The reason why the video could not be read completely.
    pub reason: Option<Reason>,
    pub detail: Option<String>,
    /// The camera whose faces of one day these are.
    pub stream: Option<String>,
    /// Midnight (UTC) of this day.
    #[serde(with = "time::serde::rfc3339::option")]
    pub started_at: Option<OffsetDateTime>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    pub finished_at: Option<OffsetDateTime>,
}

impl Video {
    /// Returns whether the video can be read again (`store.videos().requeue`): it failed, and its
    /// file is kept or at an address that a caller sent.
    pub fn is_retryable(&self) -> bool {
        let has_file = self.source_key.is_some() || (self.crawl_id.is_none() && self.source_url.is_some());
        self.state == VideoState::Failed && self.scan_id.is_none() && has_file
    }
}

#[derive(Clone, Debug, Default)]
pub struct VideoFilter {
    pub collection: String,
    pub state: Option<VideoState>,
    /// Only videos that this crawl or scan found.
    pub crawl_id: Option<Uuid>,
    /// Only what is stored of this camera.
    pub stream: Option<String>,
}

macro_rules! select_videos {
    ($tail:literal) => {
        concat!(
            "select v.id, v.collection_id, c.name as collection, v.state, v.sha256, v.bytes, v.source_url, v.crawl_id, v.scan_id, v.original_id, v.source_key, v.options, ",
            "(select s.page_url from video_sources s where s.video_id = v.id order by s.id limit 1) as page_url, ",
            "v.codec, v.width, v.height, v.duration_us, v.checkpoint_us, v.frames, v.last_track, v.unidentified, v.people, v.reason, v.detail, ",
            "v.stream, v.started_at, v.created_at, v.finished_at from videos v join collections c on c.id = v.collection_id ",
            $tail
        )
    };
}

impl Videos<'_> {
    /// Returns a video by id.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn get(self, id: Uuid) -> Result<Video, StoreError> {
        sqlx::query_as(select_videos!("where v.id = $1 and ($2::uuid is null or v.collection_id = $2)"))
            .bind(id)
            .bind(self.0.collection_scope)
            .fetch_optional(&self.0.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("video", id))
    }

    /// Returns videos, newest first.
    pub async fn list(
        self,
        filter: &VideoFilter,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Video>, StoreError> {
        let collection = self.0.collections().get(&filter.collection).await?.id;
        let mut query = QueryBuilder::<Postgres>::new(select_videos!("where v.collection_id = "));
        query.push_bind(collection);
        if let Some(state) = filter.state {
            query.push(" and v.state = ").push_bind(state);
        }
        if let Some(crawl) = filter.crawl_id {
            query.push(" and (v.crawl_id = ").push_bind(crawl);
            query.push(" or v.scan_id = ").push_bind(crawl).push(")");
        }
        if let Some(stream) = &filter.stream {
            query.push(" and v.stream = ").push_bind(stream);
        }
        if let Some(before) = before {
            query.push(" and v.id < ").push_bind(before);
        }
        query.push(" order by v.id desc limit ").push_bind(limit.max(0));
        Ok(query.build_query_as().fetch_all(&self.0.pool).await?)
    }

    /// Returns videos by id, in the order of their ids. Missing videos are omitted.
    pub(crate) async fn by_ids(self, ids: &[Uuid]) -> Result<Vec<Video>, StoreError> {
        Ok(sqlx::query_as(select_videos!("where v.id = any($1) order by v.id"))
            .bind(ids)
            .fetch_all(&self.0.pool)
            .await?)
    }

    /// Returns the state of a video; `None` if it does not exist.
    pub async fn state(self, id: Uuid) -> Result<Option<VideoState>, StoreError> {
        Ok(sqlx::query_scalar("select state from videos where id = $1")
            .bind(id)
            .fetch_optional(&self.0.pool)
            .await?)
    }

    /// Returns the ids of the videos that exist and have not ended.
    pub async fn filter_live(self, ids: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from videos where id = any($1) and state in ('queued', 'running', 'paused')",
        )
        .bind(ids)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns the live videos with jobs after the video `after`, oldest first.
    pub async fn live(self, after: Uuid, limit: i64) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from videos where state in ('queued', 'running', 'paused') and scan_id is null and id > $1
             order by id limit $2",
        )
        .bind(after)
        .bind(limit)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Deletes a video with its tracks and the frames of their best shots, also those with enrolled
    /// faces. Returns the blobs to delete after the commit.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn delete(self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        let locked: Option<Uuid> = sqlx::query_scalar(
            "select id from videos where id = $1 and ($2::uuid is null or collection_id = $2) for update",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        locked.ok_or_else(|| StoreError::not_found("video", id))?;
        let keys = delete_videos(conn, &[id]).await?;
        enqueue_blob_deletions(conn, keys).await
    }

    /// Returns whether a face of the video has an embedding of another model than `model`.
    pub async fn has_faces_of_other_model(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        model: i32,
    ) -> Result<bool, StoreError> {
        Ok(sqlx::query_scalar(
            "select exists (
                 select 1 from tracks t
                 join track_faces s on s.track_id = t.id join faces f on f.id = s.face_id
                 where t.video_id = $1 and f.model_id <> $2)",
        )
        .bind(id)
        .bind(model)
        .fetch_one(conn)
        .await?)
    }

    /// Deletes the stored parts of a running video, so that it is read again from the beginning.
    /// Returns the blobs to delete after the commit.
    ///
    /// # Errors
    /// Fails with `Conflict` if the video is not running, and with `NotFound` if it does not exist.
    pub async fn delete_parts(self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        self.set_state(&mut *conn, id, &[VideoState::Running], VideoState::Running).await?;
        let images = frames_of(conn, &[id]).await?;
        set_tombstones(conn, &images, &images).await?;
        // A track is deleted with its last face.
        let (_, keys) = delete_images(conn, &images).await?;
        sqlx::query(
            "update videos set checkpoint_us = null, frames = 0, last_track = 0, unidentified = 0 where id = $1",
        )
        .bind(id)
        .execute(&mut *conn)
        .await?;
        enqueue_blob_deletions(conn, keys).await
    }
}

/// Returns the images of the stored frames of videos, in the order of their ids.
pub(crate) async fn frames_of(conn: &mut PgConnection, videos: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
    let query = "select image_id from video_frames where video_id = any($1) order by image_id";
    Ok(sqlx::query_scalar(query).bind(videos).fetch_all(conn).await?)
}

/// Deletes locked videos with their tracks and frames. Returns the blobs that they referred to.
pub(crate) async fn delete_videos(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<String>, StoreError> {
    let images = frames_of(conn, ids).await?;
    let deleted_ids: Vec<Uuid> = images.iter().chain(ids).copied().collect();
    set_tombstones(conn, &deleted_ids, &images).await?;
    let (_, mut keys) = delete_images(conn, &images).await?;
    keys.extend(delete_video_rows(conn, ids).await?);
    Ok(keys)
}

/// Deletes videos whose frames are deleted already. Returns the blobs of their files.
pub(crate) async fn delete_video_rows(
    conn: &mut PgConnection,
    ids: &[Uuid],
) -> Result<Vec<String>, StoreError> {
    let keys: Vec<Option<String>> =
        sqlx::query_scalar("delete from videos where id = any($1) returning source_key")
            .bind(ids)
            .fetch_all(conn)
            .await?;
    Ok(keys.into_iter().flatten().collect())
}

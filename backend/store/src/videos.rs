//! Videos and their states. Tracks and the faces of their best shots are in the module `tracks`.
use crate::blob_deletions::enqueue_blob_deletions;
use crate::erasure::delete_images;
use crate::text::without_nul;
use crate::{Store, StoreError, tombstones};
use domain::{Reason, VideoState};
use serde_json::Value;
use sqlx::{Connection, PgConnection, Postgres, QueryBuilder};
use time::OffsetDateTime;
use uuid::Uuid;

/// A video to read.
#[derive(Clone, Debug)]
pub struct NewVideo {
    /// The collection that will contain the faces.
    pub collection: Uuid,
    /// SHA-256 of the file, if the file is known.
    pub sha256: Option<[u8; 32]>,
    /// Size of the file in bytes, if it is known.
    pub bytes: Option<i64>,
    /// The address of the file.
    pub source_url: Option<String>,
    /// The blob of an uploaded file. It is deleted when the video has ended.
    pub source_key: Option<String>,
    /// The scan that reads the file, if no job does.
    pub scan: Option<Uuid>,
    /// The options of the analysis (`pipeline::VideoRequest`).
    pub options: Value,
}

/// A video.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Video {
    /// Its id, which is also its group in the queue.
    pub id: Uuid,
    /// The collection's id.
    pub collection_id: Uuid,
    /// The collection's name.
    pub collection: String,
    /// Its state.
    pub state: VideoState,
    /// SHA-256 of the file; `None` until the file is known.
    pub sha256: Option<Vec<u8>>,
    /// Size of the file in bytes; `None` until the file is known.
    pub bytes: Option<i64>,
    /// The address of the file.
    pub source_url: Option<String>,
    /// The crawl that found the file.
    pub crawl_id: Option<Uuid>,
    /// The page on which the crawl first found it.
    pub page_url: Option<String>,
    /// The video of the same file that the collection had before. A live video waits until that one
    /// has ended.
    pub original_id: Option<Uuid>,
    /// The blob of an uploaded file; `None` after the video has ended.
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
    /// Why the video could not be read, or not to its end.
    pub reason: Option<Reason>,
    /// Details of `reason`.
    pub detail: Option<String>,
    /// When it was added.
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    pub finished_at: Option<OffsetDateTime>,
}

/// What a file reports about itself.
#[derive(Clone, Debug)]
pub struct VideoFacts {
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Size of the file in bytes.
    pub bytes: i64,
    /// The codec.
    pub codec: String,
    /// Duration in microseconds, if the file reports it.
    pub duration_us: Option<i64>,
}

/// How far a video is stored.
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

/// How a video ends.
#[derive(Clone, Debug)]
pub struct VideoEnd<'a> {
    /// The final state.
    pub state: VideoState,
    /// Number of people, if the whole video was read.
    pub people: Option<i32>,
    /// Why the video could not be read, or not to its end.
    pub reason: Option<Reason>,
    /// Details of `reason`.
    pub detail: Option<&'a str>,
    /// The video of the same file, if the collection had one before.
    pub original: Option<Uuid>,
}

/// Filters of `GET /videos`.
#[derive(Clone, Debug, Default)]
pub struct VideoFilter {
    /// Collection name.
    pub collection: String,
    /// Only videos in this state.
    pub state: Option<VideoState>,
    /// Only videos that this crawl found.
    pub crawl_id: Option<Uuid>,
}

macro_rules! select_videos {
    ($tail:literal) => {
        concat!(
            "select v.id, v.collection_id, c.name as collection, v.state, v.sha256, v.bytes, v.source_url, v.crawl_id, v.original_id, v.source_key, v.options, ",
            "(select s.page_url from video_sources s where s.video_id = v.id order by s.id limit 1) as page_url, ",
            "v.codec, v.width, v.height, v.duration_us, v.checkpoint_us, v.frames, v.last_track, v.unidentified, v.people, v.reason, v.detail, ",
            "v.created_at, v.finished_at from videos v join collections c on c.id = v.collection_id ",
            $tail
        )
    };
}

impl Store {
    /// Adds a video in the state `queued` and returns its id. Returns `Err` with the id of the
    /// video that the collection already has of this file. Cancelled and failed videos do not
    /// count.
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
                     where sha256 is not null and state not in ('cancelled', 'failed') do nothing",
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
                return Ok(Err(existing));
            }
        }
        Err(repeated_video())
    }

    /// Returns the video of a file, unless it was cancelled or failed.
    pub async fn video_of_file(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        sha256: &[u8; 32],
    ) -> Result<Option<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from videos
             where collection_id = $1 and sha256 = $2 and state not in ('cancelled', 'failed')",
        )
        .bind(collection)
        .bind(sha256.as_slice())
        .fetch_optional(conn)
        .await?)
    }

    /// Returns a video by id.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn video(&self, id: Uuid) -> Result<Video, StoreError> {
        sqlx::query_as(select_videos!("where v.id = $1 and ($2::uuid is null or v.collection_id = $2)"))
            .bind(id)
            .bind(self.collection_scope)
            .fetch_optional(&self.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("video", id))
    }

    /// Returns videos, newest first.
    pub async fn videos(
        &self,
        filter: &VideoFilter,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Video>, StoreError> {
        let collection = self.collection(&filter.collection).await?.id;
        let mut query = QueryBuilder::<Postgres>::new(select_videos!("where v.collection_id = "));
        query.push_bind(collection);
        if let Some(state) = filter.state {
            query.push(" and v.state = ").push_bind(state);
        }
        if let Some(crawl) = filter.crawl_id {
            query.push(" and v.crawl_id = ").push_bind(crawl);
        }
        if let Some(before) = before {
            query.push(" and v.id < ").push_bind(before);
        }
        query.push(" order by v.id desc limit ").push_bind(limit.max(0));
        Ok(query.build_query_as().fetch_all(&self.pool).await?)
    }

    /// Changes the state of a video that is in one of the states `from`. Locks its row until the
    /// transaction ends.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope. Fails with
    /// `Conflict`, which contains the state, if it is in another state.
    pub async fn set_video_state(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        from: &[VideoState],
        to: VideoState,
    ) -> Result<(), StoreError> {
        let state: Option<VideoState> = sqlx::query_scalar(
            "select state from videos where id = $1 and ($2::uuid is null or collection_id = $2) for update",
        )
        .bind(id)
        .bind(self.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let state = state.ok_or_else(|| StoreError::not_found("video", id))?;
        if !from.contains(&state) {
            return Err(StoreError::Conflict(format!("the video is {state}")));
        }
        sqlx::query("update videos set state = $2 where id = $1").bind(id).bind(to).execute(conn).await?;
        Ok(())
    }

    /// Records what the file reports about itself. Returns `Err` with the id of another video of
    /// the same file in the collection.
    pub async fn describe_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        facts: &VideoFacts,
    ) -> Result<Result<(), Uuid>, StoreError> {
        if let Some(other) = other_of_file(&mut *conn, id, &facts.sha256).await? {
            return Ok(Err(other));
        }
        let mut savepoint = conn.begin().await?;
        let known = sqlx::query(
            "update videos set sha256 = $2, bytes = $3, codec = $4, duration_us = $5, original_id = null
             where id = $1",
        )
        .bind(id)
        .bind(facts.sha256.as_slice())
        .bind(facts.bytes)
        .bind(without_nul(&facts.codec))
        .bind(facts.duration_us)
        .execute(&mut *savepoint)
        .await;
        match known {
            Ok(known) if known.rows_affected() == 0 => Err(StoreError::not_found("video", id)),
            Ok(_) => {
                savepoint.commit().await?;
                Ok(Ok(()))
            }
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                // The index waited for another transaction that stored a video of the same file.
                savepoint.rollback().await?;
                match other_of_file(conn, id, &facts.sha256).await? {
                    Some(other) => Ok(Err(other)),
                    None => Err(repeated_video()),
                }
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Records that everything up to a frame is stored, in the transaction that stores it. Returns
    /// `false` and changes nothing if it was recorded before.
    ///
    /// # Errors
    /// Fails with `Conflict` if the video is not running, and with `NotFound` if it does not exist.
    pub async fn checkpoint_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        checkpoint: &Checkpoint,
    ) -> Result<bool, StoreError> {
        self.set_video_state(&mut *conn, id, &[VideoState::Running], VideoState::Running).await?;
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

    /// Returns the state of a video; `None` if it does not exist.
    pub async fn video_state(&self, id: Uuid) -> Result<Option<VideoState>, StoreError> {
        Ok(sqlx::query_scalar("select state from videos where id = $1")
            .bind(id)
            .fetch_optional(&self.pool)
            .await?)
    }

    /// Returns those of the videos that exist and have not ended.
    pub async fn live_videos_among(&self, ids: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from videos where id = any($1) and state in ('queued', 'running', 'paused')",
        )
        .bind(ids)
        .fetch_all(&self.pool)
        .await?)
    }

    /// Records that a video waits until `original`, which has the same file, has ended; `None` if
    /// it waits no longer.
    pub async fn set_video_original(
        &self,
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

    /// Returns how many live videos of a collection were added with an address.
    pub async fn live_addresses(&self, conn: &mut PgConnection, collection: Uuid) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar(
            "select count(*) from videos
             where collection_id = $1 and state in ('queued', 'running', 'paused')
               and crawl_id is null and scan_id is null and source_url is not null",
        )
        .bind(collection)
        .fetch_one(conn)
        .await?)
    }

    /// Returns the live videos with jobs after the video `after`, oldest first.
    pub async fn live_videos(&self, after: Uuid, limit: i64) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select id from videos where state in ('queued', 'running', 'paused') and scan_id is null and id > $1
             order by id limit $2",
        )
        .bind(after)
        .bind(limit)
        .fetch_all(&self.pool)
        .await?)
    }

    /// Ends a live video. Returns the blobs to delete after the commit.
    ///
    /// # Errors
    /// Fails with `NotFound`, and with `Conflict` if it has ended already.
    pub async fn end_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        end: VideoEnd<'_>,
    ) -> Result<Vec<String>, StoreError> {
        self.set_video_state(&mut *conn, id, &VideoState::LIVE, VideoState::Running).await?;
        let key: Option<String> = sqlx::query_scalar(
            "with before as (select source_key from videos where id = $1)
             update videos set state = $2, people = $3, reason = $4, detail = $5, source_key = null, finished_at = now(),
                    original_id = (select o.id from videos o where o.id = $6)
             where id = $1 returning (select source_key from before)",
        )
        .bind(id)
        .bind(end.state)
        .bind(end.people)
        .bind(&end.reason)
        .bind(end.detail.map(without_nul))
        .bind(end.original)
        .fetch_one(&mut *conn)
        .await?;
        enqueue_blob_deletions(conn, key.into_iter().collect()).await
    }

    /// Deletes a video with its tracks and the frames of their best shots, also those with enrolled
    /// faces. Returns the blobs to delete after the commit.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope.
    pub async fn delete_video(&self, conn: &mut PgConnection, id: Uuid) -> Result<Vec<String>, StoreError> {
        let found: Option<Uuid> = sqlx::query_scalar(
            "select id from videos where id = $1 and ($2::uuid is null or collection_id = $2) for update",
        )
        .bind(id)
        .bind(self.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        found.ok_or_else(|| StoreError::not_found("video", id))?;
        let keys = delete_videos(conn, &[id]).await?;
        enqueue_blob_deletions(conn, keys).await
    }
}

/// Returns another video of the same file and collection as the video `id`, unless it was cancelled
/// or failed.
async fn other_of_file(
    conn: &mut PgConnection,
    id: Uuid,
    sha256: &[u8; 32],
) -> Result<Option<Uuid>, StoreError> {
    Ok(sqlx::query_scalar(
        "select o.id from videos v join videos o on o.collection_id = v.collection_id
         where v.id = $1 and o.id <> v.id and o.sha256 = $2 and o.state not in ('cancelled', 'failed')",
    )
    .bind(id)
    .bind(sha256.as_slice())
    .fetch_optional(conn)
    .await?)
}

fn repeated_video() -> StoreError {
    StoreError::Conflict("the same video is stored and deleted repeatedly; try again".into())
}

/// Returns the images of the stored frames of videos, in the order of their ids.
pub(crate) async fn frames_of(conn: &mut PgConnection, videos: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
    let frames = "select image_id from video_frames where video_id = any($1) order by image_id";
    Ok(sqlx::query_scalar(frames).bind(videos).fetch_all(conn).await?)
}

/// Deletes locked videos with their tracks and frames. Returns the blobs that they referred to.
pub(crate) async fn delete_videos(conn: &mut PgConnection, ids: &[Uuid]) -> Result<Vec<String>, StoreError> {
    let images = frames_of(conn, ids).await?;
    let gone: Vec<Uuid> = images.iter().chain(ids).copied().collect();
    tombstones::set(conn, &gone, &images).await?;
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

//! Deletes videos with their tracks and frames.
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::erasures::deletion::delete_images;
use crate::erasures::tombstones;
use crate::{Store, StoreError};
use domain::VideoState;
use sqlx::PgConnection;
use uuid::Uuid;

impl Store {
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

impl Store {
    /// Returns whether a face of the video has an embedding of another model than `model`.
    pub async fn video_has_other_model(
        &self,
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
    pub async fn delete_parts_of_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
    ) -> Result<Vec<String>, StoreError> {
        self.set_video_state(&mut *conn, id, &[VideoState::Running], VideoState::Running).await?;
        let images = frames_of(conn, &[id]).await?;
        tombstones::set(conn, &images, &images).await?;
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

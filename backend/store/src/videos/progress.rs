//! What is known of a video while it is read: its file, and how far it is stored.
use super::insert::repeated_video;
use crate::db::text::without_nul;
use crate::{Store, StoreError};
use domain::VideoState;
use sqlx::postgres::PgArguments;
use sqlx::query::Query;
use sqlx::{Connection, PgConnection, Postgres};
use uuid::Uuid;

/// What a file reports about itself.
#[derive(Clone, Debug)]
pub struct VideoFacts {
    pub sha256: [u8; 32],
    pub bytes: i64,
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

impl Store {
    /// Records what the file reports about itself. Returns `Err` with the id of another video of
    /// the same file in the collection.
    pub async fn describe_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        facts: &VideoFacts,
    ) -> Result<Result<(), Uuid>, StoreError> {
        let update = sqlx::query(
            "update videos set sha256 = $2, bytes = $3, codec = $4, duration_us = $5, original_id = null
             where id = $1",
        )
        .bind(id)
        .bind(facts.sha256.as_slice())
        .bind(facts.bytes)
        .bind(without_nul(&facts.codec))
        .bind(facts.duration_us);
        set_file(conn, id, &facts.sha256, update).await
    }

    /// Records that the file of a running video was fetched and is stored as the blob `key`, and
    /// that the video waits again. Returns `Err` with the id of another video of the same file in
    /// the collection.
    ///
    /// # Errors
    /// Fails with `Conflict` if the video is not running, and with `NotFound` if it does not exist.
    pub async fn record_fetched_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        sha256: &[u8; 32],
        bytes: i64,
        key: &str,
    ) -> Result<Result<(), Uuid>, StoreError> {
        self.set_video_state(&mut *conn, id, &[VideoState::Running], VideoState::Queued).await?;
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
    pub async fn video_checkpoint(&self, id: Uuid) -> Result<Option<i64>, StoreError> {
        let checkpoint: Option<Option<i64>> =
            sqlx::query_scalar("select checkpoint_us from videos where id = $1")
                .bind(id)
                .fetch_optional(&self.pool)
                .await?;
        Ok(checkpoint.flatten())
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
}

/// Runs a statement that sets the hash of a video, unless the collection has another video of the
/// file.
async fn set_file(
    conn: &mut PgConnection,
    id: Uuid,
    sha256: &[u8; 32],
    update: Query<'_, Postgres, PgArguments>,
) -> Result<Result<(), Uuid>, StoreError> {
    if let Some(other) = other_of_file(&mut *conn, id, sha256).await? {
        return Ok(Err(other));
    }
    let mut savepoint = conn.begin().await?;
    match update.execute(&mut *savepoint).await {
        Ok(known) if known.rows_affected() == 0 => Err(StoreError::not_found("video", id)),
        Ok(_) => {
            savepoint.commit().await?;
            Ok(Ok(()))
        }
        Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
            // The index waited for another transaction that stored a video of the same file.
            savepoint.rollback().await?;
            match other_of_file(conn, id, sha256).await? {
                Some(other) => Ok(Err(other)),
                None => Err(repeated_video()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// Returns another video of the same file and collection that was not cancelled and did not fail,
/// and of which retention deleted nothing.
async fn other_of_file(
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

//! Changes of the state of a video, and its end.
use super::insert::found_again;
use crate::blobs::deletions::enqueue_blob_deletions;
use crate::db::text::without_nul;
use crate::{Store, StoreError};
use domain::{Reason, VideoState};
use sqlx::PgConnection;
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug)]
pub struct VideoEnd<'a> {
    pub state: VideoState,
    /// Number of people, if the whole video was read.
    pub people: Option<i32>,
    /// Why the video could not be read, or not to its end.
    pub reason: Option<Reason>,
    pub detail: Option<&'a str>,
    /// The video of the same file, if the collection had one before.
    pub original: Option<Uuid>,
    /// Whether the blob of the file is kept, so that the video can be read again.
    pub keeps_file: bool,
}

impl Store {
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

    /// Returns a failed video to the state `queued`. It continues after its last part.
    ///
    /// # Errors
    /// Fails with `NotFound` if it does not exist or is outside the store's scope. Fails with
    /// `Conflict` if it did not fail, if its file is neither kept nor at an address that a caller
    /// named, or if the collection has another video of the file.
    pub async fn requeue_video(&self, conn: &mut PgConnection, id: Uuid) -> Result<(), StoreError> {
        self.set_video_state(&mut *conn, id, &[VideoState::Failed], VideoState::Failed).await?;
        let requeued = sqlx::query(
            "update videos set state = 'queued', reason = null, detail = null, finished_at = null, original_id = null
             where id = $1 and scan_id is null
               and (source_key is not null or (crawl_id is null and source_url is not null))",
        )
        .bind(id)
        .execute(conn)
        .await;
        let conflict = |why: &str| Err(StoreError::Conflict(why.into()));
        match requeued {
            Ok(done) if done.rows_affected() == 1 => Ok(()),
            Ok(_) => conflict("the file of the video is not kept; send it again"),
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => {
                conflict("the collection has another video of the same file")
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Forgets the files of at most `limit` videos that failed before the time `before`. Returns
    /// the blobs to delete after the commit.
    pub async fn drop_failed_files(
        &self,
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
    pub async fn end_video(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        end: VideoEnd<'_>,
    ) -> Result<Vec<String>, StoreError> {
        self.set_video_state(&mut *conn, id, &VideoState::LIVE, VideoState::Running).await?;
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
        .bind(end.keeps_file)
        .fetch_one(&mut *conn)
        .await?;
        if let Some(original) = end.original {
            found_again(conn, original).await?;
        }
        enqueue_blob_deletions(conn, key.into_iter().collect()).await
    }
}

/// Forgets the kept files of those of the videos that have ended, and records their deletion.
pub(crate) async fn drop_files_of_ended(conn: &mut PgConnection, videos: &[Uuid]) -> Result<(), StoreError> {
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

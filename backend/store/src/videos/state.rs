//! Changes of the state of a video, and its end.
use super::insert::found_again;
use crate::blob_deletions::enqueue_blob_deletions;
use crate::text::without_nul;
use crate::{Store, StoreError};
use domain::{Reason, VideoState};
use sqlx::PgConnection;
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
        if let Some(original) = end.original {
            found_again(conn, original).await?;
        }
        enqueue_blob_deletions(conn, key.into_iter().collect()).await
    }
}

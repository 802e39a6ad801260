//! Tombstones: digests of the ids of deleted rows, so that a database restored from an older backup
//! can delete them again.
use crate::{Store, StoreError};
use sqlx::PgConnection;
use uuid::Uuid;

impl Store {
    /// Returns collections with tombstones that exist again because of a restored backup.
    pub async fn restored_deleted_collections(&self) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(
            "select c.id from collections c join tombstones t on t.digest = sha256(uuid_send(c.id))
             where c.deleting_at is null order by c.id",
        )
        .fetch_all(&self.pool)
        .await?)
    }
}

/// Sets tombstones for the rows that this transaction deletes, and for replaced smaller versions of
/// `images`. `images` are the images that lose a face or are deleted. Call it before that.
pub(crate) async fn set(conn: &mut PgConnection, ids: &[Uuid], images: &[Uuid]) -> Result<(), StoreError> {
    sqlx::query(
        "insert into tombstones (digest)
         select sha256(uuid_send(id)) from unnest($1::uuid[]) as gone (id)
         union select digest from superseded_images where image_id = any($2)
         on conflict do nothing",
    )
    .bind(ids)
    .bind(images)
    .execute(conn)
    .await?;
    Ok(())
}

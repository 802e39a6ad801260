//! Revocation of a key and of the keys that it created.
use super::ApiKey;
use super::rows::select_keys;
use crate::{Store, StoreError};
use sqlx::PgConnection;
use uuid::Uuid;

/// The result of revoking a key. Its descendants are keys that it created, also indirectly.
#[derive(Clone, Debug, PartialEq)]
pub struct Revocation {
    /// The key after the revocation.
    pub key: ApiKey,
    /// The descendants that were revoked with it. They were valid until then.
    pub descendants: Vec<ApiKey>,
    /// Number of descendants that remain valid.
    pub working: usize,
}

impl Revocation {
    pub fn revoked(&self) -> impl Iterator<Item = &ApiKey> {
        std::iter::once(&self.key).chain(&self.descendants)
    }
}

impl Store {
    /// Revokes a key permanently, and with `with_descendants` its valid descendants too. Revoking a
    /// revoked key again does not change it. A service that has cached the key notices the
    /// revocation within seconds. From then on, the key cannot create other keys.
    pub async fn revoke_key(
        &self,
        conn: &mut PgConnection,
        id: Uuid,
        with_descendants: bool,
    ) -> Result<Revocation, StoreError> {
        lock_descent(conn, true).await?;
        let revoked = sqlx::query(
            "update api_keys set revoked_at = coalesce(revoked_at, now())
             where id = $1 and ($2::uuid is null or collection_id = $2)",
        )
        .bind(id)
        .bind(self.collection_scope)
        .execute(&mut *conn)
        .await?;
        if revoked.rows_affected() == 0 {
            return Err(StoreError::not_found("key", id));
        }
        let working: Vec<Uuid> = sqlx::query_scalar(
            "with recursive descendants as (
                 select id from api_keys where made_by = $1
                 union select k.id from api_keys k join descendants d on k.made_by = d.id
             )
             select k.id from api_keys k join descendants d using (id)
             where k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
               and ($2::uuid is null or k.collection_id = $2)",
        )
        .bind(id)
        .bind(self.collection_scope)
        .fetch_all(&mut *conn)
        .await?;
        let doomed: &[Uuid] = if with_descendants { &working } else { &[] };
        sqlx::query("update api_keys set revoked_at = now() where id = any($1)")
            .bind(doomed)
            .execute(&mut *conn)
            .await?;
        let descendants = sqlx::query_as(select_keys!("where k.id = any($1) order by k.id"))
            .bind(doomed)
            .fetch_all(&mut *conn);
        let descendants: Vec<ApiKey> = descendants.await?;
        let key = sqlx::query_as(select_keys!("where k.id = $1")).bind(id).fetch_one(conn).await?;
        Ok(Revocation { key, working: working.len() - descendants.len(), descendants })
    }
}

/// Acquires the lock that separates the creation of keys by keys (shared mode) from revocation
/// (exclusive mode). So a revocation finds every descendant, and no new ones appear afterwards.
pub(super) async fn lock_descent(conn: &mut PgConnection, exclusive: bool) -> Result<(), StoreError> {
    let lock = if exclusive {
        "select pg_advisory_xact_lock(hashtextextended('facecrawl.keys', 0))"
    } else {
        "select pg_advisory_xact_lock_shared(hashtextextended('facecrawl.keys', 0))"
    };
    sqlx::query(lock).execute(conn).await?;
    Ok(())
}

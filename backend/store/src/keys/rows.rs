//! Reads, writes and revokes keys in the database.
use super::{ApiKey, KEY_BYTES, KEY_PREFIX, KeyHash, NewKey, random_bytes};
use crate::StoreError;
use crate::store::Keys;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, PgConnection, Row};
use subtle::ConstantTimeEq;
use uuid::Uuid;

/// Number of characters of a key that are stored and shown: `fc_` and 36 of the 256 bits.
const DISPLAYED_PREFIX_LENGTH: usize = 9;

macro_rules! select_keys {
    ($tail:literal) => {
        concat!(
            "select k.id, k.collection_id, c.name as collection, k.name, k.prefix, k.scopes, k.requests_per_minute, ",
            "k.created_at, k.last_used_at, k.expires_at, k.revoked_at, k.made_by, k.key_sha256 ",
            "from api_keys k left join collections c on c.id = k.collection_id ",
            $tail
        )
    };
}

impl Keys<'_> {
    /// Creates a key. Returns its row and the key itself, which cannot be read again later.
    ///
    /// # Errors
    /// Fails with `Invalid` if [`NewKey::check`] rejects the key. Fails with `Conflict` if the
    /// creating key is revoked, and with `NotFound` if the collection does not exist or is outside
    /// the store's scope.
    pub async fn create(self, conn: &mut PgConnection, new: &NewKey) -> Result<(ApiKey, String), StoreError> {
        new.check().map_err(|invalid| StoreError::Invalid(invalid.sentence))?;
        let key = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode(random_bytes::<KEY_BYTES>()?));
        let id = Uuid::now_v7();
        if let Some(creator) = new.made_by {
            lock_key_creation(conn, false).await?;
            // A service accepts a key for some seconds after its revocation, which is long enough
            // to create another key.
            let is_valid: Option<bool> =
                sqlx::query_scalar("select revoked_at is null from api_keys where id = $1")
                    .bind(creator)
                    .fetch_optional(&mut *conn)
                    .await?;
            if is_valid != Some(true) {
                return Err(StoreError::Conflict("the calling key has been revoked".into()));
            }
        }
        let inserted = sqlx::query(
            "insert into api_keys (id, collection_id, name, prefix, key_sha256, scopes, requests_per_minute, expires_at, made_by)
             select $1, $2, $3, $4, $5, $6, $7, $8, $10
             where ($2::uuid is null or exists (select 1 from collections where id = $2)) and ($9::uuid is null or $2 = $9)",
        )
        .bind(id)
        .bind(new.collection_id)
        .bind(&new.name)
        .bind(&key[..DISPLAYED_PREFIX_LENGTH])
        .bind(Sha256::digest(&key).as_slice())
        .bind(new.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>())
        .bind(new.requests_per_minute)
        .bind(new.expires_at)
        .bind(self.0.collection_scope)
        .bind(new.made_by)
        .execute(&mut *conn)
        .await?;
        if inserted.rows_affected() == 0 {
            return Err(StoreError::not_found("collection", new.collection_id.unwrap_or_default()));
        }
        let row = sqlx::query_as(select_keys!("where k.id = $1")).bind(id).fetch_one(conn).await?;
        Ok((row, key))
    }

    /// Returns keys, newest first, including revoked and expired ones. `before` is the id of the
    /// last key of the previous page.
    pub async fn list(self, before: Option<Uuid>, limit: i64) -> Result<Vec<ApiKey>, StoreError> {
        let keys = select_keys!(
            "where ($1::uuid is null or k.collection_id = $1) and ($2::uuid is null or k.id < $2) order by k.id desc limit $3"
        );
        Ok(sqlx::query_as(keys)
            .bind(self.0.collection_scope)
            .bind(before)
            .bind(limit.max(0))
            .fetch_all(&self.0.pool)
            .await?)
    }

    /// Returns the key with this hash, valid or not.
    pub async fn find(self, hash: &KeyHash) -> Result<Option<ApiKey>, StoreError> {
        let row: Option<PgRow> = sqlx::query(select_keys!("where k.key_sha256 = $1"))
            .bind(hash.0.as_slice())
            .fetch_optional(&self.0.pool)
            .await?;
        let Some(row) = row else { return Ok(None) };
        // The index lookup does not need constant time, because callers cannot choose the hash.
        // This constant-time comparison decides whether the key matches.
        let stored: Vec<u8> = row.try_get("key_sha256")?;
        if !bool::from(stored.as_slice().ct_eq(&hash.0)) {
            return Ok(None);
        }
        Ok(Some(ApiKey::from_row(&row)?))
    }

    /// Records that a key was used, at most once per minute.
    pub async fn record_use(self, id: Uuid) -> Result<(), StoreError> {
        sqlx::query(
            "update api_keys set last_used_at = now()
             where id = $1 and (last_used_at is null or last_used_at < now() - interval '1 minute')",
        )
        .bind(id)
        .execute(&self.0.pool)
        .await?;
        Ok(())
    }
}

/// The result of revoking a key. Its descendants are keys that it created, also indirectly.
#[derive(Clone, Debug, PartialEq)]
pub struct Revocation {
    /// The key after the revocation.
    pub key: ApiKey,
    /// The descendants that were revoked with it. They were valid until then.
    pub descendants: Vec<ApiKey>,
    /// Number of descendants that are still valid.
    pub valid_descendants: usize,
}

impl Revocation {
    pub fn revoked(&self) -> impl Iterator<Item = &ApiKey> {
        std::iter::once(&self.key).chain(&self.descendants)
    }
}

impl Keys<'_> {
    /// Revokes a key permanently, and with `with_descendants` its valid descendants too. Revoking a
    /// revoked key again does not change it. A service that has cached the key notices the
    /// revocation within seconds. From then on, the key cannot create other keys.
    pub async fn revoke(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        with_descendants: bool,
    ) -> Result<Revocation, StoreError> {
        lock_key_creation(conn, true).await?;
        let revoked = sqlx::query(
            "update api_keys set revoked_at = coalesce(revoked_at, now())
             where id = $1 and ($2::uuid is null or collection_id = $2)",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .execute(&mut *conn)
        .await?;
        if revoked.rows_affected() == 0 {
            return Err(StoreError::not_found("key", id));
        }
        let valid: Vec<Uuid> = sqlx::query_scalar(
            "with recursive descendants as (
                 select id from api_keys where made_by = $1
                 union select k.id from api_keys k join descendants d on k.made_by = d.id
             )
             select k.id from api_keys k join descendants d using (id)
             where k.revoked_at is null and (k.expires_at is null or k.expires_at > now())
               and ($2::uuid is null or k.collection_id = $2)",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_all(&mut *conn)
        .await?;
        let revoked_ids: &[Uuid] = if with_descendants { &valid } else { &[] };
        sqlx::query("update api_keys set revoked_at = now() where id = any($1)")
            .bind(revoked_ids)
            .execute(&mut *conn)
            .await?;
        let descendants = sqlx::query_as(select_keys!("where k.id = any($1) order by k.id"))
            .bind(revoked_ids)
            .fetch_all(&mut *conn);
        let descendants: Vec<ApiKey> = descendants.await?;
        let key = sqlx::query_as(select_keys!("where k.id = $1")).bind(id).fetch_one(conn).await?;
        Ok(Revocation { key, valid_descendants: valid.len() - descendants.len(), descendants })
    }
}

/// Acquires the lock that separates the creation of keys by keys (shared mode) from revocation
/// (exclusive mode). So a revocation finds every descendant, and no new ones appear afterwards.
pub(super) async fn lock_key_creation(conn: &mut PgConnection, exclusive: bool) -> Result<(), StoreError> {
    let lock = if exclusive {
        "select pg_advisory_xact_lock(hashtextextended('facecrawl.keys', 0))"
    } else {
        "select pg_advisory_xact_lock_shared(hashtextextended('facecrawl.keys', 0))"
    };
    sqlx::query(lock).execute(conn).await?;
    Ok(())
}

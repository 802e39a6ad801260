//! Salts from which the webhook secrets of collections are derived. The secrets themselves are not
//! in the database.
use crate::erasures::tombstones;
use crate::{Store, StoreError};
use sqlx::{FromRow, PgConnection};
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// Length of a salt in bytes.
pub const SALT: usize = 32;

/// A newly created salt.
#[derive(Clone, Debug, FromRow)]
pub struct NewWebhookSecret {
    pub created_at: OffsetDateTime,
    /// The time until which the previous secret is also valid.
    pub overlaps_until: OffsetDateTime,
}

/// The key with which a message to a collection's webhook is signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebhookSigner {
    /// The secret derived from this salt.
    Own(Vec<u8>),
    /// The service's own secret.
    Service,
}

#[derive(FromRow)]
struct Row {
    salt: Vec<u8>,
    overlaps: bool,
}

impl Store {
    /// Creates a new salt for a collection. The previous secret remains valid for `overlap`; older
    /// ones become invalid. A tombstone is set for every replaced salt, so that a restored backup
    /// does not bring its secret back.
    ///
    /// # Errors
    /// Fails with `NotFound` if the collection does not exist.
    pub async fn rotate_webhook_secret(
        &self,
        conn: &mut PgConnection,
        collection: Uuid,
        salt: &[u8; SALT],
        overlap: Duration,
    ) -> Result<NewWebhookSecret, StoreError> {
        // The lock allows one rotation at a time.
        let held: Option<i32> = sqlx::query_scalar(
            "select 1 from collections where id = $1 and deleting_at is null and ($2::uuid is null or id = $2) for no key update",
        )
        .bind(collection)
        .bind(self.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        held.ok_or_else(|| StoreError::not_found("collection", collection))?;
        let known: Vec<Uuid> = sqlx::query_scalar(
            "select id from webhook_secrets where collection_id = $1 order by created_at desc, id desc",
        )
        .bind(collection)
        .fetch_all(&mut *conn)
        .await?;
        tombstones::set(conn, &known, &[]).await?;
        let over = if overlap.is_zero() { &known[..] } else { known.get(1..).unwrap_or_default() };
        sqlx::query("delete from webhook_secrets where id = any($1)").bind(over).execute(&mut *conn).await?;
        Ok(sqlx::query_as(
            "insert into webhook_secrets (id, collection_id, salt, created_at, overlaps_until)
             values ($1, $2, $3, clock_timestamp(), clock_timestamp() + make_interval(secs => $4))
             returning created_at, overlaps_until",
        )
        .bind(Uuid::now_v7())
        .bind(collection)
        .bind(salt.as_slice())
        .bind(overlap.as_secs_f64())
        .fetch_one(conn)
        .await?)
    }

    /// Returns the keys that currently sign messages to a collection's webhooks, newest first.
    /// There is one key, or two during a rotation.
    pub async fn webhook_signers(&self, collection: Uuid) -> Result<Vec<WebhookSigner>, StoreError> {
        let rows: Vec<Row> = sqlx::query_as(
            "select salt, overlaps_until > clock_timestamp() as overlaps from webhook_secrets
             where collection_id = $1 order by created_at desc, id desc limit 2",
        )
        .bind(collection)
        .fetch_all(&self.pool)
        .await?;
        let mut rows = rows.into_iter();
        let Some(Row { salt, overlaps }) = rows.next() else { return Ok(vec![WebhookSigner::Service]) };
        let before = rows.next().map_or(WebhookSigner::Service, |row| WebhookSigner::Own(row.salt));
        Ok([WebhookSigner::Own(salt)].into_iter().chain(overlaps.then_some(before)).collect())
    }
}

/// Copies the salts of a collection to its successor, so that the secrets do not change.
pub(crate) async fn move_webhook_secrets(
    conn: &mut PgConnection,
    from: Uuid,
    to: Uuid,
) -> Result<(), StoreError> {
    sqlx::query(
        "insert into webhook_secrets (id, collection_id, salt, created_at, overlaps_until)
         select gen_random_uuid(), $2, salt, created_at, overlaps_until from webhook_secrets where collection_id = $1",
    )
    .bind(from)
    .bind(to)
    .execute(conn)
    .await?;
    Ok(())
}

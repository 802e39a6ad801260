//! Collections, which isolate tenants from each other, and the salts of their webhook secrets.
pub(crate) mod deletion;
use crate::StoreError;
use crate::db::deletions::set_tombstones;
use crate::store::Collections;
use sqlx::{FromRow, PgConnection};
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

pub const DEFAULT_COLLECTION: &str = "default";

/// A collection. `default` always exists.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Collection {
    pub id: Uuid,
    /// Unique name: 1 to 64 characters of `a-z 0-9 - _`.
    pub name: String,
    /// Quality profile: `off`, `standard` or `strict`. `None` means the service's setting.
    pub quality_profile: Option<String>,
    /// Minimum similarity of a match. `None` means the embedding model's threshold.
    pub match_threshold: Option<f32>,
    /// Days after which images and faces are erased. `None` means that they are kept.
    pub retention_days: Option<i32>,
    #[serde(with = "time::serde::rfc3339")]
    pub created_at: OffsetDateTime,
}

macro_rules! select_collections {
    ($tail:literal) => {
        concat!(
            "select id, name, quality_profile, match_threshold, retention_days, created_at from collections ",
            $tail
        )
    };
}

impl Collections<'_> {
    pub async fn get(self, name: &str) -> Result<Collection, StoreError> {
        self.find_collection(name).await?.ok_or_else(|| StoreError::not_found("collection", name))
    }

    pub async fn by_id(self, id: Uuid) -> Result<Collection, StoreError> {
        sqlx::query_as(select_collections!(
            "where id = $1 and deleting_at is null and ($2::uuid is null or id = $2)"
        ))
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&self.0.pool)
        .await?
        .ok_or_else(|| StoreError::not_found("collection", id))
    }

    /// Returns a collection by name and creates it if it does not exist.
    ///
    /// # Errors
    /// Fails with `Invalid` if the name is not 1 to 64 characters of `a-z 0-9 - _`.
    pub async fn ensure(self, name: &str) -> Result<Collection, StoreError> {
        if let Some(existing) = self.find_collection(name).await? {
            return Ok(existing);
        }
        check_name(name)?;
        sqlx::query("insert into collections (id, name) values ($1, $2) on conflict (name) do nothing")
            .bind(Uuid::now_v7())
            .bind(name)
            .execute(&self.0.pool)
            .await?;
        self.get(name).await
    }

    /// Returns all collections, ordered by name.
    pub async fn list(self) -> Result<Vec<Collection>, StoreError> {
        Ok(sqlx::query_as(select_collections!(
            "where deleting_at is null and ($1::uuid is null or id = $1) order by name"
        ))
        .bind(self.0.collection_scope)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Creates a collection.
    ///
    /// # Errors
    /// Fails with `Invalid` if the name or a setting is not allowed, and with `Conflict` if the
    /// name is taken.
    pub async fn create(
        self,
        conn: &mut PgConnection,
        name: &str,
        settings: &CollectionSettings,
    ) -> Result<Collection, StoreError> {
        check_name(name)?;
        settings.check()?;
        sqlx::query_as(
            "insert into collections (id, name, quality_profile, match_threshold, retention_days) values ($1, $2, $3, $4, $5)
             on conflict (name) do nothing
             returning id, name, quality_profile, match_threshold, retention_days, created_at",
        )
        .bind(Uuid::now_v7())
        .bind(name)
        .bind(&settings.quality_profile)
        .bind(settings.match_threshold)
        .bind(settings.retention_days)
        .fetch_optional(conn)
        .await?
        .ok_or_else(|| name_taken(name))
    }

    /// Changes the name and settings of a collection. `default` keeps its name.
    ///
    /// # Errors
    /// Fails with the errors of [`Self::create`], and with `NotFound` if the collection
    /// does not exist.
    pub async fn update(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        name: &str,
        settings: &CollectionSettings,
    ) -> Result<Collection, StoreError> {
        check_name(name)?;
        settings.check()?;
        let row: Option<(String, bool)> = sqlx::query_as(
            "select name, exists (select 1 from collections o where o.name = $2 and o.id <> $1) from collections
             where id = $1 and deleting_at is null and ($3::uuid is null or id = $3) for update",
        )
        .bind(id)
        .bind(name)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let (old_name, is_taken) = row.ok_or_else(|| StoreError::not_found("collection", id))?;
        if old_name == DEFAULT_COLLECTION && name != DEFAULT_COLLECTION {
            return Err(StoreError::Conflict("the collection default cannot be renamed".into()));
        }
        if is_taken {
            return Err(name_taken(name));
        }
        let updated = sqlx::query_as(
            "update collections set name = $2, quality_profile = $3, match_threshold = $4, retention_days = $5 where id = $1
             returning id, name, quality_profile, match_threshold, retention_days, created_at",
        )
        .bind(id)
        .bind(name)
        .bind(&settings.quality_profile)
        .bind(settings.match_threshold)
        .bind(settings.retention_days)
        .fetch_one(conn)
        .await;
        match updated {
            // Another transaction used the name after the check.
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Err(name_taken(name)),
            updated => Ok(updated?),
        }
    }

    async fn find_collection(self, name: &str) -> Result<Option<Collection>, StoreError> {
        // No collection has an invalid name, which may contain characters that Postgres rejects.
        if check_name(name).is_err() {
            return Ok(None);
        }
        Ok(sqlx::query_as(select_collections!(
            "where name = $1 and deleting_at is null and ($2::uuid is null or id = $2)"
        ))
        .bind(name)
        .bind(self.0.collection_scope)
        .fetch_optional(&self.0.pool)
        .await?)
    }
}

/// Settings of a collection. `None` selects the service's setting. For the retention, it means no
/// limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CollectionSettings {
    /// `off`, `standard` or `strict`.
    pub quality_profile: Option<String>,
    /// Minimum similarity of a match, -1 to 1.
    pub match_threshold: Option<f32>,
    /// Retention in days, at least 1.
    pub retention_days: Option<i32>,
}

impl CollectionSettings {
    fn check(&self) -> Result<(), StoreError> {
        if let Some(profile) = &self.quality_profile {
            crate::db::values::check_one_of("quality profile", profile, &["off", "standard", "strict"])?;
        }
        if let Some(threshold) = self.match_threshold.filter(|value| !(-1.0..=1.0).contains(value)) {
            return Err(StoreError::Invalid(format!(
                "the match threshold {threshold} is invalid: a number from -1 to 1 is allowed"
            )));
        }
        if let Some(days) = self.retention_days.filter(|days| *days < 1) {
            return Err(StoreError::Invalid(format!(
                "the retention of {days} days is invalid: 1 or more days are allowed"
            )));
        }
        Ok(())
    }
}

fn name_taken(name: &str) -> StoreError {
    StoreError::Conflict(format!("a collection with the name {name} already exists"))
}

fn check_name(name: &str) -> Result<(), StoreError> {
    let is_allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    // Paths accept a name or an id, so a name must not have the form of an id.
    if (1..=64).contains(&name.len()) && name.bytes().all(is_allowed) && Uuid::parse_str(name).is_err() {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "{name:?} is not a valid collection name: 1 to 64 characters of a-z, 0-9, - and _ are allowed, but not a UUID"
    )))
}

/// Length of a salt in bytes.
pub const SALT_BYTES: usize = 32;

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
struct SecretRow {
    salt: Vec<u8>,
    overlaps: bool,
}

impl Collections<'_> {
    /// Creates a new salt for a collection. The previous secret remains valid for `overlap`; older
    /// ones become invalid. A tombstone is set for every replaced salt, so that a restored backup
    /// does not bring its secret back.
    ///
    /// # Errors
    /// Fails with `NotFound` if the collection does not exist.
    pub async fn rotate_webhook_secret(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        salt: &[u8; SALT_BYTES],
        overlap: Duration,
    ) -> Result<NewWebhookSecret, StoreError> {
        // The lock allows one rotation at a time.
        let locked: Option<i32> = sqlx::query_scalar(
            "select 1 from collections where id = $1 and deleting_at is null and ($2::uuid is null or id = $2) for no key update",
        )
        .bind(collection)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        locked.ok_or_else(|| StoreError::not_found("collection", collection))?;
        let old: Vec<Uuid> = sqlx::query_scalar(
            "select id from webhook_secrets where collection_id = $1 order by created_at desc, id desc",
        )
        .bind(collection)
        .fetch_all(&mut *conn)
        .await?;
        set_tombstones(conn, &old, &[]).await?;
        let expired = if overlap.is_zero() { &old[..] } else { old.get(1..).unwrap_or_default() };
        sqlx::query("delete from webhook_secrets where id = any($1)")
            .bind(expired)
            .execute(&mut *conn)
            .await?;
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
    pub async fn webhook_signers(self, collection: Uuid) -> Result<Vec<WebhookSigner>, StoreError> {
        let rows: Vec<SecretRow> = sqlx::query_as(
            "select salt, overlaps_until > clock_timestamp() as overlaps from webhook_secrets
             where collection_id = $1 order by created_at desc, id desc limit 2",
        )
        .bind(collection)
        .fetch_all(&self.0.pool)
        .await?;
        let mut rows = rows.into_iter();
        let Some(SecretRow { salt, overlaps }) = rows.next() else { return Ok(vec![WebhookSigner::Service]) };
        let previous = rows.next().map_or(WebhookSigner::Service, |row| WebhookSigner::Own(row.salt));
        Ok([WebhookSigner::Own(salt)].into_iter().chain(overlaps.then_some(previous)).collect())
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

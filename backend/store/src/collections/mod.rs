//! Collections, which isolate tenants from each other.

pub(crate) mod deletion;
pub mod webhook_secrets;
use crate::{Store, StoreError};
use sqlx::PgConnection;
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

impl Store {
    pub async fn collection(&self, name: &str) -> Result<Collection, StoreError> {
        self.find_collection(name).await?.ok_or_else(|| StoreError::not_found("collection", name))
    }

    pub async fn collection_by_id(&self, id: Uuid) -> Result<Collection, StoreError> {
        sqlx::query_as(select_collections!(
            "where id = $1 and deleting_at is null and ($2::uuid is null or id = $2)"
        ))
        .bind(id)
        .bind(self.collection_scope)
        .fetch_optional(&self.pool)
        .await?
        .ok_or_else(|| StoreError::not_found("collection", id))
    }

    /// Returns a collection by name and creates it if it does not exist.
    ///
    /// # Errors
    /// Fails with `Invalid` if the name is not 1 to 64 characters of `a-z 0-9 - _`.
    pub async fn ensure_collection(&self, name: &str) -> Result<Collection, StoreError> {
        if let Some(known) = self.find_collection(name).await? {
            return Ok(known);
        }
        check_name(name)?;
        sqlx::query("insert into collections (id, name) values ($1, $2) on conflict (name) do nothing")
            .bind(Uuid::now_v7())
            .bind(name)
            .execute(&self.pool)
            .await?;
        self.collection(name).await
    }

    /// Returns all collections, ordered by name.
    pub async fn collections(&self) -> Result<Vec<Collection>, StoreError> {
        Ok(sqlx::query_as(select_collections!(
            "where deleting_at is null and ($1::uuid is null or id = $1) order by name"
        ))
        .bind(self.collection_scope)
        .fetch_all(&self.pool)
        .await?)
    }

    /// Creates a collection.
    ///
    /// # Errors
    /// Fails with `Invalid` if the name or a setting is not allowed, and with `Conflict` if the
    /// name is taken.
    pub async fn create_collection(
        &self,
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
        .ok_or_else(|| taken(name))
    }

    /// Changes the name and settings of a collection. `default` keeps its name.
    ///
    /// # Errors
    /// Fails with the errors of [`Self::create_collection`], and with `NotFound` if the collection
    /// does not exist.
    pub async fn update_collection(
        &self,
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
        .bind(self.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let (old, other_has_it) = row.ok_or_else(|| StoreError::not_found("collection", id))?;
        if old == DEFAULT_COLLECTION && name != DEFAULT_COLLECTION {
            return Err(StoreError::Conflict("the collection default cannot be renamed".into()));
        }
        if other_has_it {
            return Err(taken(name));
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
            Err(sqlx::Error::Database(error)) if error.is_unique_violation() => Err(taken(name)),
            updated => Ok(updated?),
        }
    }

    async fn find_collection(&self, name: &str) -> Result<Option<Collection>, StoreError> {
        // No collection has an invalid name, and it may contain what Postgres rejects.
        if check_name(name).is_err() {
            return Ok(None);
        }
        Ok(sqlx::query_as(select_collections!(
            "where name = $1 and deleting_at is null and ($2::uuid is null or id = $2)"
        ))
        .bind(name)
        .bind(self.collection_scope)
        .fetch_optional(&self.pool)
        .await?)
    }
}

/// Settings of a collection. `None`: the service's setting or, for the retention, no limit.
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
            crate::crawls::one_of("quality profile", profile, &["off", "standard", "strict"])?;
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

fn taken(name: &str) -> StoreError {
    StoreError::Conflict(format!("a collection with the name {name} already exists"))
}

fn check_name(name: &str) -> Result<(), StoreError> {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    // Paths accept a name or an id, so a name must not have the form of an id.
    if (1..=64).contains(&name.len()) && name.bytes().all(allowed) && Uuid::parse_str(name).is_err() {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "{name:?} is not a valid collection name: 1 to 64 characters of a-z, 0-9, - and _ are allowed, but not a UUID"
    )))
}

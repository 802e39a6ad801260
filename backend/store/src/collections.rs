//! Collections: the unit of isolation.
use crate::{Store, StoreError};
use time::OffsetDateTime;
use uuid::Uuid;

/// A collection. `default` always exists.
#[derive(Clone, Debug, serde::Serialize, sqlx::FromRow)]
pub struct Collection {
    /// Its id.
    pub id: Uuid,
    /// Unique name: 1 to 64 of `a-z 0-9 - _`.
    pub name: String,
    /// `off`, `standard`, `strict`; `None` is the service's own.
    pub quality_profile: Option<String>,
    /// Similarity from which a search result counts; `None` is the embedder's own.
    pub match_threshold: Option<f32>,
    /// Days after which images and faces are erased; `None` is never.
    pub retention_days: Option<i32>,
    /// When it was made.
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
    /// By name.
    pub async fn collection(&self, name: &str) -> Result<Collection, StoreError> {
        self.find_collection(name).await?.ok_or_else(|| StoreError::not_found("collection", name))
    }

    /// By id.
    pub async fn collection_by_id(&self, id: Uuid) -> Result<Collection, StoreError> {
        sqlx::query_as(select_collections!("where id = $1 and ($2::uuid is null or id = $2)"))
            .bind(id)
            .bind(self.reach)
            .fetch_optional(&self.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("collection", id))
    }

    /// By name, made when it is not there.
    ///
    /// # Errors
    /// `Invalid` for a name that is not 1 to 64 of `a-z 0-9 - _`.
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

    /// All, by name.
    pub async fn collections(&self) -> Result<Vec<Collection>, StoreError> {
        Ok(sqlx::query_as(select_collections!("where $1::uuid is null or id = $1 order by name"))
            .bind(self.reach)
            .fetch_all(&self.pool)
            .await?)
    }

    async fn find_collection(&self, name: &str) -> Result<Option<Collection>, StoreError> {
        // A name that cannot exist is not worth a question, and may hold what Postgres cannot.
        if check_name(name).is_err() {
            return Ok(None);
        }
        Ok(sqlx::query_as(select_collections!("where name = $1 and ($2::uuid is null or id = $2)"))
            .bind(name)
            .bind(self.reach)
            .fetch_optional(&self.pool)
            .await?)
    }
}

fn check_name(name: &str) -> Result<(), StoreError> {
    let allowed =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    if (1..=64).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(StoreError::Invalid(format!(
        "{name:?} is not a collection name: 1 to 64 of the characters a-z, 0-9, - and _ are allowed"
    )))
}

//! API keys: who may do what, and where.
//!
//! A key is `fc_` and 256 random bits. It is shown once; stored are its SHA-256, by which it is found, and a prefix that lets a person
//! tell keys apart. A fast hash does: nobody can guess 256 bits, so there is nothing for a slow one to slow down.
use crate::{Store, StoreError};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRng as _;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sqlx::{FromRow, PgConnection, Row, postgres::PgRow};
use std::fmt;
use subtle::ConstantTimeEq;
use time::OffsetDateTime;
use uuid::Uuid;

/// What every key begins with, so that people and secret scanners know one when they see it.
pub const MARK: &str = "fc_";
/// Characters of a key that are stored and shown: the mark and 36 of its 256 bits.
const SHOWN: usize = 9;
/// Random bytes of a key.
const BYTES: usize = 32;

macro_rules! scopes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+) => {
        /// What a key may do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Scope { $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)+ }

        impl Scope {
            /// Every scope.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// As it is written.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// What it allows, as a sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }

            /// The scope of that name.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

scopes! {
    /// Detect, compare, judge and enhance pictures that are sent along; nothing is stored.
    Analyze = "analyze";
    /// See collections, crawls, images, faces and their pictures.
    Read = "read";
    /// Search a collection for a face.
    Search = "search";
    /// Create, pause, resume and cancel crawls.
    Crawl = "crawl";
    /// Enrol people and change what is enrolled.
    Write = "write";
    /// Delete faces, images and crawls; erasures.
    Erase = "erase";
    /// Devices, metrics and jobs: the whole service, so only for keys to all collections.
    System = "system";
    /// Make, change and delete collections; let in again what an erasure keeps out; read the audit log.
    Admin = "admin";
    /// Make, list and revoke keys, none of which may do more than the key that makes it.
    Keys = "keys";
}

impl Scope {
    /// Whether it speaks of the whole service, so that a key to one collection cannot hold it.
    pub fn is_service_wide(self) -> bool {
        self == Self::System
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A key to make.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// The collection that it is bound to; `None` is every collection.
    pub collection_id: Option<Uuid>,
    /// For people: who holds it.
    pub name: String,
    /// What it may do; at least one.
    pub scopes: Vec<Scope>,
    /// Most requests a minute; `None` is no limit.
    pub requests_per_minute: Option<i32>,
    /// When it stops working; `None` is never.
    pub expires_at: Option<OffsetDateTime>,
}

impl NewKey {
    /// Refuses what cannot be a key; what exists is not looked at.
    ///
    /// # Errors
    /// Without a scope, for a name that is empty or longer than 200 characters, for a service-wide scope on a key to one collection, for a
    /// rate below 1 or a time of expiry that is over.
    pub fn check(&self) -> Result<(), Unfit> {
        let refuse = |field: &'static str, sentence: String| Err(Unfit { field, sentence });
        if self.scopes.is_empty() {
            let all: Vec<&str> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
            return refuse("scopes", format!("a key needs at least one scope: {}", all.join(", ")));
        }
        if let Some(scope) =
            self.scopes.iter().find(|scope| scope.is_service_wide() && self.collection_id.is_some())
        {
            return refuse(
                "scopes",
                format!(
                    "the scope {scope} speaks of the whole service, and a key to one collection cannot have it; allowed is a key to all collections"
                ),
            );
        }
        if !(1..=200).contains(&self.name.chars().count()) || self.name.chars().any(char::is_control) {
            return refuse(
                "name",
                format!("{:?} cannot be a key's name: 1 to 200 characters are allowed", self.name),
            );
        }
        if let Some(rate) = self.requests_per_minute.filter(|rate| *rate < 1) {
            return refuse("requests_per_minute", format!("{rate} requests a minute: 1 or more are allowed"));
        }
        if let Some(end) = self.expires_at.filter(|end| *end <= OffsetDateTime::now_utc()) {
            return refuse(
                "expires_at",
                format!("the key would have expired at {end}; a time to come is allowed"),
            );
        }
        Ok(())
    }
}

/// Why a key cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unfit {
    /// The field of [`NewKey`] that is wrong.
    pub field: &'static str,
    /// What is wrong with it, and what is allowed.
    pub sentence: String,
}

/// A key as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiKey {
    /// Its id.
    pub id: Uuid,
    /// The collection that it is bound to; `None` is every collection.
    pub collection_id: Option<Uuid>,
    /// That collection's name.
    pub collection: Option<String>,
    /// Who holds it.
    pub name: String,
    /// How it begins.
    pub prefix: String,
    /// What it may do.
    pub scopes: Vec<Scope>,
    /// Most requests a minute.
    pub requests_per_minute: Option<i32>,
    /// When it was made.
    pub created_at: OffsetDateTime,
    /// When it was last used, to the minute.
    pub last_used_at: Option<OffsetDateTime>,
    /// When it stops working.
    pub expires_at: Option<OffsetDateTime>,
    /// When it was revoked.
    pub revoked_at: Option<OffsetDateTime>,
}

impl ApiKey {
    /// Whether it may do this.
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) && !(scope.is_service_wide() && self.collection_id.is_some())
    }

    /// What the audit log says of a key that was made or revoked.
    pub fn audited(&self) -> Value {
        json!({ "key_id": self.id, "scopes": self.scopes })
    }
}

impl FromRow<'_, PgRow> for ApiKey {
    fn from_row(row: &PgRow) -> Result<Self, sqlx::Error> {
        let scopes: Vec<String> = row.try_get("scopes")?;
        Ok(Self {
            id: row.try_get("id")?,
            collection_id: row.try_get("collection_id")?,
            collection: row.try_get("collection")?,
            name: row.try_get("name")?,
            prefix: row.try_get("prefix")?,
            // A scope that a later version knows allows nothing here.
            scopes: scopes.iter().filter_map(|name| Scope::parse(name)).collect(),
            requests_per_minute: row.try_get("requests_per_minute")?,
            created_at: row.try_get("created_at")?,
            last_used_at: row.try_get("last_used_at")?,
            expires_at: row.try_get("expires_at")?,
            revoked_at: row.try_get("revoked_at")?,
        })
    }
}

/// The SHA-256 of a key: all that is ever kept of it, in the database and in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Of a text that has the form of a key; `None` for any other, which need not be looked for.
    pub fn of(text: &str) -> Option<Self> {
        let bits = URL_SAFE_NO_PAD.decode(text.strip_prefix(MARK)?).ok()?;
        (bits.len() == BYTES).then(|| Self(Sha256::digest(text).into()))
    }
}

/// Random bytes from the system, fit for a secret.
///
/// # Errors
/// `Invalid` when it gives none.
pub fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| StoreError::Invalid(format!("the system gives no random numbers: {error}")))?;
    Ok(bytes)
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(***)")
    }
}

macro_rules! select_keys {
    ($tail:literal) => {
        concat!(
            "select k.id, k.collection_id, c.name as collection, k.name, k.prefix, k.scopes, k.requests_per_minute, ",
            "k.created_at, k.last_used_at, k.expires_at, k.revoked_at, k.key_sha256 ",
            "from api_keys k left join collections c on c.id = k.collection_id ",
            $tail
        )
    };
}

impl Store {
    /// Makes a key; answers its row, and the key itself, which cannot be had again.
    ///
    /// # Errors
    /// `Invalid` for what [`NewKey::check`] refuses; `NotFound` for a collection that does not exist or is out of reach.
    pub async fn create_key(
        &self,
        conn: &mut PgConnection,
        new: &NewKey,
    ) -> Result<(ApiKey, String), StoreError> {
        new.check().map_err(|unfit| StoreError::Invalid(unfit.sentence))?;
        let key = format!("{MARK}{}", URL_SAFE_NO_PAD.encode(random::<BYTES>()?));
        let id = Uuid::now_v7();
        let inserted = sqlx::query(
            "insert into api_keys (id, collection_id, name, prefix, key_sha256, scopes, requests_per_minute, expires_at)
             select $1, $2, $3, $4, $5, $6, $7, $8
             where ($2::uuid is null or exists (select 1 from collections where id = $2)) and ($9::uuid is null or $2 = $9)",
        )
        .bind(id)
        .bind(new.collection_id)
        .bind(&new.name)
        .bind(&key[..SHOWN])
        .bind(Sha256::digest(&key).as_slice())
        .bind(new.scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>())
        .bind(new.requests_per_minute)
        .bind(new.expires_at)
        .bind(self.reach)
        .execute(&mut *conn)
        .await?;
        if inserted.rows_affected() == 0 {
            return Err(StoreError::not_found("collection", new.collection_id.unwrap_or_default()));
        }
        let row = sqlx::query_as(select_keys!("where k.id = $1")).bind(id).fetch_one(conn).await?;
        Ok((row, key))
    }

    /// Keys, newest first, those that work no more included; `before` is the last one of the page before.
    pub async fn keys(&self, before: Option<Uuid>, limit: i64) -> Result<Vec<ApiKey>, StoreError> {
        let keys = select_keys!(
            "where ($1::uuid is null or k.collection_id = $1) and ($2::uuid is null or k.id < $2) order by k.id desc limit $3"
        );
        Ok(sqlx::query_as(keys)
            .bind(self.reach)
            .bind(before)
            .bind(limit.max(0))
            .fetch_all(&self.pool)
            .await?)
    }

    /// Ends a key for good; revoking it again changes nothing. A service that has just seen it notices within seconds.
    pub async fn revoke_key(&self, conn: &mut PgConnection, id: Uuid) -> Result<ApiKey, StoreError> {
        let revoked = sqlx::query(
            "update api_keys set revoked_at = coalesce(revoked_at, now())
             where id = $1 and ($2::uuid is null or collection_id = $2)",
        )
        .bind(id)
        .bind(self.reach)
        .execute(&mut *conn)
        .await?;
        if revoked.rows_affected() == 0 {
            return Err(StoreError::not_found("key", id));
        }
        Ok(sqlx::query_as(select_keys!("where k.id = $1")).bind(id).fetch_one(conn).await?)
    }

    /// The key with that hash, whether it still works or not.
    pub async fn find_key(&self, hash: &KeyHash) -> Result<Option<ApiKey>, StoreError> {
        let row: Option<PgRow> = sqlx::query(select_keys!("where k.key_sha256 = $1"))
            .bind(hash.0.as_slice())
            .fetch_optional(&self.pool)
            .await?;
        let Some(row) = row else { return Ok(None) };
        // The index compares as it likes, on a hash that a caller cannot steer; what lets a caller in is this comparison.
        let stored: Vec<u8> = row.try_get("key_sha256")?;
        if !bool::from(stored.as_slice().ct_eq(&hash.0)) {
            return Ok(None);
        }
        Ok(Some(ApiKey::from_row(&row)?))
    }

    /// Notes that a key was used, at most once a minute.
    pub async fn touch_key(&self, id: Uuid) -> Result<(), StoreError> {
        sqlx::query(
            "update api_keys set last_used_at = now()
             where id = $1 and (last_used_at is null or last_used_at < now() - interval '1 minute')",
        )
        .bind(id)
        .execute(&self.pool)
        .await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_texts_of_a_keys_form_are_hashed() {
        let key = format!("{MARK}{}", URL_SAFE_NO_PAD.encode([7; BYTES]));
        assert!(KeyHash::of(&key).is_some());
        for other in
            ["", "fc_", "fc_short", &key[3..], &format!("{key}A"), &format!(" {key}"), &key[..key.len() - 1]]
        {
            assert!(KeyHash::of(other).is_none(), "{other}");
        }
        assert_eq!(format!("{:?}", KeyHash::of(&key).unwrap()), "KeyHash(***)");
    }

    #[test]
    fn a_scope_is_what_it_is_written_as() {
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.as_str()), Some(*scope));
            assert!(scope.meaning().ends_with('.'), "{scope}");
        }
        assert_eq!(Scope::parse("root"), None);
    }
}

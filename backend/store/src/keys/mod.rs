//! API keys, which define the permissions and the collection of a caller.
//!
//! A key is `fc_` followed by 256 random bits. It is shown once. The database stores its SHA-256,
//! which identifies it, and a prefix by which users can distinguish keys. A fast hash is
//! sufficient, because 256 random bits cannot be guessed.

pub mod audit;
mod rows;

pub use rows::Revocation;

use crate::StoreError;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::TryRng as _;
use rand::rngs::SysRng;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use sqlx::{FromRow, Row, postgres::PgRow};
use std::fmt;
use time::OffsetDateTime;
use uuid::Uuid;

/// Prefix of every key, by which people and secret scanners can recognise a key.
pub const KEY_PREFIX: &str = "fc_";
const KEY_BYTES: usize = 32;

macro_rules! scopes {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+) => {
        /// The permissions that a key can have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum Scope { $($(#[doc = $doc])+ #[serde(rename = $name)] $variant,)+ }

        impl Scope {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Returns a sentence that describes what the scope allows.
            pub fn meaning(self) -> &'static str {
                match self { $(Self::$variant => concat!($($doc),+).trim_ascii(),)+ }
            }

            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

scopes! {
    /// Detect and compare faces in images of the request, assess and enhance these images; nothing
    /// is stored.
    Analyze = "analyze";
    /// Read collections, crawls, people, and stored images and faces with their files.
    Read = "read";
    /// Search a collection for a face.
    Search = "search";
    /// Create, pause, resume and cancel crawls.
    Crawl = "crawl";
    /// Enrol, change, merge and cluster people.
    Write = "write";
    /// Create, change and delete watchlists; read and acknowledge alerts; see, start and stop
    /// cameras.
    Watch = "watch";
    /// Delete faces, images, people and crawls; create erasures.
    Erase = "erase";
    /// Read devices and metrics; read and retry jobs. This concerns the whole service, so only a
    /// key for all collections can have it.
    System = "system";
    /// Create, change and delete collections; lift suppressions; read the audit log.
    Admin = "admin";
    /// Create, list and revoke keys. A key cannot create a key that allows more than itself.
    Keys = "keys";
}

impl Scope {
    /// Returns whether the scope concerns the whole service. No key for one collection has it.
    pub fn is_service_wide(self) -> bool {
        self == Self::System
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Clone, Debug)]
pub struct NewKey {
    /// The only collection that the key can access; `None` for all collections.
    pub collection_id: Option<Uuid>,
    /// Display name of the holder.
    pub name: String,
    /// The permissions of the key; at least one scope.
    pub scopes: Vec<Scope>,
    /// Maximum number of requests per minute; `None` for no limit.
    pub requests_per_minute: Option<i32>,
    /// When the key expires; `None` if it never expires.
    pub expires_at: Option<OffsetDateTime>,
    /// The key that created this one; `None` if it was created on the command line.
    pub made_by: Option<Uuid>,
}

impl NewKey {
    /// Checks the values of the key, without access to the database.
    ///
    /// # Errors
    /// Fails if the key has no scope, or if its name is empty or longer than 200 characters. Fails
    /// if a key for one collection has a service-wide scope. Also fails if the rate is below 1 or
    /// the expiry is in the past.
    pub fn check(&self) -> Result<(), InvalidKey> {
        let invalid = |field: &'static str, sentence: String| Err(InvalidKey { field, sentence });
        if self.scopes.is_empty() {
            let names: Vec<&str> = Scope::ALL.iter().map(|scope| scope.as_str()).collect();
            return invalid("scopes", format!("a key needs at least one scope: {}", names.join(", ")));
        }
        if let Some(scope) =
            self.scopes.iter().find(|scope| scope.is_service_wide() && self.collection_id.is_some())
        {
            return invalid(
                "scopes",
                format!(
                    "the scope {scope} concerns the whole service; only a key for all collections can have it"
                ),
            );
        }
        if !(1..=200).contains(&self.name.chars().count()) || self.name.chars().any(char::is_control) {
            return invalid(
                "name",
                format!(
                    "{:?} is not a valid name for a key: 1 to 200 characters without control characters are allowed",
                    self.name
                ),
            );
        }
        if let Some(rate) = self.requests_per_minute.filter(|rate| *rate < 1) {
            return invalid(
                "requests_per_minute",
                format!("{rate} requests per minute is invalid: 1 or more are allowed"),
            );
        }
        if let Some(end) = self.expires_at.filter(|end| *end <= OffsetDateTime::now_utc()) {
            return invalid(
                "expires_at",
                format!("the expiry {end} is in the past; a future time is required"),
            );
        }
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidKey {
    /// The field of [`NewKey`] that is wrong.
    pub field: &'static str,
    /// A sentence with the error and the allowed values.
    pub sentence: String,
}

#[derive(Clone, Debug, PartialEq)]
pub struct ApiKey {
    pub id: Uuid,
    /// The only collection that the key can access; `None` for all collections.
    pub collection_id: Option<Uuid>,
    /// The name of that collection.
    pub collection: Option<String>,
    /// Name of the holder.
    pub name: String,
    /// The first characters of the key.
    pub prefix: String,
    pub scopes: Vec<Scope>,
    pub requests_per_minute: Option<i32>,
    pub created_at: OffsetDateTime,
    /// When it was last used, rounded to a minute.
    pub last_used_at: Option<OffsetDateTime>,
    pub expires_at: Option<OffsetDateTime>,
    pub revoked_at: Option<OffsetDateTime>,
    /// The key that created this one; `None` if it was created on the command line.
    pub made_by: Option<Uuid>,
}

impl ApiKey {
    pub fn allows(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope) && !(scope.is_service_wide() && self.collection_id.is_some())
    }

    /// Returns the details that the audit log records when the key is created or revoked.
    pub fn audit_detail(&self) -> Value {
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
            // A scope that only a later version defines grants nothing.
            scopes: scopes.iter().filter_map(|name| Scope::parse(name)).collect(),
            requests_per_minute: row.try_get("requests_per_minute")?,
            created_at: row.try_get("created_at")?,
            last_used_at: row.try_get("last_used_at")?,
            expires_at: row.try_get("expires_at")?,
            revoked_at: row.try_get("revoked_at")?,
            made_by: row.try_get("made_by")?,
        })
    }
}

/// The SHA-256 of a key. No other part of a key is kept in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hashes a string that has the format of a key. Returns `None` for any other string, which
    /// needs no lookup.
    pub fn from_key(text: &str) -> Option<Self> {
        let bits = URL_SAFE_NO_PAD.decode(text.strip_prefix(KEY_PREFIX)?).ok()?;
        (bits.len() == KEY_BYTES).then(|| Self(Sha256::digest(text).into()))
    }
}

/// Returns random bytes from the operating system, suitable for a secret.
///
/// # Errors
/// Fails with `Invalid` if the system returns no random bytes.
pub fn random_bytes<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    SysRng.try_fill_bytes(&mut bytes).map_err(|error| {
        StoreError::Invalid(format!("the operating system provided no random numbers: {error}"))
    })?;
    Ok(bytes)
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(***)")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn hashes_only_text_in_key_format() {
        let key = format!("{KEY_PREFIX}{}", URL_SAFE_NO_PAD.encode([7; KEY_BYTES]));
        assert!(KeyHash::from_key(&key).is_some());
        for invalid in
            ["", "fc_", "fc_short", &key[3..], &format!("{key}A"), &format!(" {key}"), &key[..key.len() - 1]]
        {
            assert!(KeyHash::from_key(invalid).is_none(), "{invalid}");
        }
        assert_eq!(format!("{:?}", KeyHash::from_key(&key).unwrap()), "KeyHash(***)");
    }

    #[test]
    fn scope_round_trips_through_text() {
        for scope in Scope::ALL {
            assert_eq!(Scope::parse(scope.as_str()), Some(*scope));
            assert!(scope.meaning().ends_with('.'), "{scope}");
        }
        assert_eq!(Scope::parse("root"), None);
    }
}

//! API keys: who may do what, and where.
//!
//! A key is `fc_` and 256 random bits. It is shown once; stored are its SHA-256, by which it is found, and a prefix that lets a person
//! tell keys apart. A fast hash does: nobody can guess 256 bits, so there is nothing for a slow one to slow down.
mod revocation;
mod rows;

pub use revocation::Revocation;

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

/// What every key begins with, so that people and secret scanners know one when they see it.
pub const MARK: &str = "fc_";
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
    /// The key that makes it; `None` at the command line.
    pub made_by: Option<Uuid>,
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
    /// The key that made it; `None` for one of the command line.
    pub made_by: Option<Uuid>,
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
            made_by: row.try_get("made_by")?,
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

//! The audit log: searches, deletions, and what became of keys and collections.
//!
//! A record says what was done, by which key, where and when. It never holds what was seen: no embedding, no picture, no address.
use crate::{Store, StoreError};
use serde_json::Value;
use sqlx::{FromRow, PgConnection, Postgres, QueryBuilder};
use time::OffsetDateTime;
use uuid::Uuid;

macro_rules! actions {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+) => {
        /// What was done.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Action { $($(#[doc = $doc])+ $variant,)+ }

        impl Action {
            /// Every action.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// As it stands in the log.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// The action of that name.
            pub fn parse(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)+ _ => None }
            }
        }
    };
}

actions! {
    /// A collection was searched for a face.
    Search = "face.search";
    /// A face was deleted.
    DeleteFace = "face.delete";
    /// An image was deleted, with its faces.
    DeleteImage = "image.delete";
    /// A subject was deleted, with what was sent in to enrol it.
    DeleteSubject = "subject.delete";
    /// Several subjects became one.
    MergeSubjects = "subject.merge";
    /// A face was taken away from a subject.
    RemoveSubjectFace = "subject.remove_face";
    /// A crawl was deleted.
    DeleteCrawl = "crawl.delete";
    /// A key was made.
    CreateKey = "key.create";
    /// A key was revoked.
    RevokeKey = "key.revoke";
    /// A collection was made.
    CreateCollection = "collection.create";
    /// A collection's settings were changed.
    UpdateCollection = "collection.update";
    /// A collection's webhooks were given a new secret.
    RotateWebhookSecret = "collection.webhook_secret";
    /// A collection was deleted; what was in it is out of reach from here on.
    DeleteCollection = "collection.delete";
    /// Everything that was in a deleted collection has been erased.
    EraseCollection = "collection.erased";
    /// A person, an image or what was found at an address was erased.
    Erase = "erasure.create";
    /// What an erasure kept out was let in again.
    Lift = "erasure.lifted";
    /// What its collection keeps no longer was erased.
    Expire = "retention.erased";
    /// What had been deleted before a backup was restored was deleted once more.
    EraseAgain = "erasure.reapplied";
    /// A larger version of a picture took the place of smaller ones, whose faces it shows.
    Supersede = "image.superseded";
    /// A larger version of a picture was stored beside smaller ones, because it does not show their faces.
    KeepBesideLarger = "image.kept_beside_larger";
    /// Somebody looked what an erasure would take away.
    PreviewErasure = "erasure.preview";
}

/// A record to write.
#[derive(Clone, Debug)]
pub struct AuditEntry<'a> {
    /// What was done.
    pub action: Action,
    /// In which collection; `None` is none, or all.
    pub collection_id: Option<Uuid>,
    /// With which key; `None` where no keys are asked for, at the command line, and by the service itself.
    pub key_id: Option<Uuid>,
    /// In answer to which request.
    pub request_id: Option<&'a str>,
    /// An object with numbers, ids and settings; no personal data.
    pub detail: Value,
}

/// A record as it was written.
#[derive(Clone, Debug, FromRow)]
pub struct AuditRecord {
    /// Grows with time.
    pub id: i64,
    /// When.
    pub at: OffsetDateTime,
    /// Where.
    pub collection_id: Option<Uuid>,
    /// That collection's name, while it is there.
    pub collection: Option<String>,
    /// With which key.
    pub api_key_id: Option<Uuid>,
    /// In answer to which request.
    pub request_id: Option<String>,
    /// What; one of [`Action`], or what an earlier version wrote.
    pub action: String,
    /// More of it.
    pub detail: Value,
}

/// Filters of `GET /audit`.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuditFilter {
    /// In this collection.
    pub collection_id: Option<Uuid>,
    /// With this key.
    pub key_id: Option<Uuid>,
    /// This was done.
    pub action: Option<Action>,
    /// At this time or later.
    pub since: Option<OffsetDateTime>,
    /// Before this time.
    pub until: Option<OffsetDateTime>,
}

impl Store {
    /// Writes a record, in the transaction of what it records: neither is there without the other.
    pub async fn audit(&self, conn: &mut PgConnection, entry: &AuditEntry<'_>) -> Result<(), StoreError> {
        sqlx::query(
            "insert into audit_log (collection_id, api_key_id, request_id, action, detail) values ($1, $2, $3, $4, $5)",
        )
        .bind(entry.collection_id)
        .bind(entry.key_id)
        .bind(entry.request_id)
        .bind(entry.action.as_str())
        .bind(&entry.detail)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Newest first, before the record `before`.
    pub async fn audit_log(
        &self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new(
            "select a.id, a.at, a.collection_id, c.name as collection, a.api_key_id, a.request_id, a.action, a.detail
             from audit_log a left join collections c on c.id = a.collection_id and c.deleting_at is null where true",
        );
        for collection in [self.reach, filter.collection_id].into_iter().flatten() {
            query.push(" and a.collection_id = ").push_bind(collection);
        }
        if let Some(key) = filter.key_id {
            query.push(" and a.api_key_id = ").push_bind(key);
        }
        if let Some(action) = filter.action {
            query.push(" and a.action = ").push_bind(action.as_str());
        }
        if let Some(since) = filter.since {
            query.push(" and a.at >= ").push_bind(since);
        }
        if let Some(until) = filter.until {
            query.push(" and a.at < ").push_bind(until);
        }
        if let Some(before) = before {
            query.push(" and a.id < ").push_bind(before);
        }
        query.push(" order by a.id desc limit ").push_bind(limit.max(0));
        Ok(query.build_query_as().fetch_all(&self.pool).await?)
    }
}

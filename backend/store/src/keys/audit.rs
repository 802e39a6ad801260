//! The audit log: searches, deletions, and changes of keys and collections. A record states the
//! action, the key, the collection and the time. It contains no embedding, no image and no address.
use crate::StoreError;
use crate::db::values::{to_storable, without_nul};
use crate::store::Audit;
use serde_json::Value;
use sqlx::{FromRow, PgConnection, Postgres, QueryBuilder};
use time::OffsetDateTime;
use uuid::Uuid;

macro_rules! actions {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal;)+) => {
        /// The actions that the log records.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Action { $($(#[doc = $doc])+ $variant,)+ }

        impl Action {
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

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
    /// A video was deleted, with its tracks and faces.
    DeleteVideo = "video.delete";
    /// A subject was deleted, with the images that were sent to enrol it.
    DeleteSubject = "subject.delete";
    /// Many people were imported.
    ImportSubjects = "subject.import";
    /// Several subjects were merged into one.
    MergeSubjects = "subject.merge";
    /// A face was removed from a subject.
    RemoveSubjectFace = "subject.remove_face";
    /// A crawl was deleted.
    DeleteCrawl = "crawl.delete";
    /// A key was created.
    CreateKey = "key.create";
    /// A key was revoked.
    RevokeKey = "key.revoke";
    /// A collection was created.
    CreateCollection = "collection.create";
    /// A collection's settings were changed.
    UpdateCollection = "collection.update";
    /// A collection's webhook secret was replaced.
    RotateWebhookSecret = "collection.webhook_secret";
    /// A collection was deleted. Its content is inaccessible from then on.
    DeleteCollection = "collection.delete";
    /// All content of a deleted collection was erased.
    EraseCollection = "collection.erased";
    /// A person, an image, or the images found at a URL were erased.
    Erase = "erasure.create";
    /// The suppressions of an erasure were lifted.
    Lift = "erasure.lifted";
    /// Content older than the collection's retention period was erased.
    Expire = "retention.erased";
    /// Content that was deleted before a backup was restored was deleted again.
    EraseAgain = "erasure.reapplied";
    /// A larger version of an image replaced smaller versions that show the same people.
    Supersede = "image.superseded";
    /// A larger version of an image was stored in addition to smaller versions, because it does not
    /// contain all their faces.
    KeepBesideLarger = "image.kept_beside_larger";
    /// A watchlist was created.
    CreateWatchlist = "watchlist.create";
    /// A watchlist, or what it watches, was changed.
    UpdateWatchlist = "watchlist.update";
    /// A watchlist was deleted, with its alerts.
    DeleteWatchlist = "watchlist.delete";
    /// An expired watchlist was ended. It watches nobody any more.
    EndWatchlist = "watchlist.ended";
    /// The state or the note of an alert was changed.
    UpdateAlert = "alert.update";
    /// The delivery of an alert was requested again.
    RedeliverAlert = "alert.redeliver";
    /// Alerts were exported.
    ExportAlerts = "alert.export";
    /// A user started to watch a camera.
    StartStream = "stream.start";
    /// A user stopped to watch a camera.
    StopStream = "stream.stop";
    /// A user requested a still picture of a camera.
    ViewStream = "stream.still";
    /// A user previewed what an erasure would remove.
    PreviewErasure = "erasure.preview";
}

/// Who did something. The default stands for commands and for the service's own actions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Actor<'a> {
    /// The key; `None` without one.
    pub key_id: Option<Uuid>,
    /// The name of the person whom a proxy named; `None` without one.
    pub person: Option<&'a str>,
    pub request_id: Option<&'a str>,
}

#[derive(Clone, Debug)]
pub struct AuditEntry<'a> {
    pub action: Action,
    /// The collection; `None` if the action concerns no single collection.
    pub collection_id: Option<Uuid>,
    pub actor: Actor<'a>,
    /// An object with numbers, ids and settings. It contains no personal data.
    pub detail: Value,
}

#[derive(Clone, Debug, FromRow)]
pub struct AuditRecord {
    /// The id, which increases with time.
    pub id: i64,
    pub at: OffsetDateTime,
    pub collection_id: Option<Uuid>,
    /// The collection's name, while the collection exists.
    pub collection: Option<String>,
    pub api_key_id: Option<Uuid>,
    /// The name of the person whom a proxy named.
    pub person: Option<String>,
    pub request_id: Option<String>,
    /// The action: a name of [`Action`], or one that an earlier version wrote.
    pub action: String,
    pub detail: Value,
}

#[derive(Clone, Debug, Default, Hash)]
pub struct AuditFilter {
    pub collection_id: Option<Uuid>,
    pub key_id: Option<Uuid>,
    pub person: Option<String>,
    pub action: Option<Action>,
    /// Only records at or after this time.
    pub since: Option<OffsetDateTime>,
    /// Only records before this time.
    pub until: Option<OffsetDateTime>,
}

impl Audit<'_> {
    /// Writes a record. Call it in the transaction of the recorded action, so that either both are
    /// committed or neither is.
    pub async fn record(self, conn: &mut PgConnection, entry: &AuditEntry<'_>) -> Result<(), StoreError> {
        sqlx::query(
            "insert into audit_log (collection_id, api_key_id, person, request_id, action, detail)
             values ($1, $2, $3, $4, $5, $6)",
        )
        .bind(entry.collection_id)
        .bind(entry.actor.key_id)
        .bind(to_storable(entry.actor.person))
        .bind(entry.actor.request_id)
        .bind(entry.action.as_str())
        .bind(&entry.detail)
        .execute(conn)
        .await?;
        Ok(())
    }

    /// Returns records, newest first, starting after the record `before`.
    pub async fn list(
        self,
        filter: &AuditFilter,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<AuditRecord>, StoreError> {
        let mut query = QueryBuilder::<Postgres>::new(
            "select a.id, a.at, a.collection_id, c.name as collection, a.api_key_id, a.person, a.request_id, a.action, a.detail
             from audit_log a left join collections c on c.id = a.collection_id and c.deleting_at is null where true",
        );
        for collection in [self.0.collection_scope, filter.collection_id].into_iter().flatten() {
            query.push(" and a.collection_id = ").push_bind(collection);
        }
        if let Some(key) = filter.key_id {
            query.push(" and a.api_key_id = ").push_bind(key);
        }
        if let Some(person) = &filter.person {
            query.push(" and a.person = ").push_bind(without_nul(person));
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
        Ok(query.build_query_as().fetch_all(&self.0.pool).await?)
    }
}

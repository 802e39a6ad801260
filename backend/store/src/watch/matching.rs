//! Reads the new faces and the watched faces for the comparison. The comparison itself is in the
//! crate `pipeline`, and [`super::new_alerts`] stores its alerts.
//!
//! A transaction of the comparison that has locked a row waits for no other row, except for the
//! numbers of alerts. It locks them last. It skips rows that another transaction has locked, and
//! leaves the entries of their faces to the next transaction. So it is part of no deadlock.
use crate::StoreError;
use crate::db::values::floats;
use crate::store::Watchlists;
use domain::WatchNotify;
use futures::TryStreamExt;
use pgvector::HalfVector;
use serde_json::Value;
use sqlx::{FromRow, PgConnection};
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// Maximum number of compared faces of one watched person: first those that a user assigned, then
/// those with the best quality.
pub const MAX_FACES_PER_PERSON: i64 = 100;
/// Maximum number of watched faces of a collection. Above it, each person has fewer faces.
pub const MAX_WATCHED_FACES: i64 = 50_000;
/// Number of recorded changes above which they are replaced by one.
const MAX_CHANGES: usize = 64;

/// A face that a camera saw for a shorter time is not reported as unknown.
pub const MIN_STAY: Duration = Duration::from_secs(2);

/// The version of the watchlists of a collection: the numbers of all recorded changes, in order.
///
/// A committed change adds a number, and [`Watchlists::compact_changes`] replaces numbers by a new
/// one. So a set of numbers never occurs again after a change.
pub type WatchVersion = Vec<i64>;

/// An entry of a new face.
#[derive(Clone, Debug, FromRow)]
pub struct OutboxEntry {
    pub id: i64,
    pub face_id: Uuid,
    pub collection_id: Uuid,
    pub stored_at: OffsetDateTime,
}

/// A new face, which the transaction has locked against its deletion.
#[derive(Clone, Debug)]
pub struct NewFaceToCompare {
    pub entry: OutboxEntry,
    pub model_id: i32,
    /// Embedding, L2-normalised.
    pub embedding: Vec<f32>,
    pub quality: Option<Value>,
    /// `false` if the face failed its quality profile when it was stored.
    pub passed: bool,
    /// The person for whom the face was sent, if the transaction that stored the face enrolled it.
    pub enrolled_as: Option<Uuid>,
    /// The track of the face, if it is a face of a video or a camera.
    pub track_id: Option<Uuid>,
    /// Whether the face was visible to a camera for less than [`MIN_STAY`].
    pub is_brief: bool,
}

/// Claimed entries and their faces.
#[derive(Clone, Debug, Default)]
pub struct Claimed {
    pub faces: Vec<NewFaceToCompare>,
    /// Entries of faces that were deleted.
    pub gone: Vec<i64>,
    /// Number of entries whose face another transaction has locked.
    pub busy: usize,
}

/// A watchlist of [`WatchedFaces`].
#[derive(Clone, Debug)]
pub struct ActiveWatchlist {
    pub id: Uuid,
    pub notify: WatchNotify,
    /// Minimum similarity, after all defaults.
    pub threshold: f32,
    pub quality_profile: Option<String>,
    pub has_webhook: bool,
    pub cooldown_seconds: i32,
    pub expires_at: Option<OffsetDateTime>,
    pub created_entry: i64,
    /// Number of watched faces with embeddings of the model.
    pub faces: usize,
}

/// A row of [`WatchedFaces::embeddings`].
#[derive(Clone, Debug)]
pub struct WatchedFace {
    pub face_id: Uuid,
    /// `None` if the face itself is watched.
    pub subject_id: Option<Uuid>,
    /// Indexes of the watchlists that contain it.
    pub watchlists: Vec<u16>,
}

/// The watchlists of a collection, with the embeddings of one model.
#[derive(Clone, Debug, Default)]
pub struct WatchedFaces {
    pub version: WatchVersion,
    pub watchlists: Vec<ActiveWatchlist>,
    pub rows: Vec<WatchedFace>,
    /// The embeddings of the rows, one after the other.
    pub embeddings: Vec<f32>,
    /// Number of components of an embedding.
    pub dimensions: usize,
}

#[derive(FromRow)]
struct FaceRow {
    id: Uuid,
    model_id: i32,
    embedding: HalfVector,
    quality: Option<Value>,
    passed: bool,
    enrolled_as: Option<Uuid>,
    track_id: Option<Uuid>,
    is_brief: bool,
}

#[derive(FromRow)]
struct WatchlistRow {
    id: Uuid,
    notify: WatchNotify,
    threshold: Option<f32>,
    model_threshold: Option<f32>,
    quality_profile: Option<String>,
    has_webhook: bool,
    cooldown_seconds: i32,
    expires_at: Option<OffsetDateTime>,
    created_entry: i64,
}

impl Watchlists<'_> {
    /// Returns collections with entries of new faces, in id order, after `after`.
    pub async fn collections_with_new_faces(
        self,
        conn: &mut PgConnection,
        after: Uuid,
        limit: i64,
    ) -> Result<Vec<Uuid>, StoreError> {
        // Reads one entry of each collection.
        Ok(sqlx::query_scalar(
            "with recursive found as (
                 (select collection_id from watch_outbox where collection_id > $1 order by collection_id limit 1)
                 union all
                 select n.collection_id from found f cross join lateral (
                     select o.collection_id from watch_outbox o where o.collection_id > f.collection_id
                     order by o.collection_id limit 1) n)
             select collection_id from found limit $2",
        )
        .bind(after)
        .bind(limit)
        .fetch_all(conn)
        .await?)
    }

    /// Claims up to `limit` entries of new faces of a collection that no other transaction has
    /// claimed, and locks the faces. The claim ends with the transaction.
    pub async fn claim(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        limit: i64,
    ) -> Result<Claimed, StoreError> {
        let entries: Vec<OutboxEntry> = sqlx::query_as(
            "select id, face_id, collection_id, stored_at from watch_outbox where collection_id = $1
             order by id limit $2 for update skip locked",
        )
        .bind(collection)
        .bind(limit)
        .fetch_all(&mut *conn)
        .await?;
        if entries.is_empty() {
            return Ok(Claimed::default());
        }
        let ids: Vec<Uuid> = entries.iter().map(|entry| entry.face_id).collect();
        // Both columns contain the start of their transaction. They are equal if one transaction
        // stored the face and enrolled it.
        let faces: Vec<FaceRow> = sqlx::query_as(
            "select f.id, f.model_id, f.embedding, f.quality, f.quality_passed is distinct from false as passed,
                    (select s.subject_id from subject_faces s
                     where s.face_id = f.id and s.assigned_by = 'user' and s.created_at = f.created_at) as enrolled_as,
                    t.id as track_id, coalesce(v.stream is not null and t.ended_us - t.started_us < $2, false) as is_brief
             from faces f left join track_faces tf on tf.face_id = f.id left join tracks t on t.id = tf.track_id
                 left join videos v on v.id = t.video_id
             where f.id = any($1) for key share of f skip locked",
        )
        .bind(&ids)
        .bind(MIN_STAY.as_micros() as i64)
        .fetch_all(&mut *conn)
        .await?;
        let mut faces: HashMap<Uuid, FaceRow> = faces.into_iter().map(|face| (face.id, face)).collect();
        let missing: Vec<Uuid> = ids.into_iter().filter(|id| !faces.contains_key(id)).collect();
        let mut locked: HashSet<Uuid> = HashSet::new();
        if !missing.is_empty() {
            let query = sqlx::query_scalar("select id from faces where id = any($1)").bind(missing);
            let rows: Vec<Uuid> = query.fetch_all(conn).await?;
            locked.extend(rows);
        }
        let mut claimed = Claimed::default();
        for entry in entries {
            match faces.remove(&entry.face_id) {
                Some(face) => claimed.faces.push(NewFaceToCompare {
                    entry,
                    model_id: face.model_id,
                    embedding: unit_vector(&face.embedding),
                    quality: face.quality,
                    passed: face.passed,
                    enrolled_as: face.enrolled_as,
                    track_id: face.track_id,
                    is_brief: face.is_brief,
                }),
                None if locked.contains(&entry.face_id) => claimed.busy += 1,
                None => claimed.gone.push(entry.id),
            }
        }
        Ok(claimed)
    }

    /// Returns the current versions of the watchlists of these collections. Call it after
    /// [`Self::claim`]: the versions then include every change that was committed before one of the
    /// claimed faces.
    pub async fn versions(
        self,
        conn: &mut PgConnection,
        collections: &[Uuid],
    ) -> Result<HashMap<Uuid, WatchVersion>, StoreError> {
        let rows: Vec<(Uuid, WatchVersion)> = sqlx::query_as(
            "select collection_id, array_agg(change order by change) from watch_changes
             where collection_id = any($1) group by collection_id",
        )
        .bind(collections)
        .fetch_all(conn)
        .await?;
        Ok(rows.into_iter().collect())
    }

    /// Returns the time of the database's clock, which also sets `stored_at`.
    pub async fn clock(self, conn: &mut PgConnection) -> Result<OffsetDateTime, StoreError> {
        Ok(sqlx::query_scalar("select clock_timestamp()").fetch_one(conn).await?)
    }

    /// Reads the watchlists of a collection and the watched faces with embeddings of a model.
    /// `version` must have been read before; the result may contain later changes.
    /// `service_threshold` applies if neither the watchlist nor the collection has a threshold.
    pub async fn watched_faces(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        model: i32,
        version: WatchVersion,
        service_threshold: Option<f32>,
    ) -> Result<WatchedFaces, StoreError> {
        let rows: Vec<WatchlistRow> = sqlx::query_as(
            "select w.id, w.notify, coalesce(w.threshold, c.match_threshold) as threshold, m.match_threshold as model_threshold,
                    w.quality_profile, w.webhook is not null as has_webhook, w.cooldown_seconds, w.expires_at, w.created_entry
             from watchlists w join collections c on c.id = w.collection_id join embedding_models m on m.id = $2
             where w.collection_id = $1 and w.ended_at is null and c.deleting_at is null order by w.id",
        )
        .bind(collection)
        .bind(model)
        .fetch_all(&mut *conn)
        .await?;
        let watchlists: Vec<ActiveWatchlist> = rows
            .into_iter()
            .map(|row| ActiveWatchlist {
                id: row.id,
                notify: row.notify,
                // A model without a threshold matches nothing but equal embeddings.
                threshold: row.threshold.or(service_threshold).or(row.model_threshold).unwrap_or(1.0),
                quality_profile: row.quality_profile,
                has_webhook: row.has_webhook,
                cooldown_seconds: row.cooldown_seconds,
                expires_at: row.expires_at,
                created_entry: row.created_entry,
                faces: 0,
            })
            .collect();
        let mut watched = WatchedFaces { version, watchlists, ..WatchedFaces::default() };
        if !watched.watchlists.is_empty() {
            watched.read_rows(conn, collection, model).await?;
        }
        Ok(watched)
    }

    /// Replaces the recorded changes of a collection by one new change, if they are many.
    pub async fn compact_changes(self, collection: Uuid, version: &WatchVersion) -> Result<(), StoreError> {
        if version.len() <= MAX_CHANGES {
            return Ok(());
        }
        let mut tx = self.0.begin().await?;
        sqlx::query("insert into watch_changes (collection_id) values ($1)")
            .bind(collection)
            .execute(tx.conn())
            .await?;
        sqlx::query("delete from watch_changes where collection_id = $1 and change = any($2)")
            .bind(collection)
            .bind(version)
            .execute(tx.conn())
            .await?;
        tx.commit().await
    }
}

impl WatchedFaces {
    /// Returns the memory of the embeddings, in bytes.
    pub fn bytes(&self) -> usize {
        self.embeddings.len() * size_of::<f32>() + self.rows.len() * size_of::<WatchedFace>()
    }

    async fn read_rows(
        &mut self,
        conn: &mut PgConnection,
        collection: Uuid,
        model: i32,
    ) -> Result<(), StoreError> {
        let index: HashMap<Uuid, u16> =
            self.watchlists.iter().zip(0..).map(|(watchlist, index)| (watchlist.id, index)).collect();
        let by_item = |rows: Vec<(Uuid, Uuid)>| {
            let mut watchlists: HashMap<Uuid, Vec<u16>> = HashMap::new();
            for (watchlist, item) in rows {
                watchlists.entry(item).or_default().extend(index.get(&watchlist));
            }
            watchlists
        };
        let people = "select watchlist_id, subject_id from watched_people where collection_id = $1";
        let people = by_item(sqlx::query_as(people).bind(collection).fetch_all(&mut *conn).await?);
        let faces = "select watchlist_id, face_id from watched_faces where collection_id = $1";
        let faces = by_item(sqlx::query_as(faces).bind(collection).fetch_all(&mut *conn).await?);
        // The first faces of all people come before the second ones, so that the limit leaves no
        // person without a face.
        let mut rows = sqlx::query_as::<_, (Uuid, Option<Uuid>, HalfVector)>(
            "select found.face_id, found.subject_id, e.embedding from (
                 select f.id as face_id, sf.subject_id, row_number() over (
                            partition by sf.subject_id
                            order by sf.assigned_by = 'user' desc, f.quality_overall desc nulls last, f.id) as place
                 from (select distinct subject_id from watched_people where collection_id = $1) p
                     join subject_faces sf on sf.collection_id = $1 and sf.subject_id = p.subject_id
                     join faces f on f.id = sf.face_id and f.model_id = $2
                 union all
                 select f.id, null, 1
                 from (select distinct face_id from watched_faces where collection_id = $1) w
                     join faces f on f.id = w.face_id and f.model_id = $2
                 order by place, face_id limit $4) found join faces e on e.id = found.face_id
             where found.place <= $3 order by found.place, found.face_id",
        )
        .bind(collection)
        .bind(model)
        .bind(MAX_FACES_PER_PERSON)
        .bind(MAX_WATCHED_FACES)
        .fetch(conn);
        while let Some((face_id, subject_id, embedding)) = rows.try_next().await? {
            let watchlists = match subject_id {
                Some(subject) => people.get(&subject),
                None => faces.get(&face_id),
            };
            let Some(watchlists) = watchlists.filter(|watchlists| !watchlists.is_empty()) else { continue };
            let embedding = unit_vector(&embedding);
            self.dimensions = embedding.len();
            self.embeddings.extend(embedding);
            for watchlist in watchlists {
                self.watchlists[usize::from(*watchlist)].faces += 1;
            }
            self.rows.push(WatchedFace { face_id, subject_id, watchlists: watchlists.clone() });
        }
        Ok(())
    }
}

/// Returns the components of a stored embedding, divided by its length. The stored components are
/// rounded to half precision, and their length differs from 1 by up to 5e-4.
fn unit_vector(embedding: &HalfVector) -> Vec<f32> {
    let mut components = floats(embedding);
    let length = components.iter().map(|component| component * component).sum::<f32>().sqrt();
    components.iter_mut().for_each(|component| *component /= length.max(f32::MIN_POSITIVE));
    components
}

//! Watchlists: creates, reads, changes and ends them. The comparison reads them with `matching` and
//! stores its alerts with `new_alerts`; stored alerts are in `alerts`, and `mqtt` publishes them.
pub mod alerts;
pub mod matching;
pub mod mqtt;
pub mod new_alerts;
use crate::StoreError;
use crate::db::deletions::set_tombstones;
use crate::store::Watchlists;
use crate::watch::matching::MAX_WATCHED_FACES;
use domain::WatchNotify;
use sqlx::postgres::PgListener;
use sqlx::{FromRow, PgConnection, PgPool};
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

/// Maximum number of watchlists of a collection, including ended ones.
pub const MAX_WATCHLISTS: i64 = 100;
/// Maximum number of people, and of faces, of one watchlist.
pub const MAX_WATCHED: usize = 10_000;

/// Time after which the delivery of an alert fails.
pub const DELIVERY_TIME: Duration = Duration::from_secs(24 * 3600);

/// The channel on which triggers announce new faces, and changes of watchlists.
const CHANNEL: &str = "facecrawl_watch";
/// The channel on which new alerts, and alerts that are redelivered, are announced.
const ALERT_CHANNEL: &str = "facecrawl_alerts";

#[derive(Clone, Debug)]
pub struct NewWatchlist {
    pub name: String,
    /// Why these people are watched.
    pub purpose: String,
    pub notify: WatchNotify,
    /// Minimum cosine similarity, -1 to 1. `None` means the default of the collection, the service
    /// or the embedding model.
    pub threshold: Option<f32>,
    /// `off`, `standard` or `strict`. `None` means the profile with which the face was stored.
    pub quality_profile: Option<String>,
    pub webhook: Option<String>,
    /// Seconds after an alert about a person without further deliveries.
    pub cooldown_seconds: i32,
    pub expires_at: Option<OffsetDateTime>,
}

/// The people and faces of a watchlist.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    pub subjects: Vec<Uuid>,
    pub faces: Vec<Uuid>,
}

/// The changes to a watchlist. An outer `None` leaves the field unchanged.
#[derive(Clone, Debug, Default)]
pub struct WatchlistPatch {
    pub name: Option<String>,
    pub purpose: Option<String>,
    pub threshold: Option<Option<f32>>,
    pub quality_profile: Option<Option<String>>,
    pub webhook: Option<Option<String>>,
    pub cooldown_seconds: Option<i32>,
    pub expires_at: Option<Option<OffsetDateTime>>,
    /// Replaces all people.
    pub subjects: Option<Vec<Uuid>>,
    /// Replaces all faces.
    pub faces: Option<Vec<Uuid>>,
}

#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct Watchlist {
    pub id: Uuid,
    pub collection_id: Uuid,
    pub collection: String,
    pub name: String,
    pub purpose: String,
    pub notify: WatchNotify,
    pub threshold: Option<f32>,
    /// The threshold of the collection, if it has one.
    pub collection_threshold: Option<f32>,
    pub quality_profile: Option<String>,
    pub webhook: Option<String>,
    pub cooldown_seconds: i32,
    pub expires_at: Option<OffsetDateTime>,
    /// Whether new faces are compared with it.
    pub is_active: bool,
    pub subject_count: i64,
    pub face_count: i64,
    pub created_at: OffsetDateTime,
}

macro_rules! select_watchlists {
    ($tail:literal) => {
        concat!(
            "select w.id, w.collection_id, c.name as collection, w.name, w.purpose, w.notify, w.threshold, ",
            "c.match_threshold as collection_threshold, w.quality_profile, w.webhook, w.cooldown_seconds, w.expires_at, ",
            "w.ended_at is null and (w.expires_at is null or w.expires_at > clock_timestamp()) as is_active, ",
            "(select count(*) from watched_people p where p.watchlist_id = w.id) as subject_count, ",
            "(select count(*) from watched_faces f where f.watchlist_id = w.id) as face_count, w.created_at ",
            "from watchlists w join collections c on c.id = w.collection_id ",
            $tail
        )
    };
}

impl Watchlists<'_> {
    /// Creates a watchlist. It applies to the faces that are stored after the commit.
    ///
    /// The transaction must hold the exclusive lock of the suppressions of the collection. No other
    /// transaction stores faces in the collection meanwhile, so the entries of the faces that are
    /// stored later have higher numbers.
    ///
    /// # Errors
    /// Fails with `Conflict` if the name is taken or the collection has [`MAX_WATCHLISTS`], and
    /// with `NotFound` if a person or a face is not in the collection.
    pub async fn insert(
        self,
        conn: &mut PgConnection,
        collection: Uuid,
        new: &NewWatchlist,
        watched: &Watched,
    ) -> Result<Uuid, StoreError> {
        let count: i64 = sqlx::query_scalar("select count(*) from watchlists where collection_id = $1")
            .bind(collection)
            .fetch_one(&mut *conn)
            .await?;
        if count >= MAX_WATCHLISTS {
            return Err(StoreError::Conflict(format!(
                "the collection has {count} watchlists; at most {MAX_WATCHLISTS} are allowed, so delete one first"
            )));
        }
        let id = Uuid::now_v7();
        sqlx::query(
            "insert into watchlists (id, collection_id, name, purpose, notify, threshold, quality_profile, webhook,
                                     cooldown_seconds, expires_at, created_entry)
             select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, case when s.is_called then s.last_value else 0 end
             from watch_outbox_id_seq s",
        )
        .bind(id)
        .bind(collection)
        .bind(&new.name)
        .bind(&new.purpose)
        .bind(new.notify)
        .bind(new.threshold)
        .bind(&new.quality_profile)
        .bind(&new.webhook)
        .bind(new.cooldown_seconds)
        .bind(new.expires_at)
        .execute(&mut *conn)
        .await
        .map_err(|error| name_conflict(error, &new.name))?;
        sqlx::query("insert into alert_sequences (collection_id) values ($1) on conflict do nothing")
            .bind(collection)
            .execute(&mut *conn)
            .await?;
        set_people(conn, collection, id, &watched.subjects).await?;
        set_faces(conn, collection, id, &watched.faces).await?;
        check_watched_count(conn, collection).await?;
        Ok(id)
    }

    pub async fn get(self, id: Uuid) -> Result<Watchlist, StoreError> {
        sqlx::query_as(select_watchlists!(
            "where w.id = $1 and c.deleting_at is null and ($2::uuid is null or w.collection_id = $2)"
        ))
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&self.0.pool)
        .await?
        .ok_or_else(|| StoreError::not_found("watchlist", id))
    }

    /// Returns watchlists of a collection, newest first.
    pub async fn list(
        self,
        collection: Uuid,
        before: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<Watchlist>, StoreError> {
        Ok(sqlx::query_as(select_watchlists!(
            "where w.collection_id = $1 and ($2::uuid is null or w.id < $2) and ($3::uuid is null or w.collection_id = $3)
             order by w.id desc limit $4"
        ))
        .bind(collection)
        .bind(before)
        .bind(self.0.collection_scope)
        .bind(limit.max(0))
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns the people and faces of a watchlist, by id.
    pub async fn watched(self, id: Uuid) -> Result<Watched, StoreError> {
        let people = "select subject_id from watched_people where watchlist_id = $1 order by 1";
        let faces = "select face_id from watched_faces where watchlist_id = $1 order by 1";
        Ok(Watched {
            subjects: sqlx::query_scalar(people).bind(id).fetch_all(&self.0.pool).await?,
            faces: sqlx::query_scalar(faces).bind(id).fetch_all(&self.0.pool).await?,
        })
    }

    /// Changes a watchlist. The transaction must hold the exclusive lock of the suppressions of the
    /// collection, because a later expiry can make the watchlist active again.
    ///
    /// # Errors
    /// Fails with `NotFound` if the watchlist, a person or a face does not exist in the collection,
    /// and with `Conflict` if the name is taken or the watchlist has ended.
    pub async fn update(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        patch: &WatchlistPatch,
    ) -> Result<(), StoreError> {
        let row: Option<(Uuid, bool)> = sqlx::query_as(
            "select collection_id, ended_at is not null from watchlists
             where id = $1 and ($2::uuid is null or collection_id = $2) for no key update",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let (collection, has_ended) = row.ok_or_else(|| StoreError::not_found("watchlist", id))?;
        if has_ended {
            return Err(StoreError::Conflict(
                "the watchlist has ended and its people were removed; create a new one".into(),
            ));
        }
        sqlx::query(
            "update watchlists set name = coalesce($2, name), purpose = coalesce($3, purpose),
                    threshold = case when $4 then $5 else threshold end,
                    quality_profile = case when $6 then $7 else quality_profile end,
                    webhook = case when $8 then $9 else webhook end,
                    cooldown_seconds = coalesce($10, cooldown_seconds),
                    expires_at = case when $11 then $12 else expires_at end
             where id = $1",
        )
        .bind(id)
        .bind(&patch.name)
        .bind(&patch.purpose)
        .bind(patch.threshold.is_some())
        .bind(patch.threshold.flatten())
        .bind(patch.quality_profile.is_some())
        .bind(patch.quality_profile.clone().flatten())
        .bind(patch.webhook.is_some())
        .bind(patch.webhook.clone().flatten())
        .bind(patch.cooldown_seconds)
        .bind(patch.expires_at.is_some())
        .bind(patch.expires_at.flatten())
        .execute(&mut *conn)
        .await
        .map_err(|error| name_conflict(error, patch.name.as_deref().unwrap_or_default()))?;
        if let Some(subjects) = &patch.subjects {
            set_people(conn, collection, id, subjects).await?;
        }
        if let Some(faces) = &patch.faces {
            set_faces(conn, collection, id, faces).await?;
        }
        if patch.subjects.is_none() && patch.faces.is_none() {
            return Ok(());
        }
        let query = "select exists (select from watched_people where watchlist_id = $1)
                         or exists (select from watched_faces where watchlist_id = $1)";
        let watches_somebody: bool = sqlx::query_scalar(query).bind(id).fetch_one(&mut *conn).await?;
        if !watches_somebody {
            let reason = "the watchlist would watch nobody; delete it instead";
            return Err(StoreError::Conflict(reason.into()));
        }
        check_watched_count(conn, collection).await
    }

    /// Ends a watchlist, so that no further face is compared with it. Its alerts are kept.
    pub async fn end(self, conn: &mut PgConnection, id: Uuid) -> Result<(), StoreError> {
        let ended = sqlx::query(
            "update watchlists set ended_at = coalesce(ended_at, clock_timestamp())
             where id = $1 and ($2::uuid is null or collection_id = $2)",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .execute(&mut *conn)
        .await?;
        if ended.rows_affected() == 0 {
            return Err(StoreError::not_found("watchlist", id));
        }
        unwatch(conn, &[id]).await
    }

    /// Deletes up to `limit` alerts of a watchlist that nobody else changes. Returns their number.
    pub async fn delete_alerts(self, id: Uuid, limit: i64) -> Result<u64, StoreError> {
        let deleted = sqlx::query(
            "delete from alerts where id in (
                 select id from alerts
                 where watchlist_id = $1 and ($2::uuid is null or collection_id = $2) limit $3
                 for update skip locked)",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .bind(limit)
        .execute(&self.0.pool)
        .await?;
        Ok(deleted.rows_affected())
    }

    /// Deletes a watchlist with its remaining alerts.
    pub async fn delete(self, conn: &mut PgConnection, id: Uuid) -> Result<(), StoreError> {
        let deleted =
            sqlx::query("delete from watchlists where id = $1 and ($2::uuid is null or collection_id = $2)")
                .bind(id)
                .bind(self.0.collection_scope)
                .execute(&mut *conn)
                .await?;
        if deleted.rows_affected() == 0 {
            return Err(StoreError::not_found("watchlist", id));
        }
        set_tombstones(conn, &[id], &[]).await
    }

    /// Ends the watchlists that have expired: removes their people and faces, and keeps their
    /// alerts. Also deletes the numbers of changes of deleted collections. Returns the ids of the
    /// ended watchlists, with their collections.
    pub async fn end_expired(self, conn: &mut PgConnection) -> Result<Vec<(Uuid, Uuid)>, StoreError> {
        let ended: Vec<(Uuid, Uuid)> = sqlx::query_as(
            "update watchlists set ended_at = clock_timestamp()
             where ended_at is null and expires_at <= clock_timestamp() returning id, collection_id",
        )
        .fetch_all(&mut *conn)
        .await?;
        let ids: Vec<Uuid> = ended.iter().map(|(id, _)| *id).collect();
        unwatch(conn, &ids).await?;
        sqlx::query(
            "delete from watch_changes w where not exists (select from collections c where c.id = w.collection_id)",
        )
        .execute(conn)
        .await?;
        Ok(ended)
    }

    /// Listens for new faces and for changes of watchlists, on a separate connection.
    pub async fn listen(self) -> Result<WatchListener, StoreError> {
        WatchListener::connect(&self.0.pool, &[CHANNEL]).await
    }
}

/// Receives notifications, on a separate connection.
#[derive(Debug)]
pub struct WatchListener(PgListener);

impl WatchListener {
    async fn connect(pool: &PgPool, channels: &[&str]) -> Result<Self, StoreError> {
        // The listener has its own pool, because all connections of the other one can be in use.
        // A pool tests each returned connection, and logs a failure. When the listener is dropped,
        // the server may be stopping, so this pool closes the connection instead.
        let options = (pool.options().clone().min_connections(0).max_connections(1))
            .after_release(|_, _| Box::pin(async { Ok(false) }));
        let pool = options.connect_lazy_with(pool.connect_options().as_ref().clone());
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen_all(channels.iter().copied()).await?;
        Ok(Self(listener))
    }

    /// Waits for a notification, and consumes all that have arrived. The future can be dropped.
    ///
    /// # Errors
    /// Fails if the connection is lost. Notifications may have been lost too.
    pub async fn wait(&mut self) -> Result<(), StoreError> {
        if self.0.try_recv().await?.is_none() {
            return Err(sqlx::Error::Io(std::io::ErrorKind::ConnectionAborted.into()).into());
        }
        while self.0.next_buffered().is_some() {}
        Ok(())
    }
}

/// Removes the people and faces of ended watchlists.
async fn unwatch(conn: &mut PgConnection, watchlists: &[Uuid]) -> Result<(), StoreError> {
    for statement in [
        "delete from watched_people where watchlist_id = any($1)",
        "delete from watched_faces where watchlist_id = any($1)",
    ] {
        sqlx::query(statement).bind(watchlists).execute(&mut *conn).await?;
    }
    Ok(())
}

/// Replaces the people of a watchlist.
async fn set_people(
    conn: &mut PgConnection,
    collection: Uuid,
    watchlist: Uuid,
    subjects: &[Uuid],
) -> Result<(), StoreError> {
    sqlx::query("delete from watched_people where watchlist_id = $1 and subject_id <> all($2)")
        .bind(watchlist)
        .bind(subjects)
        .execute(&mut *conn)
        .await?;
    // An erasure cannot delete the people between the two statements.
    let known: Vec<Uuid> = sqlx::query_scalar(
        "select id from subjects where collection_id = $1 and id = any($2) order by id for key share",
    )
    .bind(collection)
    .bind(subjects)
    .fetch_all(&mut *conn)
    .await?;
    check_known("subject", subjects, &known)?;
    sqlx::query(
        "insert into watched_people (watchlist_id, collection_id, subject_id)
         select $1, $2, id from unnest($3::uuid[]) as new (id) on conflict do nothing",
    )
    .bind(watchlist)
    .bind(collection)
    .bind(known)
    .execute(conn)
    .await?;
    Ok(())
}

/// Replaces the faces of a watchlist.
async fn set_faces(
    conn: &mut PgConnection,
    collection: Uuid,
    watchlist: Uuid,
    faces: &[Uuid],
) -> Result<(), StoreError> {
    sqlx::query("delete from watched_faces where watchlist_id = $1 and face_id <> all($2)")
        .bind(watchlist)
        .bind(faces)
        .execute(&mut *conn)
        .await?;
    let known: Vec<Uuid> = sqlx::query_scalar(
        // A new embedding that is being stored would otherwise not be recorded as a change.
        "select id from faces where collection_id = $1 and id = any($2) order by id for share",
    )
    .bind(collection)
    .bind(faces)
    .fetch_all(&mut *conn)
    .await?;
    check_known("face", faces, &known)?;
    sqlx::query(
        "insert into watched_faces (watchlist_id, collection_id, face_id)
         select $1, $2, id from unnest($3::uuid[]) as new (id) on conflict do nothing",
    )
    .bind(watchlist)
    .bind(collection)
    .bind(known)
    .execute(conn)
    .await?;
    Ok(())
}

/// Fails with `Conflict` if all watchlists of the collection together watch too many people and
/// faces. The comparison would then leave some of them out.
async fn check_watched_count(conn: &mut PgConnection, collection: Uuid) -> Result<(), StoreError> {
    let count: i64 = sqlx::query_scalar(
        "select (select count(distinct subject_id) from watched_people where collection_id = $1)
              + (select count(distinct face_id) from watched_faces where collection_id = $1)",
    )
    .bind(collection)
    .fetch_one(conn)
    .await?;
    if count <= MAX_WATCHED_FACES {
        return Ok(());
    }
    Err(StoreError::Conflict(format!(
        "the watchlists of the collection would watch {count} people and faces; at most {MAX_WATCHED_FACES} are allowed"
    )))
}

/// Fails with `NotFound` if a requested id is not among the known ones. `known` must be sorted.
fn check_known(resource: &'static str, requested: &[Uuid], known: &[Uuid]) -> Result<(), StoreError> {
    match requested.iter().find(|id| known.binary_search(id).is_err()) {
        Some(missing) => Err(StoreError::not_found(resource, missing)),
        None => Ok(()),
    }
}

/// Announces alerts when the transaction commits.
async fn announce_alerts(conn: &mut PgConnection) -> Result<(), StoreError> {
    sqlx::query("select pg_notify($1, '')").bind(ALERT_CHANNEL).execute(conn).await?;
    Ok(())
}

fn name_conflict(error: sqlx::Error, name: &str) -> StoreError {
    match error.as_database_error() {
        Some(database) if database.is_unique_violation() => StoreError::Conflict(format!(
            "a watchlist with the name {name:?} already exists in the collection"
        )),
        _ => error.into(),
    }
}

//! Stores the alerts of the comparison. The order of its locks is described in [`super::matching`].
use crate::StoreError;
use crate::store::Watchlists;
use crate::watch::{DELIVERY_TIME, announce_alerts};
use domain::DeliveryState;
use sqlx::PgConnection;
use std::collections::{BTreeSet, HashMap, HashSet};
use time::OffsetDateTime;
use uuid::Uuid;

/// An alert about a claimed face.
#[derive(Clone, Debug, PartialEq)]
pub struct NewAlert {
    pub collection_id: Uuid,
    pub watchlist_id: Uuid,
    pub face_id: Uuid,
    pub subject_id: Option<Uuid>,
    pub watched_face_id: Option<Uuid>,
    pub similarity: Option<f32>,
    pub has_webhook: bool,
    pub cooldown_seconds: i32,
    pub stored_at: OffsetDateTime,
    /// The track of the face, if it has one.
    pub track_id: Option<Uuid>,
}

impl NewAlert {
    /// Returns the appearance about which a watchlist creates one alert; `None` for a face of an
    /// image.
    fn appearance(&self) -> Option<(Uuid, Uuid)> {
        self.track_id.map(|track| (self.watchlist_id, track))
    }

    /// Returns a key that is equal for alerts about the same person. For the cooldown, all unknown
    /// faces are one person.
    fn person(&self) -> (Uuid, Option<Uuid>) {
        (self.watchlist_id, self.subject_id.or(self.watched_face_id))
    }
}

/// An alert that was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredAlert {
    pub collection_id: Uuid,
    pub watchlist_id: Uuid,
    pub face_id: Uuid,
    pub delivery: DeliveryState,
}

impl Watchlists<'_> {
    /// Locks the watchlists, people and faces of the alerts against their deletion. Returns the
    /// faces of the alerts for which this is not possible at the moment: another transaction
    /// deletes or has locked one of these rows.
    pub async fn lock_parents(
        self,
        conn: &mut PgConnection,
        alerts: &[NewAlert],
    ) -> Result<HashSet<Uuid>, StoreError> {
        let watchlists: BTreeSet<Uuid> = alerts.iter().map(|alert| alert.watchlist_id).collect();
        let people: BTreeSet<Uuid> = alerts.iter().filter_map(|alert| alert.subject_id).collect();
        let faces: BTreeSet<Uuid> = alerts.iter().filter_map(|alert| alert.watched_face_id).collect();
        let mut locked: HashSet<Uuid> = HashSet::new();
        for (statement, ids) in [
            ("select id from watchlists where id = any($1) for key share skip locked", watchlists),
            ("select id from subjects where id = any($1) for key share skip locked", people),
            ("select id from faces where id = any($1) for key share skip locked", faces),
        ] {
            let ids: Vec<Uuid> = ids.into_iter().collect();
            let rows: Vec<Uuid> = sqlx::query_scalar(statement).bind(ids).fetch_all(&mut *conn).await?;
            locked.extend(rows);
        }
        let is_locked = |alert: &&NewAlert| {
            let parents = [Some(alert.watchlist_id), alert.subject_id, alert.watched_face_id];
            parents.into_iter().flatten().all(|id| locked.contains(&id))
        };
        Ok(alerts.iter().filter(|alert| !is_locked(alert)).map(|alert| alert.face_id).collect())
    }

    /// Stores alerts whose parents are locked, numbers them in this order, and deletes the entries
    /// of the faces that were compared. Holds the lock of the numbers until the transaction ends.
    ///
    /// An alert about a person within the cooldown of the previous one is stored as suppressed. Of
    /// the faces of a track, a watchlist reports only one: the most similar one of this
    /// transaction, if no earlier transaction reported one.
    pub async fn store_alerts(
        self,
        conn: &mut PgConnection,
        alerts: &[NewAlert],
        compared: &[i64],
    ) -> Result<Vec<StoredAlert>, StoreError> {
        let mut stored = Vec::new();
        let collections: BTreeSet<Uuid> = alerts.iter().map(|alert| alert.collection_id).collect();
        for collection in collections {
            let alerts: Vec<&NewAlert> =
                best_of_tracks(alerts.iter().filter(|alert| alert.collection_id == collection));
            stored.extend(insert_alerts(conn, collection, &alerts).await?);
        }
        if !stored.is_empty() {
            announce_alerts(conn).await?;
        }
        sqlx::query("delete from watch_outbox where id = any($1)").bind(compared).execute(conn).await?;
        Ok(stored)
    }
}

/// Keeps the alert with the highest similarity of each watchlist and track, and all alerts about
/// faces of images, in the same order.
fn best_of_tracks<'a>(alerts: impl Iterator<Item = &'a NewAlert>) -> Vec<&'a NewAlert> {
    let alerts: Vec<&NewAlert> = alerts.collect();
    let mut best: HashMap<(Uuid, Uuid), &NewAlert> = HashMap::new();
    for alert in &alerts {
        if let Some(appearance) = alert.appearance() {
            let best = best.entry(appearance).or_insert(alert);
            if alert.similarity > best.similarity {
                *best = alert;
            }
        }
    }
    let is_best = |alert: &&NewAlert| {
        alert.appearance().is_none_or(|appearance| std::ptr::eq(best[&appearance], *alert))
    };
    alerts.into_iter().filter(is_best).collect()
}

/// Returns the pairs of watchlist and track of these alerts for which an alert is stored already.
/// The caller holds the lock of the numbers, so no other alert of the collection is stored
/// meanwhile.
async fn reported_appearances(
    conn: &mut PgConnection,
    alerts: &[&NewAlert],
) -> Result<HashSet<(Uuid, Uuid)>, StoreError> {
    let (watchlists, tracks): (Vec<Uuid>, Vec<Uuid>) =
        alerts.iter().filter_map(|alert| alert.appearance()).unzip();
    if tracks.is_empty() {
        return Ok(HashSet::new());
    }
    let reported: Vec<(Uuid, Uuid)> = sqlx::query_as(
        "select distinct a.watchlist_id, t.track_id
         from track_faces t join alerts a on a.face_id = t.face_id
         where t.track_id = any($1) and a.watchlist_id = any($2)",
    )
    .bind(tracks)
    .bind(watchlists)
    .fetch_all(conn)
    .await?;
    Ok(reported.into_iter().collect())
}

async fn insert_alerts(
    conn: &mut PgConnection,
    collection: Uuid,
    alerts: &[&NewAlert],
) -> Result<Vec<StoredAlert>, StoreError> {
    // Locks the numbers before the earlier alerts are read.
    let last: i64 =
        sqlx::query_scalar("select last from alert_sequences where collection_id = $1 for update")
            .bind(collection)
            .fetch_one(&mut *conn)
            .await?;
    let reported = reported_appearances(conn, alerts).await?;
    let is_new =
        |alert: &&&NewAlert| alert.appearance().is_none_or(|appearance| !reported.contains(&appearance));
    let alerts: Vec<&NewAlert> = alerts.iter().filter(is_new).copied().collect();
    if alerts.is_empty() {
        return Ok(Vec::new());
    }
    let alerts = alerts.as_slice();
    sqlx::query("update alert_sequences set last = last + $2 where collection_id = $1")
        .bind(collection)
        .bind(alerts.len() as i64)
        .execute(&mut *conn)
        .await?;
    let first = last + 1;
    let deliveries = deliveries(conn, alerts).await?;
    sqlx::query(
        "insert into alerts (id, collection_id, watchlist_id, face_id, subject_id, watched_face_id, similarity, sequence,
                             delivery, deliver_until, stored_at)
         select n.id, $2, n.watchlist_id, n.face_id, n.subject_id, n.watched_face_id, n.similarity, $10 + n.place - 1,
                n.delivery, case when n.delivery = 'pending' then clock_timestamp() + make_interval(secs => $11) end, n.stored_at
         from unnest($1::uuid[], $3::uuid[], $4::uuid[], $5::uuid[], $6::uuid[], $7::real[], $8::text[], $9::timestamptz[])
              with ordinality as n (id, watchlist_id, face_id, subject_id, watched_face_id, similarity, delivery, stored_at, place)",
    )
    .bind(alerts.iter().map(|_| Uuid::now_v7()).collect::<Vec<Uuid>>())
    .bind(collection)
    .bind(alerts.iter().map(|alert| alert.watchlist_id).collect::<Vec<Uuid>>())
    .bind(alerts.iter().map(|alert| alert.face_id).collect::<Vec<Uuid>>())
    .bind(alerts.iter().map(|alert| alert.subject_id).collect::<Vec<Option<Uuid>>>())
    .bind(alerts.iter().map(|alert| alert.watched_face_id).collect::<Vec<Option<Uuid>>>())
    .bind(alerts.iter().map(|alert| alert.similarity).collect::<Vec<Option<f32>>>())
    .bind(deliveries.iter().map(|delivery| delivery.as_str()).collect::<Vec<&str>>())
    .bind(alerts.iter().map(|alert| alert.stored_at).collect::<Vec<OffsetDateTime>>())
    .bind(first)
    .bind(DELIVERY_TIME.as_secs_f64())
    .execute(conn)
    .await?;
    let stored = |(alert, delivery): (&&NewAlert, DeliveryState)| StoredAlert {
        collection_id: collection,
        watchlist_id: alert.watchlist_id,
        face_id: alert.face_id,
        delivery,
    };
    Ok(alerts.iter().zip(deliveries).map(stored).collect())
}

/// Decides which alerts are delivered. The caller holds the lock of the numbers, so no other alert
/// of the collection is stored meanwhile.
async fn deliveries(conn: &mut PgConnection, alerts: &[&NewAlert]) -> Result<Vec<DeliveryState>, StoreError> {
    let with_cooldown: BTreeSet<Uuid> =
        alerts.iter().filter(|alert| alert.cooldown_seconds > 0).map(|alert| alert.watchlist_id).collect();
    let mut quiet: HashSet<(Uuid, Option<Uuid>)> = HashSet::new();
    if !with_cooldown.is_empty() {
        let recent: Vec<(Uuid, Option<Uuid>)> = sqlx::query_as(
            "select distinct a.watchlist_id, coalesce(a.subject_id, a.watched_face_id)
             from watchlists w join alerts a on a.watchlist_id = w.id
             where w.id = any($1) and a.delivery <> 'suppressed'
               and a.created_at > clock_timestamp() - make_interval(secs => w.cooldown_seconds)",
        )
        .bind(with_cooldown.into_iter().collect::<Vec<Uuid>>())
        .fetch_all(conn)
        .await?;
        quiet.extend(recent);
    }
    let decide = |alert: &&NewAlert| {
        if alert.cooldown_seconds > 0 && !quiet.insert(alert.person()) {
            return DeliveryState::Suppressed;
        }
        if alert.has_webhook { DeliveryState::Pending } else { DeliveryState::None }
    };
    Ok(alerts.iter().map(decide).collect())
}

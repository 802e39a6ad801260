//! Lists and changes alerts, and records their deliveries.
use crate::StoreError;
use crate::db::schema;
use crate::db::values::to_storable;
use crate::store::Alerts;
use crate::watch::{ALERT_CHANNEL, DELIVERY_TIME, WatchListener, announce_alerts};
use domain::{AlertState, DeliveryState, WatchNotify};
use sqlx::{Connection, FromRow, PgConnection, Postgres, QueryBuilder};
use std::collections::HashMap;
use std::time::Duration;
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct Alert {
    pub id: Uuid,
    pub collection_id: Uuid,
    pub collection: String,
    pub watchlist_id: Uuid,
    pub watchlist: String,
    pub notify: WatchNotify,
    pub face_id: Uuid,
    pub image_id: Uuid,
    /// The camera that saw the face.
    pub stream: Option<String>,
    /// The watched person; `None` for a watched face, and for a face that resembles nobody.
    pub subject_id: Option<Uuid>,
    /// The most similar watched face; `None` for a face that resembles nobody.
    pub watched_face_id: Option<Uuid>,
    /// Cosine similarity to the most similar watched face, if there is one.
    pub similarity: Option<f32>,
    /// Number of the alert. Later alerts of the collection have higher numbers.
    pub sequence: i64,
    pub state: AlertState,
    pub note: Option<String>,
    pub delivery: DeliveryState,
    /// Number of attempts to deliver it.
    pub attempts: i32,
    pub delivered_at: Option<OffsetDateTime>,
    /// Why the last attempt failed.
    pub error: Option<String>,
    pub stored_at: OffsetDateTime,
    pub created_at: OffsetDateTime,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct AlertFilter {
    pub collection_id: Uuid,
    pub watchlist_id: Option<Uuid>,
    pub subject_id: Option<Uuid>,
    pub face_id: Option<Uuid>,
    pub state: Option<AlertState>,
    pub delivery: Option<DeliveryState>,
    /// Only alerts at or after this time.
    pub since: Option<OffsetDateTime>,
    /// Only alerts before this time.
    pub until: Option<OffsetDateTime>,
}

/// The numbers of alerts of a watchlist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlertCounts {
    pub alerts: i64,
    /// Alerts whose delivery failed.
    pub failed: i64,
}

/// The next message to the webhook of a watchlist.
#[derive(Clone, Debug)]
pub struct PendingDelivery {
    pub alert: Alert,
    /// The webhook of the watchlist; `None` if it was removed.
    pub webhook: Option<String>,
    /// Whether the time for the delivery has passed.
    pub is_expired: bool,
    /// Whether the next attempt is due.
    pub is_due: bool,
}

macro_rules! select_alerts {
    ($tail:literal) => {
        select_alerts!("", $tail)
    };
    ($columns:literal, $tail:literal) => {
        concat!(
            "select a.id, a.collection_id, c.name as collection, a.watchlist_id, w.name as watchlist, w.notify, a.face_id, ",
            "f.image_id, (select v.stream from video_frames vf join videos v on v.id = vf.video_id where vf.image_id = f.image_id) as stream, ",
            "a.subject_id, a.watched_face_id, a.similarity, a.sequence, a.state, a.note, a.delivery, a.attempts, ",
            "a.delivered_at, a.error, a.stored_at, a.created_at",
            $columns,
            " from alerts a join watchlists w on w.id = a.watchlist_id join collections c on c.id = a.collection_id ",
            "join faces f on f.id = a.face_id where c.deleting_at is null and ",
            $tail
        )
    };
}

impl Alerts<'_> {
    pub async fn get(self, id: Uuid) -> Result<Alert, StoreError> {
        sqlx::query_as(select_alerts!("a.id = $1 and ($2::uuid is null or a.collection_id = $2)"))
            .bind(id)
            .bind(self.0.collection_scope)
            .fetch_optional(&self.0.pool)
            .await?
            .ok_or_else(|| StoreError::not_found("alert", id))
    }

    /// Returns alerts of a collection, newest first, with numbers below `before`.
    pub async fn list(
        self,
        filter: &AlertFilter,
        before: Option<i64>,
        limit: i64,
    ) -> Result<Vec<Alert>, StoreError> {
        let mut query = self.query(filter);
        if let Some(before) = before {
            query.push(" and a.sequence < ").push_bind(before);
        }
        query.push(" order by a.sequence desc limit ").push_bind(limit.max(0));
        Ok(query.build_query_as().fetch_all(&self.0.pool).await?)
    }

    /// Returns alerts of a collection, oldest first, with numbers above `after`.
    pub async fn list_after(
        self,
        filter: &AlertFilter,
        after: i64,
        limit: i64,
    ) -> Result<Vec<Alert>, StoreError> {
        let mut query = self.query(filter);
        query.push(" and a.sequence > ").push_bind(after);
        query.push(" order by a.sequence limit ").push_bind(limit.max(0));
        Ok(query.build_query_as().fetch_all(&self.0.pool).await?)
    }

    fn query(self, filter: &AlertFilter) -> QueryBuilder<Postgres> {
        let mut query = QueryBuilder::<Postgres>::new(select_alerts!("a.collection_id = "));
        query.push_bind(filter.collection_id);
        if let Some(collection) = self.0.collection_scope {
            query.push(" and a.collection_id = ").push_bind(collection);
        }
        if let Some(watchlist) = filter.watchlist_id {
            query.push(" and a.watchlist_id = ").push_bind(watchlist);
        }
        if let Some(subject) = filter.subject_id {
            query.push(" and a.subject_id = ").push_bind(subject);
        }
        if let Some(face) = filter.face_id {
            query.push(" and a.face_id = ").push_bind(face);
        }
        if let Some(state) = filter.state {
            query.push(" and a.state = ").push_bind(state);
        }
        if let Some(delivery) = filter.delivery {
            query.push(" and a.delivery = ").push_bind(delivery);
        }
        if let Some(since) = filter.since {
            query.push(" and a.created_at >= ").push_bind(since);
        }
        if let Some(until) = filter.until {
            query.push(" and a.created_at < ").push_bind(until);
        }
        query
    }

    /// Returns the numbers of alerts of each watchlist of a collection that has some.
    pub async fn count_by_watchlist(
        self,
        collection: Uuid,
    ) -> Result<HashMap<Uuid, AlertCounts>, StoreError> {
        let rows: Vec<(Uuid, i64, i64)> = sqlx::query_as(
            "select watchlist_id, count(*), count(*) filter (where delivery = 'failed') from alerts
             where collection_id = $1 and ($2::uuid is null or collection_id = $2) group by watchlist_id",
        )
        .bind(collection)
        .bind(self.0.collection_scope)
        .fetch_all(&self.0.pool)
        .await?;
        Ok(rows.into_iter().map(|(id, alerts, failed)| (id, AlertCounts { alerts, failed })).collect())
    }

    /// Returns the number of the last alert of a collection; 0 if it never had one.
    pub async fn last_sequence(self, collection: Uuid) -> Result<i64, StoreError> {
        let last: Option<i64> = sqlx::query_scalar(
            "select s.last from alert_sequences s join collections c on c.id = s.collection_id
             where s.collection_id = $1 and c.deleting_at is null",
        )
        .bind(collection)
        .fetch_optional(&self.0.pool)
        .await?;
        Ok(last.unwrap_or(0))
    }

    /// Changes the state and the note of an alert. `Some(None)` removes the note. Returns the
    /// collection.
    pub async fn update(
        self,
        conn: &mut PgConnection,
        id: Uuid,
        state: Option<AlertState>,
        note: Option<Option<&str>>,
    ) -> Result<Uuid, StoreError> {
        sqlx::query_scalar(
            "update alerts set state = coalesce($3, state), note = case when $4 then $5 else note end
             where id = $1 and ($2::uuid is null or collection_id = $2) returning collection_id",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .bind(state)
        .bind(note.is_some())
        .bind(to_storable(note.flatten()))
        .fetch_optional(conn)
        .await?
        .ok_or_else(|| StoreError::not_found("alert", id))
    }

    /// Makes the delivery of an alert pending again, for another [`DELIVERY_TIME`]. Returns its
    /// collection.
    ///
    /// # Errors
    /// Fails with `Conflict` if the delivery is pending or the watchlist has no webhook.
    pub async fn redeliver(self, conn: &mut PgConnection, id: Uuid) -> Result<Uuid, StoreError> {
        let row: Option<(Uuid, DeliveryState, bool)> = sqlx::query_as(
            "select a.collection_id, a.delivery, w.webhook is not null
             from alerts a join watchlists w on w.id = a.watchlist_id
             where a.id = $1 and ($2::uuid is null or a.collection_id = $2) for update of a",
        )
        .bind(id)
        .bind(self.0.collection_scope)
        .fetch_optional(&mut *conn)
        .await?;
        let (collection, delivery, has_webhook) = row.ok_or_else(|| StoreError::not_found("alert", id))?;
        if !has_webhook {
            return Err(StoreError::Conflict(
                "the watchlist of the alert has no webhook; set one first".into(),
            ));
        }
        if delivery == DeliveryState::Pending {
            return Err(StoreError::Conflict("the alert is being delivered already".into()));
        }
        sqlx::query(
            "update alerts set delivery = 'pending', attempts = 0, error = null, delivered_at = null, next_attempt_at = null,
                    deliver_until = clock_timestamp() + make_interval(secs => $2)
             where id = $1",
        )
        .bind(id)
        .bind(DELIVERY_TIME.as_secs_f64())
        .execute(&mut *conn)
        .await?;
        announce_alerts(conn).await?;
        Ok(collection)
    }
}

#[derive(FromRow)]
struct PendingRow {
    #[sqlx(flatten)]
    alert: Alert,
    webhook: Option<String>,
    is_expired: bool,
    is_due: bool,
}

/// Calls of the task that delivers alerts.
impl Alerts<'_> {
    /// Returns the first alert of a watchlist whose delivery is pending.
    pub async fn next_delivery(self, watchlist: Uuid) -> Result<Option<PendingDelivery>, StoreError> {
        let row: Option<PendingRow> = sqlx::query_as(select_alerts!(
            ", w.webhook, a.deliver_until <= clock_timestamp() as is_expired,
             a.next_attempt_at is null or a.next_attempt_at <= clock_timestamp() as is_due",
            "a.watchlist_id = $1 and a.delivery = 'pending' order by a.sequence limit 1"
        ))
        .bind(watchlist)
        .fetch_optional(&self.0.pool)
        .await?;
        Ok(row.map(|row| PendingDelivery {
            alert: row.alert,
            webhook: row.webhook,
            is_expired: row.is_expired,
            is_due: row.is_due,
        }))
    }

    /// Records an attempt to deliver an alert, the new state, and the wait before the next attempt.
    /// Does nothing if the alert was deleted.
    pub async fn record_attempt(
        self,
        alert: Uuid,
        delivery: DeliveryState,
        error: Option<&str>,
        wait: Duration,
    ) -> Result<(), StoreError> {
        sqlx::query(
            "update alerts set attempts = attempts + 1, delivery = $2, error = $3,
                    delivered_at = case when $2 = 'delivered' then clock_timestamp() end,
                    next_attempt_at = clock_timestamp() + make_interval(secs => $4)
             where id = $1 and delivery = 'pending'",
        )
        .bind(alert)
        .bind(delivery)
        .bind(to_storable(error))
        .bind(wait.as_secs_f64())
        .execute(&self.0.pool)
        .await?;
        Ok(())
    }

    /// Ends the delivery of an alert without another attempt.
    pub async fn end_delivery(self, alert: Uuid, delivery: DeliveryState) -> Result<(), StoreError> {
        sqlx::query("update alerts set delivery = $2 where id = $1 and delivery = 'pending'")
            .bind(alert)
            .bind(delivery)
            .execute(&self.0.pool)
            .await?;
        Ok(())
    }

    /// Returns the watchlists whose first pending alert is due, with their collections.
    pub async fn due_deliveries(self) -> Result<Vec<(Uuid, Uuid)>, StoreError> {
        Ok(sqlx::query_as(
            "select w.id, w.collection_id from watchlists w join collections c on c.id = w.collection_id
             cross join lateral (
                 select a.next_attempt_at from alerts a where a.watchlist_id = w.id and a.delivery = 'pending'
                 order by a.sequence limit 1) first
             where c.deleting_at is null
               and (first.next_attempt_at is null or first.next_attempt_at <= clock_timestamp())",
        )
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Listens for new alerts and redeliveries, on a separate connection.
    pub async fn listen(self) -> Result<WatchListener, StoreError> {
        WatchListener::connect(&self.0.pool, &[ALERT_CHANNEL]).await
    }

    /// Opens a connection for the locks of the watchlists that this process delivers.
    pub async fn delivery_locks(self) -> Result<DeliveryLocks, StoreError> {
        Ok(DeliveryLocks(schema::connect(self.0.pool.connect_options().as_ref()).await?))
    }
}

/// Locks of watchlists, which Postgres releases when the connection closes. So only one process
/// delivers the alerts of a watchlist, and another one can continue when that process is killed.
#[derive(Debug)]
pub struct DeliveryLocks(PgConnection);

impl DeliveryLocks {
    /// Locks a watchlist. Returns `false` if another connection has locked it.
    pub async fn try_lock(&mut self, watchlist: Uuid) -> Result<bool, StoreError> {
        let lock = "select pg_try_advisory_lock(hashtextextended('deliver ' || $1::uuid, 0))";
        Ok(sqlx::query_scalar(lock).bind(watchlist).fetch_one(&mut self.0).await?)
    }

    /// Fails if the connection was lost, and with it the locks.
    pub async fn check(&mut self) -> Result<(), StoreError> {
        Ok(self.0.ping().await?)
    }

    pub async fn unlock(&mut self, watchlist: Uuid) -> Result<(), StoreError> {
        sqlx::query("select pg_advisory_unlock(hashtextextended('deliver ' || $1::uuid, 0))")
            .bind(watchlist)
            .execute(&mut self.0)
            .await?;
        Ok(())
    }
}

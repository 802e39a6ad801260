//! Statements of the MQTT publisher: its lock, its positions, what it should publish, and the
//! topics that have a retained message in the broker.
use crate::StoreError;
use crate::db::schema;
use crate::store::Mqtt;
use crate::streams::reported_state;
use crate::watch::{ALERT_CHANNEL, CHANNEL, WatchListener};
use domain::StreamState;
use sqlx::{Connection, FromRow, PgConnection};
use std::collections::HashMap;
use time::OffsetDateTime;
use uuid::Uuid;

/// A watched person, and the last alert about this person.
#[derive(Clone, Debug, PartialEq, FromRow)]
pub struct WatchedPerson {
    pub subject_id: Uuid,
    pub name: Option<String>,
    /// When the face of the last alert was stored; `None` without an alert.
    pub stored_at: Option<OffsetDateTime>,
    /// Cosine similarity of this face.
    pub similarity: Option<f32>,
    /// The camera that saw this face.
    pub stream: Option<String>,
}

impl Mqtt<'_> {
    /// Opens a connection for the lock of the process that publishes.
    pub async fn connect_lock(self) -> Result<PublisherLock, StoreError> {
        Ok(PublisherLock(schema::connect(self.0.pool.connect_options().as_ref()).await?))
    }

    /// Listens for new alerts, and for changes of watchlists and of their people, on a separate
    /// connection.
    pub async fn listen(self) -> Result<WatchListener, StoreError> {
        WatchListener::connect(&self.0.pool, &[CHANNEL, ALERT_CHANNEL]).await
    }

    /// Returns the ids and names of the collections with these names. Deleted ones are left out.
    pub async fn collections(self, names: &[String]) -> Result<Vec<(Uuid, String)>, StoreError> {
        Ok(sqlx::query_as(
            "select id, name from collections where name = any($1) and deleting_at is null order by name",
        )
        .bind(names)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns the number of the last published alert of each collection. A collection that is new
    /// here starts at its current last alert, and the positions of other collections are deleted.
    pub async fn positions(self, collections: &[Uuid]) -> Result<HashMap<Uuid, i64>, StoreError> {
        let mut tx = self.0.begin().await?;
        sqlx::query("delete from mqtt_positions where collection_id <> all($1)")
            .bind(collections)
            .execute(tx.conn())
            .await?;
        sqlx::query(
            "insert into mqtt_positions (collection_id, sequence)
             select c.id, coalesce(s.last, 0) from collections c left join alert_sequences s on s.collection_id = c.id
             where c.id = any($1) and c.deleting_at is null
             on conflict do nothing",
        )
        .bind(collections)
        .execute(tx.conn())
        .await?;
        let rows: Vec<(Uuid, i64)> =
            sqlx::query_as("select collection_id, sequence from mqtt_positions").fetch_all(tx.conn()).await?;
        tx.commit().await?;
        Ok(rows.into_iter().collect())
    }

    /// Records that the alerts of a collection up to this number were published.
    pub async fn set_position(self, collection: Uuid, sequence: i64) -> Result<(), StoreError> {
        sqlx::query("update mqtt_positions set sequence = $2 where collection_id = $1 and sequence < $2")
            .bind(collection)
            .bind(sequence)
            .execute(&self.0.pool)
            .await?;
        Ok(())
    }

    /// Returns the people about whom the active watchlists of a collection report matches, in the
    /// order of their ids. A watchlist that reports unknown faces has no alert about its people.
    pub async fn watched_people(
        self,
        collection: Uuid,
        limit: i64,
    ) -> Result<Vec<WatchedPerson>, StoreError> {
        Ok(sqlx::query_as(
            "select p.subject_id, s.name, last.stored_at, last.similarity, last.stream from (
                 select distinct wp.subject_id from watched_people wp join watchlists w on w.id = wp.watchlist_id
                 where wp.collection_id = $1 and w.notify = 'match' and w.ended_at is null
                   and (w.expires_at is null or w.expires_at > clock_timestamp())
                 order by wp.subject_id limit $2) p
             join subjects s on s.collection_id = $1 and s.id = p.subject_id
             left join lateral (
                 select a.stored_at, a.similarity,
                        (select v.stream from video_frames vf join videos v on v.id = vf.video_id
                         where vf.image_id = f.image_id) as stream
                 from alerts a join faces f on f.id = a.face_id
                 where a.collection_id = $1 and a.subject_id = p.subject_id
                 order by a.sequence desc limit 1) last on true
             order by p.subject_id",
        )
        .bind(collection)
        .bind(limit)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns the names of people. People without a name are left out.
    pub async fn names(self, subjects: &[Uuid]) -> Result<HashMap<Uuid, String>, StoreError> {
        let rows: Vec<(Uuid, String)> =
            sqlx::query_as("select id, name from subjects where id = any($1) and name is not null")
                .bind(subjects)
                .fetch_all(&self.0.pool)
                .await?;
        Ok(rows.into_iter().collect())
    }

    /// Returns the cameras of a collection by name, with their states.
    pub async fn cameras(self, collection: Uuid) -> Result<Vec<(String, StreamState)>, StoreError> {
        Ok(sqlx::query_as(concat!(
            "select s.name, ",
            reported_state!(),
            " from streams s where s.collection_id = $1 and s.removed_at is null order by s.name",
        ))
        .bind(collection)
        .fetch_all(&self.0.pool)
        .await?)
    }

    /// Returns the topics that may have a retained message in the broker.
    pub async fn retained(self) -> Result<Vec<String>, StoreError> {
        Ok(sqlx::query_scalar("select topic from mqtt_retained order by topic")
            .fetch_all(&self.0.pool)
            .await?)
    }

    /// Records topics before a retained message is published to them.
    pub async fn record_retained(self, topics: &[String]) -> Result<(), StoreError> {
        sqlx::query("insert into mqtt_retained (topic) select unnest($1::text[]) on conflict do nothing")
            .bind(topics)
            .execute(&self.0.pool)
            .await?;
        Ok(())
    }

    /// Forgets topics after the broker has removed their retained messages.
    pub async fn forget_retained(self, topics: &[String]) -> Result<(), StoreError> {
        sqlx::query("delete from mqtt_retained where topic = any($1)")
            .bind(topics)
            .execute(&self.0.pool)
            .await?;
        Ok(())
    }
}

/// The lock of the process that publishes. Postgres releases it when the connection closes, so
/// another process can continue when this one is killed.
#[derive(Debug)]
pub struct PublisherLock(PgConnection);

impl PublisherLock {
    /// Acquires the lock. Returns `false` if another connection has it.
    pub async fn try_lock(&mut self) -> Result<bool, StoreError> {
        let lock = "select pg_try_advisory_lock(hashtextextended('mqtt', 0))";
        Ok(sqlx::query_scalar(lock).fetch_one(&mut self.0).await?)
    }

    /// Fails if the connection was lost, and with it the lock.
    pub async fn check(&mut self) -> Result<(), StoreError> {
        Ok(self.0.ping().await?)
    }

    /// Releases the lock, and waits until the connection is closed.
    pub async fn release(self) -> Result<(), StoreError> {
        Ok(self.0.close().await?)
    }
}

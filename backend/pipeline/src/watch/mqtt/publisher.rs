//! Publishes new alerts in their order, and keeps the retained messages of the broker equal to the
//! database.
//!
//! Of all processes, the one that holds a lock of the database publishes. It publishes the alerts
//! after the position of their collection, and advances the position when the broker has
//! acknowledged them. The topic of a retained message is recorded before the message is published,
//! and its row is deleted after the broker has removed it, so none about an erased person remains.
//! `docs/explanation/WATCH.md` describes the guarantees.
use crate::watch::mqtt::broker::{Broker, BrokerError, Message};
use crate::watch::mqtt::config::MqttConfig;
use crate::watch::mqtt::discovery::Discovery;
use crate::watch::mqtt::messages::{
    ONLINE, Topics, alert_payload, camera_payload, person_payload, status_topic, will,
};
use domain::DeliveryState;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};
use store::watch::alerts::{Alert, AlertFilter};
use store::watch::mqtt::PublisherLock;
use store::watch::{DELIVERY_TIME, MAX_WATCHLISTS};
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Number of alerts that are published together.
const BATCH: i64 = 64;
/// Number of topics that are recorded or removed together.
const TOPICS: usize = 64;
/// Maximum number of people of a collection that have a topic.
const MAX_PEOPLE: usize = 2_000;
/// Time after which the publisher looks for changes without a notification. States of cameras have
/// no notification.
const FALLBACK_INTERVAL: Duration = Duration::from_secs(5);
/// Wait after a notification, so that those which follow cause no further queries. While faces are
/// stored, one arrives with each transaction.
const NOTIFICATION_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum time between two comparisons of all retained messages with the database.
const RECONCILE_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two attempts to acquire the lock.
const LOCK_INTERVAL: Duration = Duration::from_secs(1);
/// Wait after an error of the database.
const ERROR_WAIT: Duration = Duration::from_secs(1);
/// First and longest wait after an error of the broker. The wait doubles with each error, until a
/// connection has lasted for `STABLE_TIME`: a broker can accept each connection and close it at
/// once.
const BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_secs(60);
const STABLE_TIME: Duration = Duration::from_secs(60);

/// Publishes alerts and states. One per process is enough.
pub struct Publisher {
    store: Store,
    config: MqttConfig,
    /// Wait after the next error of the broker.
    backoff: Duration,
    /// When the last connection to the broker was opened; `None` after its error.
    connected_at: Option<Instant>,
    /// Collections about which a warning was logged.
    warned: HashSet<String>,
}

/// Logs a warning if a broker may still have retained messages, which include the states of people.
/// Call it in a process without a configured broker: nothing removes the messages then, even if a
/// person is erased.
pub async fn warn_of_abandoned_messages(store: Store) {
    match store.mqtt().retained().await {
        Ok(topics) if topics.is_empty() => {}
        Ok(topics) => tracing::warn!(
            topics = topics.len(),
            "an MQTT broker may still have messages about people, and MQTT_URL is unset, so an erasure does not remove \
             them; docs/how-to/HOME_ASSISTANT.md describes how to remove them"
        ),
        Err(error) => tracing::warn!(%error, "failed to read which messages an MQTT broker may still have"),
    }
}

#[derive(Debug, thiserror::Error)]
enum PublishError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Broker(#[from] BrokerError),
}

/// What this process knows about an open connection.
struct Connection {
    broker: Broker,
    /// Topics that may have a retained message in the broker. The database has the same rows.
    recorded: BTreeSet<String>,
    /// Hashes of the retained messages that were published by this connection. A broker that was
    /// started again may have lost older ones.
    published: HashMap<String, u64>,
}

impl Publisher {
    pub fn new(store: Store, config: MqttConfig) -> Self {
        describe_counter!(
            "facecrawl_mqtt_alerts_total",
            "Number of alerts for the MQTT broker, by outcome: published, expired, or unacknowledged and tried again."
        );
        describe_gauge!(
            "facecrawl_mqtt_connected",
            "1 while this process is connected to the MQTT broker. Only one process publishes at a time."
        );
        Self { store, config, backoff: BACKOFF, connected_at: None, warned: HashSet::new() }
    }

    /// Publishes until `shutdown` is cancelled.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let _stopped: Option<()> = shutdown.run_until_cancelled(self.run_forever()).await;
    }

    async fn run_forever(&mut self) {
        gauge!("facecrawl_mqtt_connected").set(0.0);
        loop {
            let error = match self.run_until_error().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            gauge!("facecrawl_mqtt_connected").set(0.0);
            match error {
                PublishError::Store(error) => {
                    tracing::warn!(%error, "the database failed while publishing by MQTT; trying again");
                    tokio::time::sleep(ERROR_WAIT).await;
                }
                PublishError::Broker(error) => {
                    if self.connected_at.take().is_some_and(|opened| opened.elapsed() >= STABLE_TIME) {
                        self.backoff = BACKOFF;
                    }
                    let broker = &self.config.broker.address;
                    let wait_seconds = self.backoff.as_secs();
                    tracing::warn!(%broker, %error, wait_seconds, "no connection to the MQTT broker; trying again");
                    tokio::time::sleep(self.backoff).await;
                    self.backoff = (2 * self.backoff).min(MAX_BACKOFF);
                }
            }
        }
    }

    /// Waits for the lock, and publishes until the database or the broker fails. Another process
    /// can then acquire the lock.
    async fn run_until_error(&mut self) -> Result<std::convert::Infallible, PublishError> {
        let mut lock = self.store.mqtt().connect_lock().await?;
        while !lock.try_lock().await? {
            tokio::time::sleep(LOCK_INTERVAL).await;
        }
        let result = self.publish_locked(&mut lock).await;
        // The wait after an error must not keep others from publishing.
        if let Err(error) = lock.release().await {
            tracing::debug!(%error, "failed to close the connection of the lock");
        }
        result
    }

    async fn publish_locked(
        &mut self,
        lock: &mut PublisherLock,
    ) -> Result<std::convert::Infallible, PublishError> {
        let mut listener = self.store.mqtt().listen().await?;
        // Sets the positions, so that the alerts that are stored from now on are published, even if
        // the broker cannot be reached yet.
        self.collections().await?;
        let mut connection = self.connect().await?;
        self.connected_at = Some(Instant::now());
        // Home Assistant ignores alerts while the status is "offline".
        if !self.config.collections.is_empty() {
            let status = (status_topic(&self.config.prefix), ONLINE.to_owned());
            self.publish_retained(&mut connection, vec![status]).await?;
        }
        let mut reconciled: Option<Instant> = None;
        loop {
            lock.check().await?;
            let mut has_more = false;
            let collections = self.collections().await?;
            for (collection, position) in &collections {
                has_more |= self.publish_alerts(&mut connection.broker, *collection, *position).await?;
            }
            let wait = match reconciled.map(|time| RECONCILE_INTERVAL.saturating_sub(time.elapsed())) {
                Some(wait) if !wait.is_zero() => wait,
                _ => {
                    let desired = self.desired().await?;
                    self.reconcile(&mut connection, desired).await?;
                    reconciled = Some(Instant::now());
                    FALLBACK_INTERVAL
                }
            };
            if has_more {
                continue;
            }
            tokio::select! {
                notified = listener.wait() => {
                    notified?;
                    tokio::time::sleep(NOTIFICATION_INTERVAL).await;
                }
                failed = connection.broker.keep_alive() => match failed? {},
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn connect(&self) -> Result<Connection, PublishError> {
        let prefix = &self.config.prefix;
        // Without collections there is no will: its retained message would remain in the broker.
        let will = (!self.config.collections.is_empty()).then(|| will(prefix));
        let broker = Broker::connect(&self.config.broker, prefix.word(), will).await?;
        tracing::info!(broker = %self.config.broker.address, "connected to the MQTT broker");
        gauge!("facecrawl_mqtt_connected").set(1.0);
        let recorded = self.store.mqtt().retained().await?.into_iter().collect();
        Ok(Connection { broker, recorded, published: HashMap::new() })
    }

    /// Returns the ids of the collections that are published, with the numbers of their last
    /// published alerts.
    async fn collections(&self) -> Result<Vec<(Uuid, i64)>, StoreError> {
        let found = self.store.mqtt().collections(&self.config.collections).await?;
        let ids: Vec<Uuid> = found.iter().map(|(id, _)| *id).collect();
        let positions = self.store.mqtt().positions(&ids).await?;
        Ok(ids.into_iter().filter_map(|id| Some((id, *positions.get(&id)?))).collect())
    }

    /// Publishes the next alerts of a collection. Returns whether there may be more.
    async fn publish_alerts(
        &self,
        broker: &mut Broker,
        collection: Uuid,
        position: i64,
    ) -> Result<bool, PublishError> {
        let filter = AlertFilter { collection_id: collection, ..AlertFilter::default() };
        let alerts = self.store.alerts().list_after(&filter, position, BATCH).await?;
        let Some(last) = alerts.last() else { return Ok(false) };
        let oldest = self.store.clock().await? - DELIVERY_TIME;
        let (expired, current): (Vec<&Alert>, Vec<&Alert>) = (alerts.iter())
            .filter(|alert| alert.delivery != DeliveryState::Suppressed)
            .partition(|alert| alert.created_at < oldest);
        let names = if self.config.names {
            let subjects: Vec<Uuid> = current.iter().filter_map(|alert| alert.subject_id).collect();
            self.store.mqtt().names(&subjects).await?
        } else {
            HashMap::new()
        };
        let message = |alert: &&Alert| {
            let topics = Topics::new(&self.config.prefix, &alert.collection)?;
            let name = alert.subject_id.and_then(|subject| names.get(&subject));
            let payload = alert_payload(alert, name.map(String::as_str));
            Some(Message { topic: topics.alerts(), payload, is_retained: false })
        };
        let published = broker.publish(current.iter().filter_map(message).collect()).await;
        let outcome = if published.is_ok() { "published" } else { "unacknowledged" };
        counter!("facecrawl_mqtt_alerts_total", "outcome" => outcome).increment(current.len() as u64);
        published?;
        counter!("facecrawl_mqtt_alerts_total", "outcome" => "expired").increment(expired.len() as u64);
        self.store.mqtt().set_position(collection, last.sequence).await?;
        Ok(alerts.len() as i64 >= BATCH)
    }

    /// Returns the retained messages that the broker should have, by topic.
    async fn desired(&mut self) -> Result<BTreeMap<String, String>, StoreError> {
        let mut desired = BTreeMap::new();
        let config = self.config.clone();
        if !config.collections.is_empty() {
            desired.insert(status_topic(&config.prefix), ONLINE.to_owned());
        }
        let found = self.store.mqtt().collections(&config.collections).await?;
        for name in &config.collections {
            if !found.iter().any(|(_, other)| other == name) && self.warned.insert(name.clone()) {
                tracing::warn!(collection = name, "a collection of MQTT_COLLECTIONS does not exist");
            }
        }
        for (id, name) in &found {
            let Some(topics) = Topics::new(&config.prefix, name) else { continue };
            let discovery = (config.discovery_prefix.as_ref()).map(|prefix| Discovery {
                prefix,
                topics: &topics,
                names: config.names,
            });
            for person in self.people(*id, name).await? {
                if let Some(payload) = person_payload(&person) {
                    desired.insert(topics.person(person.subject_id), payload);
                }
                desired.extend(discovery.as_ref().map(|discovery| discovery.person(&person)));
            }
            for watchlist in self.store.watchlists().list(*id, None, MAX_WATCHLISTS).await? {
                let discovery = discovery.as_ref().filter(|_| watchlist.is_active);
                desired.extend(discovery.map(|discovery| discovery.watchlist(watchlist.id, &watchlist.name)));
            }
            for (camera, state) in self.store.mqtt().cameras(*id).await? {
                desired.extend(topics.camera(&camera).map(|topic| (topic, camera_payload(state))));
                desired.extend(discovery.as_ref().and_then(|discovery| discovery.camera(&camera)));
            }
        }
        Ok(desired)
    }

    async fn people(
        &mut self,
        collection: Uuid,
        name: &str,
    ) -> Result<Vec<store::watch::mqtt::WatchedPerson>, StoreError> {
        let mut people = self.store.mqtt().watched_people(collection, MAX_PEOPLE as i64 + 1).await?;
        if people.len() > MAX_PEOPLE {
            people.truncate(MAX_PEOPLE);
            if self.warned.insert(name.to_owned()) {
                tracing::warn!(collection = name, limit = MAX_PEOPLE, "not all watched people have a topic");
            }
        }
        Ok(people)
    }

    /// Makes the retained messages of the broker equal to `desired`.
    async fn reconcile(
        &self,
        connection: &mut Connection,
        desired: BTreeMap<String, String>,
    ) -> Result<(), PublishError> {
        let mut removed: Vec<String> =
            connection.recorded.iter().filter(|topic| !desired.contains_key(*topic)).cloned().collect();
        // The status is removed last, so that its absence shows that nothing remains.
        let status = status_topic(&self.config.prefix);
        removed.sort_by_key(|topic| *topic == status);
        for topics in removed.chunks(TOPICS) {
            let empty = |topic: &String| retained(topic.clone(), String::new());
            connection.broker.publish(topics.iter().map(empty).collect()).await?;
            self.store.mqtt().forget_retained(topics).await?;
            for topic in topics {
                connection.recorded.remove(topic);
                connection.published.remove(topic);
            }
        }
        if !removed.is_empty() && connection.recorded.is_empty() {
            tracing::info!("removed all messages from the MQTT broker");
        }
        self.publish_retained(connection, desired.into_iter().collect()).await
    }

    /// Publishes those of these retained messages, by topic, that this connection has not published
    /// yet.
    async fn publish_retained(
        &self,
        connection: &mut Connection,
        messages: Vec<(String, String)>,
    ) -> Result<(), PublishError> {
        let changed: Vec<(String, String, u64)> = (messages.into_iter())
            .map(|(topic, payload)| {
                let hash = hash(&payload);
                (topic, payload, hash)
            })
            .filter(|(topic, _, hash)| connection.published.get(topic) != Some(hash))
            .collect();
        for messages in changed.chunks(TOPICS) {
            let new: Vec<String> = (messages.iter())
                .map(|(topic, ..)| topic)
                .filter(|topic| !connection.recorded.contains(*topic))
                .cloned()
                .collect();
            if !new.is_empty() {
                self.store.mqtt().record_retained(&new).await?;
                connection.recorded.extend(new);
            }
            let message =
                |(topic, payload, _): &(String, String, u64)| retained(topic.clone(), payload.clone());
            connection.broker.publish(messages.iter().map(message).collect()).await?;
            connection.published.extend(messages.iter().map(|(topic, _, hash)| (topic.clone(), *hash)));
        }
        Ok(())
    }
}

fn retained(topic: String, payload: String) -> Message {
    Message { topic, payload, is_retained: true }
}

fn hash(payload: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    payload.hash(&mut hasher);
    hasher.finish()
}

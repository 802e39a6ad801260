//! The topics and payloads that facecrawl itself defines. Those of Home Assistant are in
//! `discovery`.
use crate::watch::mqtt::broker::Message;
use crate::watch::mqtt::config::{TopicPrefix, is_level};
use domain::{StreamState, WatchNotify};
use serde::Serialize;
use store::watch::alerts::Alert;
use store::watch::mqtt::WatchedPerson;
use time::OffsetDateTime;
use uuid::Uuid;

/// Payloads of the status topic. They are the defaults of Home Assistant.
pub(super) const ONLINE: &str = "online";
const OFFLINE: &str = "offline";
/// Maximum length of a name in a message, in characters.
const MAX_NAME: usize = 200;

/// The topics of a collection.
pub(super) struct Topics<'a> {
    pub(super) prefix: &'a TopicPrefix,
    pub(super) collection: &'a str,
}

impl<'a> Topics<'a> {
    /// Returns `None` if the name of the collection cannot be a level of a topic. The API does not
    /// allow such names.
    pub(super) fn new(prefix: &'a TopicPrefix, collection: &'a str) -> Option<Self> {
        is_level(collection).then_some(Self { prefix, collection })
    }

    pub(super) fn alerts(&self) -> String {
        format!("{}/{}/alerts", self.prefix.as_str(), self.collection)
    }

    pub(super) fn person(&self, subject: Uuid) -> String {
        format!("{}/{}/people/{subject}/state", self.prefix.as_str(), self.collection)
    }

    /// Returns `None` if the name of the camera cannot be a level of a topic. `STREAMS_FILE` does
    /// not allow such names.
    pub(super) fn camera(&self, name: &str) -> Option<String> {
        is_level(name).then(|| format!("{}/{}/cameras/{name}/state", self.prefix.as_str(), self.collection))
    }
}

/// Returns the topic that says whether the publisher is connected.
pub(super) fn status_topic(prefix: &TopicPrefix) -> String {
    format!("{}/status", prefix.as_str())
}

/// Returns the message that the broker publishes when the connection breaks.
pub(super) fn will(prefix: &TopicPrefix) -> Message {
    Message { topic: status_topic(prefix), payload: OFFLINE.into(), is_retained: true }
}

/// An alert in the form of a message.
#[derive(Serialize)]
struct AlertPayload<'a> {
    /// The same as `notify`. Home Assistant requires this key in an event.
    event_type: WatchNotify,
    id: Uuid,
    sequence: i64,
    collection: &'a str,
    watchlist: &'a str,
    watchlist_id: Uuid,
    notify: WatchNotify,
    similarity: Option<f32>,
    stream: Option<&'a str>,
    #[serde(with = "time::serde::rfc3339")]
    stored_at: OffsetDateTime,
    face_id: Uuid,
    subject_id: Option<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
}

/// Returns the payload of an alert. `name` is the name of the person, if it may be published.
pub(super) fn alert_payload(alert: &Alert, name: Option<&str>) -> String {
    json(&AlertPayload {
        event_type: alert.notify,
        id: alert.id,
        sequence: alert.sequence,
        collection: &alert.collection,
        watchlist: shortened(&alert.watchlist),
        watchlist_id: alert.watchlist_id,
        notify: alert.notify,
        similarity: alert.similarity,
        stream: alert.stream.as_deref(),
        stored_at: alert.stored_at,
        face_id: alert.face_id,
        subject_id: alert.subject_id,
        name: name.map(shortened),
    })
}

#[derive(Serialize)]
struct PersonPayload<'a> {
    state: &'static str,
    #[serde(with = "time::serde::rfc3339")]
    last_seen: OffsetDateTime,
    camera: Option<&'a str>,
    similarity: Option<f32>,
}

/// Returns the state of a person; `None` if there is no alert about it.
pub(super) fn person_payload(person: &WatchedPerson) -> Option<String> {
    Some(json(&PersonPayload {
        state: "seen",
        last_seen: person.stored_at?,
        camera: person.stream.as_deref(),
        similarity: person.similarity,
    }))
}

#[derive(Serialize)]
struct CameraPayload {
    state: StreamState,
}

pub(super) fn camera_payload(state: StreamState) -> String {
    json(&CameraPayload { state })
}

/// Returns the beginning of a name.
pub(super) fn shortened(name: &str) -> &str {
    name.char_indices().nth(MAX_NAME).map_or(name, |(end, _)| &name[..end])
}

pub(super) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("a message is plain data")
}

//! The messages with which Home Assistant adds entities by itself (MQTT discovery, one topic for
//! each entity): a sensor for each watched person and each camera, an event for each watchlist.
//!
//! A topic is `PREFIX/COMPONENT/NODE/OBJECT/config`, where node and object consist of letters,
//! digits, `-` and `_`. An empty retained message removes the entity.
use crate::watch::mqtt::config::TopicPrefix;
use crate::watch::mqtt::messages::{Topics, json, shortened, status_topic};
use domain::{StreamState, WatchNotify};
use serde_json::{Map, Value, json};
use store::watch::mqtt::WatchedPerson;
use uuid::Uuid;

/// Describes the entities of one collection.
pub(super) struct Discovery<'a> {
    pub(super) prefix: &'a TopicPrefix,
    pub(super) topics: &'a Topics<'a>,
    /// Whether entities have the names of people.
    pub(super) names: bool,
}

impl Discovery<'_> {
    /// Returns topic and payload of the sensor with the time at which a person was last seen.
    pub(super) fn person(&self, person: &WatchedPerson) -> (String, String) {
        let subject = person.subject_id;
        let name = match &person.name {
            Some(name) if self.names => shortened(name).to_owned(),
            _ => format!("Person {subject}"),
        };
        let state = self.topics.person(subject);
        self.entity(
            "sensor",
            &subject.to_string(),
            &name,
            json!({
                "icon": "mdi:account-eye",
                "device_class": "timestamp",
                "state_topic": state,
                "value_template": "{{ value_json.last_seen }}",
                "json_attributes_topic": state,
            }),
        )
    }

    /// Returns topic and payload of the event that reports the alerts of a watchlist.
    pub(super) fn watchlist(&self, id: Uuid, name: &str) -> (String, String) {
        // All watchlists of a collection have one topic. Home Assistant ignores an empty result.
        let template = format!("{{{{ value if value_json.watchlist_id == '{id}' else '' }}}}");
        self.entity(
            "event",
            &id.to_string(),
            shortened(name),
            json!({
                "icon": "mdi:bell-alert",
                "event_types": WatchNotify::ALL,
                "state_topic": self.topics.alerts(),
                "value_template": template,
            }),
        )
    }

    /// Returns topic and payload of the sensor with the state of a camera; `None` if the name of
    /// the camera cannot be a level of a topic.
    pub(super) fn camera(&self, name: &str) -> Option<(String, String)> {
        let state = self.topics.camera(name)?;
        Some(self.entity(
            "sensor",
            &format!("camera_{name}"),
            &format!("Camera {name}"),
            json!({
                "icon": "mdi:cctv",
                "device_class": "enum",
                "entity_category": "diagnostic",
                "options": StreamState::ALL,
                "state_topic": state,
                "value_template": "{{ value_json.state }}",
            }),
        ))
    }

    /// Adds what all entities have in common.
    fn entity(&self, component: &str, object: &str, name: &str, own: Value) -> (String, String) {
        let collection = self.topics.collection;
        let node = format!("{}_{collection}", self.topics.prefix.word());
        let mut payload = Map::new();
        payload.insert("name".into(), name.into());
        payload.insert("unique_id".into(), format!("{node}_{object}").into());
        if let Value::Object(own) = own {
            payload.extend(own);
        }
        payload.insert("qos".into(), 1.into());
        payload.insert("availability_topic".into(), status_topic(self.topics.prefix).into());
        payload.insert(
            "device".into(),
            json!({
                "identifiers": [node],
                "name": format!("facecrawl {collection}"),
                "manufacturer": "facecrawl",
            }),
        );
        payload.insert(
            "origin".into(),
            json!({
                "name": "facecrawl",
                "sw_version": env!("CARGO_PKG_VERSION"),
            }),
        );
        let topic = format!("{}/{component}/{node}/{object}/config", self.prefix.as_str());
        (topic, json(&payload))
    }
}

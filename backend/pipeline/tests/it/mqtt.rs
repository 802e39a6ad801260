//! Tests what is published by MQTT, with a real broker: each alert at least once and in order, also
//! when the broker or the publishing process ends, and no message about an erased person. No model
//! is needed.
use crate::support::wait_for;
use crate::watch::{World, new_watchlist};
use domain::{StreamKind, StreamStore, WatchNotify};
use pipeline::Secret;
use pipeline::watch::mqtt::config::{Authorities, BrokerAddress, BrokerConfig, MqttConfig};
use pipeline::watch::mqtt::publisher::Publisher;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rumqttc::{AsyncClient, Event, Incoming, MqttOptions, Publish, QoS};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::Duration;
use store::people::SubjectPatch;
use store::streams::ConfiguredStream;
use store::watch::{NewWatchlist, Watched, WatchlistPatch};
use testing::MAX_WAIT;
use testing::mosquitto::{Mosquitto, PASSWORD, ServerIdentity, USER};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

fn config(broker: &Mosquitto) -> MqttConfig {
    MqttConfig {
        broker: BrokerConfig {
            address: BrokerAddress { host: "127.0.0.1".into(), port: broker.port(), has_tls: false },
            user: Some(USER.into()),
            password: Some(Secret::new(PASSWORD)),
            authorities: Authorities::default(),
        },
        prefix: "home/faces".parse().unwrap(),
        discovery_prefix: Some("homeassistant".parse().unwrap()),
        collections: vec!["default".into()],
        names: false,
    }
}

/// Starts a publisher. When the returned handle is dropped, it closes its connection without
/// DISCONNECT.
fn publish(world: &World, config: MqttConfig) -> AbortOnDropHandle<()> {
    let publisher = Publisher::new(world.store.clone(), config);
    AbortOnDropHandle::new(tokio::spawn(publisher.run(CancellationToken::new())))
}

/// Receives the messages of a broker. Its session continues when the broker was restarted.
struct Subscriber {
    client: AsyncClient,
    messages: mpsc::UnboundedReceiver<Publish>,
    _task: AbortOnDropHandle<()>,
}

impl Subscriber {
    /// Subscribes to all topics, and waits until the broker has confirmed it.
    async fn new(broker: &Mosquitto) -> Self {
        let id = Uuid::now_v7().simple().to_string();
        let mut options = MqttOptions::new(id, "127.0.0.1", broker.port());
        options.set_clean_session(false).set_credentials(USER, PASSWORD);
        let (client, mut events) = AsyncClient::new(options, 10);
        client.subscribe("#", QoS::AtLeastOnce).await.unwrap();
        let (sender, messages) = mpsc::unbounded_channel();
        let (subscribed, mut confirmed) = mpsc::unbounded_channel();
        let task = tokio::spawn(async move {
            loop {
                match events.poll().await {
                    Ok(Event::Incoming(Incoming::Publish(message))) => drop(sender.send(message)),
                    Ok(Event::Incoming(Incoming::SubAck(_))) => drop(subscribed.send(())),
                    Ok(_) => {}
                    // The broker is stopped. The next call connects again.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        let subscriber = Self { client, messages, _task: AbortOnDropHandle::new(task) };
        timeout(MAX_WAIT, confirmed.recv()).await.unwrap().unwrap();
        subscriber
    }

    async fn next(&mut self) -> Publish {
        timeout(MAX_WAIT, self.messages.recv()).await.expect("a message arrives").unwrap()
    }

    /// Returns the next message to this topic.
    async fn next_to(&mut self, topic: &str) -> Publish {
        loop {
            let message = self.next().await;
            if message.topic == topic {
                return message;
            }
        }
    }

    async fn next_json(&mut self, topic: &str) -> Value {
        serde_json::from_slice(&self.next_to(topic).await.payload).unwrap()
    }

    /// Returns the numbers of the next alerts, up to one.
    async fn alerts_until(&mut self, last: i64) -> Vec<i64> {
        let mut numbers = Vec::new();
        while numbers.last() != Some(&last) {
            numbers.push(self.next_json("home/faces/default/alerts").await["sequence"].as_i64().unwrap());
        }
        numbers
    }
}

/// Returns the retained messages of a broker by topic.
async fn retained(broker: &Mosquitto) -> BTreeMap<String, String> {
    let mut subscriber = Subscriber::new(broker).await;
    // The broker sends the retained messages of a new subscription before this one.
    subscriber.client.publish("end", QoS::AtLeastOnce, false, "").await.unwrap();
    let mut messages = BTreeMap::new();
    loop {
        let message = subscriber.next().await;
        if message.topic == "end" {
            return messages;
        }
        if message.retain {
            messages.insert(message.topic, String::from_utf8(message.payload.to_vec()).unwrap());
        }
    }
}

/// Stores faces of a watched person, one after the other, with one alert each.
async fn see(world: &World, count: usize) {
    let mut matcher = world.matcher();
    for _ in 0..count {
        world.store_faces(&[5.0]).await;
        while matcher.step().await.unwrap().compared > 0 {}
    }
}

/// Waits until the publisher has made the broker's messages equal to the database again.
async fn until_recorded(world: &World, count: i64) {
    let changed = async {
        while world.database.number("select count(*) from mqtt_retained").await != count {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(MAX_WAIT, changed).await.expect("the topics are recorded");
}

#[testing::needs(mqtt)]
#[testing::test(flavor = "multi_thread")]
async fn publishes_new_alerts_in_order_with_discovery_and_state() {
    let (world, broker) = (World::new().await, Mosquitto::start());
    let ada = world.person(0.0).await;
    let name = "Ada \"L\" +/#\n";
    let patch = SubjectPatch { name: Some(Some(name.into())), ..SubjectPatch::default() };
    world.commit(async |tx| world.store.people().update(tx.conn(), ada, &patch).await).await;
    let door = world.watch("Front door", vec![ada]).await;
    see(&world, 1).await;
    let mut subscriber = Subscriber::new(&broker).await;
    let _publisher = publish(&world, MqttConfig { names: true, ..config(&broker) });

    assert_eq!(&subscriber.next_to("home/faces/status").await.payload[..], b"online");
    // The other retained messages are published in the order of their topics.
    let state_topic = format!("home/faces/default/people/{ada}/state");
    let state = subscriber.next_json(&state_topic).await;
    let first = &world.alerts().await[0];
    assert_eq!(state["state"], "seen");
    let last_seen = state["last_seen"].as_str().unwrap();
    let format = &time::format_description::well_known::Rfc3339;
    assert_eq!(time::OffsetDateTime::parse(last_seen, format).unwrap(), first.stored_at);

    let node = "home_faces_default";
    let device = json!({"identifiers": [node], "name": "facecrawl default", "manufacturer": "facecrawl"});
    let origin = json!({"name": "facecrawl", "sw_version": env!("CARGO_PKG_VERSION")});
    let event = subscriber.next_json(&format!("homeassistant/event/{node}/{door}/config")).await;
    assert_eq!(
        event,
        json!({
            "name": "Front door", "unique_id": format!("{node}_{door}"), "icon": "mdi:bell-alert",
            "event_types": ["match", "unknown"], "state_topic": "home/faces/default/alerts",
            "value_template": format!("{{{{ value if value_json.watchlist_id == '{door}' else '' }}}}"),
            "qos": 1, "availability_topic": "home/faces/status", "device": device, "origin": origin,
        })
    );
    let sensor = subscriber.next_json(&format!("homeassistant/sensor/{node}/{ada}/config")).await;
    assert_eq!(
        sensor,
        json!({
            "name": name, "unique_id": format!("{node}_{ada}"), "icon": "mdi:account-eye",
            "device_class": "timestamp", "state_topic": state_topic, "value_template": "{{ value_json.last_seen }}",
            "json_attributes_topic": state_topic, "qos": 1, "availability_topic": "home/faces/status",
            "device": device, "origin": origin,
        })
    );

    see(&world, 3).await;
    for expected in &world.alerts().await[1..] {
        let message = subscriber.next_to("home/faces/default/alerts").await;
        assert!(!message.retain);
        let alert: Value = serde_json::from_slice(&message.payload).unwrap();
        assert_eq!(alert["id"], json!(expected.id), "{alert:#}");
        assert_eq!(alert["sequence"], expected.sequence);
        assert_eq!((&alert["event_type"], &alert["notify"]), (&json!("match"), &json!("match")));
        assert_eq!((&alert["watchlist"], &alert["watchlist_id"]), (&json!("Front door"), &json!(door)));
        assert_eq!((&alert["subject_id"], &alert["name"]), (&json!(ada), &json!(name)));
        assert_eq!((&alert["face_id"], &alert["stream"]), (&json!(expected.face_id), &Value::Null));
    }
}

#[testing::needs(mqtt)]
#[testing::test(flavor = "multi_thread")]
async fn publishes_neither_names_nor_suppressed_alerts_by_default() {
    let (world, broker) = (World::new().await, Mosquitto::start());
    let ada = world.person(0.0).await;
    let patch = SubjectPatch { name: Some(Some("Ada".into())), ..SubjectPatch::default() };
    world.commit(async |tx| world.store.people().update(tx.conn(), ada, &patch).await).await;
    let watchlist = world.watch("list", vec![ada]).await;
    let set_cooldown = async |seconds| {
        let patch = WatchlistPatch { cooldown_seconds: Some(seconds), ..WatchlistPatch::default() };
        world
            .commit(async |tx| {
                world.store.suppressions().lock(tx.conn(), world.collection, true).await?;
                world.store.watchlists().update(tx.conn(), watchlist, &patch).await
            })
            .await;
    };
    let mut subscriber = Subscriber::new(&broker).await;
    let _publisher = publish(&world, config(&broker));
    subscriber.next_to("home/faces/status").await;
    set_cooldown(3600).await;
    see(&world, 3).await;
    set_cooldown(0).await;
    see(&world, 1).await;
    let mut numbers = Vec::new();
    while numbers.last() != Some(&4) {
        let message = subscriber.next().await;
        let text = String::from_utf8_lossy(&message.payload).into_owned();
        assert!(!text.contains("Ada"), "{}: {text}", message.topic);
        if message.topic.ends_with("/alerts") {
            let alert: Value = serde_json::from_str(&text).unwrap();
            numbers.push(alert["sequence"].as_i64().unwrap());
        }
    }
    assert_eq!(numbers, [1, 4], "the other alerts are within the cooldown");
}

/// A publisher whose position is not stored yet may publish the last alerts again.
async fn position_is_stored(world: &World, sequence: i64) {
    let query = "select coalesce(max(sequence), 0) from mqtt_positions";
    wait_for(async || (world.database.number(query).await == sequence).then_some(()))
        .await
        .expect("the position is stored");
}

#[testing::needs(mqtt)]
#[testing::test(flavor = "multi_thread")]
async fn restart_of_broker_loses_no_alert_and_keeps_order() {
    let (world, mut broker) = (World::new().await, Mosquitto::start());
    let ada = world.person(0.0).await;
    world.watch("list", vec![ada]).await;
    let mut subscriber = Subscriber::new(&broker).await;
    let _publisher = publish(&world, config(&broker));
    subscriber.next_to("home/faces/status").await;
    see(&world, 3).await;
    assert_eq!(subscriber.alerts_until(3).await, [1, 2, 3]);
    position_is_stored(&world, 3).await;
    broker.stop();
    see(&world, 100).await;
    broker.resume();
    assert_eq!(subscriber.alerts_until(103).await, (4..=103).collect::<Vec<_>>());
    see(&world, 1).await;
    assert_eq!(subscriber.alerts_until(104).await, [104]);
}

#[testing::needs(mqtt)]
#[testing::test(flavor = "multi_thread")]
async fn another_publisher_continues_when_lock_holder_ends() {
    let (world, broker) = (World::new().await, Mosquitto::start());
    let ada = world.person(0.0).await;
    world.watch("list", vec![ada]).await;
    let mut subscriber = Subscriber::new(&broker).await;
    let first = publish(&world, config(&broker));
    subscriber.next_to("home/faces/status").await;
    let _second = publish(&world, config(&broker));
    see(&world, 2).await;
    assert_eq!(subscriber.alerts_until(2).await, [1, 2]);
    position_is_stored(&world, 2).await;
    drop(first);
    let status = subscriber.next_to("home/faces/status").await;
    assert_eq!(&status.payload[..], b"offline", "the broker publishes the will");
    see(&world, 2).await;
    // Home Assistant ignores an alert that it receives before this.
    let status = subscriber.next_to("home/faces/status").await;
    assert_eq!(&status.payload[..], b"online");
    assert_eq!(subscriber.alerts_until(4).await, [3, 4]);
}

#[testing::needs(mqtt)]
#[testing::test(flavor = "multi_thread")]
async fn erasure_removes_retained_messages_also_after_restart() {
    let (world, broker) = (World::new().await, Mosquitto::start());
    let (ada, grace) = (world.person(0.0).await, world.person(90.0).await);
    world.watch("list", vec![ada, grace]).await;
    see(&world, 1).await;
    let publisher = publish(&world, config(&broker));
    // The status, the state of Ada, and the configuration of two people and a watchlist.
    until_recorded(&world, 5).await;
    let delete = async |subject| {
        world.commit(async |tx| world.store.people().delete(tx.conn(), subject).await).await;
    };
    delete(grace).await;
    until_recorded(&world, 4).await;
    let before = retained(&broker).await;
    assert!(!before.keys().any(|topic| topic.contains(&grace.to_string())), "{before:#?}");
    assert_eq!(before.keys().filter(|topic| topic.contains(&ada.to_string())).count(), 2, "{before:#?}");

    drop(publisher);
    delete(ada).await;
    let _publisher = publish(&world, config(&broker));
    until_recorded(&world, 2).await;
    let after = retained(&broker).await;
    assert!(!after.keys().any(|topic| topic.contains(&ada.to_string())), "{after:#?}");
    assert!(!after.values().any(|payload| payload.contains(&ada.to_string())), "{after:#?}");
}

#[testing::needs(mqtt)]
#[testing::test(flavor = "multi_thread")]
async fn unpublished_collection_leaves_no_retained_messages() {
    let (world, broker) = (World::new().await, Mosquitto::start());
    let ada = world.person(0.0).await;
    let watchlist = world.watch("list", vec![ada]).await;
    see(&world, 1).await;
    let publisher = publish(&world, config(&broker));
    until_recorded(&world, 4).await;
    world.commit(async |tx| world.store.watchlists().delete(tx.conn(), watchlist).await).await;
    until_recorded(&world, 1).await;
    assert_eq!(retained(&broker).await.into_keys().collect::<Vec<_>>(), ["home/faces/status"]);

    let other = world.watch("other", vec![ada]).await;
    until_recorded(&world, 3).await;
    let mut subscriber = Subscriber::new(&broker).await;
    drop(publisher);
    let publisher = publish(&world, MqttConfig { collections: Vec::new(), ..config(&broker) });
    let mut removed = Vec::new();
    while removed.last().map(String::as_str) != Some("home/faces/status") {
        let message = subscriber.next().await;
        removed.extend(message.payload.is_empty().then_some(message.topic));
    }
    assert_eq!(removed.len(), 3, "the status is removed last: {removed:?}");
    until_recorded(&world, 0).await;
    assert_eq!(retained(&broker).await, BTreeMap::new(), "{other}");
    // The position is gone too, so a later start does not publish old alerts.
    see(&world, 1).await;
    drop(publisher);
    let mut subscriber = Subscriber::new(&broker).await;
    let _publisher = publish(&world, config(&broker));
    subscriber.next_to("home/faces/status").await;
    see(&world, 1).await;
    let last = world.alerts().await.last().unwrap().sequence;
    assert_eq!(subscriber.alerts_until(last).await, [last]);
}

#[testing::needs(mqtt)]
#[testing::test(flavor = "multi_thread")]
async fn cameras_have_state_and_people_of_unknown_list_have_none() {
    let (world, broker) = (World::new().await, Mosquitto::start());
    let door = ConfiguredStream {
        collection_id: world.collection,
        name: "door".into(),
        kind: StreamKind::Rtsp,
        purpose: "a test".into(),
        store: StreamStore::Matches,
        retention_hours: 24,
        fps: 1.0,
    };
    let configure = async |streams: &[ConfiguredStream]| {
        world.commit(async |tx| world.store.streams().configure(tx.conn(), streams).await).await;
    };
    configure(&[door]).await;
    let watched = Watched { subjects: vec![world.person(0.0).await], faces: Vec::new() };
    let unknown = NewWatchlist { notify: WatchNotify::Unknown, ..new_watchlist("unknown") };
    let watchlist = world
        .commit(async |tx| {
            world.store.suppressions().lock(tx.conn(), world.collection, true).await?;
            world.store.watchlists().insert(tx.conn(), world.collection, &unknown, &watched).await
        })
        .await;
    let mut subscriber = Subscriber::new(&broker).await;
    let _publisher = publish(&world, config(&broker));
    let state = subscriber.next_json("home/faces/default/cameras/door/state").await;
    assert_eq!(state, json!({"state": "waiting"}));
    let camera = subscriber.next_json("homeassistant/sensor/home_faces_default/camera_door/config").await;
    assert_eq!(camera["state_topic"], "home/faces/default/cameras/door/state");
    // With the status and the configuration of the watchlist.
    until_recorded(&world, 4).await;
    configure(&[]).await;
    until_recorded(&world, 2).await;
    let event = format!("homeassistant/event/home_faces_default/{watchlist}/config");
    let expected = ["home/faces/status", event.as_str()];
    assert_eq!(retained(&broker).await.into_keys().collect::<Vec<_>>(), expected);
}

#[testing::needs(mqtt)]
#[testing::test(flavor = "multi_thread")]
async fn tls_accepts_only_brokers_of_trusted_authority() {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate =
        CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
    let identity = ServerIdentity { certificate: certificate.pem(), key: key.serialize_pem() };
    let broker = Mosquitto::with_tls(Some(&identity));
    let world = World::new().await;
    let mut config = config(&broker);
    config.broker.address.has_tls = true;
    let untrusted = publish(&world, config.clone());
    config.broker.authorities = Authorities::from_pem(authority.pem().as_bytes()).unwrap();
    config.prefix = "trusted".parse().unwrap();
    let _trusted = publish(&world, config);
    // Both publishers try to connect, and only one of them succeeds.
    until_recorded(&world, 1).await;
    let topics = "select count(*) from mqtt_retained where topic = 'trusted/status'";
    assert_eq!(world.database.number(topics).await, 1);
    drop(untrusted);
    let watched = Watched { subjects: vec![world.person(0.0).await], faces: Vec::new() };
    let new = new_watchlist("list");
    world
        .commit(async |tx| {
            world.store.suppressions().lock(tx.conn(), world.collection, true).await?;
            world.store.watchlists().insert(tx.conn(), world.collection, &new, &watched).await
        })
        .await;
    until_recorded(&world, 3).await;
}

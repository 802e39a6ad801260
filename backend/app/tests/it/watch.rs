//! Tests watchlists while worker processes and the receiver of the alerts are killed. Each
//! appearance of a watched person has one alert, and the receiver gets each alert with one id, in
//! order.
//!
//! Without failures (`WATCH_FAILURES=0`), the test also measures the time from the storing of a
//! face to the acceptance of its alert. docs/explanation/WATCH.md contains the results.
#![cfg(target_os = "linux")]

use crate::common::service::{Service, TestFolder, wait_until};
use crate::common::sites::{serve, sha256};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::Html;
use axum::routing::{get as route, post};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use domain::DeliveryState;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::str::FromStr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use store::collections::DEFAULT_COLLECTION;
use store::faces::{Face, FaceListQuery};
use store::images::ImageFilter;
use store::watch::alerts::{Alert, AlertFilter};
use testing::embeddings::Random;
use testing::fixture_models::{CELL, Canvas};
use testing::{ReservedPort, TestDatabase};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use uuid::Uuid;

/// Number of faces of the crawl. `WATCH_FACES` sets another one.
const FACES: usize = 1_600;
/// Number of failures. `WATCH_FAILURES` sets another one.
const FAILURES: usize = 6;
const FACES_PER_IMAGE: usize = 16;
const IMAGES_PER_PAGE: usize = 50;
/// Every face whose number is a multiple of this is one of an enrolled person, in turn.
/// `WATCH_INTERVAL` sets another one.
const PERSON_INTERVAL: usize = 4;
const PEOPLE: usize = 8;
/// The people of each watchlist. One person is on both, and some are on none.
const WATCHED: [std::ops::Range<usize>; 2] = [0..4, 3..6];
const WORKERS: usize = 4;
/// Seed of the targets of the kills.
const SEED: u64 = 0x5eed_a1e7;
/// Time limit. It is far longer than the slowest machine needs.
const TIMEOUT: Duration = Duration::from_secs(1200);

/// A message to the webhook of a watchlist.
#[derive(Clone, PartialEq)]
struct Message {
    at: OffsetDateTime,
    /// Number of the watchlist in [`WATCHED`].
    watchlist: usize,
    /// The worker that sent it.
    agent: String,
    delivery: Uuid,
    body: Bytes,
}

impl Message {
    fn alert(&self) -> Value {
        serde_json::from_slice::<Value>(&self.body).unwrap()["alert"].clone()
    }
}

/// What the receiver has accepted. It survives a crash of the receiver.
struct Inbox {
    messages: watch::Sender<Vec<Message>>,
    /// Responses are sent only while the gate is open. A message that waits at the gate is
    /// accepted, but its sender does not know.
    gate: watch::Sender<bool>,
}

impl Inbox {
    /// Returns the distinct ids of the messages of each watchlist, in the order of their arrival.
    fn deliveries(messages: &[Message]) -> [Vec<Uuid>; WATCHED.len()] {
        let mut known = HashSet::new();
        let mut ids = [const { Vec::new() }; WATCHED.len()];
        for message in messages.iter().filter(|message| known.insert(message.delivery)) {
            ids[message.watchlist].push(message.delivery);
        }
        ids
    }

    /// Waits until so many distinct messages were accepted.
    async fn wait_for(&self, count: usize) {
        let mut messages = self.messages.subscribe();
        let is_reached =
            |messages: &Vec<Message>| Self::deliveries(messages).iter().map(Vec::len).sum::<usize>() >= count;
        let wait = tokio::time::timeout(TIMEOUT, messages.wait_for(is_reached)).await;
        wait.expect("timed out waiting for alerts").unwrap();
    }

    /// Closes the gate, and waits for a message whose response then waits at the gate.
    async fn hold_message(&self) -> Message {
        self.gate.send_replace(false);
        let mut messages = self.messages.subscribe();
        let before = messages.borrow_and_update().len();
        let wait = messages.wait_for(|messages| messages.len() > before);
        let messages = tokio::time::timeout(TIMEOUT, wait).await.expect("timed out waiting for an alert");
        messages.unwrap()[before].clone()
    }
}

async fn receive(
    State(inbox): State<Arc<Inbox>>,
    Path(watchlist): Path<usize>,
    headers: HeaderMap,
    body: Bytes,
) -> StatusCode {
    let text = |name: &str| headers[name].to_str().unwrap().to_owned();
    let message = Message {
        at: OffsetDateTime::now_utc(),
        watchlist,
        agent: text(header::USER_AGENT.as_str()),
        delivery: Uuid::from_str(&text("x-facecrawl-delivery")).unwrap(),
        body,
    };
    inbox.messages.send_modify(|messages| messages.push(message));
    let mut gate = inbox.gate.subscribe();
    let _opened = gate.wait_for(|is_open| *is_open).await;
    StatusCode::NO_CONTENT
}

/// A receiver at one port. A crash closes its connections without a response.
struct Receiver {
    inbox: Arc<Inbox>,
    port: ReservedPort,
    /// It contains the server and its connections. `None` after a crash.
    runtime: Option<Runtime>,
}

impl Receiver {
    fn start() -> Self {
        let inbox =
            Arc::new(Inbox { messages: watch::Sender::new(Vec::new()), gate: watch::Sender::new(true) });
        let mut receiver = Self { inbox, port: ReservedPort::new(), runtime: None };
        receiver.restart();
        receiver
    }

    fn restart(&mut self) {
        let listener = std::net::TcpListener::bind(self.port.address()).unwrap();
        listener.set_nonblocking(true).unwrap();
        let router = Router::new().route("/{watchlist}", post(receive)).with_state(self.inbox.clone());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            axum::serve(listener, router).await.unwrap();
        });
        self.runtime = Some(runtime);
    }

    /// Ends the server. Nothing listens on the port afterwards.
    async fn crash(&mut self) {
        let runtime = self.runtime.take().unwrap();
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(TIMEOUT)).await.unwrap();
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // The end of a runtime inside another one must not block.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn number_from_environment(name: &str, default: usize) -> usize {
    std::env::var(name).map_or(default, |number| number.parse().unwrap())
}

/// Returns the number of the enrolled person who has this face, if it is one.
fn person(face: usize) -> Option<usize> {
    static INTERVAL: LazyLock<usize> =
        LazyLock::new(|| number_from_environment("WATCH_INTERVAL", PERSON_INTERVAL));
    face.is_multiple_of(*INTERVAL).then_some(face / *INTERVAL % PEOPLE)
}

/// Returns the column and the row of a face of an image.
fn place(slot: usize) -> (u32, u32) {
    let slot = u32::try_from(slot).unwrap();
    (1 + slot % 8 * 2, 1 + slot / 8 * 2)
}

fn png(faces: impl Iterator<Item = ((u32, u32), u32)>) -> Vec<u8> {
    let mut canvas = Canvas::new(640, 480);
    faces.for_each(|((column, row), identity)| testing::draw_face(&mut canvas, column, row, identity));
    vision::encode::png(&vision::Frame::new(640, 480, canvas.into_raw()).unwrap())
}

/// Returns an image of the crawl. Each face of a stranger occurs once.
fn image(number: usize) -> Vec<u8> {
    png((0..FACES_PER_IMAGE).map(|slot| {
        let face = number * FACES_PER_IMAGE + slot;
        let identity = person(face).unwrap_or(PEOPLE + face);
        (place(slot), u32::try_from(identity).unwrap())
    }))
}

async fn serve_site(images: Vec<Vec<u8>>) -> String {
    let count = images.len();
    let images = Arc::new(images);
    let index = move || async move {
        let pages = 0..count.div_ceil(IMAGES_PER_PAGE);
        Html(pages.map(|page| format!("<a href=/page/{page}>{page}</a>")).collect::<String>())
    };
    let page = move |Path(page): Path<usize>| async move {
        let numbers = (page * IMAGES_PER_PAGE..count).take(IMAGES_PER_PAGE);
        Html(numbers.map(|number| format!("<img src=/image/{number}>")).collect::<String>())
    };
    let image = move |Path(number): Path<usize>| async move { images[number].clone() };
    let router = Router::new()
        .route("/", route(index))
        .route("/page/{page}", route(page))
        .route("/image/{number}", route(image));
    serve(router).await
}

/// A failure, after a part of the alerts was received.
#[derive(Clone, Copy, Debug)]
enum Failure {
    /// Any worker is killed.
    Kill,
    /// A worker is killed after the receiver accepted its message, and before the worker knows.
    KillSender,
    /// The receiver crashes after it accepted a message, and comes back.
    CrashReceiver,
}

/// The processes that a test kills.
struct Scene {
    folder: TestFolder,
    database: TestDatabase,
    receiver: Receiver,
    workers: Vec<Service>,
}

impl Scene {
    async fn start() -> Self {
        let (folder, database) = (TestFolder::with_small_models().0, TestDatabase::create().await);
        // Otherwise, an attempt is repeated after ten seconds, and after three times the wait each
        // time it fails.
        for statement in [
            "create function shorten_wait() returns trigger language plpgsql as $$
             begin
                 new.next_attempt_at := least(new.next_attempt_at, clock_timestamp() + interval '50 milliseconds');
                 return new;
             end $$",
            "create trigger shorten_wait before update of next_attempt_at on alerts
             for each row execute function shorten_wait()",
        ] {
            database.execute(statement).await;
        }
        let mut scene = Self { folder, database, receiver: Receiver::start(), workers: Vec::new() };
        scene.workers = (0..WORKERS).map(|worker| scene.start_worker(worker)).collect();
        scene
    }

    fn agent(worker: usize) -> String {
        format!("facecrawl/worker-{worker}")
    }

    fn start_worker(&self, worker: usize) -> Service {
        let mut command = self.folder.facecrawl_with(&self.database, &["up", "--port", "0"]);
        command.env("MODEL_PACK", "fixture").env("DETECTION_PASSES", "single").env("LOG_LEVEL", "error");
        command.env("CRAWL_USER_AGENT", Self::agent(worker)).env("WORKERS", "4");
        command.env("WEBHOOK_SECRET", "correct horse battery staple");
        Service::start(&mut command)
    }

    /// Kills a worker and starts another one. The jobs of the killed one are released immediately,
    /// not when their leases expire.
    async fn kill(&mut self, worker: usize) {
        self.workers[worker].kill();
        let process = format!("%-{}", self.workers[worker].child.id());
        sqlx::query(
            "update jobs set lease_until = now() - interval '1 second'
             where state = 'running' and locked_by like $1",
        )
        .bind(process)
        .execute(self.database.pool())
        .await
        .unwrap();
        self.workers[worker] = self.start_worker(worker);
    }

    /// Causes a failure. Returns the message that the receiver accepted, and that must be repeated.
    async fn fail(&mut self, failure: Failure, random: &mut Random) -> Option<Message> {
        let inbox = self.receiver.inbox.clone();
        match failure {
            Failure::Kill => {
                self.kill(random.below(WORKERS)).await;
                None
            }
            Failure::KillSender => {
                let held = inbox.hold_message().await;
                let worker = (0..WORKERS).find(|worker| Self::agent(*worker) == held.agent);
                self.kill(worker.unwrap()).await;
                inbox.gate.send_replace(true);
                Some(held)
            }
            Failure::CrashReceiver => {
                let held = inbox.hold_message().await;
                self.receiver.crash().await;
                inbox.gate.send_replace(true);
                let failed = "select count(*) from alerts where delivery = 'pending' and error is not null";
                wait_until("a failed attempt", async || self.database.number(failed).await > 0).await;
                self.receiver.restart();
                Some(held)
            }
        }
    }
}

/// An appearance of an enrolled person: the number of the watchlist and of the face in the crawl.
type Appearance = (usize, usize);

/// Returns the number in the crawl of each stored face.
async fn face_numbers(database: &TestDatabase, images: &HashMap<String, usize>) -> HashMap<Uuid, usize> {
    let store = database.store();
    let filter = ImageFilter { collection: DEFAULT_COLLECTION.into(), ..ImageFilter::default() };
    let stored = store.images().list(&filter, None, i64::MAX).await.unwrap();
    // Enrolled images are not from the crawl.
    let numbers: HashMap<Uuid, usize> = (stored.iter())
        .filter_map(|image| Some((image.id, *images.get(&hex::encode(&image.sha256))?)))
        .collect();
    let query = FaceListQuery { collection: DEFAULT_COLLECTION.into(), ..FaceListQuery::default() };
    let faces = store.faces().list(&query, None, i64::MAX).await.unwrap();
    let slot = |face: &Face| {
        let cell = |start: f32, length: f32| ((start + length / 2.0) / CELL as f32) as u32;
        let found = (cell(face.bbox[0], face.bbox[2]), cell(face.bbox[1], face.bbox[3]));
        (0..FACES_PER_IMAGE).find(|slot| place(*slot) == found).expect("a face where one was drawn")
    };
    (faces.iter())
        .filter_map(|face| Some((face.id, numbers.get(&face.image_id)? * FACES_PER_IMAGE + slot(face))))
        .collect()
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn failures_leave_one_alert_per_watched_appearance_delivered_in_order() {
    let image_count = number_from_environment("WATCH_FACES", FACES).div_ceil(FACES_PER_IMAGE);
    let failure_count = number_from_environment("WATCH_FAILURES", FAILURES);
    let images: Vec<Vec<u8>> = (0..image_count).map(image).collect();
    let numbers: HashMap<String, usize> =
        images.iter().enumerate().map(|(number, image)| (sha256(image), number)).collect();
    assert_eq!(numbers.len(), image_count, "all images differ");
    let expected: BTreeSet<Appearance> = (0..image_count * FACES_PER_IMAGE)
        .filter_map(|face| Some((face, person(face)?)))
        .flat_map(|(face, person)| {
            let lists = WATCHED.iter().enumerate().filter(move |(_, people)| people.contains(&person));
            lists.map(move |(list, _)| (list, face))
        })
        .collect();

    let mut scene = Scene::start().await;
    let inbox = scene.receiver.inbox.clone();
    let caller = scene.workers[0].caller();
    let mut people: Vec<Uuid> = Vec::new();
    for identity in 0..PEOPLE {
        let body = json!({"name": format!("person {identity}")});
        let person = caller.request(201, Method::POST, "/subjects", Some(&body)).await;
        let id = person["id"].as_str().unwrap();
        let portrait = png([((5, 5), u32::try_from(identity).unwrap())].into_iter());
        let body = json!({"image_base64": BASE64_STANDARD.encode(portrait), "force": true});
        caller.request(200, Method::POST, &format!("/subjects/{id}/faces"), Some(&body)).await;
        people.push(id.parse().unwrap());
    }
    let mut watchlists: Vec<Uuid> = Vec::new();
    for (number, watched) in WATCHED.into_iter().enumerate() {
        // Only the same face is as similar as this.
        let body = json!({
            "name": format!("list {number}"), "purpose": "a test", "subjects": people[watched],
            "threshold": 0.98, "quality_profile": "off",
            "webhook": format!("http://{}/{number}", scene.receiver.port.address()),
        });
        let created = caller.request(201, Method::POST, "/watchlists", Some(&body)).await;
        watchlists.push(created["id"].as_str().unwrap().parse().unwrap());
    }

    let seed = serve_site(images).await;
    let body = json!({"seeds": [seed], "max_images": 2 * image_count, "delay_ms": 0, "dedupe": "exact"});
    let started = Instant::now();
    let crawl = caller.crawl(&body).await;
    let mut random = Random(SEED);
    let mut repeated = Vec::new();
    for number in 0..failure_count {
        inbox.wait_for(expected.len() * (number + 1) / (failure_count + 2)).await;
        let kinds = [Failure::KillSender, Failure::CrashReceiver, Failure::Kill];
        repeated.extend(scene.fail(kinds[number % kinds.len()], &mut random).await);
    }
    inbox.wait_for(expected.len()).await;
    let crawl = scene.workers[0].caller().wait_for_crawl_end(&crawl).await;
    assert_eq!(
        (&crawl["state"], &crawl["counts"]["images"]["processed"]),
        (&json!("completed"), &json!(image_count))
    );
    println!("{} faces, {} alerts: {:?}", image_count * FACES_PER_IMAGE, expected.len(), started.elapsed());
    let open = "select (select count(*) from watch_outbox)
                     + (select count(*) from alerts where delivery = 'pending')";
    wait_until("the last deliveries", async || scene.database.number(open).await == 0).await;

    // The alerts are those of the watched appearances, once each.
    let store = scene.database.store();
    let collection_id = store.collections().get(DEFAULT_COLLECTION).await.unwrap().id;
    let filter = AlertFilter { collection_id, ..AlertFilter::default() };
    let alerts: Vec<Alert> = store.alerts().list_after(&filter, 0, i64::MAX).await.unwrap();
    let faces = face_numbers(&scene.database, &numbers).await;
    assert_eq!(faces.len(), image_count * FACES_PER_IMAGE, "each face is stored once");
    let appearance = |alert: &Alert| {
        let list = watchlists.iter().position(|id| *id == alert.watchlist_id).unwrap();
        (list, faces[&alert.face_id])
    };
    let found: BTreeSet<Appearance> = alerts.iter().map(appearance).collect();
    assert_eq!((alerts.len(), found == expected), (expected.len(), true), "one alert per appearance");
    for alert in &alerts {
        let (_, face) = appearance(alert);
        assert_eq!(alert.subject_id, Some(people[person(face).unwrap()]));
        assert_eq!(alert.delivery, DeliveryState::Delivered);
    }

    // The receiver got each alert with its own id, in order. Repeated messages are equal.
    let messages = inbox.messages.borrow().clone();
    for (list, ids) in Inbox::deliveries(&messages).into_iter().enumerate() {
        let sent: Vec<Uuid> =
            alerts.iter().filter(|alert| appearance(alert).0 == list).map(|alert| alert.id).collect();
        assert!(ids == sent, "the watchlist {list} sent {} alerts in the order of their numbers", sent.len());
    }
    let by_id: HashMap<Uuid, &Alert> = alerts.iter().map(|alert| (alert.id, alert)).collect();
    let mut first: BTreeMap<Uuid, &Message> = BTreeMap::new();
    for message in &messages {
        let (sent, alert) = (message.alert(), by_id[&message.delivery]);
        assert_eq!(
            (&sent["id"], &sent["face_id"], &sent["sequence"]),
            (&json!(alert.id), &json!(alert.face_id), &json!(alert.sequence))
        );
        assert_eq!(first.entry(message.delivery).or_insert(message).body, message.body);
    }
    for held in &repeated {
        let times = messages.iter().filter(|message| message.delivery == held.delivery).count();
        assert!(times >= 2, "an alert is repeated if its sender did not get the response");
    }
    let mut delays: Vec<f64> = (first.values())
        .map(|message| {
            let stored_at = OffsetDateTime::parse(message.alert()["stored_at"].as_str().unwrap(), &Rfc3339);
            (message.at - stored_at.unwrap()).as_seconds_f64()
        })
        .collect();
    delays.sort_by(f64::total_cmp);
    let quantile = |share: f64| delays[((delays.len() - 1) as f64 * share) as usize];
    println!(
        "{} messages; from the storing of a face to the acceptance: median {:.3} s, p99 {:.3} s, longest {:.3} s",
        messages.len(),
        quantile(0.5),
        quantile(0.99),
        quantile(1.0)
    );
}

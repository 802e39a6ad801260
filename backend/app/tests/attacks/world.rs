//! Starts the attacked service with its tenants and their keys. Runs the normal load, the usual
//! requests of a tenant, and measures the latency of each response.
use crate::common::service::{Caller, Output, Service, TestFolder, client};
use crate::site;
use futures::{StreamExt, stream};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};
use testing::TestDatabase;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NormalData {
    pub(crate) faces: usize,
    pub(crate) images: usize,
    pub(crate) subjects: usize,
    pub(crate) collection: String,
}

/// A running service with two tenants: a normal one, who has crawled a site, and a hostile one.
pub(crate) struct World {
    pub(crate) service: Service,
    _database: TestDatabase,
    _folder: TestFolder,
    pub(crate) hostile_site: String,
    /// Id of a crawl of that site by the hostile tenant.
    pub(crate) hostile_crawl: String,
    /// Ids of the normal tenant's faces.
    pub(crate) faces: Vec<String>,
    /// URL of an image of the normal tenant.
    pub(crate) image_url: String,
    pub(crate) normal_key: String,
    /// The hostile tenant's keys, one for each scope.
    pub(crate) hostile_keys: Vec<(&'static str, String)>,
}

const HOSTILE_SCOPES: [&str; 8] = ["analyze", "read", "search", "crawl", "write", "erase", "admin", "keys"];

impl World {
    pub(crate) async fn start() -> Self {
        let database = TestDatabase::create().await;
        let folder = TestFolder::with_models();
        let mut command = folder.facecrawl_with(&database, &["up", "--port", "0"]);
        command.env("AUTH", "keys").env("LOG_LEVEL", "error");
        // These settings are for a machine with a gigabyte of free memory, which processes one
        // image of the largest size at a time.
        command.env("MAX_DECODED_MEGAPIXELS", "60").env("MAX_PENDING_BODY_MB", "64");
        let service = Service::start(&mut command);
        let new_key = |args: &[&str], scopes: &str| create_key(&folder, &database, args, scopes);
        let operator = Caller { base: service.base.clone(), key: new_key(&["--all"], "admin") };
        for name in ["normal", "hostile"] {
            operator.request(201, Method::POST, "/collections", Some(&json!({"name": name}))).await;
        }
        let normal_key = new_key(&["--collection", "normal"], "analyze,read,search,crawl,write");
        // This is the rate in docs/how-to/TENANTS.md. Only a rate limits a flood of complete
        // requests.
        let limited = ["--collection", "hostile", "--requests-per-minute", "600"];
        let hostile_key = |scope| (scope, new_key(&limited, scope));
        let hostile_keys = HOSTILE_SCOPES.map(hostile_key).to_vec();
        let normal_site = site::start_normal().await;
        let mut world = Self {
            service,
            _database: database,
            _folder: folder,
            hostile_site: site::start_hostile().await,
            hostile_crawl: String::new(),
            faces: Vec::new(),
            image_url: format!("{normal_site}/ada.jpg"),
            normal_key,
            hostile_keys,
        };
        world.crawl(&normal_site).await;
        let faces = world.caller(&world.normal_key).get("/faces?limit=100").await;
        world.faces = ids(&faces["faces"]);
        let seeds = json!({"seeds": [world.hostile_site], "delay_ms": 0, "max_pages": 200});
        let caller = world.caller(&world.hostile_key("crawl"));
        let crawl = caller.request(201, Method::POST, "/crawls", Some(&seeds)).await;
        world.hostile_crawl = crawl["id"].as_str().unwrap().to_owned();
        world
    }

    /// Crawls the normal tenant's site until the crawl ends.
    async fn crawl(&self, seed: &str) {
        let caller = self.caller(&self.normal_key);
        let path = caller.crawl(&json!({"seeds": [seed], "delay_ms": 0})).await;
        caller.until(&path, |crawl| crawl["state"] == "completed").await;
    }

    /// Returns host and port.
    pub(crate) fn address(&self) -> String {
        self.service.base.trim_start_matches("http://").to_owned()
    }

    pub(crate) fn caller(&self, key: &str) -> Caller {
        Caller { base: self.service.base.clone(), key: key.to_owned() }
    }

    pub(crate) fn hostile_key(&self, scope: &str) -> String {
        self.hostile_keys.iter().find(|(name, _)| *name == scope).unwrap().1.clone()
    }

    pub(crate) async fn normal_data(&self) -> NormalData {
        let caller = self.caller(&self.normal_key);
        let count = async |list: &str| {
            let rows: Value = caller.get(&format!("/{list}?limit=1000")).await;
            rows[list].as_array().unwrap().len()
        };
        let collections = caller.get("/collections").await;
        NormalData {
            faces: count("faces").await,
            images: count("images").await,
            subjects: count("subjects").await,
            collection: collections["collections"][0]["name"].as_str().unwrap().to_owned(),
        }
    }

    /// Stops the service and requires a clean exit.
    pub(crate) async fn stop(mut self, limit: Duration) {
        let live = self.caller(&self.normal_key).send(Method::GET, "/health/live", None).await;
        assert_eq!(live.status(), 200);
        let stopped = tokio::task::spawn_blocking(move || self.service.stop());
        tokio::time::timeout(limit, stopped)
            .await
            .expect("the service did not stop within the limit")
            .unwrap();
    }
}

/// Creates a key with the command line. `args` are the arguments that limit it.
pub(crate) fn create_key(
    folder: &TestFolder,
    database: &TestDatabase,
    args: &[&str],
    scopes: &str,
) -> String {
    let mut command = folder.facecrawl(&[&["keys", "create", "--scope", scopes], args].concat());
    command.env("DATABASE_URL", database.url()).env("AUTH", "keys");
    Output::run(&mut command).success().stdout.trim().to_owned()
}

fn ids(rows: &Value) -> Vec<String> {
    rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

const CALLERS: usize = 3;

/// Sends the requests of the normal tenant.
pub(crate) struct Load {
    client: Client,
    base: String,
    key: String,
    image: Vec<u8>,
    face: String,
}

pub(crate) struct Latencies {
    sorted: Vec<Duration>,
    /// Latencies of each kind of request, sorted.
    kinds: BTreeMap<&'static str, Vec<Duration>>,
    /// The requests that failed, with the reason.
    pub(crate) failures: Vec<String>,
}

impl Load {
    pub(crate) fn new(world: &World) -> Self {
        Self {
            client: client(),
            base: world.service.base.clone(),
            key: world.normal_key.clone(),
            image: testing::drawing("ada.jpg"),
            face: world.faces[0].clone(),
        }
    }

    /// Returns request number `number`: health, lists, search and detection alternate.
    fn request(&self, number: usize) -> (&'static str, RequestBuilder) {
        let url = |path: &str| format!("{}{path}", self.base);
        let (kind, request) = match number % 5 {
            0 => ("live", self.client.get(url("/health/live"))),
            1 => ("faces", self.client.get(url("/faces?limit=20"))),
            2 => {
                let image = self.client.post(url("/faces/detect")).body(self.image.clone());
                ("detect", image.header("content-type", "image/jpeg"))
            }
            3 => ("search", self.client.post(url("/faces/search")).json(&json!({"face_id": self.face}))),
            _ => ("face", self.client.get(url(&format!("/faces/{}", self.face)))),
        };
        (kind, request.bearer_auth(&self.key))
    }

    pub(crate) async fn run(&self, requests: usize) -> Latencies {
        let results = stream::iter(0..requests).map(|number| async move {
            let (kind, request) = self.request(number);
            let started = Instant::now();
            let failure = match request.send().await {
                Ok(response) if response.status() == 200 => match response.bytes().await {
                    Ok(_) => None,
                    Err(error) => Some(format!("{kind}: {error}")),
                },
                Ok(response) => {
                    let status = response.status();
                    Some(format!("{kind}: {status} {}", response.text().await.unwrap_or_default()))
                }
                Err(error) => Some(format!("{kind}: {error:?}")),
            };
            (kind, started.elapsed(), failure)
        });
        let results: Vec<_> = results.buffer_unordered(CALLERS).collect().await;
        let mut kinds: BTreeMap<_, Vec<Duration>> = BTreeMap::new();
        for (kind, elapsed, _) in &results {
            kinds.entry(*kind).or_default().push(*elapsed);
        }
        let mut sorted: Vec<Duration> = kinds.values().flatten().copied().collect();
        sorted.sort_unstable();
        kinds.values_mut().for_each(|kind| kind.sort_unstable());
        let failures = results.into_iter().filter_map(|(_, _, failure)| failure).collect();
        Latencies { sorted, kinds, failures }
    }
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}

impl Latencies {
    pub(crate) fn p99(&self) -> Duration {
        quantile(&self.sorted, 0.99)
    }
}

impl fmt::Display for Latencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |f: &mut fmt::Formatter<'_>, kind: &str, sorted: &[Duration]| {
            let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| quantile(sorted, share).as_millis());
            write!(f, "{} {kind}, p50 {p50} ms, p95 {p95} ms, p99 {p99} ms", sorted.len())
        };
        show(f, "requests", &self.sorted)?;
        self.kinds.iter().try_for_each(|(kind, sorted)| {
            f.write_str("\n        ")?;
            show(f, kind, sorted)
        })
    }
}

//! Starts the attacked service with its tenants and their keys.
use crate::common::process::{Finished, TestFolder};
use crate::common::service::{Caller, Service};
use crate::site;
use reqwest::Method;
use rustix::process::Signal;
use serde_json::{Value, json};
use std::time::Duration;
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
    service: Service,
    _database: TestDatabase,
    _place: TestFolder,
    pub(crate) hostile_site: String,
    /// Id of a crawl of that site by the hostile tenant.
    pub(crate) hostile_crawl: String,
    /// Ids of the normal tenant's faces.
    pub(crate) faces: Vec<String>,
    /// URL of an image of the normal tenant.
    pub(crate) image_url: String,
    pub(crate) normal: String,
    /// The hostile tenant's keys, one for each scope.
    pub(crate) hostile: Vec<(&'static str, String)>,
}

const HOSTILE_SCOPES: [&str; 8] = ["analyze", "read", "search", "crawl", "write", "erase", "admin", "keys"];

impl World {
    pub(crate) async fn start() -> Self {
        let database = TestDatabase::create().await;
        let place = TestFolder::new();
        place.run(&["models", "fetch"]).expect(0);
        let mut command = place.facecrawl(&["up", "--port", "0"]);
        command.env("DATABASE_URL", database.url()).env("AUTH", "keys").env("LOG_LEVEL", "error");
        command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_DELAY_MS", "0");
        // These settings are for a machine with a gigabyte of free memory, which processes one
        // image of the largest size at a time.
        command.env("MAX_DECODED_MEGAPIXELS", "60").env("MAX_PENDING_BODY_MB", "64");
        let service = Service::start(&mut command);
        let make = |of: &[&str], scopes: &str| key(&place, &database, of, scopes);
        let operator = Caller { base: service.base.clone(), key: make(&["--all"], "admin") };
        for name in ["normal", "hostile"] {
            operator.ask(201, Method::POST, "/collections", Some(&json!({"name": name}))).await;
        }
        let normal = make(&["--collection", "normal"], "analyze,read,search,crawl,write");
        // This is the rate in docs/how-to/TENANTS.md. Only a rate limits a flood of complete
        // requests.
        let limited = ["--collection", "hostile", "--requests-per-minute", "600"];
        let hostile_key = |scope| (scope, make(&limited, scope));
        let hostile = HOSTILE_SCOPES.map(hostile_key).to_vec();
        let good = site::good().await;
        let mut world = Self {
            service,
            _database: database,
            _place: place,
            hostile_site: site::hostile().await,
            hostile_crawl: String::new(),
            faces: Vec::new(),
            image_url: format!("{good}/ada.jpg"),
            normal,
            hostile,
        };
        world.crawl(&good).await;
        let faces = world.caller(&world.normal).get("/faces?limit=100").await;
        world.faces = ids(&faces["faces"]);
        let seeds = json!({"seeds": [world.hostile_site], "delay_ms": 0, "max_pages": 200});
        let caller = world.caller(&world.hostile_key("crawl"));
        let crawl = caller.ask(201, Method::POST, "/crawls", Some(&seeds)).await;
        world.hostile_crawl = crawl["id"].as_str().unwrap().to_owned();
        world
    }

    /// Crawls the normal tenant's site until the crawl ends.
    async fn crawl(&self, seed: &str) {
        let caller = self.caller(&self.normal);
        let body = json!({"seeds": [seed], "delay_ms": 0});
        let created = caller.ask(201, Method::POST, "/crawls", Some(&body)).await;
        let path = format!("/crawls/{}", created["id"].as_str().unwrap());
        caller.until(&path, |crawl| crawl["state"] == "completed").await;
    }

    pub(crate) fn base(&self) -> &str {
        &self.service.base
    }

    /// Returns host and port.
    pub(crate) fn address(&self) -> String {
        self.service.base.trim_start_matches("http://").to_owned()
    }

    pub(crate) fn caller(&self, key: &str) -> Caller {
        Caller { base: self.service.base.clone(), key: key.to_owned() }
    }

    pub(crate) fn hostile_key(&self, scope: &str) -> String {
        self.hostile.iter().find(|(name, _)| *name == scope).unwrap().1.clone()
    }

    pub(crate) async fn normal_data(&self) -> NormalData {
        let caller = self.caller(&self.normal);
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

    /// Returns the peak of the process's memory in bytes.
    pub(crate) fn peak_memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.service.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Stops the service and requires a clean exit.
    pub(crate) async fn stop(mut self, limit: Duration) {
        let live = self.caller(&self.normal).send(Method::GET, "/health/live", None).await;
        assert_eq!(live.status(), 200);
        self.service.signal(Signal::TERM);
        let ended = tokio::task::spawn_blocking(move || self.service.ended());
        let (status, log) = tokio::time::timeout(limit, ended).await.expect("it stops").unwrap();
        assert_eq!(status, Some(0), "{log}");
    }
}

/// Creates a key with the command line. `of` are the arguments that limit it.
pub(crate) fn key(place: &TestFolder, database: &TestDatabase, of: &[&str], scopes: &str) -> String {
    let mut command = place.facecrawl(&[&["keys", "create", "--scope", scopes], of].concat());
    command.env("DATABASE_URL", database.url()).env("AUTH", "keys");
    Finished::of(&mut command).expect(0).stdout.trim().to_owned()
}

fn ids(rows: &Value) -> Vec<String> {
    rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap().to_owned()).collect()
}

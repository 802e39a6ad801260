//! Starts the attacked service with its tenants, kills it and starts it again.
use super::usage::{Peaks, Usage};
use crate::common::process::TestFolder;
use crate::common::service::{Service, client};
use crate::world::key;
use app::config::{Sources, cores, load};
use reqwest::{Client, Method, RequestBuilder};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::videos::WaitingVideos;
use testing::{MAX_WAIT, TestDatabase};

/// Name of the collection of the hostile tenant.
pub(crate) const HOSTILE: &str = "hostile";
/// Maximum size of the files of a collection that wait, in MiB.
pub(crate) const MAX_WAITING_VIDEO_MB: i64 = 320;
/// Maximum number of videos of a collection that wait.
pub(crate) const MAX_WAITING_VIDEOS: i64 = 900;
/// Number of uploads of one caller at the same time.
const UPLOADS: u64 = 4;

/// Returns the settings of a service on a small machine. The limits of videos are so low that the
/// attackers reach them.
fn settings() -> [(String, String); 9] {
    [
        ("AUTH", "keys"),
        ("LOG_LEVEL", "error"),
        ("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8"),
        ("MAX_DECODED_MEGAPIXELS", "60"),
        ("MAX_PENDING_BODY_MB", "64"),
        ("VIDEO_MEMORY_MB", "256"),
        ("MAX_VIDEO_MB", "128"),
        ("MAX_WAITING_VIDEO_MB", &MAX_WAITING_VIDEO_MB.to_string()),
        ("MAX_WAITING_VIDEOS", &MAX_WAITING_VIDEOS.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
}

/// Pause before a request is repeated while the service does not run.
const RETRY: Duration = Duration::from_millis(100);

/// A caller with a key. It survives restarts of the service.
#[derive(Clone)]
pub(crate) struct Tenant {
    /// The base address, which changes when the service is started again.
    base: Arc<Mutex<String>>,
    pub(crate) key: String,
    client: Client,
}

/// A video that was accepted.
pub(crate) struct Accepted {
    pub(crate) id: String,
    /// Number of requests that were sent for it.
    pub(crate) requests: usize,
}

impl Tenant {
    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("{}{path}", self.base.lock().unwrap());
        self.client.request(method, url).bearer_auth(&self.key)
    }

    /// Returns host and port.
    pub(crate) fn address(&self) -> String {
        self.base.lock().unwrap().trim_start_matches("http://").to_owned()
    }

    /// Sends a GET request, and requires a response of JSON with status 200.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let response = self.request(Method::GET, path).send().await.unwrap();
        let (status, text) = (response.status().as_u16(), response.text().await.unwrap());
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Sends a film until it is accepted. The service may be killed meanwhile.
    pub(crate) async fn send(&self, film: Vec<u8>, query: &str) -> Accepted {
        let deadline = Instant::now() + MAX_WAIT;
        for requests in 1.. {
            assert!(Instant::now() < deadline, "the film is not accepted");
            let request = self.request(Method::POST, &format!("/videos?{query}"));
            let sent = request.header("content-type", "video/mp4").body(film.clone()).send().await;
            let Ok(response) = sent else {
                tokio::time::sleep(RETRY).await;
                continue;
            };
            let status = response.status().as_u16();
            let Ok(text) = response.text().await else { continue };
            // It may have been accepted by a request whose response was lost.
            assert!(status == 202 || (status == 200 && requests > 1), "{status}: {text}");
            let video: Value = serde_json::from_str(&text).unwrap();
            return Accepted { id: video["id"].as_str().unwrap().to_owned(), requests };
        }
        unreachable!()
    }

    /// Waits until `right` returns `true` for a video, and returns it.
    pub(crate) async fn until(&self, id: &str, right: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + MAX_WAIT;
        loop {
            let video = self.get(&format!("/videos/{id}")).await;
            if right(&video) {
                return video;
            }
            assert!(Instant::now() < deadline, "{video:#}");
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Waits until a video was read, and returns it.
    pub(crate) async fn until_read(&self, id: &str) -> Value {
        let video = self.until(id, |video| video["finished_at"].is_string()).await;
        assert_eq!((&video["state"], &video["reason"]), (&json!("completed"), &Value::Null), "{video:#}");
        video
    }
}

pub(crate) struct World {
    service: Service,
    database: TestDatabase,
    place: TestFolder,
    base: Arc<Mutex<String>>,
    usage: Usage,
    pub(crate) normal: Tenant,
    pub(crate) hostile: Tenant,
}

impl World {
    pub(crate) async fn start() -> Self {
        let database = TestDatabase::create().await;
        let place = TestFolder::new();
        place.run(&["models", "fetch"]).expect(0);
        let service = Service::start(&mut command(&place, &database));
        let base = Arc::new(Mutex::new(service.base.clone()));
        let tenant = |key| Tenant { base: base.clone(), key, client: client() };
        let operator = tenant(key(&place, &database, &["--all"], "admin"));
        for name in ["normal", HOSTILE] {
            let request = operator.request(Method::POST, "/collections").json(&json!({"name": name}));
            assert_eq!(request.send().await.unwrap().status(), 201);
        }
        let scopes = "analyze,read,search,crawl,write,erase";
        let [normal, hostile] =
            ["normal", HOSTILE].map(|name| tenant(key(&place, &database, &["--collection", name], scopes)));
        let usage = Usage::of(service.child.id(), data(&place));
        Self { service, database, place, base, usage, normal, hostile }
    }

    /// Kills the service and starts it again. Returns the number of files that were being written
    /// and that remain incomplete.
    pub(crate) async fn kill_and_start(&mut self) -> usize {
        self.service.signal(Signal::KILL);
        tokio::task::block_in_place(|| self.service.ended());
        let incomplete = self.incomplete_files().len();
        // The leases of the dead worker need not run out.
        self.database.execute("update jobs set lease_until = now() where state = 'running'").await;
        let start = || Service::start(&mut command(&self.place, &self.database));
        self.service = tokio::task::block_in_place(start);
        self.usage.follow(self.service.child.id());
        self.base.lock().unwrap().clone_from(&self.service.base);
        incomplete
    }

    /// Returns the blobs that are not yet complete, or that a killed process left incomplete.
    pub(crate) fn incomplete_files(&self) -> Vec<PathBuf> {
        let files = testing::files_below(&data(&self.place).join("blobs"));
        files.into_iter().filter(|file| file.to_string_lossy().contains('#')).collect()
    }

    /// Returns the number of uploaded and fetched files that no video refers to.
    pub(crate) async fn unused_files(&self) -> u64 {
        let files = testing::files_below(&data(&self.place).join("blobs/videos"));
        let used: Vec<String> =
            sqlx::query_scalar("select source_key from videos where source_key is not null")
                .fetch_all(self.database.pool())
                .await
                .unwrap();
        files.iter().filter(|file| !used.iter().any(|key| file.ends_with(key))).count() as u64
    }

    /// Returns what waits in a collection.
    pub(crate) async fn waiting(&self, collection: &str) -> WaitingVideos {
        let store = self.database.store();
        let collection = store.collection(collection).await.unwrap().id;
        let mut tx = store.begin().await.unwrap();
        store.waiting_in_collection(tx.conn(), collection).await.unwrap()
    }

    pub(crate) async fn number(&self, query: &'static str) -> i64 {
        self.database.number(query).await
    }

    pub(crate) fn peaks(&self) -> Peaks {
        self.usage.peaks()
    }

    /// Stops the service and requires that it exits cleanly and leaves no decoder and no copy of a
    /// file.
    pub(crate) async fn stop(&mut self) {
        self.service.signal(Signal::TERM);
        let (status, log) = tokio::task::block_in_place(|| self.service.ended());
        assert_eq!(status, Some(0), "{log}");
        assert!(!log.contains("panicked"), "{log}");
        assert_eq!(self.usage.running_decoders(), Vec::<u32>::new(), "decoders that still run");
        assert_eq!(testing::files_below(&data(&self.place).join("spool")), Vec::<PathBuf>::new());
    }
}

fn command(place: &TestFolder, database: &TestDatabase) -> Command {
    let mut command = place.facecrawl(&["up", "--port", "0"]);
    command.envs(settings()).env("DATABASE_URL", database.url()).env("FFMPEG", testing::ffmpeg());
    command
}

fn data(place: &TestFolder) -> PathBuf {
    place.path().join("data")
}

/// Returns the sum of the memory limits that the program computes from its settings, in bytes.
pub(crate) fn memory_limit() -> u64 {
    let nowhere = Path::new("/nonexistent");
    let sources = Sources {
        file: nowhere.join("facecrawl.toml"),
        file_required: false,
        dotenv: nowhere.join(".env"),
        environment: settings().to_vec(),
        flags: Vec::new(),
    };
    let settings = load(&sources).unwrap_or_else(|errors| panic!("{errors}")).settings;
    settings.memory_limits(cores()).iter().map(|limit| limit.bytes).sum()
}

/// Returns the maximum size of the files of one collection on the disk, in bytes: those that wait,
/// four uploads of one caller, each as a copy and as a blob, and the copy of the file that is read.
pub(crate) fn disk_limit(file: u64) -> u64 {
    (MAX_WAITING_VIDEO_MB.unsigned_abs() << 20) + (UPLOADS * 2 + 1) * file
}

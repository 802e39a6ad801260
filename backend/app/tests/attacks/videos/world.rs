//! Starts the attacked service with its tenants, kills it and starts it again. Samples the memory
//! and the disk space that the service and its decoders use.
use crate::common::service::{
    Caller, Service, TestFolder, client, descendants, expire_leases, peak_memory, process_field,
};
use crate::world::create_key;
use app::config::{Sources, cores, load};
use reqwest::{Client, Method, RequestBuilder};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::videos::WaitingVideos;
use testing::{MAX_WAIT, TestDatabase};

/// Name of the collection of the hostile tenant.
pub(crate) const HOSTILE: &str = "hostile";
/// Maximum size of the waiting files of a collection, in MiB.
pub(crate) const MAX_WAITING_VIDEO_MB: i64 = 320;
/// Maximum number of waiting videos of a collection.
pub(crate) const MAX_WAITING_VIDEOS: i64 = 900;
/// Maximum number of concurrent uploads of one caller.
const CONCURRENT_UPLOADS: u64 = 4;

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
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A caller with a key. It can be used after a restart of the service.
#[derive(Clone)]
pub(crate) struct Tenant {
    /// The base address, which changes when the service is started again.
    base: Arc<Mutex<String>>,
    pub(crate) key: String,
    client: Client,
}

pub(crate) struct AcceptedVideo {
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

    fn caller(&self) -> Caller {
        Caller { base: self.base.lock().unwrap().clone(), key: self.key.clone() }
    }

    /// Sends a GET request, and requires a response of JSON with status 200.
    pub(crate) async fn get(&self, path: &str) -> Value {
        self.caller().get(path).await
    }

    /// Sends a film until it is accepted. The service may be killed meanwhile.
    pub(crate) async fn send(&self, film: Vec<u8>, query: &str) -> AcceptedVideo {
        let deadline = Instant::now() + MAX_WAIT;
        for requests in 1.. {
            assert!(Instant::now() < deadline, "the film is not accepted");
            let request = self.request(Method::POST, &format!("/videos?{query}"));
            let sent = request.header("content-type", "video/mp4").body(film.clone()).send().await;
            let Ok(response) = sent else {
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            };
            let status = response.status().as_u16();
            let Ok(text) = response.text().await else { continue };
            // An earlier request whose response was lost may have added the video.
            assert!(status == 202 || (status == 200 && requests > 1), "{status}: {text}");
            let video: Value = serde_json::from_str(&text).unwrap();
            return AcceptedVideo { id: video["id"].as_str().unwrap().to_owned(), requests };
        }
        unreachable!()
    }

    /// Waits until `is_expected` returns `true` for a video, and returns it. The service must not
    /// be killed meanwhile.
    pub(crate) async fn wait_for_video(&self, id: &str, is_expected: impl Fn(&Value) -> bool) -> Value {
        self.caller().until(&format!("/videos/{id}"), is_expected).await
    }

    pub(crate) async fn wait_until_read(&self, id: &str) -> Value {
        let video = self.wait_for_video(id, |video| video["finished_at"].is_string()).await;
        assert_eq!((&video["state"], &video["reason"]), (&json!("completed"), &Value::Null), "{video:#}");
        video
    }
}

pub(crate) struct World {
    service: Service,
    pub(crate) database: TestDatabase,
    folder: TestFolder,
    base: Arc<Mutex<String>>,
    pub(crate) usage: Usage,
    pub(crate) normal: Tenant,
    pub(crate) hostile: Tenant,
}

impl World {
    pub(crate) async fn start() -> Self {
        let database = TestDatabase::create().await;
        let folder = TestFolder::with_models();
        let service = Service::start(&mut service_command(&folder, &database));
        let base = Arc::new(Mutex::new(service.base.clone()));
        let tenant = |key| Tenant { base: base.clone(), key, client: client() };
        let operator = tenant(create_key(&folder, &database, &["--all"], "admin"));
        for name in ["normal", HOSTILE] {
            let request = operator.request(Method::POST, "/collections").json(&json!({"name": name}));
            assert_eq!(request.send().await.unwrap().status(), 201);
        }
        let scopes = "analyze,read,search,crawl,write,erase";
        let [normal, hostile] = ["normal", HOSTILE]
            .map(|name| tenant(create_key(&folder, &database, &["--collection", name], scopes)));
        let usage = Usage::start(service.child.id(), data_folder(&folder));
        Self { service, database, folder, base, usage, normal, hostile }
    }

    /// Kills the service and starts it again. Returns the number of files that were being written
    /// and that remain incomplete.
    pub(crate) async fn kill_and_start(&mut self) -> usize {
        tokio::task::block_in_place(|| self.service.kill());
        let incomplete = self.incomplete_files().len();
        // Otherwise the test would wait until the leases of the killed worker expire.
        expire_leases(&self.database).await;
        let start = || Service::start(&mut service_command(&self.folder, &self.database));
        self.service = tokio::task::block_in_place(start);
        self.usage.follow(self.service.child.id());
        self.base.lock().unwrap().clone_from(&self.service.base);
        incomplete
    }

    /// Returns the blobs that are not yet complete, or that a killed process left incomplete.
    pub(crate) fn incomplete_files(&self) -> Vec<PathBuf> {
        let files = testing::files_below(&data_folder(&self.folder).join("blobs"));
        files.into_iter().filter(|file| file.to_string_lossy().contains('#')).collect()
    }

    /// Returns the number of uploaded and fetched files that no video refers to.
    pub(crate) async fn unused_files(&self) -> u64 {
        let files = testing::files_below(&data_folder(&self.folder).join("blobs/videos"));
        let used: Vec<String> =
            sqlx::query_scalar("select source_key from videos where source_key is not null")
                .fetch_all(self.database.pool())
                .await
                .unwrap();
        files.iter().filter(|file| !used.iter().any(|key| file.ends_with(key))).count() as u64
    }

    pub(crate) async fn waiting_videos(&self, collection: &str) -> WaitingVideos {
        let store = self.database.store();
        let collection = store.collections().get(collection).await.unwrap().id;
        let mut tx = store.begin().await.unwrap();
        store.videos().waiting_in_collection(tx.conn(), collection).await.unwrap()
    }

    /// Stops the service and requires that it exits cleanly and leaves no decoder and no copy of a
    /// file.
    pub(crate) async fn stop(&mut self) {
        let log = tokio::task::block_in_place(|| self.service.stop());
        assert!(!log.contains("panicked"), "{log}");
        assert_eq!(self.usage.running_decoders(), Vec::<u32>::new(), "decoders that still run");
        assert_eq!(testing::files_below(&data_folder(&self.folder).join("spool")), Vec::<PathBuf>::new());
    }
}

fn service_command(folder: &TestFolder, database: &TestDatabase) -> Command {
    let mut command = folder.facecrawl(&["up", "--port", "0"]);
    command.envs(settings()).env("DATABASE_URL", database.url()).env("FFMPEG", testing::ffmpeg());
    command
}

fn data_folder(folder: &TestFolder) -> PathBuf {
    folder.path().join("data")
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
        packages: None,
    };
    let settings = load(&sources).unwrap_or_else(|errors| panic!("{errors}")).settings;
    settings.memory_limits(cores()).iter().map(|limit| limit.bytes).sum()
}

/// Returns the maximum size of the files of one collection on the disk, in bytes. These are the
/// waiting files, four uploads of one caller (each as a copy and as a blob), and the copy of the
/// file that is read.
pub(crate) fn disk_limit(file: u64) -> u64 {
    (MAX_WAITING_VIDEO_MB.unsigned_abs() << 20) + (CONCURRENT_UPLOADS * 2 + 1) * file
}

const SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
/// Size in bytes of a block in the metadata of a file.
const BLOCK_BYTES: u64 = 512;

/// The largest samples, in bytes.
#[derive(Clone, Default)]
pub(crate) struct Peaks {
    /// The service and its decoders together: the sum of the peaks of the processes that ran at the
    /// same time.
    pub(crate) memory: u64,
    pub(crate) memory_of_service: u64,
    /// Files in the data folder, and files without a name.
    pub(crate) disk: u64,
    pub(crate) unnamed: u64,
    /// Number of decoders that ran at the same time.
    pub(crate) decoders: usize,
    /// All decoders that were seen: process id and start time.
    seen: BTreeMap<u32, String>,
}

/// Samples memory and disk space until it is dropped.
pub(crate) struct Usage {
    shared: Arc<Shared>,
    sampler: Option<JoinHandle<()>>,
}

struct Shared {
    data: PathBuf,
    /// Name of the program that decodes.
    decoder: String,
    process: AtomicU32,
    ended: AtomicBool,
    peaks: Mutex<Peaks>,
}

impl Usage {
    /// Starts to take samples. `data` is the data folder of the service.
    pub(crate) fn start(process: u32, data: PathBuf) -> Self {
        let decoder = testing::ffmpeg().file_name().unwrap().to_str().unwrap().to_owned();
        let (process, ended) = (AtomicU32::new(process), AtomicBool::new(false));
        let shared = Arc::new(Shared { data, decoder, process, ended, peaks: Mutex::default() });
        let sampled = shared.clone();
        let sampler = std::thread::spawn(move || {
            while !sampled.ended.load(Ordering::SeqCst) {
                sampled.sample();
                std::thread::sleep(SAMPLE_INTERVAL);
            }
        });
        Self { shared, sampler: Some(sampler) }
    }

    /// Continues with another process of the service.
    pub(crate) fn follow(&self, process: u32) {
        self.shared.process.store(process, Ordering::SeqCst);
    }

    pub(crate) fn peaks(&self) -> Peaks {
        self.shared.peaks.lock().unwrap().clone()
    }

    pub(crate) fn running_decoders(&self) -> Vec<u32> {
        let seen = self.peaks().seen;
        let is_running = |(process, started): &(u32, String)| {
            process_name(*process).as_ref() == Some(&self.shared.decoder)
                && start_time(*process).as_ref() == Some(started)
        };
        seen.into_iter().filter(is_running).map(|(process, _)| process).collect()
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        let has_failed = self.sampler.take().is_some_and(|sampler| sampler.join().is_err());
        assert!(!has_failed || std::thread::panicking(), "the sampler failed");
    }
}

impl Shared {
    fn sample(&self) {
        let service = self.process.load(Ordering::SeqCst);
        // Between its start and the start of ffmpeg, a child has the memory of its parent.
        let decoders: Vec<u32> = descendants(service)
            .into_iter()
            .filter(|process| process_name(*process).as_ref() == Some(&self.decoder))
            .collect();
        let service_memory = peak_memory(service).unwrap_or(0);
        let memory =
            service_memory + decoders.iter().filter_map(|process| peak_memory(*process)).sum::<u64>();
        let unnamed = unnamed_files_size(service, &self.data);
        let files = testing::files_below(&self.data);
        let named: u64 =
            files.iter().filter_map(|file| std::fs::metadata(file).ok()).map(|file| disk_usage(&file)).sum();
        let mut peaks = self.peaks.lock().unwrap();
        peaks.memory = peaks.memory.max(memory);
        peaks.memory_of_service = peaks.memory_of_service.max(service_memory);
        peaks.disk = peaks.disk.max(named + unnamed);
        peaks.unnamed = peaks.unnamed.max(unnamed);
        peaks.decoders = peaks.decoders.max(decoders.len());
        peaks.seen.extend(decoders.into_iter().filter_map(|process| Some((process, start_time(process)?))));
    }
}

fn process_name(process: u32) -> Option<String> {
    process_field(process, "Name:")
}

/// Returns the time at which a process started, in ticks since the start of the machine.
fn start_time(process: u32) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name of the program is in parentheses and may contain spaces.
    stat.rsplit_once(')')?.1.split_whitespace().nth(19).map(str::to_owned)
}

/// Returns the size of the files without a name that a process has open below a folder.
fn unnamed_files_size(process: u32, folder: &Path) -> u64 {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let files =
        open.filter(|file| std::fs::read_link(file.path()).is_ok_and(|path| path.starts_with(folder)));
    let files = files.filter_map(|file| std::fs::metadata(file.path()).ok()).filter(|file| file.nlink() == 0);
    // A file can be open several times.
    files
        .map(|file| (file.dev(), file.ino(), disk_usage(&file)))
        .collect::<BTreeSet<_>>()
        .iter()
        .map(|file| file.2)
        .sum()
}

/// Returns the space that a file uses on the disk.
fn disk_usage(file: &Metadata) -> u64 {
    file.blocks() * BLOCK_BYTES
}

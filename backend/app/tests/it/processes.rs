//! Tests several processes on one database. They store every image once despite failures of
//! processes and of the database. Together they keep the crawl delay of a site.
#![cfg(target_os = "linux")]

use crate::common::service::{Service, TestFolder, expire_leases, get};
use crate::common::sites::{serve, sha256};
use axum::Router;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get as route;
use domain::ImageState;
use embedded_postgres::Cluster;
use queue::{JobState, Queue};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::Store;
use testing::database::programs;
use testing::embeddings::Random;
use testing::{MAX_WAIT, TestDatabase};
use tokio::sync::watch;

/// Number of images of the crawl; every `PORTRAIT_INTERVAL`th contains a face.
const IMAGES: usize = 2_000;
const PORTRAIT_INTERVAL: usize = 25;
const PAGES: usize = 20;
const WORKERS: usize = 4;
const KILLS: usize = 8;
/// Seed of the times and the targets of the failures.
const SEED: u64 = 0x5eed_c4a0;
/// Time limit. It is far longer than the slowest machine needs.
const TIMEOUT: Duration = Duration::from_secs(1200);

enum Failure {
    Kill,
    CrashDatabase,
    Stop,
}

/// Returns the failures in order, each with the number of stored images after which it happens.
fn schedule(random: &mut Random) -> Vec<(usize, Failure)> {
    let mut failures: Vec<(usize, Failure)> =
        (0..KILLS).map(|_| (IMAGES / 20 + random.below(IMAGES * 8 / 10), Failure::Kill)).collect();
    failures.push((IMAGES / 4, Failure::Stop));
    failures.push((IMAGES / 2, Failure::CrashDatabase));
    failures.sort_by_key(|(image_count, _)| *image_count);
    failures
}

struct Site {
    portrait: Vec<u8>,
    /// Images are sent only while the gate is open.
    gate: watch::Sender<bool>,
    /// User agents of the requests that wait at the gate.
    waiting: watch::Sender<Vec<String>>,
}

impl Site {
    /// Returns an image that differs from all others: a photograph with extra bytes after the end
    /// of the JPEG, or 32x32 pixels.
    fn image(&self, number: usize) -> Vec<u8> {
        if number.is_multiple_of(PORTRAIT_INTERVAL) {
            return [&self.portrait[..], format!("\n{number}").as_bytes()].concat();
        }
        const SIDE: u32 = 32;
        let mut bmp = b"BM".to_vec();
        for field in [54 + SIDE * SIDE * 3, 0, 54, 40, SIDE, SIDE, 24 << 16 | 1, 0, 0, 0, 0, 0, 0] {
            bmp.extend(field.to_le_bytes());
        }
        let pixels = (0..SIDE * SIDE).map(|at| number as u32 ^ (at % SIDE) << 2 ^ (at / SIDE) << 10);
        bmp.extend(pixels.flat_map(|pixel| pixel.to_le_bytes().into_iter().take(3)));
        bmp
    }
}

async fn index() -> Html<String> {
    Html((0..PAGES).map(|page| format!("<a href=/page/{page}>{page}</a>")).collect())
}

async fn page(Path(page): Path<usize>) -> Html<String> {
    Html((page..IMAGES).step_by(PAGES).map(|number| format!("<img src=/image/{number}>")).collect())
}

async fn image(
    State(site): State<Arc<Site>>,
    Path(number): Path<usize>,
    headers: HeaderMap,
) -> impl IntoResponse {
    let mut gate = site.gate.subscribe();
    if !*gate.borrow_and_update() {
        let agent = headers[header::USER_AGENT].to_str().unwrap().to_owned();
        site.waiting.send_modify(|waiting| waiting.push(agent));
        let _ = gate.wait_for(|open| *open).await;
    }
    site.image(number)
}

/// Repeats `query` until it returns a value. It returns `None` if the database is unavailable.
async fn wait_for_value<T, F: Future<Output = Option<T>>>(event: &str, mut query: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        if let Some(value) = query().await {
            return value;
        }
        assert!(Instant::now() < deadline, "timed out waiting {event}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Counts the results that a worker discarded because its lease had expired. A job has one of two
/// outcomes, depending on whether its last call used a connection from before the database's crash.
async fn late_results(base: &str) -> f64 {
    let (_, text) = get(&format!("{base}/metrics")).await;
    let is_late = |line: &&str| {
        line.starts_with("facecrawl_jobs_total")
            && (line.contains("outcome=\"stale\"") || line.contains("outcome=\"unsettled\""))
    };
    let values = text.lines().filter(is_late).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<f64>().unwrap()).sum()
}

/// Returns all rows of a paginated list.
async fn list_all(base: &str, list: &str) -> Vec<Value> {
    let (mut rows, mut cursor) = (Vec::new(), String::new());
    loop {
        let (_, text) = get(&format!("{base}/{list}?limit=1000{cursor}")).await;
        let page: Value = serde_json::from_str(&text).unwrap();
        rows.extend(page[list].as_array().unwrap().iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn failures_leave_every_image_stored_exactly_once() {
    let portrait = testing::drawing("cora.jpg");
    let site = Arc::new(Site { portrait, gate: watch::Sender::new(true), waiting: watch::Sender::default() });
    let router = Router::new()
        .route("/", route(index))
        .route("/page/{page}", route(page))
        .route("/image/{number}", route(image))
        .with_state(site.clone());
    let origin = serve(router).await;

    let folder = TestFolder::with_models();
    // The machine continues to run when the server crashes, so data need not reach the disk.
    let server = embedded_postgres::Config::new(programs(), folder.path().join("postgres"))
        .with_setting("fsync=off")
        .with_setting("max_connections=200");
    let mut cluster = Cluster::start(&server).await.unwrap();
    let url = cluster.default_url();
    let agent = |worker: usize| format!("facecrawl/worker-{worker}");
    let start = |worker: usize| {
        let mut command = folder.facecrawl(&["up", "--port", "0"]);
        command.env("DATABASE_URL", &url).env("LOG_LEVEL", "error");
        command.env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8").env("CRAWL_USER_AGENT", agent(worker));
        command.env("DETECTION_SIZE", "128").env("DETECTION_PASSES", "single").env("WORKERS", "8");
        Service::start(&mut command)
    };
    let mut workers: Vec<Service> = (0..WORKERS).map(start).collect();
    let body = json!({"seeds": [origin], "max_images": 2 * IMAGES, "delay_ms": 0, "dedupe": "exact"});
    let path = workers[0].caller().crawl(&body).await;
    let id: uuid::Uuid = path.rsplit('/').next().unwrap().parse().unwrap();

    let config = store::Config { url: url.clone(), max_connections: 4, ..store::Config::default() };
    let store = Store::connect(&config).await.unwrap();
    let jobs = Queue::new(store.pool().clone(), queue::Config::default());
    let mut random = Random(SEED);
    let (mut stopped, mut waiting_count) = (None, 0);
    for (image_count, failure) in schedule(&mut random) {
        wait_for_value("for images to be stored", async || {
            let progress = store.crawls().progress(id).await.ok()?;
            (*progress.images.get(&ImageState::Processed)? as usize >= image_count).then_some(())
        })
        .await;
        match failure {
            Failure::Kill => {
                // The stopped worker is excluded, because it must continue later.
                let running: Vec<usize> = (0..WORKERS).filter(|worker| Some(*worker) != stopped).collect();
                let worker = running[random.below(running.len())];
                workers[worker].kill();
                workers[worker] = start(worker);
            }
            Failure::CrashDatabase => {
                // The server stops immediately, without a checkpoint. The next start recovers from
                // the write-ahead log.
                let server_pid = Pid::from_raw(cluster.pid().unwrap() as i32).unwrap();
                kill_process(server_pid, Signal::QUIT).unwrap();
                cluster.wait_for_exit().await;
                drop(cluster);
                cluster = Cluster::start(&server).await.unwrap();
            }
            Failure::Stop => {
                let worker = random.below(WORKERS);
                site.gate.send_replace(false);
                let is_of_worker = |name: &&String| **name == agent(worker);
                let mut waiting = site.waiting.subscribe();
                waiting.wait_for(|waiting| waiting.iter().any(|name| is_of_worker(&name))).await.unwrap();
                workers[worker].signal(Signal::STOP);
                // The responses for which it waits arrive after its leases have expired.
                waiting_count = site.waiting.borrow().iter().filter(is_of_worker).count();
                stopped = Some(worker);
                site.gate.send_replace(true);
            }
        }
    }

    let stopped_worker = &workers[stopped.unwrap()];
    let suffix = format!("-{}", stopped_worker.child.id());
    wait_for_value("for the stopped worker's leases to run out", async || {
        let running = jobs.jobs().list(Some(JobState::Running), None, None, None, 1000).await.ok()?;
        let is_of_worker =
            |worker: &Option<String>| worker.as_ref().is_some_and(|name| name.ends_with(&suffix));
        (!running.iter().any(|job| is_of_worker(&job.locked_by))).then_some(())
    })
    .await;
    stopped_worker.signal(Signal::CONT);
    assert!(waiting_count > 0, "the stopped worker held no job");
    wait_for_value("for the late results to be discarded", async || {
        (late_results(&stopped_worker.base).await >= waiting_count as f64).then_some(())
    })
    .await;

    let crawl = format!("{}{path}", workers[0].base);
    let crawl = wait_for_value("for the crawl to end", async || {
        let crawl_state: Value = serde_json::from_str(&get(&crawl).await.1).ok()?;
        (crawl_state["state"] != "running").then_some(crawl_state)
    })
    .await;
    let portraits = IMAGES.div_ceil(PORTRAIT_INTERVAL);
    assert_eq!(crawl["state"], "completed", "{crawl:#}");
    let ended = |kind: &str, state: &str| crawl["counts"][kind][state].as_u64().map(|count| count as usize);
    assert_eq!(ended("images", "processed"), Some(IMAGES), "{crawl:#}");
    assert_eq!(ended("pages", "fetched"), Some(PAGES + 1), "{crawl:#}");
    for (kind, state) in
        [("pages", "failed"), ("images", "failed"), ("images", "duplicate"), ("images", "skipped")]
    {
        assert_eq!(ended(kind, state), Some(0), "{crawl:#}");
    }
    assert_eq!(crawl["counts"]["faces"], portraits, "{crawl:#}");

    let images = list_all(&workers[0].base, "images").await;
    let stored: BTreeSet<String> =
        images.iter().map(|image| image["sha256"].as_str().unwrap().to_owned()).collect();
    let sent: BTreeSet<String> = (0..IMAGES).map(|number| sha256(&site.image(number))).collect();
    assert_eq!((images.len(), stored == sent), (IMAGES, true), "each image is stored once, and no others");
    let faces = list_all(&workers[0].base, "faces").await;
    let image_ids: HashSet<&str> = faces.iter().map(|face| face["image_id"].as_str().unwrap()).collect();
    assert_eq!((faces.len(), image_ids.len()), (portraits, portraits), "each face is stored once");

    let stats = jobs.jobs().stats().await.unwrap();
    let incomplete: Vec<_> =
        stats.counts.iter().filter(|(_, state, _)| *state != JobState::Completed).collect();
    assert!(incomplete.is_empty(), "{incomplete:?}");
    drop(workers);
    cluster.stop().await;
}

const CRAWL_DELAY: Duration = Duration::from_secs(1);
/// Both processes try to claim each page when it is due, and either can be first. With this number
/// of pages, it is very unlikely that one process fetches all of them.
const CRAWL_DELAY_PAGES: usize = 14;

#[derive(Clone)]
struct Arrival {
    at: Instant,
    path: String,
    agent: String,
}

/// The requests so far. Each is recorded before its response.
type Arrivals = Arc<watch::Sender<Vec<Arrival>>>;

async fn serve_page(State(site): State<Arrivals>, uri: Uri, headers: HeaderMap) -> Response {
    let at = Instant::now();
    let agent = headers[header::USER_AGENT].to_str().unwrap().to_owned();
    let path = uri.path().to_owned();
    site.send_modify(|arrivals| arrivals.push(Arrival { at, path: path.clone(), agent }));
    match path.as_str() {
        "/robots.txt" => "user-agent: *\ncrawl-delay: 1".into_response(),
        _ => Html((0..CRAWL_DELAY_PAGES).map(|n| format!("<a href=/{n}>{n}</a>")).collect::<String>())
            .into_response(),
    }
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn two_processes_keep_crawl_delay_despite_kill() {
    let site: Arrivals = Arc::new(watch::Sender::new(Vec::new()));
    let origin = serve(Router::new().fallback(serve_page).with_state(site.clone())).await;

    let (folder, database) = (TestFolder::with_models(), TestDatabase::create().await);
    let start = |name: &str| {
        let mut command = folder.facecrawl_with(&database, &["up", "--port", "0"]);
        // The crawler's own delay is 0, so the delay comes only from robots.txt.
        command.env("CRAWL_USER_AGENT", format!("facecrawl/{name}"));
        Service::start(&mut command)
    };
    let (first, mut second) = (start("one"), start("two"));
    // There are two seeds, so that both processes find at the same time that no robots.txt is
    // stored.
    let body = json!({"seeds": [format!("{origin}/0"), format!("{origin}/1")]});
    let path = first.caller().crawl(&body).await;

    // The process is killed during the crawl, as soon as both have sent requests.
    let agents = |arrivals: &[Arrival]| -> HashSet<String> {
        arrivals.iter().map(|arrival| arrival.agent.clone()).collect()
    };
    let mut arrivals = site.subscribe();
    let requests = arrivals.wait_for(|arrivals| arrivals.len() >= 4 && agents(arrivals).len() == 2);
    tokio::time::timeout(MAX_WAIT, requests).await.expect("only one process sent requests").unwrap();
    second.kill();
    // A politeness permit expires after a minute. So that the test does not wait that long, the
    // current permit expires 15 seconds after it was granted. If it belongs to the other process,
    // 15 seconds are enough to fetch its page. The jobs of the killed process return immediately.
    database.execute("update hosts set granted_at = granted_at - interval '45 seconds'").await;
    expire_leases(&database).await;
    let second = start("three");
    let crawl = second.caller().wait_for_crawl_end(&path).await;
    assert_eq!(
        (&crawl["state"], &crawl["counts"]["pages"]["fetched"]),
        (&json!("completed"), &json!(CRAWL_DELAY_PAGES))
    );
    let arrivals = site.borrow().clone();
    let log: Vec<String> =
        (arrivals.iter()).map(|a| format!("{:?} {} {}", a.at - arrivals[0].at, a.agent, a.path)).collect();
    assert!(arrivals.windows(2).all(|pair| pair[1].at - pair[0].at >= CRAWL_DELAY), "{log:#?}");
    assert_eq!(arrivals.iter().filter(|arrival| arrival.path == "/robots.txt").count(), 1, "{log:#?}");
}

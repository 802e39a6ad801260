//! Tests hostile input. The crawl of a hostile site ends within its limits and with little memory.
//! Each damaged video ends with a result or a documented reason, and leaves no files.
#![cfg(target_os = "linux")]

use crate::common::service::{Caller, Service, TestFolder, client, descendants};
use crate::common::sites::{gzip, hostile_routes, huge_body, serve};
use axum::extract::Path as UrlPath;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, Redirect};
use axum::routing::get as route;
use reqwest::Method;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testing::damage::DamagedFilms;
use testing::film::Film;
use testing::{MAX_WAIT, TestDatabase};

const MAX_PAGES: i64 = 60;
/// Maximum growth of the service's peak memory, with models, in an unoptimised build.
const MAX_GROWTH: u64 = 200 << 20;

const INDEX: &str = "<a href=/loop/a>1</a> <a href=/huge>2</a> <a href=/drip>3</a> <a href=/bomb>4</a> <a href=/many>5</a>
    <a href=/calendar/0>6</a> <a href=/announced>7</a> <a href=/map.xml>8</a> <img src=/good.jpg> <img src=/huge.jpg> <img src=/drip.jpg> <img src=/vast.png>";

/// Returns a gigabyte compressed to a few megabytes.
fn bomb() -> Vec<u8> {
    gzip(&vec![b' '; 8 << 20]).repeat(128)
}

async fn site(good: Vec<u8>) -> String {
    let many: String = (0..100_000).map(|i| format!("<a href=/p/{i}>x</a>")).collect();
    // A sitemap that decompresses to more than the protocol allows.
    let map = [gzip(b"<urlset><url><loc>/from-map</loc></url>"), bomb()].concat();
    let router = hostile_routes(bomb())
        .route("/", route(|| async { Html(INDEX) }))
        .route("/loop/a", route(|| async { Redirect::to("/loop/b") }))
        .route("/loop/b", route(|| async { Redirect::to("/loop/a") }))
        .route(
            "/announced",
            route(|| async {
                (
                    [(CONTENT_TYPE, "text/html"), ("content-length".parse().unwrap(), "10737418240")],
                    huge_body(),
                )
            }),
        )
        .route("/map.xml", route(|| async move { ([(CONTENT_TYPE, "application/xml")], map) }))
        .route("/many", route(|| async move { Html(many) }))
        .route(
            "/calendar/{month}",
            route(|UrlPath(month): UrlPath<u64>| async move {
                Html(format!("<a href=/calendar/{}>next</a>", month + 1))
            }),
        )
        .route("/good.jpg", route(|| async move { good }));
    serve(router).await
}

#[testing::needs(slow)]
#[testing::test(flavor = "multi_thread")]
async fn hostile_site_crawl_ends_within_limits() {
    let good = testing::drawing("ada.jpg");
    let seed = site(good).await;
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let service = Service::up(&folder, &database);
    let caller = service.caller();
    caller.request(200, Method::GET, "/health/live", None).await;
    // This is the memory for the models, including the memory used to load them.
    let initial_peak = service.peak_memory();
    let body = json!({ "seeds": [seed], "max_pages": MAX_PAGES, "max_depth": 50, "delay_ms": 0 });
    let path = caller.crawl(&body).await;

    let deadline = Instant::now() + MAX_WAIT;
    let crawl = loop {
        let crawl = caller.get(&path).await;
        if crawl["state"] != "running" {
            break crawl;
        }
        assert!(Instant::now() < deadline, "{crawl:#}");
        // Timed-out pages are retried. The test does not wait for the scheduled time.
        database.execute("update jobs set scheduled_at = now() where state = 'retryable'").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!(crawl["state"], "completed", "{crawl:#}");
    let count = |ledger: &str, state: &str| crawl["counts"][ledger][state].as_i64().unwrap();
    let pages: i64 = ["fetched", "skipped", "failed"].iter().map(|state| count("pages", state)).sum();
    assert_eq!((pages, count("pages", "queued")), (MAX_PAGES, 0), "{crawl:#}");
    assert_eq!((count("images", "processed"), crawl["counts"]["faces"].as_i64()), (1, Some(1)), "{crawl:#}");
    let reasons = &crawl["reasons"];
    // These are the pages `huge`, `announced` and `bomb`, and the image `huge`.
    assert_eq!(reasons["too_many_bytes"], 4, "{crawl:#}");
    assert_eq!(reasons["too_many_redirects"], 1, "{crawl:#}");
    assert_eq!(reasons["timeout"], 2, "{crawl:#}");
    assert_eq!(count("images", "skipped"), 2, "the huge and the vast image: {crawl:#}");
    assert_eq!(count("images", "failed"), 1, "the slow image: {crawl:#}");
    let peak = service.peak_memory();
    println!("peak resident memory: {} MiB before, {} MiB after", initial_peak >> 20, peak >> 20);
    assert!(peak < initial_peak + MAX_GROWTH, "{} MiB before, {} MiB after", initial_peak >> 20, peak >> 20);
}

/// Number of files unless `MUTATED_FILES` is set.
const FILES: usize = 30;
/// The reasons that docs/reference/REASONS.md documents for files that cannot be read.
const REASONS: [&str; 4] = ["not_a_video", "unsupported_codec", "corrupt_video", "video_too_large"];

/// Sends a file to be stored. Returns the result of its video, or the reason of the refusal.
async fn store(base: &str, query: &str, film: &[u8]) -> String {
    let response = send(&format!("{base}/videos?{query}"), film).await;
    let status = response.status().as_u16();
    if status >= 400 {
        return problem_code(response).await;
    }
    assert!([200, 202].contains(&status), "{status}");
    let location = response.headers()["location"].to_str().unwrap().to_owned();
    let video = Caller::without_key(base).until(&location, |video| video["finished_at"].is_string()).await;
    let text = |field: &str| video[field].as_str().unwrap_or_default().to_owned();
    match (text("state").as_str(), text("reason").as_str()) {
        ("completed", "") => "completed".into(),
        ("completed", "corrupt_video") => "completed with damage".into(),
        ("failed", reason) => reason.to_owned(),
        _ => panic!("{video:#}"),
    }
}

/// Sends a file that is not stored. Returns `completed` or the reason of the refusal.
async fn detect(base: &str, query: &str, film: &[u8]) -> String {
    let response = send(&format!("{base}/videos/detect?{query}"), film).await;
    if response.status() != 200 {
        return problem_code(response).await;
    }
    let text = response.text().await.unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(last["tracks"].is_array(), "{last}");
    "completed".into()
}

async fn send(url: &str, film: &[u8]) -> reqwest::Response {
    let request = client().post(url).header("content-type", "application/octet-stream");
    request.body(film.to_vec()).send().await.unwrap()
}

async fn problem_code(response: reqwest::Response) -> String {
    let text = response.text().await.unwrap();
    let problem: Value = serde_json::from_str(&text).unwrap();
    problem["code"].as_str().unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// Returns whether both operations agree about a file. `POST /videos/detect` accepts only short
/// files.
fn is_consistent(stored: &str, detected: &str) -> bool {
    match detected {
        "completed" => ["completed", "completed with damage"].contains(&stored),
        "video_too_large" => true,
        reason => REASONS.contains(&reason) && stored == reason,
    }
}

/// Returns the uploaded files that a folder of blobs contains.
fn uploads(blobs: &Path) -> Vec<PathBuf> {
    testing::files_below(&blobs.join("videos"))
}

/// Returns the files below a folder that a process has open, including files without a name.
fn open_files(process: u32, folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let paths = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    paths.filter(|path| path.starts_with(folder)).collect()
}

async fn wait_until_none<T: PartialEq + Default + std::fmt::Debug>(label: &str, find: impl Fn() -> T) {
    let started = Instant::now();
    loop {
        let remaining = find();
        if remaining == T::default() {
            return;
        }
        assert!(started.elapsed() < MAX_WAIT, "{label} left: {remaining:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[testing::needs(video, slow)]
#[testing::test(flavor = "multi_thread")]
async fn damaged_videos_end_with_reason_and_leave_no_files() {
    let count = std::env::var("MUTATED_FILES").map_or(FILES, |count| count.parse().unwrap());
    let folder = TestFolder::new();
    let (spool, blobs) = (folder.path().join("spool"), folder.path().join("blobs"));
    std::fs::create_dir(&spool).unwrap();
    let complete_film = std::fs::read(folder.put_film("film.mkv", &Film::standard())).unwrap();
    let database = TestDatabase::create().await;
    let mut command = folder.facecrawl_with(&database, &["up", "--port", "0"]);
    command.env("FFMPEG", testing::ffmpeg());
    command.env("VIDEO_SPOOL", &spool).env("BLOB_STORE_URL", &blobs);
    let mut service = Service::start(&mut command);
    let (base, process) = (service.base.clone(), service.child.id());

    // The upload of a paused video remains as a file. This proves that the check at the end uses
    // the right folder.
    let caller = service.caller();
    let video = caller.send_video("sampling=fps=30", &complete_film).await;
    caller.request(200, Method::POST, &format!("{video}/pause"), None).await;
    assert_eq!(uploads(&blobs).len(), 1);
    caller.request(200, Method::POST, &format!("{video}/cancel"), None).await;

    let films = DamagedFilms::encode();
    let mut result_counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    for number in 0..count {
        let (film, query) = (films.file(number), format!("sampling={}", films.sampling(number)));
        let (stored, detected) = tokio::join!(store(&base, &query, &film), detect(&base, &query, &film));
        assert!(is_consistent(&stored, &detected), "file {number}, {query}: {stored}, {detected}");
        *result_counts.entry((stored, detected)).or_default() += 1;
    }
    println!("{count} files: {result_counts:#?}");
    assert!(result_counts.len() > 2, "{result_counts:?}");

    wait_until_none("processes", || descendants(process)).await;
    wait_until_none("open files", || open_files(process, &spool)).await;
    wait_until_none("uploads", || uploads(&blobs)).await;
    assert_eq!(testing::files_below(&spool), Vec::<PathBuf>::new());
    // The service still reads videos.
    assert_eq!(detect(&base, "", &complete_film).await, "completed");
    assert_eq!(store(&base, "sampling=fps=5", &complete_film).await, "completed");
    let log = service.stop();
    assert!(!log.contains("panicked"), "{log}");
}

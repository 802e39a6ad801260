//! Sends damaged video files to a running service: each one ends with a result or a documented
//! reason, and leaves no process, no file and no upload behind.
//!
//! `MUTATED_FILES=1000` sets the number of files.
#![cfg(target_os = "linux")]

use crate::common::process::TestFolder;
use crate::common::service::{Service, client, until};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use testing::film::{Codec, Container, DamagedFilms, Encoding, Film};
use testing::{MAX_WAIT, TestDatabase};

/// Number of files without `MUTATED_FILES`.
const FILES: usize = 30;
/// The reasons that docs/reference/REASONS.md documents for files that cannot be read.
const REASONS: [&str; 4] = ["not_a_video", "unsupported_codec", "corrupt_video", "video_too_large"];

/// Sends a file to be stored. Returns the result of its video, or the reason of the refusal.
async fn store(base: &str, query: &str, film: &[u8]) -> String {
    let answer = send(&format!("{base}/videos?{query}"), film).await;
    let status = answer.status().as_u16();
    if status >= 400 {
        return code(answer).await;
    }
    assert!([200, 202].contains(&status), "{status}");
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    let video = until(&format!("{base}{location}"), |video| video["finished_at"].is_string()).await;
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
    let answer = send(&format!("{base}/videos/detect?{query}"), film).await;
    if answer.status() != 200 {
        return code(answer).await;
    }
    let text = answer.text().await.unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert!(last["tracks"].is_array(), "{last}");
    "completed".into()
}

async fn send(url: &str, film: &[u8]) -> reqwest::Response {
    let request = client().post(url).header("content-type", "application/octet-stream");
    request.body(film.to_vec()).send().await.unwrap()
}

async fn code(answer: reqwest::Response) -> String {
    let text = answer.text().await.unwrap();
    let problem: Value = serde_json::from_str(&text).unwrap();
    problem["code"].as_str().unwrap_or_else(|| panic!("{text}")).to_owned()
}

/// Returns whether both operations agree about a file. `POST /videos/detect` accepts only short
/// files.
fn agree(stored: &str, detected: &str) -> bool {
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

fn children(process: u32) -> String {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect()
}

/// Returns the files below a folder that a process has open, including files without a name.
fn open_files(process: u32, folder: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().flatten();
    let paths = files.filter_map(|file| std::fs::read_link(file.path()).ok());
    paths.filter(|path| path.starts_with(folder)).collect()
}

async fn until_none<T: PartialEq + Default + std::fmt::Debug>(what: &str, find: impl Fn() -> T) {
    let started = Instant::now();
    loop {
        let found = find();
        if found == T::default() {
            return;
        }
        assert!(started.elapsed() < MAX_WAIT, "{what} left: {found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[testing::needs(video, slow)]
#[testing::test(flavor = "multi_thread")]
async fn damaged_files_end_with_a_documented_reason_and_leave_nothing_behind() {
    let count = std::env::var("MUTATED_FILES").map_or(FILES, |count| count.parse().unwrap());
    let place = TestFolder::new();
    let (spool, blobs) = (place.path().join("spool"), place.path().join("blobs"));
    std::fs::create_dir(&spool).unwrap();
    let path = place.path().join("film.mkv");
    Film::standard().encode(&Encoding::new(Codec::H264, Container::Mkv), &path).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let database = TestDatabase::create().await;
    let mut command = place.facecrawl(&["up", "--port", "0"]);
    command.env("DATABASE_URL", database.url()).env("FFMPEG", testing::ffmpeg());
    command.env("VIDEO_SPOOL", &spool).env("BLOB_STORE_URL", &blobs);
    let mut service = Service::start(&mut command);
    let (base, process) = (service.base.clone(), service.child.id());

    // The upload of a paused video remains as a file. This shows that the check at the end looks in
    // the right folder.
    let sent = send(&format!("{base}/videos?sampling=fps=30"), &whole).await;
    let video = format!("{base}{}", sent.headers()["location"].to_str().unwrap());
    assert_eq!(client().post(format!("{video}/pause")).send().await.unwrap().status(), 200);
    assert_eq!(uploads(&blobs).len(), 1);
    assert_eq!(client().post(format!("{video}/cancel")).send().await.unwrap().status(), 200);

    let films = DamagedFilms::encode();
    let mut found: BTreeMap<(String, String), usize> = BTreeMap::new();
    for number in 0..count {
        let (film, query) = (films.file(number), format!("sampling={}", films.sampling(number)));
        let (stored, detected) = tokio::join!(store(&base, &query, &film), detect(&base, &query, &film));
        assert!(agree(&stored, &detected), "file {number}, {query}: {stored}, {detected}");
        *found.entry((stored, detected)).or_default() += 1;
    }
    println!("{count} files: {found:#?}");
    assert!(found.len() > 2, "{found:?}");

    until_none("processes", || children(process)).await;
    until_none("open files", || open_files(process, &spool)).await;
    until_none("uploads", || uploads(&blobs)).await;
    assert_eq!(testing::files_below(&spool), Vec::<PathBuf>::new());
    // The service still reads videos.
    assert_eq!(detect(&base, "", &whole).await, "completed");
    assert_eq!(store(&base, "sampling=fps=5", &whole).await, "completed");
    service.signal(Signal::TERM);
    let (status, log) = service.ended();
    assert_eq!(status, Some(0), "{log}");
    assert!(!log.contains("panicked"), "{log}");
}

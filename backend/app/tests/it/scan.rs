//! Tests `scan` with real folders, a real site and a real database: images in every format, and
//! videos.
use crate::common::service::{Output, Service, TestFolder, client, wait_until};
use crate::common::sites::FileServer;
use domain::{ImageState, Reason, VideoState};
use reqwest::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use store::videos::tracks::{Track, TrackFilter};
use store::videos::{Video, VideoFilter};
use testing::film::{Codec, Container, Encoding, Film, repeat};
use testing::{MAX_WAIT, TestDatabase};

fn scan(folder: &TestFolder, database: &TestDatabase, args: &[&str]) -> Output {
    folder.run_with(database, &[&["scan", "--json"], args].concat())
}

fn outcome<'a>(document: &'a Value, name: &str) -> &'a Value {
    let mut files = document["files"].as_array().unwrap().iter();
    let found = files.find(|file| file["path"].as_str().unwrap().ends_with(name));
    found.unwrap_or_else(|| panic!("{document}"))
}

#[testing::test(flavor = "multi_thread")]
async fn scan_accounts_for_every_file_of_folder() {
    let ada = testing::drawing("ada.jpg");
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    folder.put("photos/ada.jpg", &ada);
    folder.put("photos/again/copy.jpg", &ada);
    folder.put("photos/two", testing::drawing("two_people.jpg"));
    folder.put("photos/truncated.jpg", &ada[..2000]);
    folder.put("photos/fake.png", "no image");
    folder.put("photos/notes.txt", "text");
    folder.put("photos/.hidden.jpg", &ada);

    let summary = scan(&folder, &database, &["photos", "--collection", "press"]).assert_status(3).json();
    assert_eq!(summary["images"]["total"], 5);
    assert_eq!(summary["images"]["processed"], 2);
    assert_eq!(summary["images"]["duplicate"], 1);
    assert_eq!(summary["images"]["skipped"], 1);
    assert_eq!(summary["images"]["failed"], 1);
    assert_eq!(summary["ignored_files"], 1);
    assert_eq!(summary["interrupted"], false);
    assert_eq!(summary["crawls"][0]["state"], "completed");
    assert_eq!(summary["reasons"]["corrupt_image"], 1);
    assert_eq!(summary["reasons"]["not_an_image"], 1);
    assert_eq!(summary["files"].as_array().unwrap().len(), 5);
    assert_eq!(outcome(&summary, "truncated.jpg")["reason"], "corrupt_image");
    assert_eq!(outcome(&summary, "fake.png")["outcome"], "skipped");
    assert_eq!(outcome(&summary, "/two")["faces"], 2);
    let stored = outcome(&summary, "photos/ada.jpg")["faces"].as_i64().unwrap()
        + outcome(&summary, "again/copy.jpg")["faces"].as_i64().unwrap();
    assert_eq!(stored, 1, "one of the two is a duplicate of the other: {summary}");

    // The database agrees with the output on stdout.
    let store = database.store();
    let filter = store::images::ImageFilter { collection: "press".into(), ..Default::default() };
    assert_eq!(store.images().list(&filter, None, 100).await.unwrap().len(), 2);
    let filter = store::faces::FaceListQuery { collection: "press".into(), ..Default::default() };
    assert_eq!(store.faces().list(&filter, None, 100).await.unwrap().len(), 3);

    let rerun = scan(&folder, &database, &["photos/ada.jpg", "photos/two", "-c", "press"]).success().json();
    assert_eq!(rerun["images"]["duplicate"], 2);
    assert_eq!(outcome(&rerun, "ada.jpg")["reason"], "exact_duplicate");
}

#[testing::test(flavor = "multi_thread")]
async fn scan_without_usable_image_fails() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let notes = folder.put("notes.txt", "text");
    let failed_summary = scan(&folder, &database, &[notes.to_str().unwrap()]).assert_status(1).json();
    assert_eq!(outcome(&failed_summary, "notes.txt")["reason"], "not_an_image");
    std::fs::create_dir(folder.path().join("empty")).unwrap();
    let empty_summary = scan(&folder, &database, &["empty"]).success().json();
    assert_eq!(empty_summary["images"]["total"], 0);
}

#[testing::test(flavor = "multi_thread")]
async fn scan_prints_only_summary_table_on_stdout() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    folder.put("ada.jpg", testing::drawing("ada.jpg"));
    let finished = folder.run_with(&database, &["scan", "ada.jpg"]).success();
    assert!(finished.stdout.contains("Images/s") && finished.stdout.contains("Faces"), "{}", finished.stdout);
    assert!(!finished.stdout.contains("INFO"), "{}", finished.stdout);
}

#[testing::test(flavor = "multi_thread")]
async fn scan_crawls_url_to_completion() {
    let ada = testing::drawing("ada.jpg");
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let page = r#"<html><img src="/ada.jpg"><img src="/gone.jpg"><a href="/next">next</a></html>"#;
    let server = FileServer::start([
        ("/", page.into()),
        ("/next", r#"<html><img src="two.jpg"></html>"#.into()),
        ("/ada.jpg", ada),
        ("/two.jpg", testing::drawing("two_people.jpg")),
    ])
    .await;
    let summary = scan(&folder, &database, &[&server.url("/"), "--max-pages", "10"]).assert_status(3).json();
    assert_eq!(summary["crawls"][0]["state"], "completed", "{summary}");
    assert_eq!(summary["pages"]["fetched"], 2, "{summary}");
    assert_eq!(summary["images"]["total"], 3, "{summary}");
    assert_eq!(summary["images"]["processed"], 2, "{summary}");
    assert_eq!(summary["reasons"]["http_404"], 1, "{summary}");
    assert_eq!(summary["faces"], 3);
    scan(&folder, &database, &[&server.url("/"), "--max-pages", "0"]).fails(2, &["max_pages"]);
}

#[testing::test(flavor = "multi_thread")]
async fn interrupted_scan_reports_progress() {
    let crowd = testing::drawing("crowd.jpg");
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    for i in 0..400u32 {
        // Trailing bytes make each file different without changing its image.
        folder.put(&format!("photos/{i:03}.jpg"), [crowd.as_slice(), i.to_le_bytes().as_slice()].concat());
    }
    let mut command = folder.facecrawl_with(&database, &["scan", "photos", "--json", "--dedupe", "exact"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let store = database.store();
    let has_image = async || {
        let crawls = store.crawls().list(&Default::default(), None, 1).await.unwrap();
        let Some(crawl) = crawls.first() else { return false };
        let images = store.crawls().progress(crawl.id).await.unwrap().images;
        // Queries without a pause would take the time of the scan on a machine with few cores.
        tokio::time::sleep(Duration::from_millis(20)).await;
        images.get(&ImageState::Processed).is_some_and(|n| *n > 0)
    };
    wait_until("a processed image", has_image).await;
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(summary["interrupted"], true);
    assert_eq!(summary["crawls"][0]["state"], "cancelled");
    assert_eq!(summary["images"]["queued"], 0, "{summary}");
    let processed = summary["images"]["processed"].as_i64().unwrap();
    assert!(processed > 0 && processed < 400);
    assert_eq!(summary["files"].as_array().unwrap().len() as i64, processed);
}

fn video_command(folder: &TestFolder, database: &TestDatabase, args: &[&str]) -> Command {
    let mut command = folder.facecrawl(&["scan", "--json", "--sampling", "fps=5"]);
    command.args(args).env("DATABASE_URL", database.url()).env("FFMPEG", testing::ffmpeg());
    command
}

fn scan_videos(folder: &TestFolder, database: &TestDatabase, args: &[&str]) -> Output {
    Output::run(&mut video_command(folder, database, args))
}

/// Writes a folder with an image and the standard film several times in a row.
fn write_media_folder(folder: &TestFolder, times: u32) {
    folder.put("media/ada.jpg", testing::drawing("ada.jpg"));
    let (single_film, film) = (folder.path().join("once.mkv"), folder.path().join("media/film"));
    let encoding = Encoding::new(Codec::H264, Container::Mkv);
    Film::standard().encode(&encoding, &single_film).unwrap();
    let repeated_film = folder.path().join("whole.mkv");
    repeat(&single_film, times, &encoding, &repeated_film).unwrap();
    // Videos are found by content.
    std::fs::rename(repeated_film, film).unwrap();
}

async fn videos(database: &TestDatabase, collection: &str) -> Vec<Video> {
    let filter = VideoFilter { collection: collection.into(), ..VideoFilter::default() };
    database.store().videos().list(&filter, None, 10).await.unwrap_or_default()
}

async fn tracks(database: &TestDatabase, video: &Video) -> Vec<Track> {
    database.store().tracks().list(video.id, &TrackFilter::default(), None, 1_000).await.unwrap().tracks
}

async fn count_faces(database: &TestDatabase, collection: &str) -> usize {
    let filter = store::faces::FaceListQuery { collection: collection.into(), ..Default::default() };
    database.store().faces().list(&filter, None, 1_000).await.unwrap().len()
}

/// Returns the properties of tracks that must not depend on interruptions.
fn summaries(tracks: &[Track]) -> Vec<Value> {
    let properties = |track: &Track| {
        let shots: Vec<_> = track.faces.iter().map(|shot| (shot.at_us, shot.quality)).collect();
        let times = (track.started_us, track.ended_us, track.samples);
        json!([track.number, track.person, times, track.boxes, shots])
    };
    tracks.iter().map(properties).collect()
}

/// Waits until the checkpoint of the only video is later than `after_us`.
async fn wait_for_progress(database: &TestDatabase, after_us: Option<i64>, child: &mut Child) -> Video {
    let deadline = Instant::now() + MAX_WAIT;
    loop {
        if let [video] = videos(database, "default").await.as_slice()
            && video.checkpoint_us > after_us
        {
            return video.clone();
        }
        assert!(child.try_wait().unwrap().is_none() && Instant::now() < deadline, "no part was stored");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[testing::needs(video)]
#[testing::test(flavor = "multi_thread")]
async fn scan_stores_video_with_tracks_and_appearances() {
    let (database, folder) = (TestDatabase::create().await, TestFolder::new());
    write_media_folder(&folder, 1);
    let film = std::fs::read(folder.path().join("media/film")).unwrap();
    folder.put("media/cut.mkv", &film[..film.len() / 2]);
    folder.put("media/header.mkv", &film[..200]);
    folder.put("media/notes.txt", "text");

    let summary = scan_videos(&folder, &database, &["media"]).success().json();
    assert_eq!((&summary["images"]["processed"], &summary["ignored_files"]), (&json!(1), &json!(1)));
    let count = |state: &str| summary["videos"][state].as_i64().unwrap();
    assert_eq!((count("total"), count("processed"), count("skipped")), (3, 2, 1), "{summary}");
    let reasons = json!({"corrupt_video": 1, "not_a_video": 1});
    assert_eq!(summary["videos"]["reasons"], reasons, "{summary}");
    let files = summary["video_files"].as_array().unwrap();
    let file_result =
        |name: &str| files.iter().find(|file| file["path"].as_str().unwrap().ends_with(name)).unwrap();
    let film = file_result("media/film");
    assert_eq!(
        (&film["outcome"], &film["reason"], &film["frames"]),
        (&json!("processed"), &Value::Null, &json!(126))
    );
    assert_eq!(film["duration_ms"], 25_000);
    assert!(file_result("cut.mkv")["detail"].is_string());

    let found = videos(&database, "default").await;
    let video = found.iter().find(|video| film["video_id"] == json!(video.id)).unwrap();
    assert_eq!((video.state, &video.source_key), (VideoState::Completed, &None));
    assert_eq!(json!(video.people), film["people"]);
    let stored = tracks(&database, video).await;
    assert_eq!(json!(stored.len()), film["tracks"]);
    let shots: Vec<uuid::Uuid> =
        stored.iter().flat_map(|track| &track.faces).map(|shot| shot.face_id).collect();
    assert_eq!(json!(shots.len()), film["faces"]);
    assert_eq!(database.store().tracks().appearances(&shots).await.unwrap().len(), shots.len());

    let faces = count_faces(&database, "default").await;
    let rerun = scan_videos(&folder, &database, &["media/film"]).success().json();
    assert_eq!((&rerun["videos"]["duplicate"], &rerun["images"]["total"]), (&json!(1), &json!(0)));
    assert_eq!(rerun["video_files"][0]["video_id"], film["video_id"]);
    assert_eq!(count_faces(&database, "default").await, faces);
}

#[testing::needs(video, slow)]
#[testing::test(flavor = "multi_thread")]
async fn interrupted_video_resumes_with_same_tracks() {
    let (database, folder) = (TestDatabase::create().await, TestFolder::new());
    write_media_folder(&folder, 6);
    let start = || {
        let mut command = video_command(&folder, &database, &["media"]);
        command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut child = start();
    wait_for_progress(&database, None, &mut child).await;
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&summary["interrupted"], &summary["videos"]["skipped"]), (&json!(true), &json!(1)));
    assert_eq!(summary["videos"]["reasons"], json!({"not_scanned": 1}));
    let [first] = videos(&database, "default").await.try_into().unwrap();
    assert_eq!((first.state, first.reason), (VideoState::Cancelled, Some(Reason::NotScanned)));

    let mut child = start();
    let rerun = wait_for_progress(&database, first.checkpoint_us, &mut child).await;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((rerun.id, rerun.state), (first.id, VideoState::Running));
    // So that the test does not wait until the lease of the killed command expires.
    database.execute("update crawls set lease_until = now() where state = 'running'").await;
    let last = scan_videos(&folder, &database, &["media"]).success().json();
    assert_eq!((&last["videos"]["processed"], &last["images"]["duplicate"]), (&json!(1), &json!(1)));
    let [third] = videos(&database, "default").await.try_into().unwrap();
    assert_eq!((third.id, third.state, &third.reason), (first.id, VideoState::Completed, &None));

    scan_videos(&folder, &database, &["media", "-c", "undisturbed"]).success();
    let [uninterrupted] = videos(&database, "undisturbed").await.try_into().unwrap();
    let expected = tracks(&database, &uninterrupted).await;
    assert!(expected.len() > 40, "{}", expected.len());
    assert_eq!(summaries(&tracks(&database, &third).await), summaries(&expected));
    let results = |video: &Video| (video.people, video.frames, video.unidentified, video.checkpoint_us);
    assert_eq!(results(&third), results(&uninterrupted));
    assert_eq!(count_faces(&database, "default").await, count_faces(&database, "undisturbed").await);
}

#[testing::test(flavor = "multi_thread")]
async fn scan_without_ffmpeg_skips_videos_with_reason() {
    let (database, folder) = (TestDatabase::create().await, TestFolder::new());
    folder.put("media/ada.jpg", testing::drawing("ada.jpg"));
    folder.put("media/film.mp4", b"\0\0\0\x10ftypisom\0\0\0\0");
    let scan_without_ffmpeg = |path: &str| {
        let mut command = folder.facecrawl_with(&database, &["scan", "--json", path]);
        command.env("FFMPEG", "/no/such/ffmpeg");
        Output::run(&mut command)
    };
    let finished = scan_without_ffmpeg("media").success();
    let lines: Vec<&str> =
        finished.stderr.lines().filter(|line| line.contains("videos are not scanned")).collect();
    assert!(matches!(lines.as_slice(), [line] if line.contains("/no/such/ffmpeg")), "{}", finished.stderr);
    let summary = finished.json();
    assert_eq!(summary["images"]["processed"], 1);
    assert_eq!(summary["videos"]["reasons"], json!({"video_unavailable": 1}), "{summary}");
    assert!(videos(&database, "default").await.is_empty());
    scan_without_ffmpeg("media/film.mp4").assert_status(1);
}

#[testing::needs(video)]
#[testing::test(flavor = "multi_thread")]
async fn scan_of_site_includes_videos_only_on_request() {
    let (database, folder) = (TestDatabase::create().await, TestFolder::new());
    let film = folder.put_film("film.mp4", &Film::short());
    let page = "<video src=/film.mp4></video><img src=/ada.jpg>".as_bytes().to_vec();
    let (film, image) = (std::fs::read(film).unwrap(), testing::drawing("ada.jpg"));
    let site = FileServer::start([("/index.html", page), ("/film.mp4", film), ("/ada.jpg", image)]).await;
    let crawl = |url: String, options: &[&str]| {
        let mut command = folder.facecrawl(&["scan", "--json", url.as_str(), "--delay-ms", "0"]);
        command.env("DATABASE_URL", database.url()).env("FFMPEG", testing::ffmpeg());
        command.args(options).env("CRAWL_ALLOW_PRIVATE", "127.0.0.0/8");
        tokio::task::block_in_place(|| Output::run(&mut command))
    };
    let images = crawl(site.url("/index.html"), &[]).success().json();
    assert_eq!((&images["videos"]["total"], &images["images"]["processed"]), (&json!(0), &json!(1)));

    let media = crawl(site.url("/index.html"), &["--videos", "--max-videos", "1"]).success().json();
    let (counts, stored) = (&media["videos"], videos(&database, "default").await);
    assert_eq!((&counts["processed"], &counts["people"]), (&json!(1), &json!(stored[0].people)), "{media}");
    assert_eq!(counts["tracks"], tracks(&database, &stored[0]).await.len());
    assert!(counts["faces"].as_i64() > Some(0) && media["faces"] == images["faces"], "{media}");

    // The address of a video file.
    let rerun = crawl(site.url("/film.mp4"), &["--videos"]).success().json();
    assert_eq!((&rerun["videos"]["duplicate"], &rerun["videos"]["total"]), (&json!(1), &json!(1)), "{rerun}");
    let failed = crawl(site.url("/film.mp4"), &[]).assert_status(1).json();
    assert_eq!(failed["reasons"], json!({"is_a_video": 1}), "{failed}");
    crawl(site.url("/film.mp4"), &["--max-videos", "1"]).assert_status(2);
    // The options of files do not apply to crawls.
    for option in ["--sampling=keyframes", "--max-gap=1", "--refine"] {
        crawl(site.url("/film.mp4"), &["--videos", option]).fails(2, &["do not apply"]);
    }
}

#[testing::test(flavor = "multi_thread")]
async fn scan_of_site_videos_requires_ffmpeg() {
    let (database, folder) = (TestDatabase::create().await, TestFolder::new());
    let mut command = folder.facecrawl_with(&database, &["scan", "http://127.0.0.1:9/", "--videos"]);
    command.env("FFMPEG", "/no/such/ffmpeg");
    Output::run(&mut command).fails(2, &["--videos needs ffmpeg"]);
}

/// File names of one portrait in each format.
const FORMATS: [&str; 6] = ["ada.jpg", "ada.avif", "ada.heic", "ada.jxl", "ada.tiff", "ada.jp2"];

fn portraits() -> Vec<(String, Vec<u8>)> {
    let jpeg = testing::drawing("ada.jpg");
    let frame = vision::decode(&jpeg, &vision::Limits::default()).unwrap().frame;
    let other_formats = testing::still::of_each_format(&frame);
    let other_formats = other_formats.into_iter().map(|(format, file)| (format!("ada.{format}"), file));
    std::iter::once(("ada.jpg".to_owned(), jpeg)).chain(other_formats).collect()
}

#[testing::needs(video)]
#[testing::test(flavor = "multi_thread")]
async fn scan_crawl_and_enrolment_find_face_in_every_format() {
    let (database, folder) = (TestDatabase::create().await, TestFolder::new());
    let files = portraits();
    assert_eq!(files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), FORMATS);
    for (name, file) in &files {
        folder.put(&format!("photos/{name}"), file);
    }
    let page: String = FORMATS.map(|name| format!("<img src=/{name}>")).concat();
    let served = files.iter().map(|(name, file)| (format!("/{name}"), file.clone()));
    let site = FileServer::with_files(served.chain([("/".to_owned(), page.into_bytes())]).collect()).await;
    let program_command = |args: &[&str]| {
        let mut command = folder.facecrawl_with(&database, args);
        command.env("FFMPEG", testing::ffmpeg());
        command
    };
    for (source, collection) in [("photos", "scanned"), (&site.url("/"), "crawled")] {
        let args = ["scan", "--json", "--dedupe", "exact", "--collection", collection, source];
        let summary = Output::run(&mut program_command(&args)).success().json();
        let counts = (&summary["images"]["processed"], &summary["faces"]);
        assert_eq!(counts, (&json!(FORMATS.len()), &json!(FORMATS.len())), "{summary}");
    }
    let mut service = Service::start(&mut program_command(&["up", "--port", "0"]));
    let caller = service.caller();
    let send = async |path: String, file: &[u8]| -> Value {
        let request = client().request(Method::POST, format!("{}{path}", service.base));
        let response = request.header("content-type", "image/*").body(file.to_vec()).send().await.unwrap();
        let (status, text) = (response.status(), response.text().await.unwrap());
        assert!(status.is_success(), "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    };
    for collection in ["scanned", "crawled"] {
        let path = format!("/faces/search?collection={collection}&threshold=0.98&limit=20");
        let found = send(path, &files[0].1).await;
        assert_eq!(found["matches"].as_array().unwrap().len(), FORMATS.len(), "{found}");
    }
    let person = json!({"name": "Ada", "collection": "enrolled"});
    caller.request(201, Method::POST, "/collections", Some(&json!({"name": "enrolled"}))).await;
    let id = caller.request(201, Method::POST, "/subjects", Some(&person)).await["id"].clone();
    for (_, file) in &files {
        send(format!("/subjects/{}/faces", id.as_str().unwrap()), file).await;
    }
    let enrolled = caller.get(&format!("/subjects/{}", id.as_str().unwrap())).await;
    assert_eq!(enrolled["face_count"], FORMATS.len(), "{enrolled}");
    service.stop();
}

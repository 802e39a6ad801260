//! Tests cameras with several processes and kills, and that nothing about people who are not
//! watched is written anywhere. The cameras are servers of the crate `testing`.
#![cfg(target_os = "linux")]

use crate::common::service::{Output, Service, TestFolder, assert_contains, descendants, psql};
use embedded_postgres::Cluster;
use serde_json::{Value, json};
use std::collections::HashSet;
use std::process::Command;
use std::time::Instant;
use testing::camera::{Authentication, MjpegCamera, Recording, RtspCamera, RtspOptions, Scheme};
use testing::database::programs;
use testing::film::{Codec, Container, Encoding, Film, decode};
use testing::{TestDatabase, files_below};

/// Number of kills; the variable `KILLS` sets another one.
const KILLS: usize = 1;
const WORKERS: usize = 3;
const PASSWORD: &str = "hunter2-of-the-camera";

/// Returns the standard film's shot of Dan, which lasts three seconds.
fn film_of_dan() -> Film {
    let standard = Film::standard();
    Film { shots: vec![standard.shots[1].clone()], ..standard }
}

/// Adds the settings of cameras to a command.
fn with_cameras(mut command: Command) -> Command {
    command.env("STREAMS_FILE", "streams.toml").env("STREAM_ALLOW_PRIVATE", "127.0.0.0/8");
    command.env("FFMPEG", testing::ffmpeg());
    command
}

fn stream_entry(url: &str, more: &str) -> String {
    format!("[streams.door]\nurl = '{url}'\npurpose = 'A test'\nretention_hours = 24\n{more}")
}

/// Waits until the camera is running, and a worker other than `holder` watches it.
async fn until_held_by_another(service: &Service, holder: &str) -> String {
    let is_held = |body: &Value| {
        let stream = &body["streams"][0];
        stream["state"] == "running" && stream["holder"].as_str().is_some_and(|name| name != holder)
    };
    let body = service.caller().until("/streams", is_held).await;
    body["streams"][0]["holder"].as_str().unwrap().to_owned()
}

#[testing::needs(video, slow)]
#[testing::test(flavor = "multi_thread")]
async fn killed_worker_is_replaced_and_camera_has_one_holder() {
    let kills = std::env::var("KILLS").map_or(KILLS, |kills| kills.parse().unwrap());
    let authentication = Some(Authentication::new(Scheme::Digest, "me", PASSWORD));
    let options = RtspOptions { authentication, ..RtspOptions::default() };
    let camera = RtspCamera::start_with(&Recording::new(&film_of_dan()).unwrap(), options).unwrap();
    let (folder, database) = (TestFolder::with_models(), TestDatabase::create().await);
    folder.put("streams.toml", stream_entry(&camera.url(), "user = 'me'\npassword_file = 'secret'\n"));
    folder.put("secret", PASSWORD);
    let start =
        || Service::start(&mut with_cameras(folder.facecrawl_with(&database, &["up", "--port", "0"])));
    let mut services: Vec<Service> = (0..WORKERS).map(|_| start()).collect();
    let mut holder = until_held_by_another(&services[0], "").await;
    let answer = services[0].caller().bytes("/streams").await;
    assert!(!testing::contains_bytes(&answer, PASSWORD.as_bytes()));
    for _ in 0..kills {
        let killed = services
            .iter()
            .position(|service| holder.ends_with(&format!("-{}", service.child.id())))
            .expect("the holder is one of the services");
        assert_no_secret_in_process_list(&services[killed]);
        let started = Instant::now();
        services[killed].kill();
        let observer = (killed + 1) % WORKERS;
        let next = until_held_by_another(&services[observer], &holder).await;
        println!("watched by another worker after {:.1} s", started.elapsed().as_secs_f64());
        holder = next;
        services[killed] = start();
    }
    assert_eq!(camera.counts().most_players_at_once, 1, "{:?}", camera.counts());
    for service in &mut services {
        let log = service.stop();
        assert!(!log.contains(PASSWORD) && !log.contains(&camera.url()), "{log}");
    }
    camera.wait_for(|counts| counts.open_connections == 0).await;
}

/// Checks the arguments and the environment of a service and of the processes that it started.
fn assert_no_secret_in_process_list(service: &Service) {
    let own = service.child.id();
    for process in descendants(own).into_iter().chain([own]) {
        for name in ["cmdline", "environ"] {
            // A process may have just ended.
            let content = std::fs::read(format!("/proc/{process}/{name}")).unwrap_or_default();
            assert!(!testing::contains_bytes(&content, PASSWORD.as_bytes()), "{process} {name}");
        }
    }
}

/// Number of bytes of an embedding that are searched for.
const PIECE: usize = 8;

/// Returns the beginnings of embeddings as they are in memory and in files of the database: numbers
/// of 16 and of 32 bits, low byte first.
fn pieces(url: &str, embeddings: &[Vec<f32>]) -> HashSet<[u8; PIECE]> {
    let mut pieces = HashSet::new();
    for embedding in embeddings {
        let text: Vec<String> = embedding.iter().map(f32::to_string).collect();
        let statement = format!("select encode(halfvec_send('[{}]'::halfvec), 'hex')", text.join(","));
        // The first four bytes are the number of components. The numbers have the high byte first.
        let halves = hex::decode(psql(url, &statement).trim()).unwrap();
        let swapped: Vec<u8> = halves[4..4 + PIECE].chunks(2).flat_map(|half| [half[1], half[0]]).collect();
        pieces.insert(swapped.try_into().unwrap());
        let floats: Vec<u8> = embedding.iter().flat_map(|value| value.to_le_bytes()).collect();
        pieces.insert(floats[..PIECE].try_into().unwrap());
    }
    pieces
}

/// Returns the files below a folder that contain one of the pieces.
fn files_with(folder: &std::path::Path, pieces: &HashSet<[u8; PIECE]>) -> Vec<String> {
    let contains = |path: &std::path::PathBuf| {
        std::fs::read(path).is_ok_and(|content| testing::contains_any(&content, pieces))
    };
    files_below(folder).into_iter().filter(contains).map(|path| path.display().to_string()).collect()
}

#[testing::needs(video, slow)]
#[testing::test(flavor = "multi_thread")]
async fn faces_of_unwatched_people_leave_no_bytes() {
    let film = film_of_dan();
    let camera = RtspCamera::start(&Recording::new(&film).unwrap()).unwrap();
    // Every frame that the camera sends.
    let frames = TestFolder::with_models();
    let encoding =
        Encoding { keyframe_interval: 25, b_frames: 0, ..Encoding::new(Codec::H264, Container::Mp4) };
    let file = frames.path().join("film.mp4");
    film.encode(&encoding, &file).unwrap();
    let mut names = Vec::new();
    decode(&file, |number, frame| {
        let name = format!("{number}.png");
        frames.put(&name, vision::encode::png(frame));
        names.push(name);
    })
    .unwrap();
    let mut arguments = vec!["detect", "--json"];
    arguments.extend(names.iter().map(String::as_str));
    let mut detect = frames.facecrawl(&arguments);
    let detected = Output::run(detect.env("DETECTION_PASSES", "single")).success().json();
    let faces =
        detected["results"].as_array().unwrap().iter().flat_map(|file| file["faces"].as_array().unwrap());
    let embeddings: Vec<Vec<f32>> =
        faces.filter_map(|face| serde_json::from_value(face["embedding"].clone()).ok()).collect();
    assert!(embeddings.len() > 40, "{}", embeddings.len());

    for (store, is_stored) in [("all", true), ("matches", false)] {
        let folder = TestFolder::with_models();
        let database = folder.path().join("postgres");
        let cluster =
            Cluster::start(&embedded_postgres::Config::new(programs(), database.clone())).await.unwrap();
        let url = cluster.default_url();
        folder.put("streams.toml", stream_entry(&camera.url(), &format!("fps = 5\nstore = '{store}'\n")));
        let mut command = with_cameras(folder.facecrawl(&["up", "--port", "0"]));
        let temporary = folder.path().join("temporary");
        std::fs::create_dir(&temporary).unwrap();
        command.env("DATABASE_URL", &url).env("TMPDIR", &temporary).env("LOG_LEVEL", "debug");
        let mut service = Service::start(&mut command);
        service.caller().until("/streams", |body| body["streams"][0]["analysed"].as_i64() > Some(40)).await;
        if is_stored {
            service.caller().until("/faces", |body| !body["faces"].as_array().unwrap().is_empty()).await;
        }
        let stored = service.caller().get("/faces").await;
        folder.put("log", service.stop());
        psql(&url, "checkpoint");
        let pieces = pieces(&url, &embeddings);
        cluster.stop().await;
        let found = files_with(folder.path(), &pieces);
        if is_stored {
            assert!(!found.is_empty(), "the search finds stored faces");
        } else {
            assert_eq!((found, &stored["faces"]), (Vec::new(), &json!([])));
            let blobs = folder.path().join("data/blobs");
            assert_eq!(files_below(&blobs), [] as [std::path::PathBuf; 0]);
        }
    }
}

#[testing::needs(video)]
#[testing::test(flavor = "multi_thread")]
async fn stream_command_lists_and_checks_cameras() {
    let camera = MjpegCamera::start(&Recording::new(&film_of_dan()).unwrap()).unwrap();
    let folder = TestFolder::with_models();
    let entry = stream_entry(&camera.url(), "kind = 'mjpeg'\n");
    folder.put("streams.toml", format!("{entry}[streams.gone]\nurl = 'rtsp://me:{PASSWORD}@127.0.0.1:9/'\npurpose = 'x'\nretention_hours = 1\n"));
    let run = |args: &[&str]| Output::run(&mut with_cameras(folder.facecrawl(args)));
    let listed = run(&["stream", "list"]).success();
    assert_contains(&listed.stdout, &["door", "mjpeg", "matches", "A test", "gone", "rtsp"]);
    assert!(!listed.stdout.contains("127.0.0.1") && !listed.stdout.contains(PASSWORD));
    let checked = run(&["stream", "check", "door", "--seconds", "2", "--json"]).success().json();
    assert_eq!(
        (&checked["format"], &checked["width"], &checked["height"]),
        (&json!("jpeg"), &json!(640), &json!(360))
    );
    assert!(checked["units_per_second"].as_f64().unwrap() > 5.0, "{checked}");
    assert!(checked["faces"].as_u64().unwrap() >= 1 && checked["cores"].as_f64().unwrap() > 0.0, "{checked}");
    let table = run(&["stream", "check", "door", "--seconds", "1"]).success();
    assert_contains(&table.stdout, &["640x360", "processor cores"]);

    let failed = run(&["stream", "check", "gone", "--seconds", "1"]).assert_status(1);
    assert!(failed.stderr.contains("the connection to the camera failed"), "{}", failed.stderr);
    assert!(!failed.stderr.contains(PASSWORD), "{}", failed.stderr);
    run(&["stream", "check", "yard"]).fails(2, &["has no camera \"yard\"", "door, gone"]);
    let mut refused = with_cameras(folder.facecrawl(&["stream", "check", "door"]));
    Output::run(refused.env_remove("STREAM_ALLOW_PRIVATE")).fails(1, &["STREAM_ALLOW_PRIVATE"]);
    Output::run(&mut folder.facecrawl(&["stream", "list"])).fails(2, &["set STREAMS_FILE"]);
    folder.put("streams.toml", "[streams.door]\nurl = 'rtsp://127.0.0.1/'\n");
    run(&["stream", "list"]).fails(1, &["streams.toml", "\"door\"", "purpose is missing"]);
}

//! Tests the service from start to stop, through its signals and over HTTP. A stop or a restart
//! under load answers every accepted request.
use crate::common::service::{Finished, Service, TestFolder, client, get, through_shell};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use testing::TestDatabase;
use tokio::task::JoinSet;

#[testing::test(flavor = "multi_thread")]
async fn up_becomes_ready_serves_requests_and_stops_on_signal() {
    let ada = testing::drawing("ada.jpg");
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut service = Service::start(&mut place.on(&database, &["--port", "0"]));
    let (status, body) = get(&format!("{}/health/ready", service.base)).await;
    assert_eq!(status, 200, "{body}");
    place.run(&["health", "--timeout", "60", "--url", &service.base]).expect(0);

    let detect = format!("{}/faces/detect", service.base);
    let client = client();
    let answer = client.post(detect).header("content-type", "image/jpeg").body(ada).send().await.unwrap();
    let answer: serde_json::Value = answer.json().await.unwrap();
    assert_eq!(answer["faces"].as_array().unwrap().len(), 1);

    let (status, metrics) = get(&format!("{}/metrics", service.base)).await;
    assert_eq!(status, 200);
    for name in ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_threads", "_bucket"] {
        assert!(metrics.contains(name), "{name} is missing:\n{metrics}");
    }
    service.stop();
}

#[cfg(target_os = "linux")]
#[testing::test(flavor = "multi_thread")]
async fn direct_start_sets_default_allocator_variables() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let variables = |service: &Service, name: &str| -> Vec<String> {
        let environment = std::fs::read(format!("/proc/{}/environ", service.child.id())).unwrap();
        let environment = String::from_utf8(environment).unwrap();
        environment.split('\0').filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    };
    let mut command = place.facecrawl(&["--port", "0"]);
    let service = Service::start(command.env("DATABASE_URL", database.url()));
    assert_eq!(variables(&service, "ORT_DISABLE_TELEMETRY"), ["ORT_DISABLE_TELEMETRY=1"]);
    assert_eq!(variables(&service, "MALLOC_ARENA_MAX"), ["MALLOC_ARENA_MAX=2"]);
    assert_eq!(variables(&service, "MALLOC_MMAP_THRESHOLD_"), ["MALLOC_MMAP_THRESHOLD_=8388608"]);
    assert_eq!(variables(&service, "MALLOC_TRIM_THRESHOLD_"), ["MALLOC_TRIM_THRESHOLD_=16777216"]);
    drop(service);
    // A user's value is kept.
    let service = Service::start(command.env("MALLOC_ARENA_MAX", "5"));
    assert_eq!(variables(&service, "MALLOC_ARENA_MAX"), ["MALLOC_ARENA_MAX=5"]);
}

#[testing::test(flavor = "multi_thread")]
async fn up_starts_and_stops_private_database() {
    let place = TestFolder::new();
    let bin = testing::database::programs();
    let up = |place: &TestFolder| {
        let mut command = place.facecrawl(&["up", "--port", "0"]);
        command.env("POSTGRES_BIN_DIR", &bin);
        command
    };
    let mut service = Service::start(&mut up(&place));
    assert_eq!(get(&format!("{}/health/ready", service.base)).await.0, 200);

    Finished::of(&mut up(&place)).fails(1, &["in use by another facecrawl"]);

    // A scan that runs alongside the service stores into the same database.
    place.put("album/ada.jpg", testing::drawing("ada.jpg"));
    let mut scan = place.facecrawl(&["scan", "album", "--json"]);
    Finished::of(scan.env("POSTGRES_BIN_DIR", &bin)).expect(0);
    let (_, faces) = get(&format!("{}/faces", service.base)).await;
    let faces: serde_json::Value = serde_json::from_str(&faces).unwrap();
    assert_eq!(faces["faces"].as_array().unwrap().len(), 1);

    service.signal(Signal::INT);
    let (status, log) = service.ended();
    assert_eq!(status, Some(0), "{log}");
    let pid_file = place.path().join("data/postgres/postmaster.pid");
    assert!(!pid_file.exists(), "the database server must stop with the service:\n{log}");

    // The service starts again on the same data.
    let mut service = Service::start(&mut up(&place));
    assert_eq!(get(&format!("{}/collections", service.base)).await.0, 200);
    service.stop();
}

#[testing::test(flavor = "multi_thread")]
async fn serve_and_worker_share_database() {
    let (place, database) = (TestFolder::with_models(), TestDatabase::create().await);
    let start = |args: &[&str]| Service::start(&mut place.on(&database, args));
    let (api, worker) = (start(&["serve", "--port", "0"]), start(&["worker"]));
    assert_eq!(get(&format!("{}/health/ready", api.base)).await.0, 200);
    assert_eq!(worker.base, "");
    for mut service in [api, worker] {
        service.stop();
    }
}

#[testing::test(flavor = "multi_thread")]
async fn occupied_port_is_reported_before_data_folder_creation() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let place = TestFolder::new();
    place.run(&["up", "--port", &port]).fails(1, &[&format!("cannot listen on 127.0.0.1:{port}")]);
    assert!(!place.path().join("data").exists());
}

#[testing::test(flavor = "multi_thread")]
async fn unreachable_database_error_masks_password() {
    let place = TestFolder::new();
    let url = "postgres://u:s3cret@127.0.0.1:1/faces";
    let failed = Finished::of(place.facecrawl(&["migrate"]).env("DATABASE_URL", url))
        .fails(1, &["postgres://u:***@127.0.0.1:1/faces"]);
    assert!(!failed.stderr.contains("s3cret"), "{failed:?}");
}

#[testing::test]
async fn migrate_reports_number_of_migrations() {
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let migrate = place.run_on(&database, &["migrate", "--json"]);
    assert_eq!(migrate.expect(0).json()["migrations_run"], 0);
}

/// Sends half of a request with an image. The service has begun to read the body.
fn half_a_request(base: &str, body: &[u8]) -> TcpStream {
    let address = base.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let head = format!(
        "POST /faces/detect HTTP/1.1\r\nhost: {address}\r\ncontent-type: image/jpeg\r\ncontent-length: {}\r\n\
         connection: close\r\nexpect: 100-continue\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The interim response is sent when the handler reads the body.
    let mut interim = [0; 25];
    stream.read_exact(&mut interim).unwrap();
    assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(&body[..body.len() / 2]).unwrap();
    stream
}

#[testing::test(flavor = "multi_thread")]
async fn accepted_request_is_answered_after_term_signal() {
    let ada = testing::drawing("ada.jpg");
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut service =
        Service::start(&mut place.on(&database, &["serve", "--port", "0", "-s", "DRAIN_SECONDS=60"]));
    let mut request = half_a_request(&service.base, &ada);
    service.signal(Signal::TERM);
    service.wait_for("", "shutting down;");
    request.write_all(&ada[ada.len() / 2..]).unwrap();
    let mut answer = String::new();
    request.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"faces\""), "{answer}");
    let (status, log) = service.ended();
    assert_eq!(status, Some(0), "{log}");
}

#[testing::test(flavor = "multi_thread")]
async fn second_signal_stops_service_immediately() {
    let ada = testing::drawing("ada.jpg");
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut service =
        Service::start(&mut place.on(&database, &["serve", "--port", "0", "-s", "DRAIN_SECONDS=600"]));
    let _held = half_a_request(&service.base, &ada);
    service.signal(Signal::TERM);
    service.wait_for("", "shutting down;");
    service.signal(Signal::INT);
    assert_eq!(service.ended().0, Some(130));
}

#[test]
fn start_error_names_setting_and_states_cause_once() {
    let place = TestFolder::new();
    let inside_a_file = place.put("file", "").join("folder");
    let inside_a_file = inside_a_file.to_str().unwrap();
    // Nothing listens on port 1.
    let nobody = "postgres://u:s3cret@127.0.0.1:1/faces";
    for (args, name, value, words) in [
        (&["migrate"][..], "DATABASE_URL", nobody, "DATABASE_URL=postgres://u:***@"),
        (&["serve", "--port", "0"], "DATA_DIR", inside_a_file, "DATA_DIR="),
        (&["models", "fetch"], "MODELS_DIR", "/proc/nowhere", "MODELS_DIR"),
    ] {
        let mut command = place.facecrawl(args);
        let failed = Finished::of(command.env("DATABASE_URL", nobody).env(name, value)).expect(1);
        let error = failed.stderr.lines().last().unwrap();
        assert!(error.contains(words), "{name}: {}", failed.stderr);
        assert_eq!(error.matches("os error").count(), 1, "{name}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

/// Number of connections. Each sends the next request as soon as the last one is answered.
const CONNECTIONS: usize = 16;

/// Number of responses before the service is stopped or restarted.
const BEFORE: usize = 64;

#[derive(Default)]
struct Seen {
    answered: AtomicUsize,
    /// Number of refused connections. The request was not accepted, and its caller receives an
    /// error.
    refused: AtomicUsize,
    over: AtomicBool,
}

/// Sends detection requests on `CONNECTIONS` keep-alive connections until `over` is set or the port
/// is closed. Any response other than 200 fails the test, and so does any request that is neither
/// answered nor refused.
fn load(base: &str, image: &[u8], seen: &Arc<Seen>) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (url, image, seen) = (format!("{base}/faces/detect"), image.to_vec(), Arc::clone(seen));
        callers.spawn(async move {
            // The client does not retry, so that every failure is visible.
            let client = reqwest::Client::builder()
                .no_proxy()
                .retry(reqwest::retry::never())
                .timeout(Duration::from_secs(120))
                .build()
                .unwrap();
            while !seen.over.load(Ordering::SeqCst) {
                let request = client.post(&url).header("content-type", "image/jpeg").body(image.clone());
                match request.send().await {
                    Ok(answer) => {
                        let status = answer.status().as_u16();
                        let text = answer.text().await.expect("a response that has begun is completed");
                        assert_eq!(status, 200, "{text}");
                        assert!(text.contains("\"faces\""), "{text}");
                        seen.answered.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) if error.is_connect() => {
                        seen.refused.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    Err(error) => panic!("accepted but not answered: {error:?}"),
                }
            }
        });
    }
    callers
}

async fn answered(seen: &Seen, callers: &mut JoinSet<()>, count: usize) {
    while seen.answered.load(Ordering::SeqCst) < count {
        tokio::select! {
            Some(ended) = callers.join_next() => panic!("a caller ended early: {ended:?}"),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
}

#[testing::test(flavor = "multi_thread")]
async fn stop_under_load_answers_every_accepted_request() {
    let image = testing::drawing("ada.jpg");
    let _already = rustls::crypto::ring::default_provider().install_default();
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut command = place.facecrawl(&["serve", "--port", "0", "-s", "DRAIN_SECONDS=120"]);
    let mut service = Service::start(command.env("DATABASE_URL", database.url()));
    let seen = Arc::new(Seen::default());
    let mut callers = load(&service.base, &image, &seen);
    answered(&seen, &mut callers, BEFORE).await;
    service.signal(Signal::TERM);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    let (status, log) = tokio::task::spawn_blocking(move || service.ended()).await.unwrap();
    assert_eq!(status, Some(0), "{log}");
    assert_eq!(
        seen.refused.load(Ordering::SeqCst),
        CONNECTIONS,
        "every connection was used until the port closed"
    );
    assert!(!log.contains("cut off"), "{log}");
}

/// Passes standard input as the socket, as systemd does.
const WITH_SOCKET: &str = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null";

/// Starts the service on a socket that stays open after the service exits, as systemd passes it.
fn start_on(place: &TestFolder, socket: &std::net::TcpListener, database: &TestDatabase) -> Service {
    let facecrawl = place.on(database, &["serve", "-s", "DRAIN_SECONDS=120"]);
    let mut shell = through_shell(WITH_SOCKET, &facecrawl);
    shell.stdin(Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
    Service::start(&mut shell)
}

#[testing::test(flavor = "multi_thread")]
async fn restart_on_inherited_socket_fails_no_request() {
    let image = testing::drawing("ada.jpg");
    let _already = rustls::crypto::ring::default_provider().install_default();
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut service = start_on(&place, &socket, &database);
    assert_eq!(service.base, format!("http://{address}"), "the socket goes before HOST and PORT");

    let seen = Arc::new(Seen::default());
    let mut callers = load(&service.base, &image, &seen);
    for round in 1..=2 {
        answered(&seen, &mut callers, round * BEFORE).await;
        tokio::task::spawn_blocking(move || service.stop()).await.unwrap();
        service = start_on(&place, &socket, &database);
    }
    let so_far = seen.answered.load(Ordering::SeqCst);
    answered(&seen, &mut callers, so_far + BEFORE).await;
    seen.over.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    assert_eq!(seen.refused.load(Ordering::SeqCst), 0);
    service.stop();
}

#[testing::test(flavor = "multi_thread")]
async fn public_inherited_socket_requires_auth_setting() {
    let place = TestFolder::new();
    let socket = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let facecrawl = place.facecrawl(&["serve"]);
    let mut shell = through_shell(WITH_SOCKET, &facecrawl);
    Finished::of(shell.stdin(Stdio::from(OwnedFd::from(socket)))).fails(2, &["HOST=0.0.0.0", "AUTH"]);
}

/// Another process upgrades the database to a schema that this version does not know.
#[testing::test(flavor = "multi_thread")]
async fn outdated_version_exits_after_schema_upgrade() {
    let _already = rustls::crypto::ring::default_provider().install_default();
    let (place, database) = (TestFolder::new(), TestDatabase::create().await);
    let start = || place.on(&database, &["up", "--port", "0"]);
    let mut service = Service::start(&mut start());
    sqlx::raw_sql(
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
             values (9001, 'next', true, '', 0);
         update required_schema set version = 9001",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let (status, log) = tokio::task::spawn_blocking(move || service.ended()).await.unwrap();
    let reason = "upgraded the database to schema 9001";
    assert_eq!(status, Some(1), "{log}");
    assert!(log.contains(reason) && log.contains("start the newer one"), "{log}");
    Finished::of(&mut start()).fails(1, &[reason]);
}

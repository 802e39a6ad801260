//! Tests the service from start to stop, through its signals and over HTTP. A stop or a restart
//! under load responds to every accepted request.
use crate::common::service::{Output, Service, TestFolder, client, get, through_shell};
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
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut service = Service::start(&mut folder.facecrawl_with(&database, &["--port", "0"]));
    let (status, body) = get(&format!("{}/health/ready", service.base)).await;
    assert_eq!(status, 200, "{body}");
    folder.run(&["health", "--timeout", "60", "--url", &service.base]).success();

    let detect = format!("{}/faces/detect", service.base);
    let client = client();
    let response = client.post(detect).header("content-type", "image/jpeg").body(ada).send().await.unwrap();
    let response: serde_json::Value = response.json().await.unwrap();
    assert_eq!(response["faces"].as_array().unwrap().len(), 1);

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
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let variables = |service: &Service, name: &str| -> Vec<String> {
        let environment = std::fs::read(format!("/proc/{}/environ", service.child.id())).unwrap();
        let environment = String::from_utf8(environment).unwrap();
        environment.split('\0').filter(|line| line.starts_with(name)).map(str::to_owned).collect()
    };
    let mut command = folder.facecrawl(&["--port", "0"]);
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
    let folder = TestFolder::new();
    let bin = testing::database::programs();
    let up = |folder: &TestFolder| {
        let mut command = folder.facecrawl(&["up", "--port", "0"]);
        command.env("POSTGRES_BIN_DIR", &bin);
        command
    };
    let mut service = Service::start(&mut up(&folder));
    assert_eq!(get(&format!("{}/health/ready", service.base)).await.0, 200);

    Output::run(&mut up(&folder)).fails(1, &["in use by another facecrawl"]);

    // A scan that runs alongside the service stores into the same database.
    folder.put("album/ada.jpg", testing::drawing("ada.jpg"));
    let mut scan = folder.facecrawl(&["scan", "album", "--json"]);
    Output::run(scan.env("POSTGRES_BIN_DIR", &bin)).success();
    let (_, faces) = get(&format!("{}/faces", service.base)).await;
    let faces: serde_json::Value = serde_json::from_str(&faces).unwrap();
    assert_eq!(faces["faces"].as_array().unwrap().len(), 1);

    service.signal(Signal::INT);
    let (status, log) = service.wait_for_exit();
    assert_eq!(status, Some(0), "{log}");
    let pid_file = folder.path().join("data/postgres/postmaster.pid");
    assert!(!pid_file.exists(), "the database server must stop with the service:\n{log}");

    // The service starts again on the same data.
    let mut service = Service::start(&mut up(&folder));
    assert_eq!(get(&format!("{}/collections", service.base)).await.0, 200);
    let log = service.stop();
    let (_, end) = log.split_once("shutting down").unwrap();
    // The lines that Postgres itself writes about connections at its end are not checked.
    for message in ["failed to reconcile", "testing the connection on-release"] {
        assert!(!end.contains(message), "{log}");
    }
}

#[testing::test(flavor = "multi_thread")]
async fn serve_and_worker_share_database() {
    let (folder, database) = (TestFolder::with_models(), TestDatabase::create().await);
    let start = |args: &[&str]| Service::start(&mut folder.facecrawl_with(&database, args));
    let (api, worker) = (start(&["serve", "--port", "0"]), start(&["worker"]));
    assert_eq!(get(&format!("{}/health/ready", api.base)).await.0, 200);
    assert_eq!(worker.base, "");
    for mut service in [api, worker] {
        service.stop();
    }
}

#[testing::test(flavor = "multi_thread")]
async fn occupied_port_is_reported_before_data_folder_creation() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let folder = TestFolder::new();
    folder.run(&["up", "--port", &port]).fails(1, &[&format!("cannot listen on 127.0.0.1:{port}")]);
    assert!(!folder.path().join("data").exists());
}

#[testing::test(flavor = "multi_thread")]
async fn unreachable_database_error_masks_password() {
    let folder = TestFolder::new();
    let url = "postgres://u:s3cret@127.0.0.1:1/faces";
    let failed = Output::run(folder.facecrawl(&["migrate"]).env("DATABASE_URL", url))
        .fails(1, &["postgres://u:***@127.0.0.1:1/faces"]);
    assert!(!failed.stderr.contains("s3cret"), "{failed:?}");
}

#[testing::test]
async fn migrate_reports_number_of_migrations() {
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let migrate = folder.run_with(&database, &["migrate", "--json"]);
    assert_eq!(migrate.success().json()["migrations_run"], 0);
}

/// Sends half of a request with an image. The service has begun to read the body.
fn send_half_request(base: &str, body: &[u8]) -> TcpStream {
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
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut service = Service::start(
        &mut folder.facecrawl_with(&database, &["serve", "--port", "0", "-s", "DRAIN_SECONDS=60"]),
    );
    let mut request = send_half_request(&service.base, &ada);
    service.signal(Signal::TERM);
    service.wait_for("", "shutting down;");
    request.write_all(&ada[ada.len() / 2..]).unwrap();
    let mut response = String::new();
    request.read_to_string(&mut response).unwrap();
    assert!(response.starts_with("HTTP/1.1 200") && response.contains("\"faces\""), "{response}");
    let (status, log) = service.wait_for_exit();
    assert_eq!(status, Some(0), "{log}");
}

#[testing::test(flavor = "multi_thread")]
async fn second_signal_stops_service_immediately() {
    let ada = testing::drawing("ada.jpg");
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut service = Service::start(
        &mut folder.facecrawl_with(&database, &["serve", "--port", "0", "-s", "DRAIN_SECONDS=600"]),
    );
    let _pending_request = send_half_request(&service.base, &ada);
    service.signal(Signal::TERM);
    service.wait_for("", "shutting down;");
    service.signal(Signal::INT);
    assert_eq!(service.wait_for_exit().0, Some(130));
}

#[test]
fn start_error_names_setting_and_states_cause_once() {
    let folder = TestFolder::new();
    let path_inside_file = folder.put("file", "").join("folder");
    let path_inside_file = path_inside_file.to_str().unwrap();
    // Nothing listens on port 1.
    let url = "postgres://u:s3cret@127.0.0.1:1/faces";
    for (args, name, value, words) in [
        (&["migrate"][..], "DATABASE_URL", url, "DATABASE_URL=postgres://u:***@"),
        (&["serve", "--port", "0"], "DATA_DIR", path_inside_file, "DATA_DIR="),
        (&["models", "fetch"], "MODELS_DIR", "/proc/nowhere", "MODELS_DIR"),
    ] {
        let mut command = folder.facecrawl(args);
        let failed = Output::run(command.env("DATABASE_URL", url).env(name, value)).assert_status(1);
        let error = failed.stderr.lines().last().unwrap();
        assert!(error.contains(words), "{name}: {}", failed.stderr);
        assert_eq!(error.matches("os error").count(), 1, "{name}: {error}");
        assert!(!error.contains("s3cret"), "{error}");
    }
}

/// Number of connections. Each sends the next request after the response to the last one.
const CONNECTIONS: usize = 16;

/// Number of responses before the service is stopped or restarted.
const MIN_RESPONSES: usize = 64;

#[derive(Default)]
struct LoadCounts {
    responses: AtomicUsize,
    /// Number of refused connections. The request was not accepted, and its caller receives an
    /// error.
    refused: AtomicUsize,
    is_over: AtomicBool,
}

/// Sends detection requests on `CONNECTIONS` keep-alive connections until `is_over` is set or the
/// port is closed. Any response other than 200 fails the test. So does any request that is neither
/// answered nor refused.
fn start_load(base: &str, image: &[u8], counts: &Arc<LoadCounts>) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (url, image, counts) = (format!("{base}/faces/detect"), image.to_vec(), Arc::clone(counts));
        callers.spawn(async move {
            // The client does not retry, so that every failure is visible.
            let client = reqwest::Client::builder()
                .no_proxy()
                .retry(reqwest::retry::never())
                .timeout(Duration::from_secs(120))
                .build()
                .unwrap();
            while !counts.is_over.load(Ordering::SeqCst) {
                let request = client.post(&url).header("content-type", "image/jpeg").body(image.clone());
                match request.send().await {
                    Ok(response) => {
                        let status = response.status().as_u16();
                        let text = response.text().await.expect("a response that has begun is completed");
                        assert_eq!(status, 200, "{text}");
                        assert!(text.contains("\"faces\""), "{text}");
                        counts.responses.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(error) if error.is_connect() => {
                        counts.refused.fetch_add(1, Ordering::SeqCst);
                        return;
                    }
                    Err(error) => panic!("accepted but not answered: {error:?}"),
                }
            }
        });
    }
    callers
}

async fn wait_for_responses(counts: &LoadCounts, callers: &mut JoinSet<()>, count: usize) {
    while counts.responses.load(Ordering::SeqCst) < count {
        tokio::select! {
            Some(ended) = callers.join_next() => panic!("a caller ended early: {ended:?}"),
            () = tokio::time::sleep(Duration::from_millis(5)) => {}
        }
    }
}

#[testing::test(flavor = "multi_thread")]
async fn stop_under_load_answers_every_accepted_request() {
    let image = testing::drawing("ada.jpg");
    let _result = rustls::crypto::ring::default_provider().install_default();
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let mut command = folder.facecrawl(&["serve", "--port", "0", "-s", "DRAIN_SECONDS=120"]);
    let mut service = Service::start(command.env("DATABASE_URL", database.url()));
    let counts = Arc::new(LoadCounts::default());
    let mut callers = start_load(&service.base, &image, &counts);
    wait_for_responses(&counts, &mut callers, MIN_RESPONSES).await;
    service.signal(Signal::TERM);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    let (status, log) = tokio::task::spawn_blocking(move || service.wait_for_exit()).await.unwrap();
    assert_eq!(status, Some(0), "{log}");
    assert_eq!(
        counts.refused.load(Ordering::SeqCst),
        CONNECTIONS,
        "every connection was used until the port closed"
    );
    assert!(!log.contains("cut off"), "{log}");
}

/// Shell script that passes standard input as the socket, as systemd does.
const SCRIPT_WITH_SOCKET: &str = "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null";

/// Starts the service on a socket that stays open after the service exits, as systemd passes it.
fn start_on_socket(folder: &TestFolder, socket: &std::net::TcpListener, database: &TestDatabase) -> Service {
    let facecrawl = folder.facecrawl_with(database, &["serve", "-s", "DRAIN_SECONDS=120"]);
    let mut shell = through_shell(SCRIPT_WITH_SOCKET, &facecrawl);
    shell.stdin(Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
    Service::start(&mut shell)
}

#[testing::test(flavor = "multi_thread")]
async fn restart_on_inherited_socket_fails_no_request() {
    let image = testing::drawing("ada.jpg");
    let _result = rustls::crypto::ring::default_provider().install_default();
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut service = start_on_socket(&folder, &socket, &database);
    assert_eq!(service.base, format!("http://{address}"), "the socket takes precedence over HOST and PORT");

    let counts = Arc::new(LoadCounts::default());
    let mut callers = start_load(&service.base, &image, &counts);
    for round in 1..=2 {
        wait_for_responses(&counts, &mut callers, round * MIN_RESPONSES).await;
        tokio::task::spawn_blocking(move || service.stop()).await.unwrap();
        service = start_on_socket(&folder, &socket, &database);
    }
    let response_count = counts.responses.load(Ordering::SeqCst);
    wait_for_responses(&counts, &mut callers, response_count + MIN_RESPONSES).await;
    counts.is_over.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    assert_eq!(counts.refused.load(Ordering::SeqCst), 0);
    service.stop();
}

#[testing::test(flavor = "multi_thread")]
async fn public_inherited_socket_requires_auth_setting() {
    let folder = TestFolder::new();
    let socket = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let facecrawl = folder.facecrawl(&["serve"]);
    let mut shell = through_shell(SCRIPT_WITH_SOCKET, &facecrawl);
    Output::run(shell.stdin(Stdio::from(OwnedFd::from(socket)))).fails(2, &["HOST=0.0.0.0", "AUTH"]);
}

/// Another process upgrades the database to a schema that this version does not support.
#[testing::test(flavor = "multi_thread")]
async fn outdated_version_exits_after_schema_upgrade() {
    let _result = rustls::crypto::ring::default_provider().install_default();
    let (folder, database) = (TestFolder::new(), TestDatabase::create().await);
    let start = || folder.facecrawl_with(&database, &["up", "--port", "0"]);
    let mut service = Service::start(&mut start());
    sqlx::raw_sql(
        "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
             values (9001, 'next', true, '', 0);
         update required_schema set version = 9001",
    )
    .execute(database.pool())
    .await
    .unwrap();
    let (status, log) = tokio::task::spawn_blocking(move || service.wait_for_exit()).await.unwrap();
    let reason = "upgraded the database to schema 9001";
    assert_eq!(status, Some(1), "{log}");
    assert!(log.contains(reason) && log.contains("start the newer one"), "{log}");
    Output::run(&mut start()).fails(1, &[reason]);
}

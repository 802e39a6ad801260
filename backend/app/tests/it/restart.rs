//! Tests stopping and restarting under load: every accepted request receives its response.
#![cfg(unix)]

use crate::common::process::{Finished, TestFolder};
use crate::common::service::Service;
use rustix::process::Signal;
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use testing::TestDatabase;
use tokio::task::JoinSet;

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
fn load(base: &str, picture: &[u8], seen: &Arc<Seen>) -> JoinSet<()> {
    let mut callers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (url, picture, seen) = (format!("{base}/faces/detect"), picture.to_vec(), Arc::clone(seen));
        callers.spawn(async move {
            // The client does not retry, so that every failure is visible.
            let client = reqwest::Client::builder()
                .no_proxy()
                .retry(reqwest::retry::never())
                .timeout(Duration::from_secs(120))
                .build()
                .unwrap();
            while !seen.over.load(Ordering::SeqCst) {
                let request = client.post(&url).header("content-type", "image/jpeg").body(picture.clone());
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
async fn a_stop_under_load_answers_every_accepted_request() {
    let picture = testing::picture("ada.jpg");
    let _already = rustls::crypto::ring::default_provider().install_default();
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let mut command = place.facecrawl(&["serve", "--port", "0", "-s", "DRAIN_SECONDS=120"]);
    let mut service = Service::start(command.env("DATABASE_URL", database.url()));
    let seen = Arc::new(Seen::default());
    let mut callers = load(&service.base, &picture, &seen);
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

/// Starts the service on a socket that stays open after the service exits, as systemd passes it.
fn start_on(place: &TestFolder, socket: &std::net::TcpListener, database: &TestDatabase) -> Service {
    let facecrawl = place.facecrawl(&["serve", "-s", "DRAIN_SECONDS=120"]);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 </dev/null"])
        .arg(facecrawl.get_program())
        .args(facecrawl.get_args())
        .current_dir(place.path())
        .env_clear()
        .env("DATABASE_URL", database.url())
        .stdin(Stdio::from(OwnedFd::from(socket.try_clone().unwrap())));
    for (name, value) in facecrawl.get_envs() {
        if let Some(value) = value {
            shell.env(name, value);
        }
    }
    Service::start(&mut shell)
}

#[testing::test(flavor = "multi_thread")]
async fn a_restart_on_an_inherited_socket_fails_no_request() {
    let picture = testing::picture("ada.jpg");
    let _already = rustls::crypto::ring::default_provider().install_default();
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let mut service = start_on(&place, &socket, &database);
    assert_eq!(service.base, format!("http://{address}"), "the socket goes before HOST and PORT");

    let seen = Arc::new(Seen::default());
    let mut callers = load(&service.base, &picture, &seen);
    for round in 1..=2 {
        answered(&seen, &mut callers, round * BEFORE).await;
        service.signal(Signal::TERM);
        let (status, log) = tokio::task::spawn_blocking(move || service.ended()).await.unwrap();
        assert_eq!(status, Some(0), "{log}");
        service = start_on(&place, &socket, &database);
    }
    let so_far = seen.answered.load(Ordering::SeqCst);
    answered(&seen, &mut callers, so_far + BEFORE).await;
    seen.over.store(true, Ordering::SeqCst);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    assert_eq!(seen.refused.load(Ordering::SeqCst), 0);
    service.signal(Signal::TERM);
    assert_eq!(service.ended().0, Some(0));
}

#[testing::test(flavor = "multi_thread")]
async fn an_inherited_socket_that_others_can_reach_needs_auth_too() {
    let place = TestFolder::new();
    let socket = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let facecrawl = place.facecrawl(&["serve"]);
    let output = Command::new("sh")
        .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" serve 3<&0 </dev/null"])
        .arg(facecrawl.get_program())
        .current_dir(place.path())
        .env_clear()
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("HOST=0.0.0.0") && said.contains("AUTH"), "{said}");
}

/// Another process upgrades the database to a schema that this version does not know.
#[testing::test(flavor = "multi_thread")]
async fn a_version_that_is_too_old_for_the_schema_ends_and_does_not_start_again() {
    let _already = rustls::crypto::ring::default_provider().install_default();
    let database = TestDatabase::create().await;
    let place = TestFolder::new();
    let start = || {
        let mut command = place.facecrawl(&["up", "--port", "0"]);
        command.env("DATABASE_URL", database.url());
        command
    };
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
    let again = Finished::of(&mut start()).expect(1);
    assert!(again.stderr.contains(reason), "{}", again.stderr);
}

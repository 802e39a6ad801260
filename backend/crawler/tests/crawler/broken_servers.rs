//! Tests the fetcher with servers that break HTTP. They write raw bytes.

use crate::support::{Recorder, local_config};
use crawler::fetch::{AnyHop, Kind};
use crawler::{Fetcher, Request};
use domain::Reason;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use url::Url;

/// What the server does after it has read a request.
#[derive(Clone)]
enum Answer {
    /// Writes these bytes and waits for the next request.
    Keep(Vec<u8>),
    /// Writes these bytes and closes the connection.
    Close(Vec<u8>),
    /// Resets the connection.
    Reset,
}

/// A server that answers from a script and counts connections and requests.
struct RawSite {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl RawSite {
    /// Starts a server. `script` gets the number of the connection and the number of the request on
    /// it, both from 0. The first requests of the first `together` connections are answered when
    /// all of them have arrived.
    async fn start(together: usize, script: impl Fn(usize, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let barrier = Arc::new(Barrier::new(together));
        let (opened, asked, script) = (connections.clone(), requests.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let connection = opened.fetch_add(1, Ordering::SeqCst);
                let (asked, script, barrier) = (asked.clone(), script.clone(), barrier.clone());
                tokio::spawn(async move {
                    for request in 0.. {
                        if !read_request(&mut socket).await {
                            return;
                        }
                        asked.fetch_add(1, Ordering::SeqCst);
                        if connection < together && request == 0 {
                            barrier.wait().await;
                        }
                        match script(connection, request) {
                            Answer::Keep(bytes) => socket.write_all(&bytes).await.unwrap(),
                            Answer::Close(bytes) => {
                                socket.write_all(&bytes).await.unwrap();
                                return;
                            }
                            Answer::Reset => {
                                socket.set_zero_linger().unwrap();
                                return;
                            }
                        }
                    }
                });
            }
        });
        Self { address, connections, requests }
    }

    fn request(&self, kind: Kind) -> Request {
        Request::new(Url::parse(&format!("http://{}/x", self.address)).unwrap(), kind)
    }

    /// Returns the numbers of connections and of requests so far.
    fn counts(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }
}

/// Reads up to the end of a request's head. Returns `false` if the client closed the connection.
async fn read_request(socket: &mut TcpStream) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match socket.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return false,
        }
    }
    true
}

fn complete() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody".to_vec()
}

#[tokio::test]
async fn repeats_a_request_if_the_server_closed_the_reused_connection() {
    for last in [Answer::Close(Vec::new()), Answer::Reset] {
        let site = RawSite::start(0, move |connection, request| match (connection, request) {
            (0, 1) => last.clone(),
            _ => Answer::Keep(complete()),
        })
        .await;
        let fetcher = Fetcher::new(&local_config());
        let policy = Recorder::default();
        for _ in 0..2 {
            let answer = fetcher.fetch(site.request(Kind::Image), &policy).await.unwrap();
            assert_eq!(&answer.body[..], b"body");
        }
        assert_eq!(site.counts(), (2, 3));
        // The repetition is part of the same hop.
        assert_eq!(policy.lines(), ["admit /x", "finished /x 200", "admit /x", "finished /x 200"]);
    }
}

#[tokio::test]
async fn repeats_a_request_on_a_new_connection_if_all_idle_ones_are_closed() {
    let site = RawSite::start(3, |connection, request| match (connection, request) {
        (0..3, 1) => Answer::Close(Vec::new()),
        _ => Answer::Keep(complete()),
    })
    .await;
    let fetcher = Fetcher::new(&local_config());
    let fetch = || fetcher.fetch(site.request(Kind::Image), &AnyHop);
    let first = tokio::join!(fetch(), fetch(), fetch());
    assert!(first.0.is_ok() && first.1.is_ok() && first.2.is_ok());
    assert_eq!(site.counts(), (3, 3));
    assert_eq!(&fetch().await.unwrap().body[..], b"body");
    assert_eq!(site.counts(), (4, 5));
}

#[tokio::test]
async fn repeats_a_request_only_once_and_only_after_reuse() {
    // The server closes every connection after its first response, and then all new ones.
    let site = RawSite::start(0, |connection, request| match (connection, request) {
        (0, 0) => Answer::Keep(complete()),
        _ => Answer::Close(Vec::new()),
    })
    .await;
    let fetcher = Fetcher::new(&local_config());
    fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap();
    let error = fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap_err();
    assert_eq!((error.reason(), error.is_transient()), (Reason::ConnectFailure, true), "{error}");
    assert_eq!(site.counts(), (2, 3), "one repetition");
    let error = fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap_err();
    assert_eq!((error.reason(), error.is_transient()), (Reason::ConnectFailure, true), "{error}");
    assert_eq!(site.counts(), (3, 4), "a new connection causes no repetition");
}

#[tokio::test]
async fn repeats_no_request_whose_response_began() {
    let site = RawSite::start(0, |_, request| match request {
        0 => Answer::Keep(complete()),
        _ => Answer::Close(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart".to_vec()),
    })
    .await;
    let fetcher = Fetcher::new(&local_config());
    fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap();
    let error = fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(site.counts(), (1, 2));
}

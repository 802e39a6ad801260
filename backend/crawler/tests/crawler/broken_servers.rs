//! Tests the fetcher with servers that violate HTTP.

use crate::support::{HopRecorder, gzip, local_config};
use crawler::fetch::{AnyHop, Kind};
use crawler::{FetchError, Fetched, Fetcher, Request};
use domain::Reason;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Barrier;
use url::Url;

/// What the server does after it has read a request.
#[derive(Clone)]
enum Response {
    /// Writes these bytes and waits for the next request.
    KeepOpen(Vec<u8>),
    /// Writes these bytes and closes the connection.
    Close(Vec<u8>),
    /// Resets the connection.
    Reset,
}

/// A server that sends scripted bytes and counts connections and requests.
struct RawSite {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
    requests: Arc<AtomicUsize>,
}

impl RawSite {
    /// Starts a server. The parameters of `script` are the number of the connection and of the
    /// request on it, both from 0. The first `barrier_size` connections respond to their first
    /// requests when all of these have arrived.
    async fn start(
        barrier_size: usize,
        script: impl Fn(usize, usize) -> Response + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (connections, requests) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let barrier = Arc::new(Barrier::new(barrier_size));
        let (connection_count, request_count, script) =
            (connections.clone(), requests.clone(), Arc::new(script));
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let connection = connection_count.fetch_add(1, Ordering::SeqCst);
                let (request_count, script, barrier) =
                    (request_count.clone(), script.clone(), barrier.clone());
                tokio::spawn(async move {
                    for request in 0.. {
                        if !read_request(&mut socket).await {
                            return;
                        }
                        request_count.fetch_add(1, Ordering::SeqCst);
                        if connection < barrier_size && request == 0 {
                            barrier.wait().await;
                        }
                        match script(connection, request) {
                            Response::KeepOpen(bytes) => socket.write_all(&bytes).await.unwrap(),
                            Response::Close(bytes) => {
                                socket.write_all(&bytes).await.unwrap();
                                return;
                            }
                            Response::Reset => {
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

    /// Starts a server that sends the same bytes to each request and then closes the connection.
    async fn serve(bytes: impl Into<Vec<u8>>) -> Self {
        let bytes = bytes.into();
        Self::start(0, move |_, _| Response::Close(bytes.clone())).await
    }

    fn request(&self, kind: Kind) -> Request {
        Request::new(Url::parse(&format!("http://{}/x", self.address)).unwrap(), kind)
    }

    async fn fetch(&self, kind: Kind) -> Result<Fetched, FetchError> {
        Fetcher::new(&local_config()).fetch(self.request(kind), &AnyHop).await
    }

    /// Returns the numbers of connections and of requests so far.
    fn counts(&self) -> (usize, usize) {
        (self.connections.load(Ordering::SeqCst), self.requests.load(Ordering::SeqCst))
    }
}

/// Reads the head of a request. Returns `false` if the client closed the connection.
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

fn complete_response() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody".to_vec()
}

#[tokio::test]
async fn retries_request_when_reused_connection_closes() {
    for second_response in [Response::Close(Vec::new()), Response::Reset] {
        let site = RawSite::start(0, move |connection, request| match (connection, request) {
            (0, 1) => second_response.clone(),
            _ => Response::KeepOpen(complete_response()),
        })
        .await;
        let fetcher = Fetcher::new(&local_config());
        let policy = HopRecorder::default();
        for _ in 0..2 {
            let response = fetcher.fetch(site.request(Kind::Image), &policy).await.unwrap();
            assert_eq!(&response.body[..], b"body");
        }
        assert_eq!(site.counts(), (2, 3));
        // The retry is part of the same hop.
        assert_eq!(policy.lines(), ["admit /x", "finished /x 200", "admit /x", "finished /x 200"]);
    }
}

#[tokio::test]
async fn retries_on_new_connection_when_idle_ones_are_closed() {
    let site = RawSite::start(3, |connection, request| match (connection, request) {
        (0..3, 1) => Response::Close(Vec::new()),
        _ => Response::KeepOpen(complete_response()),
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
async fn retries_only_once_and_only_on_reused_connection() {
    // The server responds only to the first request of the first connection. It closes the
    // connections of all later requests.
    let site = RawSite::start(0, |connection, request| match (connection, request) {
        (0, 0) => Response::KeepOpen(complete_response()),
        _ => Response::Close(Vec::new()),
    })
    .await;
    let fetcher = Fetcher::new(&local_config());
    fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap();
    let error = fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap_err();
    assert_eq!((error.reason(), error.is_transient()), (Reason::ConnectionClosed, true), "{error}");
    assert_eq!(site.counts(), (2, 3), "one retry");
    let error = fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap_err();
    assert_eq!((error.reason(), error.is_transient()), (Reason::ConnectionClosed, true), "{error}");
    assert_eq!(site.counts(), (3, 4), "a request on a new connection is not retried");
}

#[tokio::test]
async fn does_not_retry_after_response_began() {
    let site = RawSite::start(0, |_, request| match request {
        0 => Response::KeepOpen(complete_response()),
        _ => Response::Close(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\npart".to_vec()),
    })
    .await;
    let fetcher = Fetcher::new(&local_config());
    fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap();
    let error = fetcher.fetch(site.request(Kind::Image), &AnyHop).await.unwrap_err();
    assert_eq!(error.reason(), Reason::IncompleteTransfer, "{error}");
    assert_eq!(site.counts(), (1, 2));
}

/// Returns a response with these header lines between two valid ones.
fn response_with_lines(lines: &[u8]) -> Vec<u8> {
    [
        &b"HTTP/1.1 200 OK\r\netag: \"v1\"\r\n"[..],
        lines,
        b"x-robots-tag: noai\r\ncontent-type: image/png\r\ncontent-length: 4\r\n\r\nbody",
    ]
    .concat()
}

#[tokio::test]
async fn skips_invalid_header_lines() {
    let headers_120: String = (0..120).map(|n| format!("x-{n}: {n}\r\n")).collect();
    let headers_1000: String = (0..1000).map(|n| format!("x-{n}: {n}\r\n")).collect();
    let lines: &[(&str, &[u8])] = &[
        (
            "PHP warning",
            b"<br />\r\n<b>Warning</b>:  fopen(x): failed in <b>/a.php</b> on line <b>2</b><br />\r\n",
        ),
        (
            "PHP warning with line feeds",
            b"<br />\n<b>Warning</b>:  Undefined index: a in <b>/a.php</b><br />\n",
        ),
        ("control byte", b"set-cookie: a=\x01b; path=/\r\n"),
        ("control byte in the name", b"set\x02cookie: a\r\n"),
        ("escape sequence", b"x-log: \x1b[31mred\x1b[0m\r\n"),
        ("bytes above ASCII", b"x-name: \xff\xfe\r\nx-n\xc3\xa4me: a\r\n"),
        ("no colon", b"this line has no colon\r\nnocolon\r\n"),
        ("no name", b": value\r\n"),
        ("space before the colon", b"x-space : value\r\n"),
        ("folded line", b"x-folded: one\r\n two\r\n\tthree\r\n"),
        ("folded invalid line", b"no colon\r\n two\r\nx-bad: \x01\r\n three\r\n"),
        ("120 headers", headers_120.as_bytes()),
        ("1000 headers", headers_1000.as_bytes()),
    ];
    for (name, lines) in lines {
        let site = RawSite::serve(response_with_lines(lines)).await;
        let response = site.fetch(Kind::Image).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(&response.body[..], b"body", "{name}");
        assert_eq!(response.content_type.as_deref(), Some("image/png"), "{name}");
        assert_eq!(response.etag.as_deref(), Some("\"v1\""), "{name}");
        assert_eq!(response.robots_tags, ["noai"], "{name}");
        assert_eq!(site.counts(), (1, 1), "{name}");
    }
    // The lines of a folded value are joined.
    let folded = RawSite::serve(response_with_lines(b"x-robots-tag: noindex,\r\n  noimageindex\r\n")).await;
    assert_eq!(folded.fetch(Kind::Page).await.unwrap().robots_tags, ["noindex, noimageindex", "noai"]);
}

#[tokio::test]
async fn rejects_non_http_response_after_one_request() {
    for bytes in [
        response_with_lines(b"x-nul: a\0b\r\n"),
        b"no http at all\r\n\r\n".to_vec(),
        b"HTTP/1.1 OK\r\ncontent-length: 4\r\n\r\nbody".to_vec(),
        b"HTTP/1.1 200 OK\r\ncontent-length: four\r\n\r\nbody".to_vec(),
    ] {
        let site = RawSite::serve(bytes.clone()).await;
        let error = site.fetch(Kind::Image).await.unwrap_err();
        let actual = (error.reason(), error.is_transient());
        assert_eq!(actual, (Reason::InvalidResponse, false), "{} {error}", bytes.escape_ascii());
        assert_eq!(site.counts(), (1, 1));
    }
}

/// Returns (name, response, received part of the body) of bodies that end too early.
fn short_bodies() -> Vec<(&'static str, Vec<u8>, Vec<u8>)> {
    let head = "HTTP/1.1 200 OK\r\netag: \"v1\"\r\nlast-modified: Wed, 01 May 2024 10:00:00 GMT\r\n";
    let page = b"<html><p>".repeat(3000);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::none());
    gzip.write_all(&page).unwrap();
    let gzip = gzip.finish().unwrap();
    let half = &gzip[..page.len() / 2];
    // Bodies in Brotli and zstd with one uncompressed block of five bytes. Their ends are missing.
    let (brotli, zstd) = (b"\x0b\x02\x80hello", b"\x28\xb5\x2f\xfd\0\x58\x28\0\0hello");
    let response = |headers: &str, body: &[u8]| [head.as_bytes(), headers.as_bytes(), b"\r\n", body].concat();
    vec![
        ("length", response("content-length: 100\r\n", b"short"), b"short".to_vec()),
        ("no last chunk", response("transfer-encoding: chunked\r\n", b"5\r\nshort\r\n"), b"short".to_vec()),
        ("half a chunk", response("transfer-encoding: chunked\r\n", b"9\r\nshort"), b"short".to_vec()),
        (
            "gzip",
            response("content-encoding: gzip\r\ncontent-length: 99999\r\n", half),
            page[..half.len() - 15].to_vec(),
        ),
        (
            "gzip without its end",
            response(&format!("content-encoding: gzip\r\ncontent-length: {}\r\n", half.len()), half),
            page[..half.len() - 15].to_vec(),
        ),
        ("brotli", response("content-encoding: br\r\ncontent-length: 99\r\n", brotli), b"hello".to_vec()),
        ("zstd", response("content-encoding: zstd\r\ncontent-length: 99\r\n", zstd), b"hello".to_vec()),
    ]
}

#[tokio::test]
async fn keeps_received_part_of_incomplete_body() {
    for (name, bytes, expected) in short_bodies() {
        let site = RawSite::serve(bytes).await;
        for kind in [Kind::Page, Kind::Image, Kind::SmallSitemap, Kind::Sitemap] {
            let error = site.fetch(kind).await.unwrap_err();
            let actual = (error.reason(), error.is_transient());
            assert_eq!(actual, (Reason::IncompleteTransfer, true), "{name} {error}");
            let FetchError::Incomplete { received: Some(received), .. } = error else {
                panic!("{name} {error}")
            };
            assert_eq!(received.body, expected, "{name}");
            assert!(received.is_incomplete, "{name}");
            // A later 304 would confirm a file that is not complete.
            assert_eq!(received.validators(), None, "{name}");
        }
        // An incomplete file of these kinds would be misinterpreted.
        for kind in [Kind::Robots, Kind::Playlist, Kind::Video] {
            let error = site.fetch(kind).await.unwrap_err();
            assert!(matches!(error, FetchError::Incomplete { received: None, .. }), "{name} {error}");
        }
        assert_eq!(site.counts(), (7, 7), "{name}");
    }
}

#[tokio::test]
async fn connection_errors_have_specific_reasons() {
    let refused = Url::parse("http://127.0.0.1:9/").unwrap();
    let closed = RawSite::start(0, |_, _| Response::Close(Vec::new())).await;
    let reset = RawSite::start(0, |_, _| Response::Reset).await;
    let https = |site: &RawSite| Url::parse(&format!("https://{}/", site.address)).unwrap();
    // A server without TLS sends text instead of the handshake, or nothing.
    let plain = plain_server(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let silent = plain_server(b"").await;
    for (url, reason) in [
        (refused, Reason::ConnectionRefused),
        (closed.request(Kind::Page).url, Reason::ConnectionClosed),
        (reset.request(Kind::Page).url, Reason::ConnectionClosed),
        (https(&plain), Reason::TlsFailure),
        (https(&silent), Reason::TlsFailure),
    ] {
        let error = Fetcher::new(&local_config()).fetch(Request::new(url.clone(), Kind::Page), &AnyHop).await;
        let error = error.unwrap_err();
        assert_eq!((error.reason(), error.is_transient()), (reason, true), "{url} {error}");
    }
}

/// Starts a server that sends these bytes when the client has sent something, and then closes the
/// connection.
async fn plain_server(bytes: &'static [u8]) -> RawSite {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let mut received = [0; 4096];
            let _ = socket.read(&mut received).await;
            let _ = socket.write_all(bytes).await;
        }
    });
    RawSite { address, connections: Arc::default(), requests: Arc::default() }
}

/// Returns a response whose body is not in the encoding that it states.
fn falsely_encoded(encoding: &str, body: &[u8]) -> Vec<u8> {
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-encoding: {encoding}\r\ncontent-length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn reads_robots_txt_with_false_encoding_as_text() {
    let rules = "User-agent: *\nDisallow: /private\n# caf\u{e9}\n".repeat(500);
    for encoding in ["gzip", "br", "zstd"] {
        let site = RawSite::serve(falsely_encoded(encoding, rules.as_bytes())).await;
        assert_eq!(site.fetch(Kind::Robots).await.unwrap().body, rules.as_bytes(), "{encoding}");
        for kind in [Kind::Page, Kind::Image, Kind::Sitemap, Kind::Playlist] {
            let error = site.fetch(kind).await.unwrap_err();
            assert_eq!((error.reason(), error.is_transient()), (Reason::UndecodableBody, false), "{error}");
        }
    }
    // Damaged compressed data is not read as text.
    let mut damaged = gzip(rules.as_bytes());
    damaged[12..40].fill(0xff);
    let site = RawSite::serve(falsely_encoded("gzip", &damaged)).await;
    assert_eq!(site.fetch(Kind::Robots).await.unwrap_err().reason(), Reason::UndecodableBody);
}

#[tokio::test]
async fn truncates_falsely_encoded_robots_txt_at_limit() {
    let limit = local_config().robots_limit;
    let site = RawSite::serve(falsely_encoded("gzip", &vec![b'#'; 2 * limit])).await;
    assert_eq!(site.fetch(Kind::Robots).await.unwrap().body.len(), limit);
}

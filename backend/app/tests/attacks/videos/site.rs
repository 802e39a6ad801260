//! Serves films that never arrive, and playlists of many files.
use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::convert::Infallible;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::time::Duration;
use tokio::net::TcpListener;

/// Number of hosts of the site. Each has a delay of its own.
const HOSTS: u8 = 32;
/// Number of files of a playlist, which is the maximum.
const FILES: usize = 20_000;
/// Length of the path of a playlist whose absolute addresses are just within their limit of 8 MiB.
const LONG: usize = 380;
/// Length of the path of a playlist with 160 MB of absolute addresses.
const TOO_LONG: usize = 8_000;
/// Number of playlists on the page.
pub(crate) const ON_THE_PAGE: usize = 40;

#[derive(Clone)]
pub(crate) struct Site {
    hosts: Vec<String>,
}

impl Site {
    pub(crate) async fn start() -> Self {
        let mut hosts = Vec::new();
        for number in 1..=HOSTS {
            let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 1, number), 0)).await.unwrap();
            hosts.push(format!("http://{}", listener.local_addr().unwrap()));
            let router = Router::new()
                .route("/page", get(|| async { page() }))
                .route("/slow/{name}", get(|| async { slow() }))
                .route(
                    "/{base}/{name}",
                    get(|Path((_, name)): Path<(String, String)>| async move { file(&name) }),
                );
            tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        }
        Self { hosts }
    }

    fn host(&self, number: usize) -> &str {
        &self.hosts[number % self.hosts.len()]
    }

    /// Returns the address of a page with playlists.
    pub(crate) fn page(&self, number: usize) -> String {
        format!("{}/page", self.host(number))
    }

    /// Returns the address of a film that arrives slowly.
    pub(crate) fn slow(&self, number: usize) -> String {
        format!("{}/slow/{number}.mp4", self.host(number))
    }

    pub(crate) fn long_playlist(&self, number: usize) -> String {
        format!("{}/{}/{number}.m3u8", self.host(number), "l".repeat(LONG))
    }

    pub(crate) fn too_long_playlist(&self, number: usize) -> String {
        format!("{}/{}/{number}.m3u8", self.host(number), "l".repeat(TOO_LONG))
    }
}

fn page() -> Html<String> {
    let base = "l".repeat(LONG);
    Html((0..ON_THE_PAGE).map(|number| format!("<a href=/{base}/page{number}.m3u8>x</a>")).collect())
}

/// Returns the head of a film, a byte now and then.
fn slow() -> Response {
    let head = stream::iter(b"\0\0\0\x18ftypisom".iter().copied().chain(std::iter::repeat(b' ')));
    let beat = head.then(|byte| async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok::<_, Infallible>(Bytes::copy_from_slice(&[byte]))
    });
    ([(CONTENT_TYPE, "video/mp4")], Body::from_stream(beat)).into_response()
}

/// Returns a playlist, or two packets of a transport stream.
fn file(name: &str) -> Response {
    if name.ends_with(".m3u8") {
        let mut list = "#EXTM3U\n#EXT-X-TARGETDURATION:6\n".to_owned();
        (0..FILES).for_each(|number| writeln!(list, "#EXTINF:6,\n{number}.ts").unwrap());
        list.push_str("#EXT-X-ENDLIST\n");
        return ([(CONTENT_TYPE, "application/vnd.apple.mpegurl")], list).into_response();
    }
    let packet = [&[0x47_u8][..], &[0xff; 187]].concat();
    ([(CONTENT_TYPE, "video/mp2t")], packet.repeat(2)).into_response()
}

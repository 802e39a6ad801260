//! Runs the callers that attack the videos of the service, and their site, which serves endless
//! films and playlists of many files.
use super::world::Tenant;
use crate::attackers;
use crate::attackers::{Attacks, PAUSE, Record, SocketAttack, raw_request};
use axum::Router;
use axum::body::Body as ResponseBody;
use axum::extract::Path;
use axum::http::header::CONTENT_TYPE;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use bytes::Bytes;
use futures::{StreamExt, stream};
use reqwest::{Body, Method, RequestBuilder};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::fmt::Write;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;

/// Size of a large file in bytes.
pub(crate) const LARGE_FILE_BYTES: usize = 100 << 20;
/// Size of a file that is too large, in bytes.
const OVERSIZED_FILE_BYTES: usize = 500 << 20;
const CHUNK_BYTES: usize = 64 << 10;
/// The first bytes of a Matroska file.
const MATROSKA: &[u8] = b"\x1a\x45\xdf\xa3";
/// Pause of a caller after a large file. Otherwise, the transfers would use up the CPU time that
/// the test needs.
const UPLOAD_PAUSE: Duration = Duration::from_secs(2);

/// Statuses of a request that adds a video: the video exists or was added, or a limit refused it.
const ADD_STATUSES: &[u16] = &[200, 202, 429];
const UPLOAD_STATUSES: &[u16] = &[200, 202, 429, 507];
const REFUSED_STATUSES: &[u16] = &[413, 429, 507];
const READ_STATUSES: &[u16] = &[200, 429];

#[derive(Clone)]
pub(crate) struct HostileTenant {
    pub(crate) tenant: Tenant,
    pub(crate) site: Site,
    /// Id of a stored video of the tenant.
    pub(crate) video: String,
    /// Id of a face in it.
    pub(crate) face: String,
    /// A short film. Large files contain it.
    pub(crate) film: Bytes,
    /// A film that takes long to read.
    pub(crate) long_film: Bytes,
    /// Number of slow addresses that are sent in total.
    pub(crate) address_count: usize,
    pub(crate) progress: Arc<Progress>,
}

#[derive(Default)]
pub(crate) struct Progress {
    next_address: AtomicUsize,
    /// Number of slow addresses that have a response.
    answered_addresses: AtomicUsize,
    /// Number of other videos that were sent.
    other_videos: AtomicU64,
    /// Ids of the accepted videos.
    accepted: Mutex<Vec<String>>,
}

impl Progress {
    /// Returns the number of slow addresses that have a response.
    pub(crate) fn answered_addresses(&self) -> usize {
        self.answered_addresses.load(Ordering::SeqCst)
    }

    pub(crate) fn accepted(&self) -> Vec<String> {
        self.accepted.lock().unwrap().clone()
    }
}

impl HostileTenant {
    /// Starts all attacks, or those that `ATTACKS` selects.
    pub(crate) fn start(&self) -> Attacks {
        let mut attacks = Attacks::empty();
        let mut add = |name, callers, run: fn(Attacker) -> AttackFuture| {
            let hostile = self.clone();
            attacks
                .add(name, callers, move |record| run(Attacker { hostile: hostile.clone(), name, record }));
        };
        add("a slow address", 4, |attacker| Box::pin(attacker.add_slow_address()));
        add("a large file", 4, |attacker| Box::pin(attacker.send_large_file()));
        add("a file that is too large", 1, |attacker| Box::pin(attacker.send_oversized_file()));
        add("a film that takes long", 1, |attacker| Box::pin(attacker.send_long_film()));
        add("a long playlist", 1, |attacker| Box::pin(attacker.add_playlist(Site::long_playlist_url)));
        add("a playlist that is too long", 1, |attacker| {
            Box::pin(attacker.add_playlist(Site::oversized_playlist_url))
        });
        add("a page of playlists", 1, |attacker| Box::pin(attacker.crawl_playlists()));
        add("a slow reader of tracks", 4, |attacker| Box::pin(attacker.read_slowly("tracks?limit=1000")));
        add("a slow reader of an export", 4, |attacker| {
            Box::pin(attacker.read_slowly("export?embeddings=true"))
        });
        add("a slow reader of events", 8, |attacker| Box::pin(attacker.read_slowly("events")));
        add("a slow reader of a crop", 4, |attacker| Box::pin(attacker.read_crop_slowly()));
        add("a slow reader of a clip", 2, |attacker| Box::pin(attacker.read_clip_slowly()));
        add("an upload a byte at a time", 2, |attacker| Box::pin(attacker.upload_slowly()));
        attacks
    }
}

type AttackFuture = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;

/// A caller that attacks once.
struct Attacker {
    hostile: HostileTenant,
    name: &'static str,
    record: Arc<Record>,
}

impl Attacker {
    /// Adds the next slow address. The service may be killed meanwhile, so the request is repeated
    /// until there is a response.
    async fn add_slow_address(self) {
        let progress = &self.hostile.progress;
        let number = progress.next_address.fetch_add(1, Ordering::SeqCst);
        if number >= self.hostile.address_count {
            return std::future::pending().await;
        }
        let address = json!({"url": self.hostile.site.slow_film_url(number)});
        while !self.send(self.post("/videos").json(&address), ADD_STATUSES).await {
            tokio::time::sleep(PAUSE).await;
        }
        progress.answered_addresses.fetch_add(1, Ordering::SeqCst);
    }

    /// Sends a file of 100 MiB: a film with padding, or a file that cannot be read. Half of the
    /// files of each kind are sent without `content-length`.
    async fn send_large_file(self) {
        let number = self.next_number();
        let film = &self.hostile.film;
        let head = match number % 2 {
            0 => [&film[..], &padding(number, LARGE_FILE_BYTES - film.len())].concat(),
            _ => [MATROSKA, &number.to_be_bytes()].concat(),
        };
        let mut request = self.post("/videos?sampling=fps=30").header("content-type", "video/mp4");
        if number % 4 < 2 {
            request = request.header("content-length", LARGE_FILE_BYTES);
        }
        self.send(request.body(file_body(head, LARGE_FILE_BYTES)), UPLOAD_STATUSES).await;
        tokio::time::sleep(UPLOAD_PAUSE).await;
    }

    async fn send_oversized_file(self) {
        let body = file_body([MATROSKA, &self.next_number().to_be_bytes()].concat(), OVERSIZED_FILE_BYTES);
        let request = self.post("/videos").header("content-type", "video/x-matroska").body(body);
        self.send(request, REFUSED_STATUSES).await;
        tokio::time::sleep(UPLOAD_PAUSE).await;
    }

    async fn send_long_film(self) {
        let film = [&self.hostile.long_film[..], &padding(self.next_number(), 16)].concat();
        let request = self.post("/videos?sampling=fps=30&rotate=auto").header("content-type", "video/mp4");
        self.send(request.body(film), UPLOAD_STATUSES).await;
        tokio::time::sleep(UPLOAD_PAUSE).await;
    }

    async fn add_playlist(self, address: fn(&Site, usize) -> String) {
        let address = address(&self.hostile.site, self.next_number() as usize);
        self.send(self.post("/videos").json(&json!({"url": address})), ADD_STATUSES).await;
        tokio::time::sleep(UPLOAD_PAUSE).await;
    }

    async fn crawl_playlists(self) {
        let seeds = [self.hostile.site.page_url(self.next_number() as usize)];
        let crawl = json!({"seeds": seeds, "videos": true, "max_videos": PLAYLISTS_PER_PAGE});
        self.send(self.post("/crawls").json(&crawl), &[201, 409, 429]).await;
        tokio::time::sleep(UPLOAD_PAUSE).await;
    }

    /// Reads a resource of the stored video, a few bytes at a time.
    async fn read_slowly(self, resource: &str) {
        let line = format!("GET /videos/{}/{resource}", self.hostile.video);
        self.run_on_socket(&line, "", &[], &[], READ_STATUSES).await;
    }

    async fn read_crop_slowly(self) {
        let line = format!("GET /faces/{}/crop", self.hostile.face);
        self.run_on_socket(&line, "", &[], &[], READ_STATUSES).await;
    }

    async fn read_clip_slowly(self) {
        let film = self.hostile.film.clone();
        let headers = format!("content-type: video/mp4\r\ncontent-length: {}\r\n", film.len());
        self.run_on_socket("POST /videos/detect?sampling=fps=30", &headers, &film, &[], READ_STATUSES).await;
    }

    async fn upload_slowly(self) {
        let headers = "content-type: video/mp4\r\ncontent-length: 100000000\r\n";
        let allowed = &[400, 408, 413, 415, 429, 503, 507];
        self.run_on_socket("POST /videos", headers, &[], &self.hostile.film[..200], allowed).await;
    }

    async fn run_on_socket(
        &self,
        line: &str,
        headers: &str,
        body: &[u8],
        slow_bytes: &[u8],
        allowed: &'static [u16],
    ) {
        let address = self.hostile.tenant.address();
        let headers = format!("authorization: Bearer {}\r\n{headers}", self.hostile.tenant.key);
        let head = raw_request(&address, line, &headers, body);
        let attack = SocketAttack {
            name: self.name,
            callers: 1,
            head,
            slow_bytes: slow_bytes.to_vec(),
            read_size: 2,
            allowed,
        };
        attackers::run_on_socket(&attack, &address, &self.record).await;
    }

    fn post(&self, path: &str) -> RequestBuilder {
        self.hostile.tenant.request(Method::POST, path)
    }

    /// Returns a number that is different for each file and address.
    fn next_number(&self) -> u64 {
        self.hostile.progress.other_videos.fetch_add(1, Ordering::SeqCst)
    }

    /// Sends a request and records the response. Returns whether there was one.
    async fn send(&self, request: RequestBuilder, allowed: &[u16]) -> bool {
        let response = async {
            let response = request.send().await?;
            Ok::<_, reqwest::Error>((response.status().as_u16(), response.text().await?))
        };
        let Ok((status, text)) = response.await else {
            self.record.add(self.name, None, allowed, "");
            return false;
        };
        self.record.add(self.name, Some(status), allowed, &text);
        if self.name != "a page of playlists" && matches!(status, 200 | 202) {
            let video: Value = serde_json::from_str(&text).unwrap();
            let id = video["id"].as_str().unwrap().to_owned();
            self.hostile.progress.accepted.lock().unwrap().push(id);
        }
        true
    }
}

/// Returns the beginning of a part of an MP4 file that players ignore. `bytes` is the size of the
/// part, at least 16.
pub(crate) fn padding(number: u64, bytes: usize) -> Vec<u8> {
    [&u32::try_from(bytes).unwrap().to_be_bytes(), &b"free"[..], &number.to_be_bytes()].concat()
}

/// Returns the body of a file of `bytes` bytes, which is generated as it is sent.
fn file_body(head: Vec<u8>, bytes: usize) -> Body {
    let rest = bytes - head.len();
    let zeros = Bytes::from_static(&[0; CHUNK_BYTES]);
    let last = zeros.slice(..rest % CHUNK_BYTES);
    let pieces = std::iter::once(Bytes::from(head));
    let pieces = pieces.chain(std::iter::repeat_n(zeros, rest / CHUNK_BYTES)).chain([last]);
    Body::wrap_stream(stream::iter(pieces.map(Ok::<_, Infallible>)))
}

/// Number of hosts of the site. Each has its own politeness delay.
const HOSTS: u8 = 32;
/// Maximum number of files of a playlist.
const FILES: usize = 20_000;
/// Length of the path of a playlist whose absolute addresses are just within their limit of 8 MiB.
const LONG_PATH: usize = 380;
/// Length of the path of a playlist with 160 MB of absolute addresses.
const OVERSIZED_PATH: usize = 8_000;
const PLAYLISTS_PER_PAGE: usize = 40;

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
                .route("/page", get(|| async { playlist_page() }))
                .route("/slow/{name}", get(|| async { slow_film() }))
                .route(
                    "/{base}/{name}",
                    get(|Path((_, name)): Path<(String, String)>| async move { playlist_or_packets(&name) }),
                );
            tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        }
        Self { hosts }
    }

    fn host(&self, number: usize) -> &str {
        &self.hosts[number % self.hosts.len()]
    }

    pub(crate) fn page_url(&self, number: usize) -> String {
        format!("{}/page", self.host(number))
    }

    /// Returns the address of a film that arrives slowly.
    pub(crate) fn slow_film_url(&self, number: usize) -> String {
        format!("{}/slow/{number}.mp4", self.host(number))
    }

    pub(crate) fn long_playlist_url(&self, number: usize) -> String {
        format!("{}/{}/{number}.m3u8", self.host(number), "l".repeat(LONG_PATH))
    }

    pub(crate) fn oversized_playlist_url(&self, number: usize) -> String {
        format!("{}/{}/{number}.m3u8", self.host(number), "l".repeat(OVERSIZED_PATH))
    }
}

fn playlist_page() -> Html<String> {
    let base = "l".repeat(LONG_PATH);
    Html((0..PLAYLISTS_PER_PAGE).map(|number| format!("<a href=/{base}/page{number}.m3u8>x</a>")).collect())
}

/// Returns an endless film, one byte at a time with pauses.
fn slow_film() -> Response {
    let head = stream::iter(b"\0\0\0\x18ftypisom".iter().copied().chain(std::iter::repeat(b' ')));
    let body = head.then(|byte| async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok::<_, Infallible>(Bytes::copy_from_slice(&[byte]))
    });
    ([(CONTENT_TYPE, "video/mp4")], ResponseBody::from_stream(body)).into_response()
}

/// Returns a playlist, or two packets of a transport stream.
fn playlist_or_packets(name: &str) -> Response {
    if name.ends_with(".m3u8") {
        let mut list = "#EXTM3U\n#EXT-X-TARGETDURATION:6\n".to_owned();
        (0..FILES).for_each(|number| writeln!(list, "#EXTINF:6,\n{number}.ts").unwrap());
        list.push_str("#EXT-X-ENDLIST\n");
        return ([(CONTENT_TYPE, "application/vnd.apple.mpegurl")], list).into_response();
    }
    let packet = [&[0x47_u8][..], &[0xff; 187]].concat();
    ([(CONTENT_TYPE, "video/mp2t")], packet.repeat(2)).into_response()
}

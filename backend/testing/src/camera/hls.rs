//! A camera with HLS (RFC 8216): a live playlist of short segments.
use super::authentication::{Authentication, HTTP_NONCE};
use super::counts::Counter;
use super::message::{Request, head};
use super::peer::Peer;
use super::recording::{Recording, Segment};
use super::server::Server;
use anyhow::Context;
use std::fmt::Write;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// Number of segments that can still be fetched after the playlist no longer has them.
const KEPT_SEGMENTS: u64 = 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SegmentFormat {
    #[default]
    Ts,
    /// Fragments of MP4, with `EXT-X-MAP`. Their times go on when the film begins again, because
    /// ffmpeg ignores frames whose times go back.
    Mp4,
}

/// A fault of playlists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HlsFault {
    /// Status 302 with this address, for playlists.
    Redirect(String),
    /// Status 302 with this address, for segments.
    RedirectSegments(String),
    /// A playlist that never ends.
    EndlessPlaylist,
    /// A segment that never ends.
    EndlessSegment,
    /// URLs of segments that begin with this text, such as `http://192.0.2.1/`.
    ForeignSegments(String),
    /// Segments that are said to be encrypted with the key at this URL.
    Key(String),
}

/// Properties of a camera that do not change.
#[derive(Clone, Debug)]
pub struct HlsOptions {
    /// The port, or 0 for a free one.
    pub port: u16,
    pub authentication: Option<Authentication>,
    /// Speed, 1 as in the film.
    pub factor: f64,
    /// Number of segments in the playlist.
    pub window: u64,
    pub format: SegmentFormat,
    /// Whether [`HlsCamera::url`] is that of a master playlist.
    pub has_master: bool,
    pub fault: Option<HlsFault>,
}

impl Default for HlsOptions {
    fn default() -> Self {
        Self {
            port: 0,
            authentication: None,
            factor: 1.0,
            window: 4,
            format: SegmentFormat::Ts,
            has_master: false,
            fault: None,
        }
    }
}

/// A camera on 127.0.0.1. All clients get the same segments: the recording in a loop, from the
/// start of the camera on. It goes on recording while it is unplugged. It counts no frames.
pub struct HlsCamera {
    server: Server,
    shared: Arc<Shared>,
}

impl Deref for HlsCamera {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

struct Shared {
    options: HlsOptions,
    size: (u32, u32),
    initialization: Option<Vec<u8>>,
    segments: Vec<Segment>,
    clock: Mutex<Clock>,
    counter: Arc<Counter>,
}

/// Time for which the camera has recorded.
struct Clock {
    before: Duration,
    since: Option<Instant>,
}

impl Clock {
    fn elapsed(&self) -> Duration {
        self.before + self.since.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

impl HlsCamera {
    /// Starts a camera with a free port, no password and the speed of the film. Fails if ffmpeg
    /// fails or no port is free.
    pub fn start(recording: &Recording) -> anyhow::Result<Self> {
        Self::start_with(recording, HlsOptions::default())
    }

    /// Starts a camera. Fails if ffmpeg fails or the port is in use.
    pub fn start_with(recording: &Recording, options: HlsOptions) -> anyhow::Result<Self> {
        let (initialization, segments) = match options.format {
            SegmentFormat::Ts => (None, recording.ts_segments()?),
            SegmentFormat::Mp4 => {
                let (initialization, segments) = recording.mp4_segments()?;
                (Some(initialization), segments)
            }
        };
        let counter = Arc::new(Counter::default());
        let port = options.port;
        let shared = Arc::new(Shared {
            options,
            size: recording.size(),
            initialization,
            segments,
            clock: Mutex::new(Clock { before: Duration::ZERO, since: Some(Instant::now()) }),
            counter: counter.clone(),
        });
        let served = shared.clone();
        let server = Server::start(port, counter, move |stream, connection| {
            let shared = served.clone();
            async move {
                serve(stream, shared).await;
                drop(connection);
            }
        });
        Ok(Self { server: server.with_context(|| format!("cannot listen on port {port}"))?, shared })
    }

    /// Returns the URL of the playlist, without a password.
    pub fn url(&self) -> String {
        let name = if self.shared.options.has_master { "master" } else { "live" };
        format!("http://127.0.0.1:{}/{name}.m3u8", self.port())
    }

    /// Adds no more segments to the playlist, until [`resume`](Self::resume).
    pub fn stall(&self) {
        let mut clock = self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner);
        *clock = Clock { before: clock.elapsed(), since: None };
    }

    /// Continues with the next segment.
    pub fn resume(&self) {
        let mut clock = self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner);
        *clock = Clock { before: clock.elapsed(), since: Some(Instant::now()) };
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let mut peer = Peer::new(stream, shared.counter.clone());
    while let Some(request) = peer.request().await {
        shared.counter.change(|counts| counts.requests += 1);
        if shared.answer(&request, &mut peer).await.is_none() {
            return;
        }
    }
}

impl Shared {
    async fn answer(&self, request: &Request, peer: &mut Peer) -> Option<()> {
        if let Some(authentication) = &self.options.authentication
            && !authentication.accepts(request, HTTP_NONCE)
        {
            self.counter.change(|counts| counts.refused_requests += 1);
            let challenge = authentication.challenge(HTTP_NONCE);
            return peer.respond("401 Unauthorized", &[("WWW-Authenticate", &challenge)], &[]).await;
        }
        let path = request.target.split('?').next().unwrap_or_default();
        let segment = path.strip_prefix("/segment-").and_then(|name| name.split('.').next()?.parse().ok());
        match (path, segment) {
            ("/master.m3u8" | "/live.m3u8", _) => self.answer_playlist(path, peer).await,
            ("/init.mp4", _) => match &self.initialization {
                Some(bytes) => peer.respond("200 OK", &[("Content-Type", "video/mp4")], bytes).await,
                None => peer.respond("404 Not Found", &[], &[]).await,
            },
            (_, Some(number)) => self.answer_segment(number, peer).await,
            _ => peer.respond("404 Not Found", &[], &[]).await,
        }
    }

    async fn answer_playlist(&self, path: &str, peer: &mut Peer) -> Option<()> {
        let kind = ("Content-Type", "application/vnd.apple.mpegurl");
        self.counter.change(|counts| counts.playlists += 1);
        match &self.options.fault {
            Some(HlsFault::Redirect(to)) => peer.respond("302 Found", &[("Location", to)], &[]).await,
            Some(HlsFault::EndlessPlaylist) => {
                let start = head("HTTP/1.1 200 OK", &[kind, ("Connection", "close")]);
                peer.send_endlessly(format!("{start}#EXTM3U\n#").as_bytes()).await
            }
            _ if path == "/master.m3u8" => {
                let (width, height) = self.size;
                let stream = format!("BANDWIDTH=2000000,RESOLUTION={width}x{height}");
                let playlist = format!("#EXTM3U\n#EXT-X-STREAM-INF:{stream}\nlive.m3u8\n");
                peer.respond("200 OK", &[kind], playlist.as_bytes()).await
            }
            _ => peer.respond("200 OK", &[kind], self.playlist().as_bytes()).await,
        }
    }

    async fn answer_segment(&self, number: u64, peer: &mut Peer) -> Option<()> {
        let end = self.end();
        let first = end.saturating_sub(self.options.window + KEPT_SEGMENTS);
        if !(first..end).contains(&number) {
            return peer.respond("404 Not Found", &[], &[]).await;
        }
        if let Some(HlsFault::RedirectSegments(to)) = &self.options.fault {
            return peer.respond("302 Found", &[("Location", to)], &[]).await;
        }
        let kind = if self.initialization.is_some() { "video/mp4" } else { "video/mp2t" };
        let bytes = self.segment_bytes(number);
        if self.options.fault == Some(HlsFault::EndlessSegment) {
            let start = head("HTTP/1.1 200 OK", &[("Content-Type", kind), ("Connection", "close")]);
            return peer.send_endlessly(&[start.as_bytes(), &bytes].concat()).await;
        }
        peer.respond("200 OK", &[("Content-Type", kind)], &bytes).await?;
        self.counter.change(|counts| counts.segments += 1);
        Some(())
    }

    /// Returns segment `number` since the start.
    fn segment(&self, number: u64) -> &Segment {
        &self.segments[(number % self.segments.len() as u64) as usize]
    }

    fn segment_bytes(&self, number: u64) -> Vec<u8> {
        let mut bytes = self.segment(number).bytes.clone();
        if self.initialization.is_some() {
            let loops = number / self.segments.len() as u64;
            let later = self.length().as_secs_f64() * 90_000.0 * loops as f64;
            delay_fragment(&mut bytes, later.round() as u64);
        }
        bytes
    }

    /// Returns the length of the film.
    fn length(&self) -> Duration {
        self.segments.iter().map(|segment| segment.duration).sum()
    }

    /// Returns the number of segments since the start. The first playlist is full.
    fn end(&self) -> u64 {
        let elapsed = self.clock.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        let mut rest = elapsed.mul_f64(self.options.factor);
        let mut end = self.options.window;
        let length = self.length();
        // The order of durations within a loop does not matter for whole loops.
        let loops = (rest.as_nanos() / length.as_nanos().max(1)) as u64;
        end += loops * self.segments.len() as u64;
        rest = rest.saturating_sub(length.mul_f64(loops as f64));
        while rest >= self.segment(end).duration {
            rest -= self.segment(end).duration;
            end += 1;
        }
        end
    }

    fn playlist(&self) -> String {
        let end = self.end();
        let first = end - self.options.window;
        let count = self.segments.len() as u64;
        let longest = self.segments.iter().map(|segment| segment.duration).max().unwrap_or_default();
        let target = longest.as_secs_f64().ceil();
        // A discontinuity counts as soon as the playlist no longer has it.
        let discontinuities = if self.initialization.is_none() { first.saturating_sub(1) / count } else { 0 };
        let mut playlist = format!(
            "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:{target}\n#EXT-X-MEDIA-SEQUENCE:{first}\n\
             #EXT-X-DISCONTINUITY-SEQUENCE:{discontinuities}\n"
        );
        let (prefix, key) = match &self.options.fault {
            Some(HlsFault::ForeignSegments(prefix)) => (prefix.as_str(), None),
            Some(HlsFault::Key(url)) => ("", Some(url)),
            _ => ("", None),
        };
        // Writing to a string cannot fail.
        if let Some(url) = key {
            let _infallible = writeln!(playlist, "#EXT-X-KEY:METHOD=AES-128,URI=\"{url}\"");
        }
        if self.initialization.is_some() {
            playlist += "#EXT-X-MAP:URI=\"init.mp4\"\n";
        }
        let extension = if self.initialization.is_some() { "m4s" } else { "ts" };
        for number in first..end {
            if number > 0 && number.is_multiple_of(count) && self.initialization.is_none() {
                playlist += "#EXT-X-DISCONTINUITY\n";
            }
            let seconds = self.segment(number).duration.as_secs_f64();
            let _infallible =
                writeln!(playlist, "#EXTINF:{seconds:.6},\n{prefix}segment-{number}.{extension}");
        }
        playlist
    }
}

/// Adds `ticks` to the times in the boxes `sidx` and `tfdt` of a fragment. Their version is 1, as
/// ffmpeg writes them, so a time has 64 bits.
fn delay_fragment(fragment: &mut [u8], ticks: u64) {
    for (name, offset) in [(b"sidx", 16), (b"tfdt", 8)] {
        let Some(at) = fragment.windows(4).position(|window| window == name) else { continue };
        let time = at + offset..at + offset + 8;
        if let Some(Ok(bytes)) = fragment.get(time.clone()).map(<[u8; 8]>::try_from) {
            let later = u64::from_be_bytes(bytes) + ticks;
            fragment[time].copy_from_slice(&later.to_be_bytes());
        }
    }
}

//! A camera with RTSP 1.0 (RFC 2326) and H.264, over TCP only.
use super::authentication::{Authentication, md5_hex};
use super::counts::Counter;
use super::message::{Request, head, padding_headers};
use super::peer::Peer;
use super::playback::{Controls, GarbageOrder, Pace, Playback};
use super::recording::Recording;
use super::rtp::{Garbage, PAYLOAD_TYPE, Packer};
use super::server::{Connection, Server};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use std::fmt::Write;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::watch;

const METHODS: &str = "OPTIONS, DESCRIBE, SETUP, PLAY, GET_PARAMETER, SET_PARAMETER, TEARDOWN";

/// Time of the film from one sender report to the next.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Length of the headers of [`DescribeFault::HugeHeaders`], in bytes.
const HUGE: usize = 8 << 20;

/// A wrong answer to DESCRIBE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DescribeFault {
    /// A valid answer with 8 MiB of header lines.
    HugeHeaders,
    /// A header line that never ends.
    EndlessHeader,
    /// A body that never ends.
    EndlessBody,
    /// Status 302 with this address.
    Redirect(String),
}

/// Properties of a camera that do not change.
#[derive(Clone, Debug)]
pub struct RtspOptions {
    /// The port, or 0 for a free one.
    pub port: u16,
    pub authentication: Option<Authentication>,
    pub pace: Pace,
    pub describe_fault: Option<DescribeFault>,
    /// Whether the answer to DESCRIBE contains the parameters of H.264. They are before each
    /// keyframe in any case.
    pub describes_parameters: bool,
    /// Largest payload of a packet in bytes, 16 to 65,000.
    pub packet_size: usize,
}

impl Default for RtspOptions {
    fn default() -> Self {
        Self {
            port: 0,
            authentication: None,
            pace: Pace::default(),
            describe_fault: None,
            describes_parameters: true,
            packet_size: 1_400,
        }
    }
}

/// A camera on 127.0.0.1. Each client that plays gets the recording from its first frame on.
pub struct RtspCamera {
    server: Server,
    shared: Arc<Shared>,
}

impl Deref for RtspCamera {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

struct Shared {
    options: RtspOptions,
    controls: watch::Sender<Controls>,
    counter: Arc<Counter>,
    sessions: AtomicU64,
}

impl RtspCamera {
    /// Starts a camera with a free port, no password and the speed of the film. Fails if no port is
    /// free.
    pub fn start(recording: &Recording) -> std::io::Result<Self> {
        Self::start_with(recording, RtspOptions::default())
    }

    /// Starts a camera. Fails if the port is in use.
    pub fn start_with(recording: &Recording, options: RtspOptions) -> std::io::Result<Self> {
        let counter = Arc::new(Counter::default());
        let port = options.port;
        let shared = Arc::new(Shared {
            options,
            controls: watch::Sender::new(Controls::new(recording)),
            counter: counter.clone(),
            sessions: AtomicU64::new(0),
        });
        let served = shared.clone();
        let server = Server::start(port, counter, move |stream, connection| {
            Session::new(stream, connection, served.clone()).run()
        })?;
        Ok(Self { server, shared })
    }

    /// Returns the URL of the stream, without a password.
    pub fn url(&self) -> String {
        format!("rtsp://127.0.0.1:{}/stream", self.port())
    }

    /// Returns the URL of the stream with a user and a password, which must need no escapes.
    pub fn url_with_password(&self, user: &str, password: &str) -> String {
        format!("rtsp://{user}:{password}@127.0.0.1:{}/stream", self.port())
    }

    /// Keeps connections open and accepts new ones, but sends nothing, until
    /// [`resume`](Self::resume).
    pub fn pause(&self) {
        self.shared.controls.send_modify(|controls| controls.is_paused = true);
    }

    /// Answers the requests since [`pause`](Self::pause), and continues each stream with the next
    /// frame. The timestamps show the gap.
    pub fn resume(&self) {
        self.shared.controls.send_modify(|controls| controls.is_paused = false);
    }

    /// Sends frames as fast as each client reads them, or no longer.
    pub fn flood(&self, is_flooding: bool) {
        self.shared.controls.send_modify(|controls| controls.is_flooding = is_flooding);
    }

    /// Replaces the next `frames` frames of each client by garbage, and the first ones of clients
    /// that play later. 0 ends the garbage.
    pub fn send_garbage(&self, kind: Garbage, frames: u64) {
        self.shared.controls.send_modify(|controls| {
            let number = controls.garbage.number + 1;
            controls.garbage = GarbageOrder { kind, frames, number };
        });
    }

    /// Makes the timestamps of frames jump back and forth by up to 3 hours, or no longer. The times
    /// in sender reports stay right.
    pub fn lie_about_times(&self, lies: bool) {
        self.shared.controls.send_modify(|controls| controls.lies_about_times = lies);
    }

    /// Continues each stream with the first frame of another recording, and describes this one to
    /// clients that ask from now on.
    pub fn switch_to(&self, recording: &Recording) {
        self.shared.controls.send_modify(|controls| controls.recording = recording.clone());
    }

    /// Returns the number of frames in one loop of the current recording.
    pub fn length(&self) -> usize {
        self.shared.controls.borrow().recording.length()
    }
}

/// One connection of a client.
struct Session {
    peer: Peer,
    connection: Arc<Connection>,
    shared: Arc<Shared>,
    controls: watch::Receiver<Controls>,
    /// Number of this connection, from 1.
    number: u64,
    nonce: String,
    packer: Option<Packer>,
    playback: Option<Playback>,
    next_report: Duration,
    /// Number of the last call that replaced frames, and the number of frames that it still
    /// replaces.
    garbage: (u64, u64),
}

/// Waits for the next frame, or for ever if the client does not play.
async fn next_frame(playback: &mut Option<Playback>, controls: &mut watch::Receiver<Controls>) {
    match playback {
        Some(playback) => playback.wait(controls).await,
        None => std::future::pending().await,
    }
}

impl Session {
    fn new(stream: TcpStream, connection: Arc<Connection>, shared: Arc<Shared>) -> Self {
        let number = shared.sessions.fetch_add(1, Ordering::Relaxed) + 1;
        Self {
            peer: Peer::new(stream, shared.counter.clone()),
            connection,
            controls: shared.controls.subscribe(),
            shared,
            number,
            nonce: md5_hex(&number.to_string()),
            packer: None,
            playback: None,
            next_report: Duration::ZERO,
            garbage: (0, 0),
        }
    }

    /// Serves the client until one side closes the connection.
    async fn run(mut self) {
        while self.step().await.is_some() {}
    }

    /// Answers a request or sends a frame. Returns `None` at the end of the connection.
    async fn step(&mut self) -> Option<()> {
        tokio::select! {
            biased;
            request = self.peer.request() => {
                let request = request?;
                self.peer.wait_while_paused(&mut self.controls).await?;
                self.shared.counter.change(|counts| counts.requests += 1);
                self.answer(&request).await
            }
            () = next_frame(&mut self.playback, &mut self.controls) => self.send_frame().await,
        }
    }

    async fn answer(&mut self, request: &Request) -> Option<()> {
        if let Some(authentication) = &self.shared.options.authentication
            && request.method != "OPTIONS"
            && !authentication.accepts(request, &self.nonce)
        {
            let challenge = authentication.challenge(&self.nonce);
            self.shared.counter.change(|counts| counts.refused_requests += 1);
            return self.respond(request, "401 Unauthorized", &[("WWW-Authenticate", &challenge)], "").await;
        }
        match request.method.as_str() {
            "OPTIONS" => self.respond(request, "200 OK", &[("Public", METHODS)], "").await,
            "DESCRIBE" => self.describe(request).await,
            "SETUP" => self.set_up(request).await,
            "PLAY" => self.play(request).await,
            "GET_PARAMETER" | "SET_PARAMETER" => self.respond(request, "200 OK", &[], "").await,
            "TEARDOWN" => {
                self.playback = None;
                self.packer = None;
                self.connection.end_playing();
                self.respond(request, "200 OK", &[], "").await
            }
            _ => self.respond(request, "501 Not Implemented", &[], "").await,
        }
    }

    async fn describe(&mut self, request: &Request) -> Option<()> {
        self.shared.counter.change(|counts| counts.describes += 1);
        let description = self.description();
        let base = format!("{}/", request.target.trim_end_matches('/'));
        let headers = [("Content-Base", base.as_str()), ("Content-Type", "application/sdp")];
        match self.shared.options.describe_fault.clone() {
            None => self.respond(request, "200 OK", &headers, &description).await,
            Some(DescribeFault::Redirect(to)) => {
                self.respond(request, "302 Moved Temporarily", &[("Location", &to)], "").await
            }
            Some(DescribeFault::HugeHeaders) => {
                let answer = self.message(request, "200 OK", &headers, &description);
                let (start, rest) = answer.split_once("\r\n")?;
                let answer = format!("{start}\r\n{}{rest}", padding_headers(HUGE));
                self.peer.send(answer.as_bytes()).await
            }
            Some(DescribeFault::EndlessHeader) => {
                self.peer.send_endlessly(b"RTSP/1.0 200 OK\r\nX-Endless: ").await
            }
            Some(DescribeFault::EndlessBody) => {
                let length = u64::MAX.to_string();
                let mut headers = headers.to_vec();
                headers.push(("Content-Length", &length));
                headers.push(("CSeq", request.header("cseq").unwrap_or("0")));
                self.peer.send_endlessly(head("RTSP/1.0 200 OK", &headers).as_bytes()).await
            }
        }
    }

    /// Returns the description of the stream in the format SDP.
    fn description(&self) -> String {
        let recording = self.controls.borrow().recording.clone();
        let [sequence, picture] = recording.parameters();
        let profile = hex::encode(&sequence[1..4]);
        let mut format = format!("packetization-mode=1;profile-level-id={profile}");
        if self.shared.options.describes_parameters {
            let (sequence, picture) = (STANDARD.encode(sequence), STANDARD.encode(picture));
            // Writing to a string cannot fail.
            let _infallible = write!(format, ";sprop-parameter-sets={sequence},{picture}");
        }
        let lines = [
            "v=0".to_owned(),
            "o=- 1 1 IN IP4 127.0.0.1".to_owned(),
            "s=Test camera".to_owned(),
            "c=IN IP4 0.0.0.0".to_owned(),
            "t=0 0".to_owned(),
            "a=control:*".to_owned(),
            "a=range:npt=now-".to_owned(),
            format!("m=video 0 RTP/AVP {PAYLOAD_TYPE}"),
            format!("a=rtpmap:{PAYLOAD_TYPE} H264/90000"),
            format!("a=fmtp:{PAYLOAD_TYPE} {format}"),
            format!("a=framerate:{}", recording.frames_per_second()),
            "a=control:trackID=0".to_owned(),
        ];
        lines.join("\r\n") + "\r\n"
    }

    async fn set_up(&mut self, request: &Request) -> Option<()> {
        let offers = request.header("transport").unwrap_or_default().split(',');
        let channel =
            offers.filter(|offer| offer.trim_start().starts_with("RTP/AVP/TCP")).find_map(|offer| {
                let mut fields =
                    offer.split(';').filter_map(|field| field.trim().strip_prefix("interleaved="));
                let first = fields.next()?.split('-').next()?;
                first.parse::<u8>().ok().filter(|channel| *channel < u8::MAX)
            });
        let Some(channel) = channel else {
            return self.respond(request, "461 Unsupported Transport", &[], "").await;
        };
        let packer = Packer::new(channel, self.shared.options.packet_size, self.number);
        let transport =
            format!("RTP/AVP/TCP;unicast;interleaved={channel}-{};ssrc={:08X}", channel + 1, packer.ssrc());
        self.packer = Some(packer);
        self.respond(request, "200 OK", &[("Transport", &transport)], "").await
    }

    async fn play(&mut self, request: &Request) -> Option<()> {
        let Some(packer) = &self.packer else {
            return self.respond(request, "455 Method Not Valid in This State", &[], "").await;
        };
        let (sequence, timestamp) = (packer.sequence(), packer.timestamp(Duration::ZERO));
        let url = format!("{}/trackID=0", request.target.trim_end_matches('/'));
        let information = format!("url={url};seq={sequence};rtptime={timestamp}");
        self.respond(request, "200 OK", &[("Range", "npt=now-"), ("RTP-Info", &information)], "").await?;
        if self.playback.is_none() {
            let recording = self.controls.borrow().recording.clone();
            self.playback = Some(Playback::new(&recording, self.shared.options.pace));
            self.next_report = Duration::ZERO;
            self.connection.begin_playing();
        }
        Some(())
    }

    async fn send_frame(&mut self) -> Option<()> {
        let (playback, packer) = (self.playback.as_mut()?, self.packer.as_mut()?);
        let (recording, order, lies) = {
            let controls = self.controls.borrow();
            (controls.recording.clone(), controls.garbage, controls.lies_about_times)
        };
        if self.garbage.0 != order.number {
            self.garbage = (order.number, order.frames);
        }
        let garbage = (self.garbage.1 > 0).then_some(order.kind);
        self.garbage.1 = self.garbage.1.saturating_sub(1);
        let frame = playback.next(&recording);
        let timestamp = packer.timestamp(frame.time);
        let told = if lies { timestamp.wrapping_add(lie(frame.index)) } else { timestamp };
        let unit = recording.unit(frame.index);
        let mut packets = match garbage {
            Some(kind) => packer.garbage(kind, told),
            None if unit.is_keyframe => packer.frame(recording.parameters(), unit, told),
            None => packer.frame(&[], unit, told),
        };
        if frame.time >= self.next_report {
            self.next_report = frame.time + REPORT_INTERVAL;
            packets.extend(packer.report(timestamp));
        }
        self.shared.counter.change(|counts| counts.frames_dropped += frame.dropped);
        self.peer.send(&packets).await?;
        self.shared.counter.change(|counts| {
            counts.frames_sent += 1;
            if garbage.is_none() {
                counts.last_frame_number = Some(frame.index as u32);
            }
        });
        Some(())
    }

    async fn respond(
        &mut self,
        request: &Request,
        status: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Option<()> {
        let message = self.message(request, status, headers, body);
        self.peer.send(message.as_bytes()).await
    }

    fn message(&self, request: &Request, status: &str, headers: &[(&str, &str)], body: &str) -> String {
        let session = format!("{:08};timeout=60", self.number);
        let length = body.len().to_string();
        let mut all = vec![("CSeq", request.header("cseq").unwrap_or("0")), ("Server", "test camera")];
        if self.packer.is_some() {
            all.push(("Session", &session));
        }
        all.extend(headers);
        if !body.is_empty() {
            all.push(("Content-Length", &length));
        }
        head(&format!("RTSP/1.0 {status}"), &all) + body
    }
}

/// Returns an error of a timestamp in ticks, different from frame to frame.
fn lie(index: usize) -> u32 {
    const HOUR: u32 = 3600 * 90_000;
    [0, HOUR, HOUR.wrapping_neg(), 90, (3 * HOUR).wrapping_neg(), 90_000, 2 * HOUR][index % 7]
}

//! A camera with JPEG images over HTTP (`multipart/x-mixed-replace`).
use super::authentication::{Authentication, HTTP_NONCE};
use super::counts::Counter;
use super::message::{Request, head, padding_headers};
use super::peer::Peer;
use super::playback::{Controls, Pace, Playback};
use super::recording::Recording;
use super::server::{Connection, Server};
use anyhow::Context;
use std::ops::Deref;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio::sync::watch;

const BOUNDARY: &str = "frame";

/// Length of the headers of [`MjpegFault::HugePartHeaders`], in bytes.
const HUGE: usize = 8 << 20;

/// A wrong answer to the request for the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MjpegFault {
    /// 8 MiB of header lines before each image.
    HugePartHeaders,
    /// An image that never ends.
    EndlessPart,
    /// Status 302 with this address.
    Redirect(String),
}

/// Properties of a camera that do not change.
#[derive(Clone, Debug)]
pub struct MjpegOptions {
    /// The port, or 0 for a free one.
    pub port: u16,
    pub authentication: Option<Authentication>,
    pub pace: Pace,
    pub fault: Option<MjpegFault>,
    /// Whether each part has a header with the length of the image.
    pub has_lengths: bool,
}

impl Default for MjpegOptions {
    fn default() -> Self {
        Self { port: 0, authentication: None, pace: Pace::default(), fault: None, has_lengths: true }
    }
}

/// A camera on 127.0.0.1. Each client gets the recording from its first frame on.
pub struct MjpegCamera {
    server: Server,
    shared: Arc<Shared>,
}

impl Deref for MjpegCamera {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

struct Shared {
    options: MjpegOptions,
    controls: watch::Sender<Controls>,
    counter: Arc<Counter>,
}

impl MjpegCamera {
    /// Starts a camera with a free port, no password and the speed of the film. Fails if ffmpeg
    /// fails or no port is free.
    pub fn start(recording: &Recording) -> anyhow::Result<Self> {
        Self::start_with(recording, MjpegOptions::default())
    }

    /// Starts a camera. Fails if ffmpeg fails or the port is in use.
    pub fn start_with(recording: &Recording, options: MjpegOptions) -> anyhow::Result<Self> {
        // Encodes the images now, because sessions cannot report an error.
        recording.images()?;
        let counter = Arc::new(Counter::default());
        let port = options.port;
        let controls = watch::Sender::new(Controls::new(recording));
        let shared = Arc::new(Shared { options, controls, counter: counter.clone() });
        let served = shared.clone();
        let server = Server::start(port, counter, move |stream, connection| {
            Session::new(stream, connection, served.clone()).run()
        });
        Ok(Self { server: server.with_context(|| format!("cannot listen on port {port}"))?, shared })
    }

    /// Returns the URL of the stream, without a password.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/stream.mjpg", self.port())
    }

    /// Returns the URL of the stream with a user and a password, which must need no escapes.
    pub fn url_with_password(&self, user: &str, password: &str) -> String {
        format!("http://{user}:{password}@127.0.0.1:{}/stream.mjpg", self.port())
    }

    /// Keeps connections open and accepts new ones, but sends nothing, until
    /// [`resume`](Self::resume).
    pub fn pause(&self) {
        self.shared.controls.send_modify(|controls| controls.is_paused = true);
    }

    /// Answers the requests since [`pause`](Self::pause), and continues each stream with the next
    /// frame.
    pub fn resume(&self) {
        self.shared.controls.send_modify(|controls| controls.is_paused = false);
    }

    /// Sends frames as fast as each client reads them, or no longer.
    pub fn flood(&self, is_flooding: bool) {
        self.shared.controls.send_modify(|controls| controls.is_flooding = is_flooding);
    }

    /// Continues each stream with the first frame of another recording. Fails if ffmpeg fails.
    pub fn switch_to(&self, recording: &Recording) -> anyhow::Result<()> {
        recording.images()?;
        self.shared.controls.send_modify(|controls| controls.recording = recording.clone());
        Ok(())
    }
}

/// One connection of a client.
struct Session {
    peer: Peer,
    connection: Arc<Connection>,
    shared: Arc<Shared>,
    controls: watch::Receiver<Controls>,
}

impl Session {
    fn new(stream: TcpStream, connection: Arc<Connection>, shared: Arc<Shared>) -> Self {
        let controls = shared.controls.subscribe();
        Self { peer: Peer::new(stream, shared.counter.clone()), connection, shared, controls }
    }

    async fn run(mut self) {
        while self.step().await.is_some() {}
    }

    /// Answers a request. Returns `None` at the end of the connection.
    async fn step(&mut self) -> Option<()> {
        let request = self.peer.request().await?;
        self.peer.wait_while_paused(&mut self.controls).await?;
        self.shared.counter.change(|counts| counts.requests += 1);
        self.answer(&request).await
    }

    async fn answer(&mut self, request: &Request) -> Option<()> {
        if let Some(authentication) = &self.shared.options.authentication
            && !authentication.accepts(request, HTTP_NONCE)
        {
            let challenge = authentication.challenge(HTTP_NONCE);
            self.shared.counter.change(|counts| counts.refused_requests += 1);
            return self.peer.respond("401 Unauthorized", &[("WWW-Authenticate", &challenge)], &[]).await;
        }
        if let Some(MjpegFault::Redirect(to)) = self.shared.options.fault.clone() {
            return self.peer.respond("302 Found", &[("Location", &to)], &[]).await;
        }
        if request.method != "GET" {
            return self.peer.respond("405 Method Not Allowed", &[], &[]).await;
        }
        let kind = format!("multipart/x-mixed-replace; boundary={BOUNDARY}");
        let headers =
            [("Content-Type", kind.as_str()), ("Cache-Control", "no-cache"), ("Connection", "close")];
        let start = format!("{}--{BOUNDARY}\r\n", head("HTTP/1.1 200 OK", &headers));
        self.peer.send(start.as_bytes()).await?;
        self.connection.begin_playing();
        self.stream_images().await
    }

    /// Sends images until the client closes the connection.
    async fn stream_images(&mut self) -> Option<()> {
        let recording = self.controls.borrow().recording.clone();
        let mut playback = Playback::new(&recording, self.shared.options.pace);
        let mut images = recording.images().ok()?;
        loop {
            tokio::select! {
                () = self.peer.closed() => return None,
                () = playback.wait(&mut self.controls) => {}
            }
            let recording = self.controls.borrow().recording.clone();
            if !recording.is_same(playback.recording()) {
                images = recording.images().ok()?;
            }
            let frame = playback.next(&recording);
            self.shared.counter.change(|counts| counts.frames_dropped += frame.dropped);
            self.send_image(&images[frame.index]).await?;
            self.shared.counter.change(|counts| {
                counts.frames_sent += 1;
                counts.last_frame_number = Some(frame.index as u32);
            });
        }
    }

    /// Sends an image, and the boundary that ends it.
    async fn send_image(&mut self, image: &[u8]) -> Option<()> {
        let mut part = String::new();
        if self.shared.options.fault == Some(MjpegFault::HugePartHeaders) {
            part += &padding_headers(HUGE);
        }
        part += "Content-Type: image/jpeg\r\n";
        let is_endless = self.shared.options.fault == Some(MjpegFault::EndlessPart);
        if self.shared.options.has_lengths {
            let length = if is_endless { usize::MAX } else { image.len() };
            part += &format!("Content-Length: {length}\r\n");
        }
        part += "\r\n";
        let mut part = part.into_bytes();
        if is_endless {
            part.extend(&image[..image.len() / 2]);
            return self.peer.send_endlessly(&part).await;
        }
        part.extend(image);
        part.extend(format!("\r\n--{BOUNDARY}\r\n").bytes());
        self.peer.send(&part).await
    }
}

//! Tests of sessions with cameras on real sockets.
#![allow(clippy::unwrap_used)]

mod guard;
mod hls;
mod mjpeg;
mod rtsp;

use camera::{Address, CameraError, Connector, Format, Kind, Session, Unit};
use crawler::Roots;
use crawler::guard::Lookup;
use std::io::Write;
use std::net::IpAddr;
use std::sync::Arc;
use testing::camera::{Pace, Recording};
use testing::film::{DecodedFrame, Film, decode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const USER: &str = "admin";
const PASSWORD: &str = "right";
/// Cameras of tests send faster than real ones.
const FAST: Pace = Pace { factor: 5.0, burst: 1, drops_frames: false };

fn recording() -> Recording {
    Recording::new(&Film::short()).unwrap()
}

/// Returns a connector for cameras on this machine.
fn connector() -> Connector {
    Connector::new(vec!["127.0.0.0/8".parse().unwrap()], Roots::default())
}

/// Resolves each name to an address, by the first label of the name: `inner` to a private one.
struct TestLookup;

#[async_trait::async_trait]
impl Lookup for TestLookup {
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        match name.split('.').next() {
            Some("camera") => Ok(vec![[127, 0, 0, 1].into()]),
            Some("inner") => Ok(vec![[10, 0, 0, 1].into()]),
            Some("mixed") => Ok(vec![[127, 0, 0, 1].into(), [10, 0, 0, 1].into()]),
            _ => Err(std::io::ErrorKind::NotFound.into()),
        }
    }
}

fn connector_with_lookup() -> Connector {
    Connector::with_lookup(vec!["127.0.0.0/8".parse().unwrap()], Roots::default(), Arc::new(TestLookup))
}

fn address(url: &str, kind: Kind) -> Address {
    Address::parse(url, Some(kind), None, None).unwrap()
}

fn with_password(url: &str, kind: Kind, password: &str) -> Address {
    Address::parse(url, Some(kind), Some(USER.into()), Some(password.into())).unwrap()
}

async fn connect(url: &str, kind: Kind) -> Result<Session, CameraError> {
    connector().connect(&address(url, kind)).await
}

async fn read(session: &mut Session, count: usize) -> Vec<Unit> {
    let mut units = Vec::new();
    while units.len() < count {
        units.push(session.next().await.unwrap());
    }
    units
}

/// Reads until the session ends, and returns the reason.
async fn read_to_end(session: &mut Session) -> CameraError {
    loop {
        if let Err(error) = session.next().await {
            assert!(matches!(session.next().await, Err(CameraError::Ended)));
            return error;
        }
    }
}

/// Returns the reason why no session begins, or why it ends.
async fn failure(url: &str, kind: Kind) -> CameraError {
    match connect(url, kind).await {
        Ok(mut session) => read_to_end(&mut session).await,
        Err(error) => error,
    }
}

/// Decodes units with ffmpeg, after the header that belongs to them.
fn decode_units(format: Format, header: &[u8], units: &[Unit]) -> Vec<DecodedFrame> {
    let extension = match format {
        Format::Matroska(_) => ".mkv",
        Format::MpegTs => ".ts",
        Format::Mp4 => ".mp4",
        Format::Jpeg => ".mjpeg",
    };
    let mut file = tempfile::Builder::new().suffix(extension).tempfile().unwrap();
    file.write_all(header).unwrap();
    for unit in units {
        file.write_all(&unit.bytes).unwrap();
    }
    decode(file.path(), |_, _| ()).unwrap()
}

fn numbers(frames: &[DecodedFrame]) -> Vec<u32> {
    frames.iter().map(|frame| frame.number.unwrap().0).collect()
}

/// Returns the numbers of `count` frames of the short film in a loop.
fn looped(count: u32) -> Vec<u32> {
    (0..count).map(|index| index % 50).collect()
}

/// Answers each request with `response`, then keeps the connection open. Returns the port, and a
/// receiver of the heads of requests.
async fn serve(response: Vec<u8>) -> (u16, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (sender, response) = (sender.clone(), response.clone());
            tokio::spawn(async move {
                let mut request = Vec::new();
                while stream.read_buf(&mut request).await.is_ok_and(|count| count > 0) {
                    if request.ends_with(b"\r\n\r\n") {
                        // The test may not look at the requests.
                        let _ = sender.send(String::from_utf8(std::mem::take(&mut request)).unwrap());
                        if stream.write_all(&response).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    });
    (port, receiver)
}

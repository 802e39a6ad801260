//! Connects the RTSP client with the camera, inside this process, and enforces limits.
use super::framing::Framing;
use crate::CameraError;
use std::future::pending;
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use url::Url;

const READ_BYTES: usize = 64 << 10;

/// Accepts one connection of the client on a loopback address.
pub(super) struct Relay {
    listener: TcpListener,
    camera: TcpStream,
    observed: Observed,
}

/// What the relay knows about the connection to the camera. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Observed(Arc<State>);

#[derive(Default)]
struct State {
    /// Status of the last answer, 0 before the first.
    status: AtomicU16,
    is_closed: AtomicBool,
}

impl Observed {
    /// Returns whether the camera has closed the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Relaxed)
    }

    /// Converts an error of the client before the stream plays.
    pub(super) fn start_error(&self, error: &retina::Error) -> CameraError {
        match self.0.status.load(Ordering::Relaxed) {
            401 => CameraError::Unauthorized,
            300..=399 => CameraError::Redirected,
            status @ 400.. => CameraError::Refused { status },
            _ => self.stream_error(error),
        }
    }

    /// Converts an error of the client.
    pub(super) fn stream_error(&self, error: &retina::Error) -> CameraError {
        if self.is_closed() { CameraError::Ended } else { CameraError::protocol(error.to_string()) }
    }
}

impl Relay {
    /// Listens on a port that the system chooses.
    pub(super) async fn bind(camera: TcpStream) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        Ok(Self { listener, camera, observed: Observed::default() })
    }

    /// Returns `url` with the host and the port of the relay.
    pub(super) fn url(&self, url: &Url) -> Result<Url, CameraError> {
        let port = self.listener.local_addr().map_err(CameraError::Connect)?.port();
        let mut url = url.clone();
        let result = url.set_host(Some("127.0.0.1")).ok().and_then(|()| url.set_port(Some(port)).ok());
        result.map(|()| url).ok_or_else(|| CameraError::unsupported("the address has no host and port"))
    }

    pub(super) fn observed(&self) -> Observed {
        self.observed.clone()
    }

    /// Forwards both directions until the future is dropped. Returns early only if the client
    /// cannot connect, or if the camera exceeds a limit or sends invalid data.
    pub(super) async fn run(self) -> CameraError {
        let Self { listener, camera, observed } = self;
        let client = match listener.accept().await {
            Ok((client, _)) => client,
            Err(error) => return CameraError::Connect(error),
        };
        drop(listener);
        let _ = client.set_nodelay(true);
        let (mut from_client, to_client) = client.into_split();
        let (from_camera, mut to_camera) = camera.into_split();
        let requests = async {
            let _ = tokio::io::copy(&mut from_client, &mut to_camera).await;
            pending().await
        };
        tokio::select! {
            error = forward_answers(from_camera, to_client, &observed.0) => error,
            error = requests => error,
        }
    }
}

async fn forward_answers(
    mut camera: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    state: &State,
) -> CameraError {
    let mut framing = Framing::default();
    let (mut input, mut output) = (vec![0; READ_BYTES], Vec::new());
    while let Ok(count @ 1..) = camera.read(&mut input).await {
        framing.push(&input[..count]);
        output.clear();
        let result = framing.take(&mut output);
        state.status.store(framing.status(), Ordering::Relaxed);
        if let Err(error) = result {
            return error;
        }
        if client.write_all(&output).await.is_err() {
            // The client has closed the connection, and its own error follows.
            return pending().await;
        }
    }
    state.is_closed.store(true, Ordering::Relaxed);
    // The client still reads what is on the way, then it sees the end.
    let _ = client.shutdown().await;
    pending().await
}

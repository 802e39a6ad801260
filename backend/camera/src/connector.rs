//! Opens sessions. Holds what all sessions share: the guard, the resolver and the HTTP client.
use crate::http::Http;
use crate::session::Session;
use crate::{Address, CameraError, Kind, hls, mjpeg, rtsp};
use crawler::guard::{Guard, Lookup, SystemLookup};
use crawler::{Config, Roots};
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit for a connection, including the resolution of the name.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RTSP_PORT: u16 = 554;

/// Connects to cameras. Cheap to clone.
#[derive(Clone)]
pub struct Connector {
    shared: Arc<Shared>,
}

struct Shared {
    guard: Guard,
    lookup: Arc<dyn Lookup>,
    extra_roots: Roots,
    /// It is built when it is first needed, because that loads the system's certificates.
    client: OnceLock<reqwest::Client>,
}

impl Connector {
    /// Returns a connector that reaches public addresses and `allow_private`, on any port. It
    /// trusts the certificate authorities of the system and `extra_roots`.
    pub fn new(allow_private: Vec<ipnet::IpNet>, extra_roots: Roots) -> Self {
        Self::with_lookup(allow_private, extra_roots, Arc::new(SystemLookup))
    }

    /// Returns a connector that resolves names with `lookup`. The guard checks every address that
    /// `lookup` returns.
    pub fn with_lookup(
        allow_private: Vec<ipnet::IpNet>,
        extra_roots: Roots,
        lookup: Arc<dyn Lookup>,
    ) -> Self {
        let guard = Guard::with_any_port(allow_private);
        Self { shared: Arc::new(Shared { guard, lookup, extra_roots, client: OnceLock::new() }) }
    }

    /// Connects to a camera and waits for its first frame.
    ///
    /// # Errors
    /// Fails if the address is forbidden, if the camera does not respond in time or does not send
    /// video that this crate supports.
    pub async fn connect(&self, address: &Address) -> Result<Session, CameraError> {
        let url = address.url.clone();
        match address.kind {
            Kind::Rtsp => {
                let stream = timeout(CONNECT_TIMEOUT, self.dial(address))
                    .await
                    .map_err(|_| CameraError::Timeout("no connection within the time limit"))??;
                let credentials = address.credentials.clone();
                Session::start(|sink| rtsp::run(stream, url, credentials, sink)).await
            }
            Kind::Hls => {
                let http = self.http(address);
                Session::start(|sink| hls::run(http, url, sink)).await
            }
            Kind::Mjpeg => {
                let http = self.http(address);
                Session::start(|sink| mjpeg::run(http, url, sink)).await
            }
        }
    }

    /// Connects to one of the host's addresses. All of them are checked before.
    async fn dial(&self, address: &Address) -> Result<TcpStream, CameraError> {
        let host = address.host().ok_or(CameraError::Resolve)?;
        let port = address.url.port().unwrap_or(RTSP_PORT);
        let addresses = self.shared.guard.resolve(&host, port, &*self.shared.lookup).await?;
        let mut failure = io::ErrorKind::NotFound.into();
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    stream.set_nodelay(true).map_err(CameraError::Connect)?;
                    return Ok(stream);
                }
                Err(error) => failure = error,
            }
        }
        Err(CameraError::Connect(failure))
    }

    fn http(&self, address: &Address) -> Http {
        let shared = &self.shared;
        let client = shared.client.get_or_init(|| {
            let config = Config {
                extra_roots: shared.extra_roots.clone(),
                connect_timeout: CONNECT_TIMEOUT,
                ..Config::default()
            };
            crawler::fetch::guarded_client(&config, &shared.guard, shared.lookup.clone())
        });
        Http::new(client.clone(), shared.guard.clone(), address)
    }
}

//! A TLS server for many host names on one port. Records when each host was asked.
use super::site::{Sites, name};
use axum::body::Body;
use axum::http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::{Acceptor, ResolvesServerCertUsingSni};
use rustls::sign::CertifiedKey;
use rustls::{HandshakeKind, ServerConfig};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;

pub(crate) struct Server {
    sites: Sites,
    /// Time before each response.
    latency: Duration,
    http1: Arc<ServerConfig>,
    http2: Arc<ServerConfig>,
    logs: Vec<Mutex<HostLog>>,
    connections: AtomicUsize,
    resumed: AtomicUsize,
}

/// The requests that a host received.
#[derive(Default)]
struct HostLog {
    pages: usize,
    others: usize,
    last: Option<Instant>,
    smallest_gap: Option<Duration>,
    violations: usize,
}

impl Server {
    /// Returns the server, and the certificate of its authority in PEM.
    pub(crate) fn new(sites: Sites, latency: Duration) -> anyhow::Result<(Self, String)> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let provider = Arc::new(ring::default_provider());
        let mut certificates = ResolvesServerCertUsingSni::new();
        for name in (0..sites.hosts).map(name) {
            let key = KeyPair::generate()?;
            let certificate = CertificateParams::new(vec![name.clone()])?.signed_by(&key, &authority)?;
            let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
            let chain = vec![certificate.der().clone()];
            certificates.add(&name, CertifiedKey::from_der(chain, key, &provider)?)?;
        }
        let certificates = Arc::new(certificates);
        let config = |protocols: &[&str]| -> anyhow::Result<Arc<ServerConfig>> {
            let mut config = ServerConfig::builder_with_provider(provider.clone())
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_cert_resolver(certificates.clone());
            config.ticketer = ring::Ticketer::new()?;
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
            Ok(Arc::new(config))
        };
        let server = Self {
            latency,
            http1: config(&["http/1.1"])?,
            http2: config(&["h2", "http/1.1"])?,
            logs: (0..sites.hosts).map(|_| Mutex::default()).collect(),
            connections: AtomicUsize::new(0),
            resumed: AtomicUsize::new(0),
            sites,
        };
        Ok((server, authority.pem()))
    }

    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(self.clone().connection(socket));
        }
    }

    async fn connection(self: Arc<Self>, socket: TcpStream) {
        let _ = socket.set_nodelay(true);
        let Ok(start) = LazyConfigAcceptor::new(Acceptor::default(), socket).await else { return };
        let Some(host) = start.client_hello().server_name().and_then(|name| self.sites.host(name)) else {
            return;
        };
        let config = if Sites::offers_http2(host) { &self.http2 } else { &self.http1 };
        let Ok(stream) = start.into_stream(config.clone()).await else { return };
        self.connections.fetch_add(1, Ordering::Relaxed);
        if stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed) {
            self.resumed.fetch_add(1, Ordering::Relaxed);
        }
        let service = service_fn(|request: Request<Incoming>| {
            let response = self.respond(host, request.uri().path());
            let latency = self.latency;
            async move {
                tokio::time::sleep(latency).await;
                Ok::<_, Infallible>(response)
            }
        });
        let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
    }

    fn respond(&self, host: usize, path: &str) -> Response<Body> {
        let page = self.sites.page(path);
        self.record(host, page.is_some());
        let mut response = Response::builder();
        let response = match page {
            Some(page) => {
                if let Some(etag) = Sites::etag(host, page) {
                    response = response.header(header::ETAG, etag);
                }
                response
                    .header(header::CONTENT_TYPE, "text/html; charset=utf-8")
                    .header(header::CONTENT_ENCODING, "gzip")
                    .body(self.sites.compressed(host, page).into())
            }
            None if path == "/robots.txt" => {
                response.header(header::CONTENT_TYPE, "text/plain").body(self.sites.robots(host).into())
            }
            None => response.status(StatusCode::NOT_FOUND).body(Body::empty()),
        };
        response.expect("the headers are valid")
    }

    fn record(&self, host: usize, is_page: bool) {
        let mut log = self.logs[host].lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(gap) = log.last.replace(now).map(|last| now - last) {
            log.smallest_gap = Some(log.smallest_gap.map_or(gap, |smallest| smallest.min(gap)));
            log.violations += usize::from(gap < self.sites.delay_of(host));
        }
        *(if is_page { &mut log.pages } else { &mut log.others }) += 1;
    }

    /// Returns the numbers of requests and connections, and for each delay the smallest time
    /// between two requests to one host.
    pub(crate) fn report(&self) -> Value {
        let (mut pages, mut others) = (0, 0);
        let mut delays = Vec::new();
        for delay in [self.sites.delay, self.sites.delay * 2] {
            let (mut hosts, mut violations, mut smallest) = (0, 0, None);
            let with_delay =
                self.logs.iter().enumerate().filter(|(host, _)| self.sites.delay_of(*host) == delay);
            for (_, log) in with_delay {
                let log = log.lock().unwrap_or_else(PoisonError::into_inner);
                hosts += 1;
                pages += log.pages;
                others += log.others;
                violations += log.violations;
                smallest = smallest.into_iter().chain(log.smallest_gap).min();
            }
            delays.push(json!({
                "delay_ms": delay.as_millis(),
                "hosts": hosts,
                "violations": violations,
                "smallest_gap_ms": smallest.map(|gap| gap.as_millis()),
            }));
        }
        json!({
            "pages": pages,
            "other_requests": others,
            "connections": self.connections.load(Ordering::Relaxed),
            "resumed": self.resumed.load(Ordering::Relaxed),
            "delays": delays,
        })
    }
}

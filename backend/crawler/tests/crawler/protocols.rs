//! Tests HTTP versions, certificates, conditional requests and fetches that are dropped.
use crate::support::{ForbiddenListener, HopRecorder, ScriptedDns, Site, gzip, local_config};
use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, Request as Incoming};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::get;
use bytes::Bytes;
use crawler::fetch::{AnyHop, Kind};
use crawler::{Config, FetchError, Fetched, Fetcher, Request, Roots, RootsError, Validators};
use futures::StreamExt;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use url::Url;

#[tokio::test]
async fn dropping_fetch_abandons_its_hop() {
    let received = Arc::new(Notify::new());
    let signal = received.clone();
    let site = Site::start(Router::new().route(
        "/pending",
        get(move || async move {
            signal.notify_one();
            std::future::pending::<()>().await;
        }),
    ))
    .await;
    let fetcher = Fetcher::new(&local_config());
    let policy = HopRecorder::default();
    {
        let fetch = fetcher.fetch(Request::new(site.url("/pending"), Kind::Page), &policy);
        tokio::pin!(fetch);
        tokio::select! {
            response = &mut fetch => panic!("{response:?}"),
            () = received.notified() => {}
        }
        assert_eq!(policy.lines(), ["admit /pending"]);
    }
    assert_eq!(policy.lines(), ["admit /pending", "abandoned /pending"]);
}

fn version_router() -> Router {
    Router::new().route("/", get(|request: Incoming| async move { format!("{:?}", request.version()) }))
}

fn fetcher_for(site: &SecureSite, config: Config) -> Fetcher {
    let names =
        ScriptedDns::default().with_name(NAME, &[&["127.0.0.1"]]).with_name("inside.test", &[&["127.0.0.2"]]);
    let extra_roots = Roots::from_pem(site.authority.as_bytes()).unwrap();
    Fetcher::with_lookup(&Config { extra_roots, ..config }, Arc::new(names))
}

async fn get_path(fetcher: &Fetcher, site: &SecureSite, path: &str) -> Result<Fetched, FetchError> {
    fetcher.fetch(Request::new(site.url(path), Kind::Page), &AnyHop).await
}

#[tokio::test]
async fn http2_serves_concurrent_requests_on_one_connection() {
    let site = SecureSite::start(version_router(), &["h2", "http/1.1"]).await;
    let fetcher = fetcher_for(&site, local_config());
    assert_eq!(get_path(&fetcher, &site, "/").await.unwrap().body, "HTTP/2.0");
    let responses = futures::future::join_all((0..50).map(|_| get_path(&fetcher, &site, "/"))).await;
    assert!(responses.into_iter().all(|response| response.unwrap().body == "HTTP/2.0"));
    assert_eq!(site.connections(), 1);
}

#[tokio::test]
async fn falls_back_to_http1_without_http2() {
    let site = SecureSite::start(version_router(), &["http/1.1"]).await;
    assert_eq!(get_path(&fetcher_for(&site, local_config()), &site, "/").await.unwrap().body, "HTTP/1.1");
}

#[tokio::test]
async fn limits_and_guard_apply_over_http2() {
    let bomb = Bytes::from(gzip(&vec![0; 8 << 20]));
    let drip = || async {
        let first = futures::stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"a"))]);
        Body::from_stream(first.chain(futures::stream::pending()))
    };
    let router = version_router()
        .route("/bomb", get(move || async move { ([(header::CONTENT_ENCODING, "gzip")], bomb) }))
        .route("/drip", get(drip))
        .route("/to", get(|RawQuery(target): RawQuery| async move { Redirect::to(&target.unwrap()) }));
    let site = SecureSite::start(router, &["h2"]).await;
    let forbidden = ForbiddenListener::listen("127.0.0.2:0").await;
    let config = Config {
        page_limit: 1 << 20,
        min_speed_window: Duration::from_secs(2),
        ports: vec![443, forbidden.address.port()],
        ..local_config()
    };
    let fetcher = fetcher_for(&site, config);
    let code = async |path: &str| get_path(&fetcher, &site, path).await.unwrap_err().reason().to_string();
    assert_eq!(code("/bomb").await, "too_many_bytes");
    assert_eq!(code("/drip").await, "timeout");
    let inside = format!("/to?https://inside.test:{}/", forbidden.address.port());
    assert_eq!(code(&inside).await, "forbidden_address");
    assert_eq!(code("/to?https://[::ffff:169.254.169.254]/").await, "forbidden_address");
    assert_eq!(forbidden.count_connections().await, 0);
    // Aborting a response ends only its own stream. The connection is still usable.
    assert_eq!(get_path(&fetcher, &site, "/").await.unwrap().body, "HTTP/2.0");
    assert_eq!(site.connections(), 1);
}

#[tokio::test]
async fn trusts_only_configured_certificate_authorities() {
    let requested = Arc::new(Notify::new());
    let notifier = requested.clone();
    let router = Router::new().route("/", get(|| async move { notifier.notify_one() }));
    let site = SecureSite::start(router, &["h2"]).await;
    let other = SecureSite::start(version_router(), &["h2"]).await;
    let fetcher = fetcher_for(&other, local_config());
    assert_eq!(get_path(&fetcher, &site, "/").await.unwrap_err().reason().to_string(), "tls_failure");
    assert!(futures::FutureExt::now_or_never(requested.notified()).is_none(), "no request was sent");
    let authorities = format!("{}\n{}", site.authority, other.authority);
    let names = Arc::new(ScriptedDns::default().with_name(NAME, &[&["127.0.0.1"]]));
    let config = Config { extra_roots: Roots::from_pem(authorities.as_bytes()).unwrap(), ..local_config() };
    let fetcher = Fetcher::with_lookup(&config, names);
    for site in [&site, &other] {
        assert_eq!(get_path(&fetcher, site, "/").await.unwrap().status, 200);
    }

    assert_eq!(Roots::from_pem(b"no certificate").unwrap_err(), RootsError::NoCertificate);
    let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    assert!(matches!(Roots::from_pem(broken.as_bytes()), Err(RootsError::Invalid(_))));
}

/// The host name in the certificate.
const NAME: &str = "secure.test";

/// A site that counts its connections.
struct SecureSite {
    pub(crate) address: SocketAddr,
    /// Certificate of the authority in PEM form.
    authority: String,
    connections: Arc<AtomicUsize>,
}

impl SecureSite {
    /// Starts a site that offers `protocols` by ALPN.
    pub(crate) async fn start(router: Router, protocols: &[&str]) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![NAME.to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            )
            .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counter = connections.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                counter.fetch_add(1, Ordering::SeqCst);
                let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(router.clone()));
                tokio::spawn(async move {
                    let Ok(stream) = acceptor.accept(socket).await else { return };
                    let builder = Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, authority: authority.pem(), connections }
    }

    pub(crate) fn url(&self, path: &str) -> Url {
        Url::parse(&format!("https://{NAME}:{}{path}", self.address.port())).unwrap()
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

#[tokio::test]
async fn conditional_requests_use_validators_of_their_url() {
    let handler = |headers: HeaderMap| async move {
        let value = |name| headers.get(name).and_then(|v: &header::HeaderValue| v.to_str().ok());
        if value("if-none-match") == Some("\"v1\"") || value("if-modified-since") == Some("yesterday") {
            return (StatusCode::NOT_MODIFIED, [("etag", "\"v1\"")]).into_response();
        }
        "new".into_response()
    };
    let site = Site::start(
        Router::new()
            .route("/", get(handler))
            .route("/moved", get(|| async { Redirect::to("/") }))
            .route("/always", get(|| async { StatusCode::NOT_MODIFIED })),
    )
    .await;
    let fetcher = Fetcher::new(&local_config());
    let request = Request::new(site.url("/"), Kind::Page);
    let revalidate = |url: Url, etag: Option<&str>, date: Option<&str>| {
        let (etag, last_modified) = (etag.map(Into::into), date.map(Into::into));
        Request { validators: Some(Validators { url, etag, last_modified }), ..request.clone() }
    };
    let url = || request.url.clone();
    for conditional in [revalidate(url(), Some("\"v1\""), None), revalidate(url(), None, Some("yesterday"))] {
        let response = fetcher.fetch(conditional, &AnyHop).await.unwrap();
        assert_eq!((response.status, response.body.len()), (304, 0));
        assert_eq!(response.etag.as_deref(), Some("\"v1\""));
    }
    let outdated = revalidate(url(), Some("\"v0\""), None);
    assert_eq!(fetcher.fetch(outdated, &AnyHop).await.unwrap().status, 200);
    // Validators apply only to the URL of their response, even after a redirect.
    let other_url = revalidate(site.url("/elsewhere"), Some("\"v1\""), None);
    assert_eq!(fetcher.fetch(other_url, &AnyHop).await.unwrap().status, 200);
    let moved = Request { url: site.url("/moved"), ..revalidate(url(), Some("\"v1\""), None) };
    assert_eq!(fetcher.fetch(moved, &AnyHop).await.unwrap().status, 304);
    // An invalid header value is omitted. A 304 response to an unconditional request is an error.
    let invalid = revalidate(url(), Some("\"v1\"\r\nx: y"), None);
    assert_eq!(fetcher.fetch(invalid, &AnyHop).await.unwrap().status, 200);
    let always = Request::new(site.url("/always"), Kind::Page);
    assert_eq!(fetcher.fetch(always, &AnyHop).await.unwrap_err().reason().code(), "http_304");
}

//! Provides a server on 127.0.0.1, listeners that must get no connection, and scripted DNS.
use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use crawler::guard::Lookup;
use crawler::{Config, FetchError, HopPolicy};
use domain::Reason;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::collections::HashMap;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use url::Url;

pub(crate) fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// Allows only 127.0.0.1. The other addresses of the loopback range are forbidden.
pub(crate) fn local_config() -> Config {
    Config { allow_private: vec!["127.0.0.1/32".parse().unwrap()], ..Config::default() }
}

/// A site that counts its requests.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    requests: Arc<AtomicUsize>,
}

impl Site {
    pub(crate) async fn start(router: Router) -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let counter = requests.clone();
        let router = router.layer(middleware::from_fn(move |request: Request, next: Next| {
            counter.fetch_add(1, Ordering::SeqCst);
            next.run(request)
        }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, service).await });
        Self { address, requests }
    }

    pub(crate) fn url(&self, path: &str) -> Url {
        crawler::urls::parse(&format!("http://{}{path}", self.address)).unwrap()
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Time after which a wait of a test fails. Only a test that fails waits this long.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// A listener that counts its connections.
pub(crate) struct ForbiddenListener {
    pub(crate) address: SocketAddr,
    count: watch::Receiver<usize>,
}

impl ForbiddenListener {
    pub(crate) async fn listen(address: &str) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, count) = watch::channel(0);
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                sender.send_modify(|count| *count += 1);
                drop(socket);
            }
        });
        Self { address, count }
    }

    /// Returns the number of connections so far. The method opens another connection, which is the
    /// last in the accept queue. When this connection is counted, the others have been counted too.
    pub(crate) async fn count_connections(&self) -> usize {
        let count_before = *self.count.borrow();
        drop(tokio::net::TcpStream::connect(self.address).await.unwrap());
        let mut count = self.count.clone();
        let counted = count.wait_for(|n| *n > count_before);
        let count_after = *tokio::time::timeout(MAX_WAIT, counted).await.unwrap().unwrap();
        count_after - 1
    }
}

/// DNS with scripted responses. The nth look-up of a name gets the nth response. The last response
/// is repeated.
#[derive(Default)]
pub(crate) struct ScriptedDns {
    responses: HashMap<String, Vec<Vec<IpAddr>>>,
    lookups: Mutex<HashMap<String, usize>>,
}

impl ScriptedDns {
    pub(crate) fn with_name(mut self, name: &str, responses: &[&[&str]]) -> Self {
        let responses =
            responses.iter().map(|ips| ips.iter().map(|ip| ip.parse().unwrap()).collect()).collect();
        self.responses.insert(name.into(), responses);
        self
    }

    pub(crate) fn count_lookups(&self, name: &str) -> usize {
        self.lookups.lock().unwrap().get(name).copied().unwrap_or(0)
    }
}

#[async_trait::async_trait]
impl Lookup for ScriptedDns {
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        let responses = self.responses.get(name).ok_or_else(|| std::io::Error::other("no such name"))?;
        let mut lookups = self.lookups.lock().unwrap();
        let count = lookups.entry(name.into()).or_default();
        let response = responses[(*count).min(responses.len() - 1)].clone();
        *count += 1;
        Ok(response)
    }
}

/// Records the calls that the fetcher makes to its policy.
#[derive(Default)]
pub(crate) struct HopRecorder {
    lines: Mutex<Vec<String>>,
    refused_path: Option<String>,
}

impl HopRecorder {
    pub(crate) fn refusing(path: &str) -> Self {
        Self { refused_path: Some(path.into()), ..Self::default() }
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }
}

#[async_trait::async_trait]
impl HopPolicy for HopRecorder {
    async fn admit(&self, url: &Url) -> Result<(), FetchError> {
        self.lines.lock().unwrap().push(format!("admit {}", url.path()));
        if self.refused_path.as_deref() == Some(url.path()) {
            return Err(FetchError::Refused(Reason::RobotsDisallowed));
        }
        Ok(())
    }

    async fn finished(&self, url: &Url, status: Option<u16>, retry_after: Option<Duration>, _took: Duration) {
        let status = status.map_or("failed".into(), |status| status.to_string());
        let retry = retry_after.map_or(String::new(), |delay| format!(" retry {}s", delay.as_secs()));
        self.lines.lock().unwrap().push(format!("finished {} {status}{retry}", url.path()));
    }

    fn abandoned(&self, url: &Url) {
        self.lines.lock().unwrap().push(format!("abandoned {}", url.path()));
    }
}

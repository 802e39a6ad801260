//! Sends HTTP requests to addresses that the guard allows: fetches of a crawl, and webhooks.
use super::body::{Body, Limits};
use super::connection::NewConnections;
use super::{FetchError, Fetched, HopPolicy, Kind, Request, Validators, connection, date, decoder};
use crate::config::{VIDEO_WINDOWS, install_crypto_provider};
use crate::fetch::connection::to_fetch_error;
use crate::guard::{AddressScope, Guard, Lookup, SystemLookup, VettedResolver};
use crate::{Config, ReferrerPolicy, hls, urls};
use bytes::Bytes;
use domain::Reason;
use reqwest::header::{self, HeaderMap, HeaderValue};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::time::{Instant, timeout_at};
use url::Url;

/// Maximum `Retry-After` that is returned to callers.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Number of bytes that are read if the content of a page is a video.
const VIDEO_HEAD: usize = 1 << 10;
/// Time limit of [`Fetcher::post`], from the connection to the head of the response.
const POST_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_IDLE_PER_HOST: usize = 8;
/// Maximum number of header lines of a response. The client's own maximum is 100, which some sites
/// exceed.
const MAX_HEADERS: usize = 1024;
/// Lifetime of an idle connection. It is short, so that a crawl over many hosts does not keep a
/// connection open to each.
const IDLE_TIMEOUT: Duration = Duration::from_secs(20);

/// Sends requests. Cheap to clone; clones share their connections.
#[derive(Clone)]
pub struct Fetcher {
    shared: Arc<Shared>,
}

struct Shared {
    guard: Guard,
    config: Config,
    agent: String,
    /// Connects to addresses that the guard allows, on the ports that are allowed everywhere.
    public: Arc<Client>,
    /// Connects to allowed private ranges only, on any port.
    private: Arc<Client>,
}

/// A client with a pool of connections, and one without a pool.
struct Client {
    pooled: reqwest::Client,
    /// Establishes a connection for each request. It is built when it is first needed, because that
    /// loads the system's certificates again.
    unpooled: OnceLock<reqwest::Client>,
    resolver: Arc<VettedResolver>,
}

impl Fetcher {
    /// Returns a fetcher with its own connection pool.
    pub fn new(config: &Config) -> Self {
        Self::with_lookup(config, Arc::new(SystemLookup))
    }

    /// Returns a fetcher that resolves names with `lookup`. The guard checks every address that
    /// `lookup` returns.
    pub fn with_lookup(config: &Config, lookup: Arc<dyn Lookup>) -> Self {
        let guard = Guard::new(config);
        let client = |scope| {
            let resolver = Arc::new(VettedResolver { guard: guard.clone(), lookup: lookup.clone(), scope });
            let pooled = build_client(config, &resolver, MAX_IDLE_PER_HOST);
            Arc::new(Client { pooled, unpooled: OnceLock::new(), resolver })
        };
        let public = client(AddressScope::Public);
        let private =
            if guard.allows_private_ranges() { client(AddressScope::AllowedPrivate) } else { public.clone() };
        let agent = config.user_agent.split(['/', ' ']).next().unwrap_or_default().to_owned();
        Self { shared: Arc::new(Shared { guard, config: config.clone(), agent, public, private }) }
    }

    /// Returns the crawler's product token (`facecrawl`), as it appears in robots.txt.
    pub fn agent(&self) -> &str {
        &self.shared.agent
    }

    /// Returns whether the configuration allows requests to reveal the page that caused them.
    pub fn sends_referer(&self) -> bool {
        self.shared.config.send_referer
    }

    /// Returns the maximum length of a video in bytes, and the time limit for its body.
    pub fn video_limits(&self) -> (usize, Duration) {
        (self.shared.config.video_limit, self.shared.config.video_timeout)
    }

    pub fn guard(&self) -> &Guard {
        &self.shared.guard
    }

    /// Fetches a URL and follows up to `max_redirects` redirects. The guard and `policy` check each
    /// hop.
    ///
    /// # Errors
    /// Returns [`FetchError::Incomplete`] with the received part, if the body of a page, an image
    /// or a sitemap is incomplete.
    pub async fn fetch(&self, request: Request, policy: &dyn HopPolicy) -> Result<Fetched, FetchError> {
        let is_useful_in_part = request.kind.is_useful_in_part();
        let (fetched, body) = self.open(request, policy).await?;
        match body.into_memory().await {
            (body, Ok(())) => Ok(Fetched { body, ..fetched }),
            (body, Err(FetchError::Incomplete { why, .. })) if is_useful_in_part && !body.is_empty() => {
                // With validators, the next response could be 304, and the incomplete body would be
                // kept.
                let part = Fetched { body, is_incomplete: true, etag: None, last_modified: None, ..fetched };
                Err(FetchError::Incomplete { why, received: Some(Box::new(part)) })
            }
            (_, Err(error)) => Err(error),
        }
    }

    /// Works like [`Self::fetch`] for a body that is too large for memory.
    pub async fn download(&self, request: Request, policy: &dyn HopPolicy) -> Result<Download, FetchError> {
        let (head, body) = self.open(request, policy).await?;
        Ok(Download { head, body })
    }

    async fn open(&self, request: Request, policy: &dyn HopPolicy) -> Result<(Fetched, Body), FetchError> {
        let mut url = urls::normalise(request.url.clone());
        let mut redirects: Vec<Url> = Vec::new();
        let mut referrer = request.referrer.clone().filter(|_| self.shared.config.send_referer);
        loop {
            self.shared.guard.check_url(&url)?;
            policy.admit(&url).await?;
            let hop = OpenHop { policy, url: Some(&url) };
            let started = Instant::now();
            let config = &self.shared.config;
            referrer = referrer.and_then(|referrer| referrer.for_target(&url));
            let mut headers = request_headers(&request, &url);
            if let Some(referrer) = &referrer
                && let Ok(value) = HeaderValue::from_str(referrer.as_str())
            {
                headers.insert(header::REFERER, value);
            }
            let result = self.send(&url, headers, started + config.total_timeout).await;
            let (status, retry_after) = match &result {
                Ok(response) => (Some(response.status().as_u16()), retry_after(response.headers())),
                Err(_) => (None, None),
            };
            policy.finished(&url, status, retry_after, started.elapsed()).await;
            hop.close();
            let response = result?;
            let status = response.status().as_u16();
            if let Some(next) = redirect_target(&url, &response)? {
                let policy = referrer_policy(response.headers());
                referrer = referrer.map(|referrer| referrer.after_redirect(policy));
                redirects.push(url);
                if redirects.len() > self.shared.config.max_redirects || redirects.contains(&next) {
                    return Err(FetchError::TooManyRedirects);
                }
                url = next;
                continue;
            }
            if (200..300).contains(&status) || (status == 304 && validators(&request, &url).is_some()) {
                let time =
                    if request.kind == Kind::Video { config.video_timeout } else { config.total_timeout };
                return self.read_head(url, response, request.kind, redirects, started + time);
            }
            return Err(FetchError::Status { status, retry_after });
        }
    }

    /// Returns the clients that may connect to the URL's port.
    fn clients_for(&self, url: &Url) -> &Client {
        match self.shared.guard.address_scope(url.port_or_known_default().unwrap_or_default()) {
            AddressScope::Public => &self.shared.public,
            AddressScope::AllowedPrivate => &self.shared.private,
        }
    }

    /// Sends a request. A server may close an idle connection at the moment when it is reused. The
    /// request is then repeated once. Other idle connections of the host are probably closed too,
    /// so the repetition uses a new one.
    async fn send(
        &self,
        url: &Url,
        headers: HeaderMap,
        deadline: Instant,
    ) -> Result<reqwest::Response, FetchError> {
        let client = self.clients_for(url);
        let send = |client: &reqwest::Client| client.get(url.clone()).headers(headers.clone()).send();
        let exchange = async {
            match connection::send(send(&client.pooled)).await {
                (Err(error), false) if connection::is_lost(&error) => {
                    tracing::debug!(%error, "repeating a request whose reused connection was closed");
                    let config = &self.shared.config;
                    let build = || build_client(config, &client.resolver, 0);
                    send(client.unpooled.get_or_init(build)).await
                }
                (result, _) => result,
            }
        };
        match timeout_at(deadline, exchange).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(to_fetch_error(error)),
            Err(_) => Err(FetchError::Timeout("no response within the time limit")),
        }
    }

    fn read_head(
        &self,
        url: Url,
        response: reqwest::Response,
        kind: Kind,
        redirects: Vec<Url>,
        deadline: Instant,
    ) -> Result<(Fetched, Body), FetchError> {
        let config = &self.shared.config;
        let head = response.headers();
        let text = |name: header::HeaderName| head.get(name).map(header_text);
        let fetched = Fetched {
            status: response.status().as_u16(),
            content_type: text(header::CONTENT_TYPE),
            etag: text(header::ETAG),
            last_modified: text(header::LAST_MODIFIED),
            robots_tags: head.get_all("x-robots-tag").iter().map(header_text).collect(),
            referrer_policy: referrer_policy(head),
            body: Bytes::new(),
            is_incomplete: false,
            url,
            redirects,
        };
        let (min_speed, window) = match kind {
            Kind::Video => (config.video_min_speed, config.min_speed_window * VIDEO_WINDOWS),
            _ => (config.min_speed, config.min_speed_window),
        };
        // The first bytes show that the content is a video and not a page.
        let is_video = |mime: &String| mime.to_ascii_lowercase().starts_with("video/");
        let is_video_page = kind == Kind::Page && fetched.content_type.as_ref().is_some_and(is_video);
        let limits = Limits {
            bytes: match kind {
                Kind::Page if is_video_page => VIDEO_HEAD,
                Kind::Page => config.page_limit,
                Kind::Image => config.image_limit,
                Kind::Robots => config.robots_limit,
                Kind::SmallSitemap => config.page_limit.min(config.sitemap_limit),
                Kind::Sitemap => config.sitemap_limit,
                Kind::Video => config.video_limit,
                Kind::Playlist => hls::MAX_BYTES,
            },
            truncate: kind == Kind::Robots || is_video_page,
            // RFC 9309 2.3.1.5: the lines of robots.txt that can be parsed apply.
            accept_plain_text: kind == Kind::Robots,
            deadline,
            min_speed,
            window,
        };
        Ok((fetched, Body::new(response, limits)?))
    }

    /// Posts `body` with `headers` to a URL that the guard allows, and returns the status of the
    /// response. Does not follow redirects and does not read the response's body. Errors never
    /// contain the URL, because it may contain a secret.
    ///
    /// # Errors
    /// Fails with `Guard` for a forbidden URL or address, and with `Dns`, `Connect` or `Timeout` if
    /// there is no response.
    pub async fn post(
        &self,
        url: &Url,
        headers: &[(&'static str, String)],
        body: Bytes,
    ) -> Result<u16, FetchError> {
        self.guard().check_url(url)?;
        let mut request = self.clients_for(url).pooled.post(url.clone()).body(body);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        match tokio::time::timeout(POST_TIMEOUT, request.send()).await {
            Ok(Ok(response)) => Ok(response.status().as_u16()),
            Ok(Err(error)) => Err(to_fetch_error(error.without_url())),
            Err(_) => Err(FetchError::Timeout("no response within the time limit")),
        }
    }
}

/// A response whose body is read piece by piece.
pub struct Download {
    /// The response, with an empty body.
    pub head: Fetched,
    body: Body,
}

impl Download {
    /// Returns the next piece of the body, or `None` at its end.
    ///
    /// # Errors
    /// Fails if the body is too long, too slow, takes too long or is incomplete.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, FetchError> {
        self.body.next().await
    }
}

/// Notifies the policy if the fetch is dropped during a hop.
struct OpenHop<'a> {
    policy: &'a dyn HopPolicy,
    url: Option<&'a Url>,
}

impl OpenHop<'_> {
    fn close(mut self) {
        self.url = None;
    }
}

impl Drop for OpenHop<'_> {
    fn drop(&mut self) {
        if let Some(url) = self.url {
            self.policy.abandoned(url);
        }
    }
}

/// Returns an HTTP client for callers that send requests of their own. It resolves names with
/// `lookup`, connects only to addresses that `guard` allows, and follows no redirects. The caller
/// checks each URL with `guard`, because an address in a URL is not resolved.
///
/// `guard` must allow the port of each URL on public addresses.
pub fn guarded_client(config: &Config, guard: &Guard, lookup: Arc<dyn Lookup>) -> reqwest::Client {
    let resolver = VettedResolver { guard: guard.clone(), lookup, scope: AddressScope::Public };
    build_client(config, &Arc::new(resolver), MAX_IDLE_PER_HOST)
}

fn build_client(config: &Config, resolver: &Arc<VettedResolver>, max_idle: usize) -> reqwest::Client {
    install_crypto_provider();
    // A header value must be visible ASCII, but the configuration can contain any characters.
    let agent: String = config.user_agent.chars().filter(|c| matches!(c, ' '..='~')).collect();
    let builder = || {
        reqwest::Client::builder()
            .user_agent(agent.as_str())
            .dns_resolver(resolver.clone())
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .referer(false)
            .connect_timeout(config.connect_timeout)
            // Browsers skip or repair invalid header lines too. PHP prints warnings among them.
            .http1_ignore_invalid_headers_in_responses(true)
            .http1_allow_obsolete_multiline_headers_in_responses(true)
            .http1_allow_spaces_after_header_name_in_responses(true)
            .http1_max_headers(MAX_HEADERS)
            .connector_layer(NewConnections)
            .pool_max_idle_per_host(max_idle)
            .pool_idle_timeout(IDLE_TIMEOUT)
            // The module `decoder` decodes bodies.
            .no_gzip()
            .no_brotli()
            .no_zstd()
    };
    let extra_roots = || config.extra_roots.certificates();
    builder().tls_certs_merge(extra_roots()).build().unwrap_or_else(|error| {
        tracing::warn!(%error, "could not load system certificates; https needs CRAWL_EXTRA_CA, http works");
        builder()
            .tls_certs_only(extra_roots())
            .build()
            .expect("only the certificates can fail: the user agent is filtered and no proxy is set")
    })
}

/// Returns the validators of the request if they belong to this hop's URL.
fn validators<'a>(request: &'a Request, url: &Url) -> Option<&'a Validators> {
    request.validators.as_ref().filter(|validators| validators.url == *url)
}

fn request_headers(request: &Request, url: &Url) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::ACCEPT,
        HeaderValue::from_static(match request.kind {
            Kind::Page => "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.5",
            // These are the formats that are decoded without ffmpeg. A server that negotiates
            // formats should not send AVIF or SVG.
            Kind::Image => {
                "image/jpeg,image/png,image/webp,image/gif,image/bmp;q=0.8,image/*;q=0.3,*/*;q=0.1"
            }
            Kind::Robots => "text/plain,*/*;q=0.5",
            Kind::Playlist => "application/vnd.apple.mpegurl,application/x-mpegurl,*/*;q=0.5",
            Kind::Video => "video/*,application/octet-stream;q=0.5,*/*;q=0.1",
            Kind::SmallSitemap | Kind::Sitemap => {
                "application/xml,text/xml,application/rss+xml,application/atom+xml,*/*;q=0.5"
            }
        }),
    );
    // Images and videos are already compressed.
    let encodings =
        if matches!(request.kind, Kind::Image | Kind::Video) { "identity" } else { decoder::ACCEPTED };
    headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(encodings));
    let Some(Validators { etag, last_modified, .. }) = validators(request, url) else { return headers };
    for (name, value) in [(header::IF_NONE_MATCH, etag), (header::IF_MODIFIED_SINCE, last_modified)] {
        if let Some(value) = value.as_deref().and_then(|v| HeaderValue::from_bytes(v.as_bytes()).ok()) {
            headers.insert(name, value);
        }
    }
    headers
}

fn header_text(value: &HeaderValue) -> String {
    String::from_utf8_lossy(value.as_bytes()).trim().to_owned()
}

fn referrer_policy(headers: &HeaderMap) -> Option<ReferrerPolicy> {
    let values: Vec<String> = headers.get_all(header::REFERRER_POLICY).iter().map(header_text).collect();
    ReferrerPolicy::parse_header(values.iter().map(String::as_str))
}

/// Returns the normalised target of a redirect, or `None` if the response is not a redirect or has
/// no valid target.
///
/// # Errors
/// Fails with `Refused(UrlTooLong)` for a target of more than [`urls::MAX_PARSED_LENGTH`] bytes.
fn redirect_target(url: &Url, response: &reqwest::Response) -> Result<Option<Url>, FetchError> {
    if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = response.headers().get(header::LOCATION) else { return Ok(None) };
    let too_long = || FetchError::Refused(Reason::UrlTooLong);
    if location.len() > urls::MAX_PARSED_LENGTH {
        return Err(too_long());
    }
    let Ok(next) = urls::join(url, &location_text(location)).map(urls::normalise) else { return Ok(None) };
    if next.as_str().len() > urls::MAX_PARSED_LENGTH { Err(too_long()) } else { Ok(Some(next)) }
}

/// Returns a `Location` with its non-ASCII bytes percent-encoded as they are. The Fetch standard
/// does not define their encoding; browsers keep the bytes, which may be invalid UTF-8.
fn location_text(location: &HeaderValue) -> String {
    let mut text = String::with_capacity(location.len());
    for byte in location.as_bytes().trim_ascii() {
        match byte {
            byte if byte.is_ascii() => text.push(char::from(*byte)),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// Parses `Retry-After` in both forms (RFC 9110 10.2.3) as a duration from now, at most
/// [`MAX_RETRY_AFTER`]. A date is compared with the response's own `Date`, because the clocks of
/// the server and of this process may differ. If the response has no `Date`, the date is compared
/// with the clock of this process.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = header_text(headers.get(header::RETRY_AFTER)?);
    if text.bytes().all(|b| b.is_ascii_digit()) && !text.is_empty() {
        // A number that does not fit into a u64 is treated as the maximum.
        return Some(text.parse().map_or(MAX_RETRY_AFTER, Duration::from_secs).min(MAX_RETRY_AFTER));
    }
    let now = OffsetDateTime::now_utc();
    let sent_at = headers.get(header::DATE).and_then(|date| date::parse(&header_text(date), now));
    let now = sent_at.unwrap_or(now);
    // A date in the past means no wait.
    let wait = date::parse(&text, now)? - now;
    Some(Duration::try_from(wait).unwrap_or_default().min(MAX_RETRY_AFTER))
}

//! Fetches one URL at a time. The guard and the policy check each hop of a redirect chain.
mod body;
mod client;
mod connection;
mod date;
mod decoder;

pub use client::{Download, Fetcher, MAX_RETRY_AFTER, guarded_client};
pub use connection::to_fetch_error;

use crate::{GuardError, Referrer, ReferrerPolicy};
use bytes::Bytes;
use domain::Reason;
use std::time::Duration;
use url::Url;

/// The kind of resource. It determines the byte limit and the `Accept` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Page,
    Image,
    Robots,
    /// A sitemap or feed; the byte limit of a page applies.
    SmallSitemap,
    /// A sitemap or feed; the byte limit of a sitemap applies.
    Sitemap,
    /// A video file, which has separate limits.
    Video,
    /// A playlist of a video ([`crate::hls`]).
    Playlist,
}

impl Kind {
    /// Returns whether the beginning of a file is useful without the rest. The missing part of a
    /// robots.txt may contain `Disallow` rules. An incomplete playlist looks like that of a live
    /// stream.
    pub(crate) fn is_useful_in_part(self) -> bool {
        match self {
            Self::Page | Self::Image | Self::SmallSitemap | Self::Sitemap => true,
            Self::Robots | Self::Video | Self::Playlist => false,
        }
    }
}

#[derive(Clone, Debug)]
pub struct Request {
    pub url: Url,
    pub kind: Kind,
    /// Validators of an earlier response. They make the request conditional.
    pub validators: Option<Validators>,
    /// The page that caused the request. Sent as `Referer`, unless the configuration disables it.
    pub referrer: Option<Referrer>,
}

impl Request {
    /// Returns an unconditional request without a referrer.
    pub fn new(url: Url, kind: Kind) -> Self {
        Self { url, kind, validators: None, referrer: None }
    }
}

/// Validators of a response, for a later conditional request (RFC 9110 8.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validators {
    /// The URL that responded, after redirects. The validators are sent to no other URL.
    pub url: Url,
    /// Sent as `If-None-Match`.
    pub etag: Option<String>,
    /// Sent as `If-Modified-Since`.
    pub last_modified: Option<String>,
}

/// Maximum length of a validator in bytes. Longer validators are dropped, so that servers cannot
/// use them to store large data.
const MAX_VALIDATOR_BYTES: usize = 512;

/// A response with its body.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// The URL after redirects.
    pub url: Url,
    /// HTTP status: 2xx or 304. Other statuses result in [`FetchError::Status`].
    pub status: u16,
    pub content_type: Option<String>,
    pub etag: Option<String>,
    pub last_modified: Option<String>,
    pub robots_tags: Vec<String>,
    /// `Referrer-Policy`.
    pub referrer_policy: Option<ReferrerPolicy>,
    /// The decoded body.
    pub body: Bytes,
    /// Whether the body is incomplete. `Fetcher::fetch` returns such a response only in
    /// [`FetchError::Incomplete`]. It has no validators.
    pub is_incomplete: bool,
    /// Every URL that redirected, in order.
    pub redirects: Vec<Url>,
}

impl Fetched {
    /// Returns the validators for a later request, or `None` if the response has none.
    pub fn validators(&self) -> Option<Validators> {
        let keep_short = |value: &Option<String>| {
            value.clone().filter(|value| !value.is_empty() && value.len() <= MAX_VALIDATOR_BYTES)
        };
        let (etag, last_modified) = (keep_short(&self.etag), keep_short(&self.last_modified));
        let url = self.url.clone();
        (etag.is_some() || last_modified.is_some()).then_some(Validators { url, etag, last_modified })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The policy rejected the hop (robots.txt, scope).
    #[error("not allowed: {0}")]
    Refused(Reason),
    /// The policy postpones the hop by this time (politeness).
    #[error("the request was postponed by the rate limit of the host")]
    Postponed(Duration),
    #[error("the host name cannot be resolved: {0}")]
    Dns(String),
    /// No connection could be established, or it broke before the response.
    #[error("the connection failed: {why}")]
    Connect { cause: ConnectError, why: String },
    #[error("the response is invalid: {0}")]
    Invalid(String),
    /// The body is not in the encoding that `Content-Encoding` states.
    #[error("the body cannot be decoded: {0}")]
    Undecodable(String),
    /// The body is incomplete.
    #[error("the response did not arrive completely: {why}")]
    Incomplete {
        why: String,
        /// The bytes that arrived. `None` if no byte arrived, or if the beginning of such a file is
        /// not useful.
        received: Option<Box<Fetched>>,
    },
    /// The connection, the response or the body took too long.
    #[error("timed out: {0}")]
    Timeout(&'static str),
    #[error("the response is longer than {limit} bytes")]
    TooLarge {
        /// The limit in decoded bytes.
        limit: usize,
    },
    /// There were more redirects than allowed, or the redirects form a loop.
    #[error("too many redirects")]
    TooManyRedirects,
    #[error("the server responded with status {status}")]
    Status {
        status: u16,
        /// `Retry-After`, as a duration from now.
        retry_after: Option<Duration>,
    },
}

/// The reason why no connection was established or kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// The host rejected the connection.
    Refused,
    /// The connection was closed or reset before the head of the response was complete.
    Closed,
    /// The TLS handshake failed.
    Tls,
    Other,
}

impl FetchError {
    /// Returns the reason that the ledgers and the API show.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Guard(GuardError::Url(_)) => Reason::ForbiddenUrl,
            Self::Guard(GuardError::Address { .. }) => Reason::ForbiddenAddress,
            Self::Refused(reason) => reason.clone(),
            Self::Postponed(_) => Reason::Later,
            Self::Dns(_) => Reason::DnsFailure,
            Self::Connect { cause: ConnectError::Refused, .. } => Reason::ConnectionRefused,
            Self::Connect { cause: ConnectError::Closed, .. } => Reason::ConnectionClosed,
            Self::Connect { cause: ConnectError::Tls, .. } => Reason::TlsFailure,
            Self::Connect { cause: ConnectError::Other, .. } => Reason::ConnectFailure,
            Self::Invalid(_) => Reason::InvalidResponse,
            Self::Undecodable(_) => Reason::UndecodableBody,
            Self::Incomplete { .. } => Reason::IncompleteTransfer,
            Self::Timeout(_) => Reason::Timeout,
            Self::TooLarge { .. } => Reason::TooManyBytes,
            Self::TooManyRedirects => Reason::TooManyRedirects,
            Self::Status { status, .. } => Reason::Http(*status),
        }
    }

    /// Returns whether another attempt may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Postponed(_)
            | Self::Dns(_)
            | Self::Connect { .. }
            | Self::Incomplete { .. }
            | Self::Timeout(_) => true,
            Self::Status { status, .. } => {
                matches!(status, 408 | 425 | 429) || (*status >= 500 && !matches!(status, 501 | 505))
            }
            Self::Guard(_)
            | Self::Refused(_)
            | Self::Invalid(_)
            | Self::Undecodable(_)
            | Self::TooLarge { .. }
            | Self::TooManyRedirects => false,
        }
    }
}

/// Decides about each hop before it is sent, and receives its result afterwards. The crawl's policy
/// checks scope and robots.txt, and waits for a politeness permit of the host.
#[async_trait::async_trait]
pub trait HopPolicy: Send + Sync {
    /// Allows or rejects this hop. Waits if the host will be available soon.
    ///
    /// # Errors
    /// Returns [`FetchError::Refused`] or [`FetchError::Postponed`] if it must not be sent now.
    async fn admit(&self, url: &Url) -> Result<(), FetchError>;
    /// Reports that the head of the response arrived (`status`), or that the hop failed (`None`).
    /// Each admitted hop ends with exactly one call of this method or of [`Self::abandoned`].
    async fn finished(&self, url: &Url, status: Option<u16>, retry_after: Option<Duration>, took: Duration);
    /// Reports that the fetch was dropped before the response arrived or before `finished`
    /// completed. It is called from `drop`, so it must not block.
    fn abandoned(&self, url: &Url) {
        let _ = url;
    }
}

/// Allows every hop. The guard still applies.
pub struct AnyHop;

#[async_trait::async_trait]
impl HopPolicy for AnyHop {
    async fn admit(&self, _url: &Url) -> Result<(), FetchError> {
        Ok(())
    }
    async fn finished(
        &self,
        _url: &Url,
        _status: Option<u16>,
        _retry_after: Option<Duration>,
        _took: Duration,
    ) {
    }
}

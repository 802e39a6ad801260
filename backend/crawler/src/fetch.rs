//! One guarded request at a time, redirects vetted hop by hop.
mod body;
mod client;
mod post;
mod roots;

pub use client::{Fetcher, MAX_RETRY_AFTER};
pub use roots::{Roots, RootsError};

use crate::GuardError;
use bytes::Bytes;
use std::time::Duration;
use url::Url;

/// What is fetched; chooses the byte limit and the `Accept` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An HTML page.
    Page,
    /// An image.
    Image,
    /// robots.txt.
    Robots,
    /// A sitemap or feed, limited to the size of a page.
    SmallSitemap,
    /// A sitemap or feed of any allowed size.
    Sitemap,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// Where.
    pub url: Url,
    /// What for.
    pub kind: Kind,
    /// What an earlier answer said of itself; makes the request conditional.
    pub validators: Option<Validators>,
}

impl Request {
    /// A plain request.
    pub fn new(url: Url, kind: Kind) -> Self {
        Self { url, kind, validators: None }
    }
}

/// What an answer says of itself, so that it can be asked about again (RFC 9110 8.8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validators {
    /// The URL that answered, after redirects. They are sent to no other.
    pub url: Url,
    /// Sent as `If-None-Match`.
    pub etag: Option<String>,
    /// Sent as `If-Modified-Since`.
    pub last_modified: Option<String>,
}

/// Longer validators are not kept: an answer's head is not a place to store things.
const LONGEST_VALIDATOR: usize = 512;

/// An answer whose body is complete.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// After redirects.
    pub url: Url,
    /// HTTP status (2xx or 304; others are `FetchError::Status`).
    pub status: u16,
    /// `Content-Type`.
    pub content_type: Option<String>,
    /// `ETag`.
    pub etag: Option<String>,
    /// `Last-Modified`.
    pub last_modified: Option<String>,
    /// All `X-Robots-Tag` values.
    pub robots_tags: Vec<String>,
    /// The decoded body.
    pub body: Bytes,
    /// Every URL that redirected, in order.
    pub redirects: Vec<Url>,
}

impl Fetched {
    /// What can be asked about later; `None` when the answer says nothing of itself.
    pub fn validators(&self) -> Option<Validators> {
        let short = |value: &Option<String>| {
            value.clone().filter(|value| !value.is_empty() && value.len() <= LONGEST_VALIDATOR)
        };
        let (etag, last_modified) = (short(&self.etag), short(&self.last_modified));
        (etag.is_some() || last_modified.is_some()).then(|| Validators {
            url: self.url.clone(),
            etag,
            last_modified,
        })
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL or an address of its host is forbidden.
    #[error(transparent)]
    Guard(#[from] GuardError),
    /// The policy refused the hop (robots, scope): its code.
    #[error("not allowed: {0}")]
    Refused(String),
    /// The policy asks to come back later (politeness).
    #[error("not now")]
    Later(time::OffsetDateTime),
    /// The host name has no address.
    #[error("the host name cannot be resolved: {0}")]
    Dns(String),
    /// No connection, or it broke.
    #[error("the connection failed: {0}")]
    Connect(String),
    /// Too slow.
    #[error("timed out: {0}")]
    Timeout(&'static str),
    /// The body is longer than the limit.
    #[error("the answer is longer than {limit} bytes")]
    TooLarge {
        /// The limit in decoded bytes.
        limit: usize,
    },
    /// More redirects than allowed, or a loop.
    #[error("too many redirects")]
    TooManyRedirects,
    /// An HTTP error status.
    #[error("the server answered {status}")]
    Status {
        /// The status.
        status: u16,
        /// `Retry-After`, as a wait from now.
        retry_after: Option<Duration>,
    },
}

impl FetchError {
    /// Stable reason code: `forbidden_url`, `forbidden_address`, `robots_disallowed`, `dns_failure`, `connect_failure`, `timeout`,
    /// `too_many_bytes`, `too_many_redirects`, `http_404`, …
    pub fn code(&self) -> String {
        match self {
            Self::Guard(GuardError::Url(_)) => "forbidden_url".into(),
            Self::Guard(GuardError::Address { .. }) => "forbidden_address".into(),
            Self::Refused(code) => code.clone(),
            Self::Later(_) => "later".into(),
            Self::Dns(_) => "dns_failure".into(),
            Self::Connect(_) => "connect_failure".into(),
            Self::Timeout(_) => "timeout".into(),
            Self::TooLarge { .. } => "too_many_bytes".into(),
            Self::TooManyRedirects => "too_many_redirects".into(),
            Self::Status { status, .. } => format!("http_{status}"),
        }
    }
    /// Whether another attempt can help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Later(_) | Self::Dns(_) | Self::Connect(_) | Self::Timeout(_) => true,
            Self::Status { status, .. } => {
                matches!(status, 408 | 425 | 429) || (*status >= 500 && !matches!(status, 501 | 505))
            }
            Self::Guard(_) | Self::Refused(_) | Self::TooLarge { .. } | Self::TooManyRedirects => false,
        }
    }
}

/// Asked before every hop, told after it. The crawl's policy checks scope and robots and waits for the host's turn.
#[async_trait::async_trait]
pub trait HopPolicy: Send + Sync {
    /// May this hop be sent now? Waits for its turn when that is near.
    async fn admit(&self, url: &Url) -> Result<(), FetchError>;
    /// The head of the answer has arrived (`status`), or the hop failed (`None`). Every hop that was admitted ends with exactly one of this
    /// and [`Self::abandoned`].
    async fn finished(&self, url: &Url, status: Option<u16>, retry_after: Option<Duration>, took: Duration);
    /// The fetch was dropped before the hop's answer came, or before `finished` had been told all of it. Called while dropping, so it must
    /// not block.
    fn abandoned(&self, url: &Url) {
        let _ = url;
    }
}

/// Lets every hop pass (the guard still applies).
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

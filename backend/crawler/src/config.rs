//! Defines the limits of the fetcher, its identity, and the certificate authorities that it trusts.
use ipnet::IpNet;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Number of periods over which the speed of a video is measured. Video servers send in bursts.
pub(crate) const VIDEO_WINDOWS: u32 = 4;

#[derive(Clone, Debug)]
pub struct Config {
    /// `CRAWL_USER_AGENT`: the product token, then a contact URL.
    pub user_agent: String,
    /// `CRAWL_ALLOW_PRIVATE`: private address ranges that the crawler may reach. Inside them, every
    /// port is allowed.
    pub allow_private: Vec<IpNet>,
    /// `CRAWL_EXTRA_CA`: certificate authorities that are trusted in addition to the system's.
    pub extra_roots: Roots,
    /// Ports that are allowed on every address.
    pub ports: Vec<u16>,
    /// Time limit for the connection, including TLS.
    pub connect_timeout: Duration,
    /// Time limit for one hop, up to the last byte of the body.
    pub total_timeout: Duration,
    pub video_timeout: Duration,
    /// Minimum speed of a body in decoded bytes per second. The fetch of a slower body fails. 0
    /// disables the check.
    pub min_speed: u64,
    /// Period over which `min_speed` is measured.
    pub min_speed_window: Duration,
    /// Minimum speed of the body of a video, as `min_speed`, measured over [`VIDEO_WINDOWS`]
    /// periods. A slow video would occupy a worker for its whole time limit.
    pub video_min_speed: u64,
    /// Maximum number of redirects per request.
    pub max_redirects: usize,
    /// `CRAWL_REFERER`: whether requests for images send the address of the page in the header
    /// Referer, as browsers do ([`crate::Referrer`]).
    pub send_referer: bool,
    /// Maximum length of a page in decoded bytes. The limits below are in decoded bytes too.
    pub page_limit: usize,
    pub image_limit: usize,
    pub video_limit: usize,
    /// Bytes of robots.txt after this limit are ignored (RFC 9309 2.5).
    pub robots_limit: usize,
    pub sitemap_limit: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            user_agent: concat!(
                "facecrawl/",
                env!("CARGO_PKG_VERSION"),
                " (+https://github.com/facecrawl/facecrawl)"
            )
            .into(),
            allow_private: Vec::new(),
            extra_roots: Roots::default(),
            ports: vec![80, 443],
            connect_timeout: Duration::from_secs(5),
            total_timeout: Duration::from_secs(30),
            video_timeout: Duration::from_secs(3600),
            min_speed: 1024,
            min_speed_window: Duration::from_secs(5),
            video_min_speed: 64 << 10,
            max_redirects: 5,
            send_referer: true,
            page_limit: 5 << 20,
            image_limit: 25 << 20,
            video_limit: 512 << 20,
            robots_limit: 500 << 10,
            sitemap_limit: 50 << 20,
        }
    }
}

/// Validated certificate authorities of the operator. Cheap to clone. Empty by default.
#[derive(Clone, Debug, Default)]
pub struct Roots(Arc<[reqwest::Certificate]>);

/// The reason why a file cannot be used as a list of certificate authorities.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootsError {
    #[error("the file contains no PEM certificate")]
    NoCertificate,
    #[error("the file contains an invalid certificate: {0}")]
    Invalid(String),
}

impl Roots {
    /// Parses concatenated certificates in PEM form.
    ///
    /// # Errors
    /// Returns [`RootsError`] if there is no certificate or one is invalid.
    pub fn from_pem(text: &[u8]) -> Result<Self, RootsError> {
        install_crypto_provider();
        let to_error = |error: reqwest::Error| RootsError::Invalid(deepest_cause(&error));
        let certificates = reqwest::Certificate::from_pem_bundle(text).map_err(to_error)?;
        if certificates.is_empty() {
            return Err(RootsError::NoCertificate);
        }
        // The certificates are parsed only when a client is built with them.
        reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only(certificates.clone())
            .build()
            .map_err(to_error)?;
        Ok(Self(certificates.into()))
    }

    pub(crate) fn certificates(&self) -> impl Iterator<Item = reqwest::Certificate> {
        self.0.iter().cloned()
    }
}

/// Returns the message of the deepest cause, which is the most specific.
pub(crate) fn deepest_cause(error: &dyn Error) -> String {
    let mut deepest = error;
    while let Some(inner) = deepest.source() {
        deepest = inner;
    }
    deepest.to_string()
}

/// Selects the cryptography provider of the TLS library. Does nothing if another part of the
/// process has already selected one.
pub(crate) fn install_crypto_provider() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

//! Limits and manners.
use crate::fetch::Roots;
use ipnet::IpNet;
use std::time::Duration;

/// What the fetcher may do.
#[derive(Clone, Debug)]
pub struct Config {
    /// `CRAWL_USER_AGENT`: product token first, then a contact URL.
    pub user_agent: String,
    /// `CRAWL_ALLOW_PRIVATE`: address ranges that are open although they are private; any port is open there.
    pub allow_private: Vec<IpNet>,
    /// `CRAWL_EXTRA_CA`: authorities that are trusted besides the system's.
    pub extra_roots: Roots,
    /// Ports open everywhere.
    pub ports: Vec<u16>,
    /// To a connected socket (TLS included).
    pub connect_timeout: Duration,
    /// For one hop, to the last byte of the body.
    pub total_timeout: Duration,
    /// Decoded bytes per second below which a body is given up; 0 switches the check off.
    pub min_speed: u64,
    /// The stretch of time over which `min_speed` is measured.
    pub min_speed_window: Duration,
    /// Redirects followed per request.
    pub max_redirects: usize,
    /// Decoded bytes of a page.
    pub page_limit: usize,
    /// Decoded bytes of an image.
    pub image_limit: usize,
    /// Decoded bytes of robots.txt that are read; the rest is ignored (RFC 9309 2.5).
    pub robots_limit: usize,
    /// Decoded bytes of a sitemap.
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
            min_speed: 1024,
            min_speed_window: Duration::from_secs(5),
            max_redirects: 5,
            page_limit: 5 << 20,
            image_limit: 25 << 20,
            robots_limit: 500 << 10,
            sitemap_limit: 50 << 20,
        }
    }
}

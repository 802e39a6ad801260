//! robots.txt by RFC 9309.
use std::time::Duration;
use url::Url;

/// The rules that apply to us on one host.
pub struct Robots {
    _todo: (),
}

impl Robots {
    /// From an answer: 2xx parses `body`; 4xx allows all; 5xx and 0 (network error) disallow all.
    pub fn from_answer(_status: u16, _body: &[u8], _agent: &str) -> Self {
        todo!()
    }
    /// Whether the URL may be fetched.
    pub fn allows(&self, _url: &Url) -> bool {
        todo!()
    }
    /// `Crawl-delay`.
    pub fn crawl_delay(&self) -> Option<Duration> {
        todo!()
    }
    /// `Sitemap` lines.
    pub fn sitemaps(&self) -> Vec<Url> {
        todo!()
    }
}

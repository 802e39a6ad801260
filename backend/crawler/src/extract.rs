//! Links and image candidates of a page.
use crate::Directives;
use url::Url;

/// A link to another page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Absolute, normalised.
    pub url: Url,
    /// `rel=nofollow`.
    pub nofollow: bool,
}

/// An image to fetch: one per picture on the page, the best of its candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageCandidate {
    /// Absolute, normalised.
    pub url: Url,
    /// Which form it was found in: `src`, `srcset`, `picture`, `lazy`, `og:image`, `json-ld`, …
    pub found_in: &'static str,
    /// Alternative text.
    pub alt: Option<String>,
}

/// What a page holds.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// `<title>`.
    pub title: Option<String>,
    /// Pages it links to, in document order, each once.
    pub links: Vec<Link>,
    /// Its images, in document order, each once.
    pub images: Vec<ImageCandidate>,
    /// From `<meta name=robots>` and ours.
    pub directives: Directives,
    /// `rel=canonical`.
    pub canonical: Option<Url>,
}

/// Reads a page. `content_type` is the header's value; `agent` our product token.
pub fn extract_page(_html: &[u8], _url: &Url, _content_type: Option<&str>, _agent: &str) -> Page {
    todo!()
}

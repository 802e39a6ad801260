//! Links and image candidates of a page.
//!
//! The page is decoded to UTF-8 (`charset`), read once by a streaming parser that never builds a tree (`reader`), and what it finds is
//! resolved at the end, when `<base href>` is known for certain (`resolve`).
pub(crate) mod budget;
pub(crate) mod charset;
mod css;
mod gate;
mod json_ld;
mod memory;
mod picture;
mod reader;
mod resolve;
mod srcset;
#[cfg(test)]
mod tests;
mod text;

use crate::Directives;
use crate::recipes::SiteRecipe;
use url::Url;

pub use memory::{LONGEST_MEMORY, reader};
pub use resolve::{has_image_extension, is_page_path};

/// Links that are kept of one page; later ones are dropped.
pub const MAX_LINKS: usize = 10_000;
/// Images that are kept of one page; later ones are dropped.
pub const MAX_IMAGES: usize = 5_000;
/// Maximum bytes of the absolute URLs of a page's links, and separately of its images; later ones
/// are dropped. An image also counts the page's own URL, because the service stores both.
pub const MAX_URL_BYTES: usize = 2 << 20;
/// Characters kept of a title and of an alternative text.
pub const MAX_TEXT: usize = 500;

/// A link to another page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Absolute, normalised.
    pub url: Url,
    /// `rel=nofollow`, on every link to this URL.
    pub nofollow: bool,
}

/// An image to fetch: one per picture on the page, the best of its candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageCandidate {
    /// Absolute, normalised.
    pub url: Url,
    /// Which form it was found in: `src`, `srcset`, `picture`, `lazy`, `noscript`, `og:image`, `twitter:image`, `json-ld`, `image_src`,
    /// `css`, `poster`, `link`, `svg`, `itemprop`, `recipe`; `memory` when the page was not read anew.
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
    /// Feeds that it announces (`rel=alternate` with a feed's type).
    pub feeds: Vec<Url>,
}

/// Reads a page. `content_type` is the header's value; `agent` our product token; `recipe` what is known of the site's markup.
///
/// Any bytes are a page: broken markup is read as a browser would, and what cannot be read is left out.
pub fn extract_page(
    html: &[u8],
    url: &Url,
    content_type: Option<&str>,
    agent: &str,
    recipe: Option<&SiteRecipe>,
) -> Page {
    let (text, encoding) = charset::decode(html, content_type);
    let found = reader::read(&text, agent, recipe);
    resolve::resolve(found, url, encoding)
}

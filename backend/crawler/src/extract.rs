//! Extracts links and image candidates from a page. The page is decoded to UTF-8 (`charset`). A
//! streaming parser reads it once and never builds a tree (`reader`). URLs are resolved at the end,
//! when `<base href>` is known (`resolve`).
pub(crate) mod charset;
mod css;
mod extensions;
mod json_ld;
mod picture;
mod reader;
mod resolve;
mod stored_page;
#[cfg(test)]
mod tests;
mod text;
pub(crate) mod videos;
use crate::extract::reader::{MAX_FRAMES, RawPage, read_document};
use crate::recipes::{RecipeFilter, SiteRecipe};
use crate::{Directives, ReferrerPolicy};
pub use extensions::{has_image_extension, has_video_extension, is_page_path};
use std::collections::VecDeque;
pub use stored_page::{MAX_STORED_BYTES, extractor_id};
use url::Url;

/// Maximum number of links per page. Later links are dropped.
pub const MAX_LINKS: usize = 10_000;
/// Maximum number of images per page. Later images are dropped.
pub const MAX_IMAGES: usize = 5_000;
/// Maximum number of videos per page. Later videos are dropped.
pub const MAX_VIDEOS: usize = 500;
/// Maximum length in bytes of an attribute value that can be a URL.
const MAX_RAW_URL: usize = crate::urls::MAX_PARSED_LENGTH;
/// Maximum total length in bytes of the absolute URLs of a page's links, and separately of its
/// images and of its videos. Later URLs are dropped. For each image and each video, the page's own
/// URL is also counted, because the service stores both.
pub const MAX_URL_BYTES: usize = 2 << 20;
/// Maximum length in characters of a title and of an alternative text.
pub const MAX_TEXT: usize = 500;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Absolute and normalised.
    pub url: Url,
    /// Whether every link to this URL has `rel=nofollow`.
    pub nofollow: bool,
}

/// An image to fetch: the best candidate of one image on the page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageCandidate {
    /// Absolute and normalised.
    pub url: Url,
    /// Kind of markup in which it was found: `src`, `srcset`, `picture`, `lazy`, `noscript`,
    /// `og:image`, `twitter:image`, `json-ld`, `image_src`, `css`, `poster`, `link`, `svg`,
    /// `itemprop`, `recipe`, `preload`, `object`, `embed`. `memory` if the page was restored from
    /// storage instead.
    pub found_in: &'static str,
    pub alt: Option<String>,
    /// The policy of the element or of its document. `None` if neither has one. Of several
    /// elements with this image, the strictest policy applies.
    pub referrer_policy: Option<ReferrerPolicy>,
}

/// A video file or a playlist of HLS to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoCandidate {
    /// Absolute and normalised.
    pub url: Url,
    /// Kind of markup in which it was found: `video`, `source`, `og:video`, `twitter:player`,
    /// `json-ld`, `link`, `object`, `embed`. `memory` if the page was restored from storage
    /// instead.
    pub found_in: &'static str,
}

#[derive(Clone, Debug, Default)]
pub struct Page {
    pub title: Option<String>,
    /// Pages to which the page links, unique and in document order. Those of `srcdoc` documents
    /// come last.
    pub links: Vec<Link>,
    /// The page's images, unique and in document order. Those of `srcdoc` documents come last.
    pub images: Vec<ImageCandidate>,
    /// The page's videos, unique.
    pub videos: Vec<VideoCandidate>,
    /// Directives from `<meta name=robots>` and `<meta>` elements with the crawler's name,
    /// including those of `srcdoc` documents.
    pub directives: Directives,
    pub canonical: Option<Url>,
    /// Feeds that the page announces (`rel=alternate` with the type of a feed).
    pub feeds: Vec<Url>,
    /// The header `Referrer-Policy` of the page. [`extract_page`] does not set it.
    pub referrer_policy: Option<ReferrerPolicy>,
}

impl Page {
    /// Returns the policy of the element, the document or the header, the first one that exists.
    pub fn referrer_policy_of(&self, image: &ImageCandidate) -> ReferrerPolicy {
        image.referrer_policy.or(self.referrer_policy).unwrap_or_default()
    }
}

/// Extracts the content of a page. `content_type` is the value of the header, `agent` is the
/// product token of the crawler, and `recipe` describes the site's markup. Any bytes are accepted.
/// Invalid markup is parsed as in a browser; unreadable parts are omitted.
pub fn extract_page(
    html: &[u8],
    url: &Url,
    content_type: Option<&str>,
    agent: &str,
    recipe: Option<&SiteRecipe>,
) -> Page {
    let (text, encoding) = charset::decode(html, content_type);
    let pages = read_documents(&text, agent, recipe);
    resolve::resolve(pages, url, encoding)
}

/// Maximum nesting depth of `srcdoc` documents. Deeper ones are ignored.
const MAX_FRAME_DEPTH: usize = 3;

/// Reads a page and its `srcdoc` documents. The page comes first, and each document before those
/// that it contains. The limits of this module and the length of the page bound the memory.
fn read_documents(html: &str, agent: &str, recipe: Option<&SiteRecipe>) -> Vec<RawPage> {
    let (page, frames) = read_document(html, agent, recipe, RecipeFilter::new(recipe));
    let mut pages = vec![page];
    // Documents are read one after the other, so that only one parser is in memory.
    let mut pending: VecDeque<_> = frames.into_iter().map(|frame| (frame, 0, 1)).collect();
    while let Some((frame, parent, depth)) = pending.pop_front()
        && pages.len() <= MAX_FRAMES
    {
        let (mut page, frames) = read_document(&frame.html, agent, recipe, frame.recipe_filter);
        // The limits of a page apply to all its documents together.
        let remaining =
            |limit: usize, count: fn(&RawPage) -> usize| limit.saturating_sub(pages.iter().map(count).sum());
        page.links.truncate(remaining(MAX_LINKS, |page| page.links.len()));
        page.images.truncate(remaining(MAX_IMAGES, |page| page.images.len()));
        page.videos.truncate(remaining(MAX_VIDEOS, |page| page.videos.len()));
        if depth < MAX_FRAME_DEPTH {
            pending.extend(frames.into_iter().map(|frame| (frame, pages.len(), depth + 1)));
        }
        pages.push(RawPage { parent: Some(parent), ..page });
    }
    pages
}

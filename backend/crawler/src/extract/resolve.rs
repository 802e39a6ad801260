//! Converts the extracted values to absolute URLs without duplicates.
use super::budget::ByteBudget;
use super::extensions::is_page_path;
use super::reader::RawPage;
use super::{ImageCandidate, Link, MAX_URL_BYTES, Page, VideoCandidate};
use crate::urls;
use encoding_rs::{Encoding, UTF_8};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use url::Url;

/// Converts what the reader found into a [`Page`].
pub(super) fn resolve(found: RawPage, page_url: &Url, encoding: &'static Encoding) -> Page {
    let page_url = urls::normalise(page_url.clone());
    let base = Base::new(found.base.as_deref(), &page_url, encoding);

    let mut budget = ByteBudget::new(MAX_URL_BYTES);
    let mut links: Vec<Link> = Vec::new();
    let mut index: HashMap<Url, usize> = HashMap::new();
    for (href, nofollow) in found.links {
        let Some(url) = base.join(&href) else { continue };
        if url == page_url || !is_page_path(url.path()) {
            continue;
        }
        if let Some(at) = index.get(&url) {
            links[*at].nofollow &= nofollow;
        } else if budget.take(url.as_str().len()) {
            index.insert(url.clone(), links.len());
            links.push(Link { url, nofollow });
        }
    }

    let mut budget = ByteBudget::new(MAX_URL_BYTES);
    let mut images: Vec<ImageCandidate> = Vec::new();
    let mut index: HashMap<String, usize> = HashMap::new();
    for image in found.images {
        let Some(url) = base.join(&image.url) else { continue };
        // `og:image` and `og:image:secure_url` contain the same URL with two schemes.
        let key = without_scheme(&url).to_owned();
        if let Some(at) = index.get(&key) {
            let known = &mut images[*at];
            known.alt = known.alt.take().or(image.alt);
        } else if budget.take(url.as_str().len() + page_url.as_str().len()) {
            index.insert(key, images.len());
            images.push(ImageCandidate { url, found_in: image.found_in, alt: image.alt });
        }
    }

    let mut budget = ByteBudget::new(MAX_URL_BYTES);
    let mut videos: Vec<VideoCandidate> = Vec::new();
    let mut seen = HashSet::new();
    for video in found.videos {
        let Some(url) = base.join(&video.url) else { continue };
        if !seen.contains(without_scheme(&url)) && budget.take(url.as_str().len() + page_url.as_str().len()) {
            seen.insert(without_scheme(&url).to_owned());
            videos.push(VideoCandidate { url, found_in: video.found_in });
        }
    }

    let mut feeds: Vec<Url> = Vec::new();
    for url in found.feeds.iter().filter_map(|href| base.join(href)) {
        if feeds.len() < 16 && !feeds.contains(&url) {
            feeds.push(url);
        }
    }
    Page {
        title: found.title,
        links,
        images,
        videos,
        directives: found.directives,
        canonical: found.canonical.and_then(|href| base.join(&href)),
        feeds,
    }
}

fn without_scheme(url: &Url) -> &str {
    url.as_str().split_once(':').map_or("", |(_, rest)| rest)
}

/// The base of relative URLs, and the encoding of their queries.
struct Base {
    url: Url,
    encoding: &'static Encoding,
}

impl Base {
    fn new(href: Option<&str>, page: &Url, encoding: &'static Encoding) -> Self {
        let url = href.and_then(|href| base_of(page, href)).unwrap_or_else(|| page.clone());
        Self { url, encoding: encoding.output_encoding() }
    }

    fn join(&self, text: &str) -> Option<Url> {
        let encode: &dyn Fn(&str) -> Cow<'_, [u8]> =
            &|query| Cow::Owned(self.encoding.encode(query).0.into_owned());
        let mut options = Url::options().base_url(Some(&self.url));
        // Only queries use the page's encoding (URL standard). Paths are always UTF-8.
        if self.encoding != UTF_8 {
            options = options.encoding_override(Some(encode));
        }
        if text.len() > urls::MAX_PARSED_LENGTH {
            return None;
        }
        urls::normalise_checked(options.parse(&urls::skip_extra_slashes(text)).ok()?)
    }
}

/// Returns the URL of `<base href>`, unless it is longer than a page's URL may be. Each link is
/// joined to the base, so a long base multiplies the bytes.
fn base_of(page: &Url, href: &str) -> Option<Url> {
    let href = href.trim();
    let url = Some(href)
        .filter(|href| href.len() <= urls::MAX_LENGTH)
        .and_then(|href| urls::join(page, href).ok())?;
    (matches!(url.scheme(), "http" | "https") && url.as_str().len() <= urls::MAX_LENGTH).then_some(url)
}

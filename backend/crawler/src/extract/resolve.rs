//! Converts the extracted values to absolute URLs without duplicates.
use super::extensions::is_page_path;
use super::reader::{RawImage, RawPage};
use super::{ImageCandidate, Link, MAX_URL_BYTES, Page, VideoCandidate};
use crate::urls::ByteBudget;
use crate::{ReferrerPolicy, urls};
use encoding_rs::{Encoding, UTF_8};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use url::Url;

/// Converts the reader's output into a [`Page`]. `documents` contains the page and its `srcdoc`
/// documents.
pub(super) fn resolve(documents: Vec<RawPage>, page_url: &Url, encoding: &'static Encoding) -> Page {
    let mut resolver = Resolver::new(urls::normalise(page_url.clone()));
    let mut bases: Vec<Base> = Vec::with_capacity(documents.len());
    for document in documents {
        let base = match document.parent {
            None => Base::new(&document, &resolver.page_url, None, encoding),
            // The base of a `srcdoc` document is that of the document around it, and its encoding
            // is UTF-8 (HTML standard).
            Some(parent) => {
                let Base { url, referrer_policy, .. } = &bases[parent];
                Base::new(&document, url, *referrer_policy, UTF_8)
            }
        };
        resolver.add_document(document, &base);
        bases.push(base);
    }
    resolver.page
}

/// Collects the content of a page. The limits in bytes apply to all its documents together.
struct Resolver {
    page: Page,
    page_url: Url,
    link_budget: ByteBudget,
    /// Index of a URL in `page.links`.
    link_index: HashMap<Url, usize>,
    image_budget: ByteBudget,
    /// Index of a URL without its scheme in `page.images`.
    image_index: HashMap<String, usize>,
    video_budget: ByteBudget,
    video_keys: HashSet<String>,
}

impl Resolver {
    fn new(page_url: Url) -> Self {
        Self {
            page: Page::default(),
            page_url,
            link_budget: ByteBudget::new(MAX_URL_BYTES),
            link_index: HashMap::new(),
            image_budget: ByteBudget::new(MAX_URL_BYTES),
            image_index: HashMap::new(),
            video_budget: ByteBudget::new(MAX_URL_BYTES),
            video_keys: HashSet::new(),
        }
    }

    fn add_document(&mut self, document: RawPage, base: &Base) {
        for (href, nofollow) in document.links {
            if let Some(url) = base.join(&href) {
                self.add_link(url, nofollow);
            }
        }
        for image in document.images {
            if let Some(url) = base.join(&image.url) {
                let referrer_policy = image.referrer_policy.or(base.referrer_policy);
                self.add_image(url, RawImage { referrer_policy, ..image });
            }
        }
        for video in document.videos {
            if let Some(url) = base.join(&video.url) {
                self.add_video(url, video.found_in);
            }
        }
        self.page.directives = self.page.directives.union(document.directives);
        // Title, canonical URL and feeds of a `srcdoc` document are not those of the page.
        if document.parent.is_some() {
            return;
        }
        for url in document.feeds.iter().filter_map(|href| base.join(href)) {
            if self.page.feeds.len() < 16 && !self.page.feeds.contains(&url) {
                self.page.feeds.push(url);
            }
        }
        self.page.title = document.title;
        self.page.canonical = document.canonical.and_then(|href| base.join(&href));
    }

    fn add_link(&mut self, url: Url, nofollow: bool) {
        if url == self.page_url || !is_page_path(url.path()) {
            return;
        }
        let links = &mut self.page.links;
        if let Some(index) = self.link_index.get(&url) {
            links[*index].nofollow &= nofollow;
        } else if self.link_budget.spend(url.as_str().len()) {
            self.link_index.insert(url.clone(), links.len());
            links.push(Link { url, nofollow });
        }
    }

    fn add_image(&mut self, url: Url, image: RawImage) {
        // `og:image` and `og:image:secure_url` contain the same URL with two schemes.
        let key = without_scheme(&url).to_owned();
        let bytes = self.byte_cost(&url);
        let images = &mut self.page.images;
        if let Some(index) = self.image_index.get(&key) {
            let entry = &mut images[*index];
            entry.alt = entry.alt.take().or(image.alt);
            entry.referrer_policy = ReferrerPolicy::stricter(entry.referrer_policy, image.referrer_policy);
        } else if self.image_budget.spend(bytes) {
            self.image_index.insert(key, images.len());
            let RawImage { found_in, alt, referrer_policy, .. } = image;
            images.push(ImageCandidate { url, found_in, alt, referrer_policy });
        }
    }

    fn add_video(&mut self, url: Url, found_in: &'static str) {
        let bytes = self.byte_cost(&url);
        let videos = &mut self.page.videos;
        if !self.video_keys.contains(without_scheme(&url)) && self.video_budget.spend(bytes) {
            self.video_keys.insert(without_scheme(&url).to_owned());
            videos.push(VideoCandidate { url, found_in });
        }
    }

    /// Returns the number of bytes that an image or a video adds to the budget: its URL and that of
    /// the page.
    fn byte_cost(&self, url: &Url) -> usize {
        url.as_str().len() + self.page_url.as_str().len()
    }
}

fn without_scheme(url: &Url) -> &str {
    url.as_str().split_once(':').map_or("", |(_, rest)| rest)
}

/// The base of a document's relative URLs, the encoding of their queries, and its policy for
/// referrers.
struct Base {
    url: Url,
    referrer_policy: Option<ReferrerPolicy>,
    encoding: &'static Encoding,
}

impl Base {
    /// Returns the base of a document. `url` and `policy` apply if the document declares none.
    fn new(
        document: &RawPage,
        url: &Url,
        policy: Option<ReferrerPolicy>,
        encoding: &'static Encoding,
    ) -> Self {
        let base = document.base.as_deref().and_then(|href| parse_base(url, href));
        Self {
            url: base.unwrap_or_else(|| url.clone()),
            referrer_policy: document.referrer_policy.or(policy),
            encoding: encoding.output_encoding(),
        }
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
fn parse_base(page: &Url, href: &str) -> Option<Url> {
    let href = href.trim();
    let url = Some(href)
        .filter(|href| href.len() <= urls::MAX_LENGTH)
        .and_then(|href| urls::join(page, href).ok())?;
    (matches!(url.scheme(), "http" | "https") && url.as_str().len() <= urls::MAX_LENGTH).then_some(url)
}

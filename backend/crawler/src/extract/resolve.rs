//! Converts the extracted values to absolute URLs without duplicates.
use super::budget::ByteBudget;
use super::reader::Found;
use super::{ImageCandidate, Link, MAX_URL_BYTES, Page};
use crate::urls;
use encoding_rs::{Encoding, UTF_8};
use std::borrow::Cow;
use std::collections::HashMap;
use url::Url;

/// Extensions of files that the decoders can read (AVIF only in builds that include it).
const IMAGE: &[&str] = &["apng", "avif", "bmp", "gif", "jfif", "jpe", "jpeg", "jpg", "pjpeg", "png", "webp"];
/// Extensions of image formats that no decoder here reads.
const UNDECODABLE: &[&str] = &["avif", "heic", "heif", "ico", "jp2", "jxl", "svg", "svgz", "tif", "tiff"];
/// Extensions of files that contain no links or images for the crawler.
const NO_PAGE: &[&str] = &[
    "7z",
    "aac",
    "apk",
    "avi",
    "bin",
    "bz2",
    "css",
    "csv",
    "deb",
    "dmg",
    "doc",
    "docx",
    "eot",
    "eps",
    "epub",
    "exe",
    "flac",
    "flv",
    "gz",
    "heic",
    "heif",
    "ico",
    "ics",
    "iso",
    "jar",
    "js",
    "json",
    "jxl",
    "m4a",
    "m4v",
    "mid",
    "mjs",
    "mkv",
    "mov",
    "mp3",
    "mp4",
    "mpeg",
    "mpg",
    "msi",
    "odt",
    "ogg",
    "ogv",
    "otf",
    "pdf",
    "ppt",
    "pptx",
    "ps",
    "psd",
    "rar",
    "rpm",
    "rtf",
    "svg",
    "svgz",
    "swf",
    "tar",
    "tgz",
    "tif",
    "tiff",
    "torrent",
    "ttf",
    "txt",
    "wasm",
    "wav",
    "webm",
    "webmanifest",
    "wma",
    "wmv",
    "woff",
    "woff2",
    "xls",
    "xlsx",
    "xz",
    "zip",
    "zst",
];

/// Returns the lower-case extension of the last path segment of an absolute or relative URL.
fn extension(url: &str) -> Option<String> {
    let path = url.split(['?', '#']).next().unwrap_or_default().trim_ascii();
    let (_, extension) = path.rsplit('/').next()?.rsplit_once('.')?;
    (extension.len() <= 11).then(|| extension.to_ascii_lowercase())
}

fn is_one_of(url: &str, list: &[&str]) -> bool {
    extension(url).is_some_and(|e| list.contains(&e.as_str()))
}

/// Returns whether the URL's path ends with the extension of an image file that can be decoded.
pub fn has_image_extension(url: &str) -> bool {
    is_one_of(url, IMAGE)
}

/// Returns whether a path may lead to a page: it has no extension of a document, an archive, a film
/// or another file without links.
pub fn is_page_path(path: &str) -> bool {
    // Wikis describe a file on a page with the file's name: /wiki/File:Portrait.jpg
    is_namespaced(path) || !(is_one_of(path, NO_PAGE) || is_one_of(path, IMAGE))
}

/// Returns whether a link leads to an image file, not to a page.
pub(super) fn is_image_link(href: &str) -> bool {
    has_image_extension(href) && !is_namespaced(href)
}

pub(super) fn is_undecodable(url: &str) -> bool {
    is_one_of(url, UNDECODABLE)
}

fn is_namespaced(url: &str) -> bool {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let name = path.rsplit('/').next().unwrap_or_default();
    name.contains(':') || name.contains("%3A") || name.contains("%3a")
}

/// Converts what the reader found into a [`Page`].
pub(super) fn resolve(found: Found, page_url: &Url, encoding: &'static Encoding) -> Page {
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
        let key = url.as_str().split_once(':').map_or(String::new(), |(_, rest)| rest.to_owned());
        if let Some(at) = index.get(&key) {
            let known = &mut images[*at];
            known.alt = known.alt.take().or(image.alt);
        } else if budget.take(url.as_str().len() + page_url.as_str().len()) {
            index.insert(key, images.len());
            images.push(ImageCandidate { url, found_in: image.found_in, alt: image.alt });
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
        directives: found.directives,
        canonical: found.canonical.and_then(|href| base.join(&href)),
        feeds,
    }
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
        urls::resolved(options.parse(text).ok()?)
    }
}

/// Returns the URL of `<base href>`, unless it is longer than a page's URL may be. Each link is
/// joined to the base, so a long base multiplies the bytes.
fn base_of(page: &Url, href: &str) -> Option<Url> {
    let href = href.trim();
    let url =
        Some(href).filter(|href| href.len() <= urls::MAX_LENGTH).and_then(|href| page.join(href).ok())?;
    (matches!(url.scheme(), "http" | "https") && url.as_str().len() <= urls::MAX_LENGTH).then_some(url)
}

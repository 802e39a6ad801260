//! Parses sitemaps (sitemaps.org, with Google's image and video extensions) and feeds (RSS, Atom,
//! Media RSS).
mod builder;
#[cfg(test)]
mod tests;

use crate::extract::charset;
use builder::SitemapBuilder;
use flate2::bufread::GzDecoder;
use quick_xml::Reader;
use quick_xml::events::Event;
use std::borrow::Cow;
use std::io::Read;
use url::Url;

/// Maximum number of pages that are read from one file, and likewise of images, of videos and of
/// sitemaps. The value is the protocol's limit for pages.
pub const MAX_URLS: usize = 50_000;
/// Maximum total length in bytes of the absolute URLs in one file. Later URLs are ignored. For each
/// image, its page's URL is also counted, because the service stores both. 50,000 pages (the
/// protocol's limit) of 300 bytes each fit.
pub const MAX_URL_BYTES: usize = 16 << 20;
/// Maximum number of decompressed bytes that are read from one file (the protocol's limit). The
/// rest is ignored.
pub const MAX_BYTES: usize = 50 << 20;
/// Number of bytes that are searched for the first element.
const HEAD: usize = 4096;
/// Number of compressed bytes that are decompressed for that search.
const PACKED_HEAD: usize = 64 << 10;
/// Maximum number of members of a gzip file that are read. Block compressors (bgzip) write one
/// member for every 64 KiB. An empty member yields no bytes but has the same start-up cost as a
/// full one.
const MAX_MEMBERS: usize = 1_000;

/// The content of a sitemap or a feed. URLs are absolute, normalised, unique and in document order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sitemap {
    pub pages: Vec<PageEntry>,
    /// Images, each with the page that contains it.
    pub images: Vec<ImageEntry>,
    /// Video files, each with the page that contains it.
    pub videos: Vec<VideoEntry>,
    /// Sitemaps that an index lists.
    pub sitemaps: Vec<Url>,
}

/// A page of a sitemap, or an entry of a feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageEntry {
    pub url: Url,
    /// Value of `lastmod`, `updated` or `pubDate`, as written.
    pub last_modified: Option<String>,
}

/// An image of a sitemap, or the media of a feed's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageEntry {
    pub url: Url,
    /// Page or entry that contains the image.
    pub page: Option<Url>,
    /// `sitemap`, `enclosure`, `media` or `feed` (in an entry's HTML).
    pub found_in: &'static str,
}

/// A video file of a sitemap, or of a feed's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VideoEntry {
    pub url: Url,
    /// Page or entry that contains the video.
    pub page: Option<Url>,
}

/// Parses a sitemap, a feed or a plain list of URLs (one per line), compressed with gzip or not.
/// `url` is the address of the file. For a damaged file, returns the entries before the damage. Any
/// other file yields an empty result.
pub fn parse(body: &[u8], url: &Url) -> Sitemap {
    let body = unpack(body);
    let (text, _) = charset::decode(&body, None);
    let mut builder = SitemapBuilder::new(url);
    if is_url(text.trim_start()) {
        for line in text.lines().filter(|line| is_url(line.trim_start())) {
            builder.page(line, None);
        }
    } else {
        read_xml(&text, &mut builder);
    }
    builder.finish()
}

/// Returns the local name of the first element of an XML file in lower case. The file may be
/// compressed with gzip. Returns `None` if the file does not begin like XML.
pub fn root(body: &[u8]) -> Option<String> {
    let head = match is_gzip(body) {
        true => Cow::Owned(gunzip(&body[..body.len().min(PACKED_HEAD)], HEAD)),
        false => Cow::Borrowed(&body[..body.len().min(HEAD)]),
    };
    let (text, _) = charset::decode(&head, None);
    let text = text.trim_start();
    if !text.starts_with('<') {
        return None;
    }
    let mut reader = Reader::from_str(text);
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag) | Event::Empty(tag)) => {
                return Some(String::from_utf8_lossy(tag.local_name().as_ref()).to_ascii_lowercase());
            }
            Ok(Event::Eof) | Err(_) => return None,
            Ok(_) => {}
        }
    }
}

/// Returns whether an element of this name is the root of a sitemap or a feed.
pub fn is_root(name: &str) -> bool {
    matches!(name, "urlset" | "sitemapindex" | "rss" | "feed" | "rdf")
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

fn unpack(body: &[u8]) -> Cow<'_, [u8]> {
    match is_gzip(body) {
        true => Cow::Owned(gunzip(body, MAX_BYTES)),
        false => Cow::Borrowed(&body[..body.len().min(MAX_BYTES)]),
    }
}

fn is_gzip(body: &[u8]) -> bool {
    body.starts_with(&[0x1f, 0x8b])
}

/// Decompresses up to `limit` bytes of the first [`MAX_MEMBERS`] members. For a damaged file,
/// returns the bytes before the damage.
fn gunzip(mut packed: &[u8], limit: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..MAX_MEMBERS {
        let room = (limit - out.len()) as u64;
        if room == 0 || !is_gzip(packed) {
            break;
        }
        let mut member = GzDecoder::new(packed).take(room);
        if member.read_to_end(&mut out).is_err() {
            break;
        }
        packed = member.into_inner().into_inner();
    }
    out
}

fn read_xml(text: &str, builder: &mut SitemapBuilder) {
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    config.allow_dangling_amp = true;
    config.allow_unmatched_ends = true;
    config.check_end_names = false;
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => builder.open(&tag),
            Ok(Event::Empty(tag)) => {
                builder.open(&tag);
                builder.close(tag.local_name().as_ref());
            }
            Ok(Event::End(tag)) => builder.close(tag.local_name().as_ref()),
            Ok(Event::Text(piece)) => builder.text(&piece.decode().unwrap_or_default()),
            Ok(Event::CData(piece)) => builder.text(&piece.decode().unwrap_or_default()),
            // The parser expands one character reference at a time and no custom entities, so
            // entities cannot multiply the text.
            Ok(Event::GeneralRef(name)) => {
                let name = name.decode().unwrap_or_default();
                builder.text(&htmlize::unescape(format!("&{name};")));
            }
            Ok(Event::Eof) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

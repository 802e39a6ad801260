//! Parses sitemaps (sitemaps.org, with Google's image and video extensions) and feeds (RSS, Atom,
//! Media RSS).
#[cfg(test)]
mod tests;
use crate::extract::videos::is_file_type;
use crate::extract::{charset, extract_page, has_image_extension, has_video_extension};
use crate::urls::{self, ByteBudget};
use flate2::bufread::GzDecoder;
use quick_xml::events::{BytesStart, Event};
use quick_xml::{Reader, XmlVersion};
use std::borrow::Cow;
use std::collections::HashSet;
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
const HEAD_BYTES: usize = 4096;
/// Number of compressed bytes that are decompressed for that search.
const PACKED_HEAD_BYTES: usize = 64 << 10;
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
    let body = unpack(body, body.len(), MAX_BYTES);
    let (text, _) = charset::decode(&body, None);
    let mut builder = SitemapBuilder::new(url);
    if is_url(text.trim_start()) {
        for line in text.lines().filter(|line| is_url(line.trim_start())) {
            builder.add_page(line, None);
        }
    } else {
        read_xml(&text, &mut builder);
    }
    builder.finish()
}

/// Returns the local name of the first element of an XML file in lower case. The file may be
/// compressed with gzip. Returns `None` if the file does not begin with `<`.
pub fn root_element(body: &[u8]) -> Option<String> {
    let head = unpack(body, PACKED_HEAD_BYTES, HEAD_BYTES);
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
pub fn is_sitemap_root(name: &str) -> bool {
    matches!(name, "urlset" | "sitemapindex" | "rss" | "feed" | "rdf")
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

/// Returns up to `limit` bytes of a file, which are decompressed from up to `packed_limit` bytes.
fn unpack(body: &[u8], packed_limit: usize, limit: usize) -> Cow<'_, [u8]> {
    match is_gzip(body) {
        true => Cow::Owned(gunzip(&body[..body.len().min(packed_limit)], limit)),
        false => Cow::Borrowed(&body[..body.len().min(limit)]),
    }
}

fn is_gzip(body: &[u8]) -> bool {
    body.starts_with(&[0x1f, 0x8b])
}

/// Decompresses up to `limit` bytes of the first [`MAX_MEMBERS`] members. For a damaged file,
/// returns the bytes before the damage.
fn gunzip(mut packed: &[u8], limit: usize) -> Vec<u8> {
    let mut unpacked = Vec::new();
    for _ in 0..MAX_MEMBERS {
        let remaining = (limit - unpacked.len()) as u64;
        if remaining == 0 || !is_gzip(packed) {
            break;
        }
        let mut member = GzDecoder::new(packed).take(remaining);
        if member.read_to_end(&mut unpacked).is_err() {
            break;
        }
        packed = member.into_inner().into_inner();
    }
    unpacked
}

fn read_xml(text: &str, builder: &mut SitemapBuilder) {
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    config.allow_dangling_amp = true;
    config.allow_unmatched_ends = true;
    config.check_end_names = false;
    loop {
        match reader.read_event() {
            Ok(Event::Start(tag)) => builder.open_element(&tag),
            Ok(Event::Empty(tag)) => {
                builder.open_element(&tag);
                builder.close_element(tag.local_name().as_ref());
            }
            Ok(Event::End(tag)) => builder.close_element(tag.local_name().as_ref()),
            Ok(Event::Text(piece)) => builder.add_text(&piece.decode().unwrap_or_default()),
            Ok(Event::CData(piece)) => builder.add_text(&piece.decode().unwrap_or_default()),
            // The parser expands one character reference at a time and no custom entities, so
            // entities cannot multiply the text.
            Ok(Event::GeneralRef(name)) => {
                let name = name.decode().unwrap_or_default();
                builder.add_text(&htmlize::unescape(format!("&{name};")));
            }
            Ok(Event::Eof) | Err(_) => return,
            Ok(_) => {}
        }
    }
}

/// Maximum number of open elements. Deeper elements are read as if they were at this depth.
const MAX_DEPTH: usize = 64;
/// Maximum length in bytes that is kept of one element's text, such as the HTML of an entry.
const MAX_TEXT: usize = 1 << 20;

struct SitemapBuilder {
    base: Url,
    result: Sitemap,
    budget: ByteBudget,
    pages: UniqueUrls,
    images: UniqueUrls,
    videos: UniqueUrls,
    sitemaps: UniqueUrls,
    /// Local names of the open elements, because namespace prefixes differ between files.
    open_elements: Vec<String>,
    text: String,
    entry: Entry,
}

/// The URLs of one kind that were added, at most [`MAX_URLS`].
#[derive(Default)]
struct UniqueUrls(HashSet<Url>);

impl UniqueUrls {
    /// Adds a URL and returns `true`, or returns `false` if it is not new or a limit is reached.
    /// `page` is the page with which the URL will be stored.
    fn add(&mut self, url: &Url, page: Option<&Url>, budget: &mut ByteBudget) -> bool {
        let bytes = url.as_str().len() + page.map_or(0, |page| page.as_str().len());
        self.0.len() < MAX_URLS && !self.0.contains(url) && budget.spend(bytes) && self.0.insert(url.clone())
    }
}

/// The values in one `<url>`, `<item>` or `<entry>`.
#[derive(Default)]
struct Entry {
    page: Option<String>,
    last_modified: Option<String>,
    images: Vec<(String, &'static str)>,
    videos: Vec<String>,
    html: Vec<String>,
    /// The widest version so far in a `<media:group>`, whose members are versions of one image.
    group: Option<(u32, String)>,
    /// Whether a video of the open `<media:group>` was added.
    group_has_video: bool,
}

impl SitemapBuilder {
    fn new(base: &Url) -> Self {
        Self {
            base: base.clone(),
            result: Sitemap::default(),
            budget: ByteBudget::new(MAX_URL_BYTES),
            pages: UniqueUrls::default(),
            images: UniqueUrls::default(),
            videos: UniqueUrls::default(),
            sitemaps: UniqueUrls::default(),
            open_elements: Vec::new(),
            text: String::new(),
            entry: Entry::default(),
        }
    }

    fn open_element(&mut self, tag: &BytesStart<'_>) {
        let name = String::from_utf8_lossy(tag.local_name().as_ref()).into_owned();
        let get = |key: &str| attribute(tag, key);
        let in_entry = self.open_elements.iter().any(|n| is_entry(n));
        match name.as_str() {
            name if is_entry(name) => self.entry = Entry::default(),
            "enclosure" if in_entry => {
                if let Some(url) = get("url") {
                    self.add_enclosure(url, get("type").as_deref());
                }
            }
            "content" | "thumbnail" if in_entry => {
                let (mime, medium) = (get("type"), get("medium"));
                let (mime, medium) = (mime.as_deref(), medium.as_deref());
                match get("url") {
                    Some(url) if name == "thumbnail" || is_image(mime, medium, &url) => {
                        let width = get("width").and_then(|w| w.trim().parse().ok()).unwrap_or(0);
                        self.add_image_version(url, width);
                    }
                    Some(url) if is_video(mime, medium, &url) => self.add_group_video(url),
                    _ => {}
                }
            }
            // Element of podcast feeds.
            "image" if in_entry => {
                if let Some(url) = get("href") {
                    self.entry.images.push((url, "media"));
                }
            }
            "link" if in_entry => {
                let rel = get("rel");
                if let Some(href) = get("href") {
                    match rel.as_deref() {
                        None | Some("alternate") => {
                            self.entry.page.get_or_insert(href);
                        }
                        Some("enclosure") => self.add_enclosure(href, get("type").as_deref()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        if self.open_elements.len() < MAX_DEPTH {
            self.open_elements.push(name);
        }
        self.text.clear();
    }

    fn add_enclosure(&mut self, url: String, mime: Option<&str>) {
        if is_image(mime, None, &url) {
            self.entry.images.push((url, "enclosure"));
        } else if is_video(mime, None, &url) {
            self.entry.videos.push(url);
        }
    }

    /// Adds a video. Only the first version of a video in a `<media:group>` is added.
    fn add_group_video(&mut self, url: String) {
        let in_group = self.open_elements.iter().any(|name| name == "group");
        if !in_group || !std::mem::replace(&mut self.entry.group_has_video, true) {
            self.entry.videos.push(url);
        }
    }

    fn add_image_version(&mut self, url: String, width: u32) {
        if !self.open_elements.iter().any(|name| name == "group") {
            self.entry.images.push((url, "media"));
        } else if self.entry.group.as_ref().is_none_or(|(max_width, _)| width > *max_width) {
            self.entry.group = Some((width, url));
        }
    }

    fn add_text(&mut self, piece: &str) {
        if self.text.len() + piece.len() <= MAX_TEXT {
            self.text.push_str(piece);
        }
    }

    fn close_element(&mut self, name: &[u8]) {
        let name = String::from_utf8_lossy(name).into_owned();
        // An end tag without a start tag closes nothing. An end tag of an outer element also closes
        // the elements inside it.
        let Some(index) = self.open_elements.iter().rposition(|element| *element == name) else { return };
        self.open_elements.truncate(index);
        let text = std::mem::take(&mut self.text);
        let text = text.trim();
        let parent = self.open_elements.last().map(String::as_str).unwrap_or_default();
        match (parent, name.as_str()) {
            ("url", "loc") | ("item", "link") if !text.is_empty() => self.entry.page = Some(text.to_owned()),
            ("sitemap", "loc") => self.add_sitemap(text),
            ("image", "loc") | ("video", "thumbnail_loc") => {
                self.entry.images.push((text.to_owned(), "sitemap"))
            }
            (entry, "lastmod" | "pubDate" | "updated") if is_entry(entry) => {
                self.entry.last_modified =
                    Some(text.chars().take(64).collect()).filter(|t: &String| !t.is_empty());
            }
            (entry, "description" | "encoded" | "content" | "summary")
                if is_entry(entry) && text.contains('<') =>
            {
                self.entry.html.push(text.to_owned());
            }
            ("video", "content_loc") => self.entry.videos.push(text.to_owned()),
            (_, "group") => {
                self.entry.group_has_video = false;
                if let Some((_, url)) = self.entry.group.take() {
                    self.entry.images.push((url, "media"));
                }
            }
            (_, name) if is_entry(name) => self.close_entry(),
            _ => {}
        }
    }

    fn close_entry(&mut self) {
        let entry = std::mem::take(&mut self.entry);
        let page = entry.page.and_then(|text| self.add_page(&text, entry.last_modified));
        for (text, found_in) in entry.images {
            if let Some(url) = self.join(&text) {
                self.add_image(url, page.clone(), found_in);
            }
        }
        for text in entry.videos {
            if let Some(url) = self.join(&text) {
                self.add_video(url, page.clone());
            }
        }
        for html in entry.html {
            let base = page.as_ref().unwrap_or(&self.base);
            let content = extract_page(html.as_bytes(), base, Some("text/html; charset=utf-8"), "", None);
            for image in content.images {
                self.add_image(image.url, page.clone(), "feed");
            }
            for video in content.videos {
                self.add_video(video.url, page.clone());
            }
        }
    }

    /// Adds the page if it is new. Returns its URL in either case.
    fn add_page(&mut self, text: &str, last_modified: Option<String>) -> Option<Url> {
        let url = self.join(text)?;
        if self.pages.add(&url, None, &mut self.budget) {
            self.result.pages.push(PageEntry { url: url.clone(), last_modified });
        }
        Some(url)
    }

    fn add_image(&mut self, url: Url, page: Option<Url>, found_in: &'static str) {
        if self.images.add(&url, page.as_ref().or(Some(&self.base)), &mut self.budget) {
            self.result.images.push(ImageEntry { url, page, found_in });
        }
    }

    fn add_video(&mut self, url: Url, page: Option<Url>) {
        if self.videos.add(&url, page.as_ref().or(Some(&self.base)), &mut self.budget) {
            self.result.videos.push(VideoEntry { url, page });
        }
    }

    fn add_sitemap(&mut self, text: &str) {
        if let Some(url) = self.join(text)
            && self.sitemaps.add(&url, None, &mut self.budget)
        {
            self.result.sitemaps.push(url);
        }
    }

    fn join(&self, text: &str) -> Option<Url> {
        if text.trim().is_empty() { None } else { urls::resolve(&self.base, text) }
    }

    fn finish(mut self) -> Sitemap {
        // The file may end inside an entry.
        self.close_entry();
        self.result
    }
}

fn is_entry(name: &str) -> bool {
    matches!(name, "url" | "item" | "entry")
}

fn is_image(mime: Option<&str>, medium: Option<&str>, url: &str) -> bool {
    match (mime, medium) {
        (Some(mime), _) if !mime.trim().is_empty() => mime.trim().to_ascii_lowercase().starts_with("image/"),
        (_, Some(medium)) => medium == "image",
        _ => has_image_extension(url),
    }
}

fn is_video(mime: Option<&str>, medium: Option<&str>, url: &str) -> bool {
    match (mime, medium) {
        (Some(mime), _) if !mime.trim().is_empty() => is_file_type(mime),
        (_, Some(medium)) => medium == "video",
        _ => has_video_extension(url),
    }
}

fn attribute(tag: &BytesStart<'_>, key: &str) -> Option<String> {
    let attribute = tag.attributes().flatten().find(|a| a.key.local_name().as_ref() == key.as_bytes())?;
    let value = match attribute.normalized_value(XmlVersion::Implicit1_0) {
        Ok(value) => value.into_owned(),
        // The value contains an ampersand that is not a character reference.
        Err(_) => String::from_utf8_lossy(&attribute.value).into_owned(),
    };
    Some(value)
}

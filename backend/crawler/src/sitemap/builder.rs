//! Collects the pages, images, videos and sitemaps from the elements of sitemaps and feeds.
use super::{ImageEntry, MAX_URL_BYTES, MAX_URLS, PageEntry, Sitemap, VideoEntry};
use crate::extract::budget::ByteBudget;
use crate::extract::videos::is_file_type;
use crate::extract::{extract_page, has_image_extension, has_video_extension};
use crate::urls;
use quick_xml::XmlVersion;
use quick_xml::events::BytesStart;
use std::collections::HashSet;
use url::Url;

/// Maximum number of open elements. Deeper elements are read as if they were at this depth.
const MAX_DEPTH: usize = 64;
/// Maximum length in bytes that is kept of one element's text, such as the HTML of an entry.
const MAX_TEXT: usize = 1 << 20;

pub(super) struct SitemapBuilder {
    base: Url,
    result: Sitemap,
    budget: ByteBudget,
    seen_pages: HashSet<Url>,
    seen_images: HashSet<Url>,
    seen_videos: HashSet<Url>,
    seen_sitemaps: HashSet<Url>,
    /// Local names of the open elements, because namespace prefixes differ between files.
    open: Vec<String>,
    text: String,
    entry: Entry,
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
    pub(super) fn new(base: &Url) -> Self {
        Self {
            base: base.clone(),
            result: Sitemap::default(),
            budget: ByteBudget::new(MAX_URL_BYTES),
            seen_pages: HashSet::new(),
            seen_images: HashSet::new(),
            seen_videos: HashSet::new(),
            seen_sitemaps: HashSet::new(),
            open: Vec::new(),
            text: String::new(),
            entry: Entry::default(),
        }
    }

    pub(super) fn open(&mut self, tag: &BytesStart<'_>) {
        let name = String::from_utf8_lossy(tag.local_name().as_ref()).into_owned();
        let get = |key: &str| attribute(tag, key);
        let in_entry = self.open.iter().any(|n| is_entry(n));
        match name.as_str() {
            name if is_entry(name) => self.entry = Entry::default(),
            "enclosure" if in_entry => {
                if let Some(url) = get("url") {
                    self.enclosure(url, get("type").as_deref());
                }
            }
            "content" | "thumbnail" if in_entry => {
                let (mime, medium) = (get("type"), get("medium"));
                let (mime, medium) = (mime.as_deref(), medium.as_deref());
                match get("url") {
                    Some(url) if name == "thumbnail" || is_image(mime, medium, &url) => {
                        let width = get("width").and_then(|w| w.trim().parse().ok()).unwrap_or(0);
                        self.media(url, width);
                    }
                    Some(url) if is_video(mime, medium, &url) => self.version(url),
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
                        Some("enclosure") => self.enclosure(href, get("type").as_deref()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
        if self.open.len() < MAX_DEPTH {
            self.open.push(name);
        }
        self.text.clear();
    }

    fn enclosure(&mut self, url: String, mime: Option<&str>) {
        if is_image(mime, None, &url) {
            self.entry.images.push((url, "enclosure"));
        } else if is_video(mime, None, &url) {
            self.entry.videos.push(url);
        }
    }

    /// Adds a video. Of a `<media:group>` (versions of one video), only the first is taken.
    fn version(&mut self, url: String) {
        let in_group = self.open.iter().any(|name| name == "group");
        if !in_group || !std::mem::replace(&mut self.entry.group_has_video, true) {
            self.entry.videos.push(url);
        }
    }

    fn media(&mut self, url: String, width: u32) {
        if !self.open.iter().any(|name| name == "group") {
            self.entry.images.push((url, "media"));
        } else if self.entry.group.as_ref().is_none_or(|(best, _)| width > *best) {
            self.entry.group = Some((width, url));
        }
    }

    pub(super) fn text(&mut self, piece: &str) {
        if self.text.len() + piece.len() <= MAX_TEXT {
            self.text.push_str(piece);
        }
    }

    pub(super) fn close(&mut self, name: &[u8]) {
        let name = String::from_utf8_lossy(name).into_owned();
        // An end tag without a start tag closes nothing. An end tag of an outer element also closes
        // the elements inside it.
        let Some(at) = self.open.iter().rposition(|open| *open == name) else { return };
        self.open.truncate(at);
        let text = std::mem::take(&mut self.text);
        let text = text.trim();
        let parent = self.open.last().map(String::as_str).unwrap_or_default();
        match (parent, name.as_str()) {
            ("url", "loc") | ("item", "link") if !text.is_empty() => self.entry.page = Some(text.to_owned()),
            ("sitemap", "loc") => self.sitemap(text),
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
        let page = entry.page.and_then(|text| self.page(&text, entry.last_modified));
        for (text, found_in) in entry.images {
            if let Some(url) = self.join(&text) {
                self.image(url, page.clone(), found_in);
            }
        }
        for text in entry.videos {
            if let Some(url) = self.join(&text) {
                self.video(url, page.clone());
            }
        }
        for html in entry.html {
            let base = page.as_ref().unwrap_or(&self.base);
            let found = extract_page(html.as_bytes(), base, Some("text/html; charset=utf-8"), "", None);
            for image in found.images {
                self.image(image.url, page.clone(), "feed");
            }
            for video in found.videos {
                self.video(video.url, page.clone());
            }
        }
    }

    /// Adds the page if it is new. Returns its URL in either case.
    pub(super) fn page(&mut self, text: &str, last_modified: Option<String>) -> Option<Url> {
        let url = self.join(text)?;
        if self.result.pages.len() < MAX_URLS
            && !self.seen_pages.contains(&url)
            && self.budget.take(url.as_str().len())
        {
            self.seen_pages.insert(url.clone());
            self.result.pages.push(PageEntry { url: url.clone(), last_modified });
        }
        Some(url)
    }

    fn image(&mut self, url: Url, page: Option<Url>, found_in: &'static str) {
        let page_bytes = page.as_ref().unwrap_or(&self.base).as_str().len();
        if self.result.images.len() < MAX_URLS
            && !self.seen_images.contains(&url)
            && self.budget.take(url.as_str().len() + page_bytes)
        {
            self.seen_images.insert(url.clone());
            self.result.images.push(ImageEntry { url, page, found_in });
        }
    }

    fn video(&mut self, url: Url, page: Option<Url>) {
        let page_bytes = page.as_ref().unwrap_or(&self.base).as_str().len();
        if self.result.videos.len() < MAX_URLS
            && !self.seen_videos.contains(&url)
            && self.budget.take(url.as_str().len() + page_bytes)
        {
            self.seen_videos.insert(url.clone());
            self.result.videos.push(VideoEntry { url, page });
        }
    }

    fn sitemap(&mut self, text: &str) {
        if let Some(url) = self.join(text)
            && self.result.sitemaps.len() < MAX_URLS
            && !self.seen_sitemaps.contains(&url)
            && self.budget.take(url.as_str().len())
        {
            self.seen_sitemaps.insert(url.clone());
            self.result.sitemaps.push(url);
        }
    }

    fn join(&self, text: &str) -> Option<Url> {
        if text.trim().is_empty() { None } else { urls::resolve(&self.base, text) }
    }

    pub(super) fn finish(mut self) -> Sitemap {
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
    let found = tag.attributes().flatten().find(|a| a.key.local_name().as_ref() == key.as_bytes())?;
    let value = match found.normalized_value(XmlVersion::Implicit1_0) {
        Ok(value) => value.into_owned(),
        // The value contains an ampersand that is not a character reference.
        Err(_) => String::from_utf8_lossy(&found.value).into_owned(),
    };
    Some(value)
}

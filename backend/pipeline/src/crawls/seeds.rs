//! Parses the seeds of a request. This module fetches nothing.

use super::{CrawlError, CrawlOptions};
use crate::domain::SeedCounts;
use crawler::extract;
use std::collections::{HashMap, HashSet};
use url::Url;

const MAX_SEEDS: usize = 10_000;
/// Maximum total size, in bytes, of the seeds of one crawl in their normal form, which the service
/// stores. Percent escapes can make the normal form three times as long as the seed in the request.
const MAX_SEED_BYTES: usize = 1 << 20;

/// Parses and normalises seeds and removes duplicates. Keeps the order.
pub(super) fn parse(seeds: &[String]) -> Result<Vec<Url>, CrawlError> {
    if seeds.is_empty() || seeds.len() > MAX_SEEDS {
        return Err(CrawlError::invalid(
            "seeds",
            format!("the list has {} entries; 1 to {MAX_SEEDS} http or https URLs are allowed", seeds.len()),
        ));
    }
    let mut bytes = 0;
    let mut seen = HashSet::new();
    let mut urls = Vec::with_capacity(seeds.len());
    for (index, seed) in seeds.iter().enumerate() {
        let wrong = |reason: String| CrawlError::invalid("seeds", format!("number {}: {reason}", index + 1));
        let url = crawler::urls::parse(seed.trim()).map_err(&wrong)?;
        if let Some(why) = crawler::urls::credentials_error(&url) {
            return Err(wrong(format!("the URL is not allowed: {why}; send it without them")));
        }
        if seen.insert(url.clone()) {
            bytes += url.as_str().len();
            urls.push(url);
        }
        if bytes > MAX_SEED_BYTES {
            return Err(CrawlError::invalid(
                "seeds",
                format!(
                    "the normalised URLs have more than {MAX_SEED_BYTES} bytes in total; start several crawls instead"
                ),
            ));
        }
    }
    Ok(urls)
}

/// The ledger to which a seed is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SeedKind {
    Page,
    Image,
    Video,
}

impl SeedKind {
    /// Returns the kind of a seed, guessed by its extension. The guess saves one fetch.
    pub(super) fn of(url: &Url, options: &CrawlOptions) -> Self {
        match url {
            url if is_image_file(url) => Self::Image,
            url if options.videos && extract::has_video_extension(url.path()) => Self::Video,
            _ => Self::Page,
        }
    }
}

/// Returns the number of seeds of each kind, and of the videos of one host.
pub(super) fn counts(seeds: &[Url], options: &CrawlOptions) -> SeedCounts {
    let count = |kind| seeds.iter().filter(|url| SeedKind::of(url, options) == kind).count();
    let mut videos_by_host: HashMap<String, usize> = HashMap::new();
    for url in seeds.iter().filter(|url| SeedKind::of(url, options) == SeedKind::Video) {
        *videos_by_host.entry(crawler::urls::host_key(url)).or_default() += 1;
    }
    SeedCounts {
        pages: count(SeedKind::Page),
        images: count(SeedKind::Image),
        videos: count(SeedKind::Video),
        videos_of_host: videos_by_host.into_values().max().unwrap_or(0),
    }
}

/// Returns `true` if the last path segment has the extension of an image file. The handler of pages
/// adds other images to the image ledger, and other videos to those of the crawl.
fn is_image_file(url: &Url) -> bool {
    let name = url.path_segments().and_then(|mut segments| segments.next_back()).unwrap_or_default();
    let extension = name.rsplit_once('.').map(|(_, extension)| extension.to_ascii_lowercase());
    const EXTENSIONS: [&str; 14] = [
        "jpg", "jpeg", "jpe", "png", "webp", "gif", "bmp", "avif", "heic", "heif", "jxl", "tif", "tiff",
        "jp2",
    ];
    extension.is_some_and(|extension| EXTENSIONS.contains(&extension.as_str()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn image_files_are_told_by_their_extension() {
        for (url, image) in [
            ("http://a.test/b/c.JPG?size=2", true),
            ("http://a.test/photo.webp", true),
            ("http://a.test/jpg", false),
            ("http://a.test/gallery.html", false),
            ("http://a.test/", false),
        ] {
            assert_eq!(is_image_file(&Url::parse(url).unwrap()), image, "{url}");
        }
    }
}

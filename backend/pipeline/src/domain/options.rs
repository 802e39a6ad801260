//! Defines the options of a crawl and checks their ranges. This module does not check seeds.

use super::{CrawlError, Interval};
use crawler::Scope;
use std::ops::RangeInclusive;
use store::videos::crawled::VideoLimits;
use url::Url;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedupe {
    /// Duplicates have the same bytes.
    Exact,
    /// Duplicates have the same bytes, or are the same image according to their perceptual hashes.
    #[default]
    Near,
    /// Files with the same bytes share storage, but no URL counts as a duplicate. A collection
    /// contains a file only once. Every URL of the file is recorded as processed, with that image.
    Off,
}

/// Which sitemaps a crawl reads in addition to those among the seeds. Each sitemap is counted as a
/// page, and its entries are treated as links of the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sitemaps {
    /// Reads no additional sitemaps.
    Off,
    /// Reads the sitemaps listed in the robots.txt of a seed's host. Reads none if the crawl does
    /// not obey robots.txt, because the crawl then does not fetch that file.
    #[default]
    Robots,
    /// Reads the same sitemaps, and `/sitemap.xml` if robots.txt lists none.
    Always,
}

/// Whether to search images for faces that are not upright.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rotate {
    /// Searches the image as it is.
    #[default]
    Off,
    /// If no face is certainly upright, compares the best boxes at 0, 90, 180 and 270 degrees, and
    /// searches the image at the rotation at which they are upright. If there is no box,
    /// interactive work searches every rotation.
    Auto,
}

impl Rotate {
    /// Returns whether images are searched as they are.
    pub(crate) fn is_off(&self) -> bool {
        *self == Self::Off
    }
}

/// The options of a crawl, in their stored form.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrawlOptions {
    pub scope: Scope,
    /// Hosts for `Scope::List`. At most 1000.
    pub allow: Vec<String>,
    /// Maximum number of links between a seed and a page: 0 to 50.
    pub max_depth: i32,
    /// Maximum number of pages: 1 to 1,000,000.
    pub max_pages: i64,
    /// Maximum number of image URLs: 1 to 10,000,000.
    pub max_images: i64,
    /// Minimum time between two requests to a host in milliseconds: 0 to 300,000. `None` means the
    /// service's delay, which adapts to the speed of the host.
    pub delay_ms: Option<u64>,
    /// Whether the crawl obeys robots.txt and robots directives. Delays apply in both cases.
    pub respect_robots: bool,
    /// Whether the crawl sends conditional requests and reuses unchanged results of the
    /// collection's last visit. If `false`, it fetches everything.
    pub revalidate: bool,
    pub dedupe: Dedupe,
    /// Whether to search images for rotated faces. `off` is not written, because older programs do
    /// not know this field.
    #[serde(skip_serializing_if = "Rotate::is_off")]
    pub rotate: Rotate,
    pub videos: bool,
    /// Maximum number of videos: 1 to 10,000.
    pub max_videos: i64,
    /// Maximum number of videos of one host: 1 to 10,000. `None` means no limit per host.
    pub max_videos_per_host: Option<i64>,
    pub sitemaps: Sitemaps,
    /// Maximum number of pages in one directory: 1 to 1,000,000. Pages that differ only in numbers
    /// or queries are in one directory. `None` means no limit per directory.
    pub max_pages_per_directory: Option<i64>,
    /// Interval between the starts of two runs, if the crawl is recurring.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Interval>,
    /// URL that receives a message when the crawl ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Url>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SeedCounts {
    pub(crate) pages: usize,
    pub(crate) images: usize,
    pub(crate) videos: usize,
    /// Number of videos of the host with the most videos.
    pub(crate) videos_of_host: usize,
}

impl Default for CrawlOptions {
    fn default() -> Self {
        Self {
            scope: Scope::Host,
            allow: Vec::new(),
            max_depth: 3,
            max_pages: 1000,
            max_images: 5000,
            delay_ms: None,
            respect_robots: true,
            revalidate: true,
            dedupe: Dedupe::Near,
            rotate: Rotate::Off,
            videos: false,
            max_videos: 100,
            max_videos_per_host: None,
            sitemaps: Sitemaps::Robots,
            max_pages_per_directory: None,
            every: None,
            webhook: None,
        }
    }
}

const DEPTHS: RangeInclusive<i64> = 0..=50;
const PAGES: RangeInclusive<i64> = 1..=1_000_000;
const IMAGES: RangeInclusive<i64> = 1..=10_000_000;
const VIDEOS: RangeInclusive<i64> = 1..=10_000;
const DELAYS: RangeInclusive<u64> = 0..=300_000;
const MAX_ALLOWED_HOSTS: usize = 1000;
const MAX_WEBHOOK_LENGTH: usize = 2000;

impl CrawlOptions {
    /// Checks every range.
    pub(crate) fn check(&self) -> Result<(), CrawlError> {
        within("max_depth", i64::from(self.max_depth), &DEPTHS)?;
        within("max_pages", self.max_pages, &PAGES)?;
        within("max_images", self.max_images, &IMAGES)?;
        within("max_videos", self.max_videos, &VIDEOS)?;
        if let Some(limit) = self.max_videos_per_host {
            within("max_videos_per_host", limit, &VIDEOS)?;
        }
        if let Some(limit) = self.max_pages_per_directory {
            within("max_pages_per_directory", limit, &PAGES)?;
        }
        if let Some(delay) = self.delay_ms {
            within("delay_ms", delay, &DELAYS)?;
        }
        if let Some(webhook) = &self.webhook {
            check_webhook(webhook)?;
        }
        if self.allow.len() > MAX_ALLOWED_HOSTS {
            return Err(CrawlError::invalid(
                "allow",
                format!("the list has {} hosts; at most {MAX_ALLOWED_HOSTS} are allowed", self.allow.len()),
            ));
        }
        match self.allow.iter().find(|host| !is_host_pattern(host)) {
            Some(host) => Err(CrawlError::invalid(
                "allow",
                format!(
                    "{host:?} is not a host name; allowed are names like \"example.org\" and \"*.example.org\""
                ),
            )),
            None => Ok(()),
        }
    }

    pub(crate) fn video_limits(&self) -> VideoLimits {
        let per_host = self.max_videos_per_host.unwrap_or(self.max_videos);
        VideoLimits { total: self.max_videos, per_host }
    }

    /// Checks that the limits allow all seeds. Otherwise some seeds would have no ledger row.
    pub(crate) fn check_room(&self, seeds: SeedCounts) -> Result<(), CrawlError> {
        let SeedCounts { pages, images, videos, videos_of_host } = seeds;
        for (field, limit, seeds) in [
            ("max_pages", self.max_pages, pages),
            ("max_images", self.max_images, images),
            ("max_videos", self.max_videos, videos),
        ] {
            if (limit as u64) < seeds as u64 {
                return Err(CrawlError::invalid(
                    field,
                    format!(
                        "is {limit}, but the crawl has {seeds} such seeds; the limit must be at least {seeds}"
                    ),
                ));
            }
        }
        match self.max_videos_per_host {
            Some(limit) if (limit as u64) < videos_of_host as u64 => Err(CrawlError::invalid(
                "max_videos_per_host",
                format!(
                    "is {limit}, but {videos_of_host} seeds are videos of one host; the limit must be at least {videos_of_host}"
                ),
            )),
            _ => Ok(()),
        }
    }
}

fn within<T: PartialOrd + std::fmt::Display>(
    field: &'static str,
    value: T,
    range: &RangeInclusive<T>,
) -> Result<(), CrawlError> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(CrawlError::invalid(
        field,
        format!("is {value}; it must be from {} to {}", range.start(), range.end()),
    ))
}

/// Checks a webhook URL without DNS. The message does not repeat the URL, because the URL may
/// contain a secret.
fn check_webhook(url: &Url) -> Result<(), CrawlError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(CrawlError::invalid(
            "webhook",
            format!("has the scheme {:?}; allowed are http and https", url.scheme()),
        ));
    }
    if url.as_str().len() > MAX_WEBHOOK_LENGTH {
        return Err(CrawlError::invalid(
            "webhook",
            format!("has {} characters; at most {MAX_WEBHOOK_LENGTH} are allowed", url.as_str().len()),
        ));
    }
    Ok(())
}

fn is_host_pattern(text: &str) -> bool {
    let host = text.strip_prefix("*.").unwrap_or(text);
    !host.is_empty() && host.len() <= 253 && !host.contains(['/', '*', '@', ' ', '?', '#'])
}

//! Defines the options of a crawl and of a video, and checks their ranges. This module does not
//! check seeds.
use super::CrawlError;
use crawler::Scope;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;
use url::Url;
use video::sampling::MAX_GAP_US;
use video::{Sampling, sampling};

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

/// The sitemaps that a crawl reads in addition to those among the seeds. Each sitemap is counted as
/// a page, and its entries are treated as links of the seed.
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
    /// Returns `true` if images are searched as they are.
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
    /// Whether to search images for rotated faces. `off` is not written, because older programs
    /// reject this field.
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

const DEPTH_RANGE: RangeInclusive<i64> = 0..=50;
const PAGE_RANGE: RangeInclusive<i64> = 1..=1_000_000;
const IMAGE_RANGE: RangeInclusive<i64> = 1..=10_000_000;
const VIDEO_RANGE: RangeInclusive<i64> = 1..=10_000;
const DELAY_RANGE: RangeInclusive<u64> = 0..=300_000;
const MAX_ALLOWED_HOSTS: usize = 1000;
const MAX_WEBHOOK_LENGTH: usize = 2000;

impl CrawlOptions {
    /// Checks every range.
    pub(crate) fn check(&self) -> Result<(), CrawlError> {
        check_range("max_depth", i64::from(self.max_depth), &DEPTH_RANGE)?;
        check_range("max_pages", self.max_pages, &PAGE_RANGE)?;
        check_range("max_images", self.max_images, &IMAGE_RANGE)?;
        check_range("max_videos", self.max_videos, &VIDEO_RANGE)?;
        if let Some(limit) = self.max_videos_per_host {
            check_range("max_videos_per_host", limit, &VIDEO_RANGE)?;
        }
        if let Some(limit) = self.max_pages_per_directory {
            check_range("max_pages_per_directory", limit, &PAGE_RANGE)?;
        }
        if let Some(delay) = self.delay_ms {
            check_range("delay_ms", delay, &DELAY_RANGE)?;
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

    pub(crate) fn video_limits(&self) -> store::videos::crawled::VideoLimits {
        let per_host = self.max_videos_per_host.unwrap_or(self.max_videos);
        store::videos::crawled::VideoLimits { total: self.max_videos, per_host }
    }

    /// Checks that the limits allow all seeds. Otherwise some seeds would have no ledger row.
    pub(crate) fn check_seed_counts(&self, seeds: SeedCounts) -> Result<(), CrawlError> {
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

fn check_range<T: PartialOrd + std::fmt::Display>(
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

/// Checks a webhook URL without DNS. The message omits the URL, which may contain a secret.
pub(crate) fn check_webhook(url: &Url) -> Result<(), CrawlError> {
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

/// Time from the start of one run to that of the next, in whole minutes: 5 minutes to 366 days.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Interval {
    minutes: u32,
}

/// Minutes of each unit, largest first.
const UNITS: [(char, u32); 4] = [('w', 7 * 24 * 60), ('d', 24 * 60), ('h', 60), ('m', 1)];
const MIN_MINUTES: u32 = 5;
const MAX_MINUTES: u32 = 366 * 24 * 60;

impl Interval {
    pub fn duration(self) -> Duration {
        Duration::from_secs(u64::from(self.minutes) * 60)
    }
}

impl FromStr for Interval {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid_interval = || {
            format!(
                "invalid value: {text:?}, expected a whole number followed by m, h, d or w (minutes, hours, days, weeks), from 5m to 366d"
            )
        };
        let unit = text.chars().next_back().ok_or_else(invalid_interval)?;
        let (_, minutes) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(invalid_interval)?;
        let number = &text[..text.len() - unit.len_utf8()];
        // `parse` would accept a sign.
        if !number.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(invalid_interval());
        }
        let minutes =
            number.parse::<u32>().ok().and_then(|n| n.checked_mul(*minutes)).ok_or_else(invalid_interval)?;
        if (MIN_MINUTES..=MAX_MINUTES).contains(&minutes) {
            Ok(Self { minutes })
        } else {
            Err(invalid_interval())
        }
    }
}

impl TryFrom<String> for Interval {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) =
            UNITS.iter().find(|(_, size)| self.minutes.is_multiple_of(*size)).unwrap_or(&('m', 1));
        write!(f, "{}{unit}", self.minutes / size)
    }
}

impl From<Interval> for String {
    fn from(interval: Interval) -> Self {
        interval.to_string()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct VideoRequest {
    #[serde(serialize_with = "write_sampling", deserialize_with = "read_sampling")]
    pub sampling: Sampling,
    /// Maximum time between two frames that [`Sampling::Auto`] analyses, in milliseconds.
    pub max_gap_ms: u32,
    /// Whether [`Sampling::Auto`] adds closer looks. `false` is not written: options are compared
    /// as they are stored, and older programs did not store this field.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub refine: bool,
    /// Whether to search frames for faces that are not upright. `off` is not written, for the same
    /// reason.
    #[serde(skip_serializing_if = "Rotate::is_off")]
    pub rotate: Rotate,
}

/// Closer looks were requested for a sampling that selects the frames itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it requires the sampling auto; keyframes and fps=N select all frames themselves")]
pub struct CannotRefine;

impl VideoRequest {
    /// Returns the options of the videos of a crawl.
    pub(crate) fn of_crawl(options: &CrawlOptions) -> Self {
        Self { rotate: options.rotate, ..Self::default() }
    }

    /// Returns the maximum time, in microseconds, for which a face can be visible before the start
    /// or after the end of its track. Returns `None` if the distance between analysed frames has no
    /// limit.
    pub fn tolerance_us(&self) -> Option<i64> {
        sampling::tolerance_us(self.sampling, i64::from(self.max_gap_ms) * 1_000, self.refine)
    }

    /// Returns the options if they do not contradict each other.
    ///
    /// # Errors
    /// Fails if closer looks are requested with another sampling than [`Sampling::Auto`].
    pub fn checked(self) -> Result<Self, CannotRefine> {
        if self.refine && self.sampling != Sampling::Auto { Err(CannotRefine) } else { Ok(self) }
    }
}

impl Default for VideoRequest {
    fn default() -> Self {
        Self {
            sampling: Sampling::Auto,
            max_gap_ms: (MAX_GAP_US / 1_000) as u32,
            refine: false,
            rotate: Rotate::Off,
        }
    }
}

fn write_sampling<S: Serializer>(sampling: &Sampling, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(sampling)
}

fn read_sampling<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Sampling, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}

/// Limits for the waiting and running videos of one collection. Callers can add videos much faster
/// than workers read them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VideoLimits {
    /// Maximum number of live videos that callers added.
    pub videos: i64,
    /// Maximum size of the stored files, in bytes: of live videos, and of failed ones that can be
    /// retried.
    pub bytes: i64,
}

impl Default for VideoLimits {
    fn default() -> Self {
        Self { videos: 1_000, bytes: 16 << 30 }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn parses_intervals_and_displays_largest_unit() {
        for (text, seconds, displayed) in [
            ("5m", 300, "5m"),
            ("90m", 5400, "90m"),
            ("24h", 86_400, "1d"),
            ("14d", 14 * 86_400, "2w"),
            ("366d", 366 * 86_400, "366d"),
        ] {
            let interval: Interval = text.parse().unwrap();
            assert_eq!(
                (interval.duration().as_secs(), interval.to_string().as_str()),
                (seconds, displayed),
                "{text}"
            );
        }
        for text in
            ["", "m", "4m", "0h", "-5m", "+5m", "1.5h", "24", "24H", "5 m", "367d", "99999999999w", "5µ"]
        {
            let error = text.parse::<Interval>().unwrap_err();
            assert!(error.contains("from 5m to 366d"), "{text}: {error}");
        }
    }

    #[test]
    fn video_request_round_trips_through_json() {
        let request =
            VideoRequest { sampling: Sampling::Fps(2.5), max_gap_ms: 1_000, ..VideoRequest::default() };
        let stored = serde_json::to_value(request).unwrap();
        assert_eq!(stored, serde_json::json!({"sampling": "fps=2.5", "max_gap_ms": 1000}));
        assert_eq!(serde_json::from_value::<VideoRequest>(stored).unwrap(), request);
        let refined = VideoRequest { refine: true, ..VideoRequest::default() };
        let stored = serde_json::to_value(refined).unwrap();
        assert_eq!(stored, serde_json::json!({"sampling": "auto", "max_gap_ms": 2000, "refine": true}));
        assert_eq!(serde_json::from_value::<VideoRequest>(stored).unwrap(), refined);
        let rotated = VideoRequest { rotate: Rotate::Auto, ..VideoRequest::default() };
        let stored = serde_json::to_value(rotated).unwrap();
        assert_eq!(stored, serde_json::json!({"sampling": "auto", "max_gap_ms": 2000, "rotate": "auto"}));
        assert_eq!(serde_json::from_value::<VideoRequest>(stored).unwrap(), rotated);
        let error = serde_json::from_value::<VideoRequest>(serde_json::json!({"sampling": "fps=99"}));
        assert!(error.unwrap_err().to_string().contains("from 0.1 to 30"));
    }

    #[test]
    fn refine_requires_auto_sampling() {
        let with_sampling = |sampling| VideoRequest { sampling, refine: true, ..VideoRequest::default() };
        assert_eq!(with_sampling(Sampling::Auto).checked(), Ok(with_sampling(Sampling::Auto)));
        for sampling in [Sampling::Keyframes, Sampling::Fps(5.0)] {
            assert_eq!(with_sampling(sampling).checked(), Err(CannotRefine));
            assert!(VideoRequest { refine: false, ..with_sampling(sampling) }.checked().is_ok());
        }
    }
}

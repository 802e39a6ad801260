//! A crawl's options and the ranges that hold.

use super::{CrawlError, Interval};
use crawler::Scope;
use std::ops::RangeInclusive;
use url::Url;

/// How duplicates are told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dedupe {
    /// Same bytes.
    Exact,
    /// Same bytes, or the same picture by its perceptual hashes.
    #[default]
    Near,
    /// Same bytes only share storage: a collection holds a file once, and every URL that shows it counts as processed, with that image.
    Off,
}

/// Which sitemaps are read besides those given as seeds. Each counts as a page, and what it lists as links of the seed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sitemaps {
    /// None.
    Off,
    /// Those that the robots.txt of a seed's host names (not when robots.txt is not to be obeyed: then it is not read).
    #[default]
    Robots,
    /// The same, and `/sitemap.xml` where robots.txt names none.
    Always,
}

/// A crawl's options, as they are stored.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CrawlOptions {
    /// Borders.
    pub scope: Scope,
    /// Hosts for `Scope::List`.
    pub allow: Vec<String>,
    /// Links from a seed: 0 to 50.
    pub max_depth: i32,
    /// Pages in all: 1 to 1,000,000.
    pub max_pages: i64,
    /// Image URLs in all: 1 to 10,000,000.
    pub max_images: i64,
    /// Least time between two requests to a host, at most 300,000; `None` is the service's own, and adapts to the host's speed.
    pub delay_ms: Option<u64>,
    /// Obey robots.txt and directives. Delays are kept either way.
    pub respect_robots: bool,
    /// Ask whether what the collection's last visit found has changed, and take over what has not; otherwise everything is fetched.
    pub revalidate: bool,
    /// Duplicates.
    pub dedupe: Dedupe,
    /// Sitemaps.
    pub sitemaps: Sitemaps,
    /// Pages in one directory, pages that differ in numbers or queries being in one: 1 to 1,000,000; `None` is no limit of its own.
    pub max_pages_per_directory: Option<i64>,
    /// Starts again: time from the start of one run to the start of the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<Interval>,
    /// Is told when the crawl has ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Url>,
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
const DELAYS: RangeInclusive<u64> = 0..=300_000;
const ALLOWED_HOSTS: usize = 1000;
const LONGEST_WEBHOOK: usize = 2000;

impl CrawlOptions {
    /// Checks every range.
    pub(crate) fn check(&self) -> Result<(), CrawlError> {
        within("max_depth", i64::from(self.max_depth), &DEPTHS)?;
        within("max_pages", self.max_pages, &PAGES)?;
        within("max_images", self.max_images, &IMAGES)?;
        if let Some(limit) = self.max_pages_per_directory {
            within("max_pages_per_directory", limit, &PAGES)?;
        }
        if let Some(delay) = self.delay_ms {
            within("delay_ms", delay, &DELAYS)?;
        }
        if let Some(webhook) = &self.webhook {
            check_webhook(webhook)?;
        }
        if self.allow.len() > ALLOWED_HOSTS {
            return Err(CrawlError::invalid(
                "allow",
                format!("{} hosts were given; at most {ALLOWED_HOSTS} are allowed", self.allow.len()),
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

    /// Checks that the limits leave room for the seeds themselves: none of them may vanish unaccounted for.
    pub(crate) fn check_room(&self, pages: usize, images: usize) -> Result<(), CrawlError> {
        for (field, limit, seeds) in
            [("max_pages", self.max_pages, pages), ("max_images", self.max_images, images)]
        {
            if (limit as u64) < seeds as u64 {
                return Err(CrawlError::invalid(
                    field,
                    format!("is {limit}, but there are {seeds} such seeds; it must be at least that"),
                ));
            }
        }
        Ok(())
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

/// What can be said of a webhook without DNS; the message does not repeat the URL, which may hold a secret.
fn check_webhook(url: &Url) -> Result<(), CrawlError> {
    if !matches!(url.scheme(), "http" | "https") {
        return Err(CrawlError::invalid(
            "webhook",
            format!("has the scheme {:?}; allowed are http and https", url.scheme()),
        ));
    }
    if url.as_str().len() > LONGEST_WEBHOOK {
        return Err(CrawlError::invalid(
            "webhook",
            format!("has {} characters; at most {LONGEST_WEBHOOK} are allowed", url.as_str().len()),
        ));
    }
    Ok(())
}

fn is_host_pattern(text: &str) -> bool {
    let host = text.strip_prefix("*.").unwrap_or(text);
    !host.is_empty() && host.len() <= 253 && !host.contains(['/', '*', '@', ' ', '?', '#'])
}

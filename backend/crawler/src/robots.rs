//! Parses robots.txt according to RFC 9309.
//!
//! The project has its own parser, because `texting_robots` has three defects. It does not compare
//! percent escapes as section 2.2.2 requires (`/%7Ejoe` and `/~joe`). It misses groups whose user
//! agent includes a version (`facecrawl/1.0`). It obeys rules outside any group. The tests compare
//! both parsers.
mod rules;

pub use rules::{MAX_RULE_BYTES, MAX_RULES, MAX_STEPS};

use rules::{Rule, Rules};
use std::collections::HashSet;
use std::time::Duration;
use url::{Position, Url};

/// Maximum number of bytes of robots.txt that are read (RFC 9309 2.5).
pub const MAX_BYTES: usize = 500 << 10;
/// Maximum `Crawl-delay`. Longer delays are reduced to this value.
pub const MAX_CRAWL_DELAY: Duration = Duration::from_secs(300);
/// Maximum number of `Sitemap` lines that are kept.
pub const MAX_SITEMAPS: usize = 1000;

/// The rules of one host for our agent.
#[derive(Clone, Debug, Default)]
pub struct Robots {
    /// Whether the whole host is disallowed, including robots.txt (RFC 9309 2.3.1.4: unreachable).
    closed: bool,
    rules: Rules,
    crawl_delay: Option<Duration>,
    sitemaps: Vec<Url>,
}

/// The decision of robots.txt about a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the URL may be fetched.
    pub allowed: bool,
    /// Number of bytes of rules and path that were compared; at most [`MAX_STEPS`].
    pub steps: usize,
}

/// A line with a known key.
enum Line<'a> {
    UserAgent(&'a [u8]),
    /// Whether the line is an `Allow`, and its value.
    Rule(bool, &'a [u8]),
    CrawlDelay(Duration),
    Sitemap(&'a [u8]),
}

impl Robots {
    /// Builds the rules from a response. For 2xx, `body` is parsed. 3xx (redirects without a valid
    /// target) and 4xx except 429 allow everything. 429, 5xx and 0 (network error) disallow
    /// everything. `agent` is our product token.
    pub fn from_response(status: u16, body: &[u8], agent: &str) -> Self {
        match status {
            200..=299 => Self::parse(body, agent),
            429 => Self { closed: true, ..Self::default() },
            300..=499 => Self::default(),
            _ => Self { closed: true, ..Self::default() },
        }
    }

    /// Parses the file. All groups that name `agent` are combined. If there are none, those for `*`
    /// are combined (RFC 9309 2.2.1). Rules before the first `User-agent` line apply to no agent.
    ///
    /// If a group has more than [`MAX_RULES`] rules and one beyond the limit is a `Disallow`, the
    /// whole host is disallowed. The paths that the omitted rules disallow are not known.
    fn parse(body: &[u8], agent: &str) -> Self {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let mut ours = Group::default();
        let mut everyone = Group::default();
        let (mut sitemaps, mut known) = (Vec::new(), HashSet::new());
        let (mut for_us, mut for_all) = (false, false);
        let mut in_names = false;
        for line in lines(body).filter_map(read_line) {
            match line {
                Line::UserAgent(name) => {
                    if !in_names {
                        (for_us, for_all, in_names) = (false, false, true);
                    }
                    let token = product_token(name);
                    if name.first() == Some(&b'*') {
                        for_all = true;
                    } else if token.eq_ignore_ascii_case(agent.as_bytes()) {
                        (for_us, ours.named) = (true, true);
                    }
                }
                Line::Rule(allow, value) => {
                    in_names = false;
                    let Some(rule) = (for_us || for_all).then(|| Rule::new(allow, value)).flatten() else {
                        continue;
                    };
                    if for_us {
                        ours.add(rule.clone());
                    }
                    if for_all {
                        everyone.add(rule);
                    }
                }
                // `Crawl-delay` is not in the RFC, but authors use it as a rule of its group, so it
                // ends the list of names.
                Line::CrawlDelay(delay) => {
                    in_names = false;
                    for (applies, group) in [(for_us, &mut ours), (for_all, &mut everyone)] {
                        if applies {
                            group.delay = group.delay.max(Some(delay));
                        }
                    }
                }
                // A `Sitemap` line neither is in a group nor ends one (RFC 9309 2.2.4).
                Line::Sitemap(text) => {
                    let url = std::str::from_utf8(text).ok().and_then(|t| crate::urls::parse(t).ok());
                    let url = url.filter(|url| crate::urls::credentials_error(url).is_none());
                    if let Some(url) = url
                        && sitemaps.len() < MAX_SITEMAPS
                        && known.insert(url.clone())
                    {
                        sitemaps.push(url);
                    }
                }
            }
        }
        let group = if ours.named { ours } else { everyone };
        Self { closed: group.overflowed, rules: Rules::new(group.rules), crawl_delay: group.delay, sitemaps }
    }

    /// Returns whether the URL may be fetched. The longest matching pattern applies. Among patterns
    /// of equal length, `Allow` applies. `/robots.txt` is always allowed if the host responded.
    pub fn allows(&self, url: &Url) -> bool {
        self.verdict(url).allowed
    }

    /// Returns the decision of [`Self::allows`] and its cost. At most [`MAX_STEPS`] bytes are
    /// compared, which takes a few milliseconds at worst, so the call is safe on an async thread.
    pub fn verdict(&self, url: &Url) -> Verdict {
        let path = &url[Position::BeforePath..Position::AfterQuery];
        if self.closed || path == "/robots.txt" {
            return Verdict { allowed: !self.closed, steps: 0 };
        }
        // A longer URL is never fetched.
        if path.len() > crate::urls::MAX_PARSED_LENGTH {
            return Verdict { allowed: false, steps: 0 };
        }
        self.rules.verdict(path.as_bytes())
    }

    /// Returns the approximate memory that the rules and the sitemaps' URLs use, in bytes.
    pub fn bytes(&self) -> usize {
        let sitemaps: usize = self.sitemaps.iter().map(|url| size_of::<Url>() + url.as_str().len()).sum();
        size_of::<Self>() + self.rules.bytes() + sitemaps
    }

    /// Returns the `Crawl-delay`, the longest if a group has several, at most `MAX_CRAWL_DELAY`.
    pub fn crawl_delay(&self) -> Option<Duration> {
        self.crawl_delay
    }

    /// Returns the `Sitemap` lines: absolute http(s) URLs, in order, without duplicates.
    pub fn sitemaps(&self) -> Vec<Url> {
        self.sitemaps.clone()
    }
}

#[derive(Default)]
struct Group {
    named: bool,
    rules: Vec<Rule>,
    /// Whether rules were omitted because of the limit, with at least one `Disallow` among them.
    overflowed: bool,
    delay: Option<Duration>,
}

impl Group {
    fn add(&mut self, rule: Rule) {
        if self.rules.len() < MAX_RULES {
            self.rules.push(rule);
        } else {
            self.overflowed |= !rule.is_allow();
        }
    }
}

/// Returns the lines within the byte limit. A line that the limit truncates is omitted, because the
/// beginning of `Disallow: /private` could disallow the whole host.
fn lines(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    let end = if body.len() > MAX_BYTES {
        body[..MAX_BYTES].iter().rposition(|b| is_line_end(*b)).unwrap_or(0)
    } else {
        body.len()
    };
    body[..end].split(|b| is_line_end(*b))
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n' | 0)
}

fn read_line(line: &[u8]) -> Option<Line<'_>> {
    let line = line.split(|b| *b == b'#').next().unwrap_or_default();
    let colon = line.iter().position(|b| *b == b':')?;
    let (key, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
    match key.to_ascii_lowercase().as_slice() {
        b"user-agent" | b"useragent" | b"user agent" => Some(Line::UserAgent(value)),
        b"allow" => Some(Line::Rule(true, value)),
        b"disallow" => Some(Line::Rule(false, value)),
        b"crawl-delay" | b"crawldelay" => {
            let seconds: f64 = std::str::from_utf8(value).ok()?.parse().ok()?;
            // NaN fails the comparison.
            (seconds >= 0.0).then(|| {
                Line::CrawlDelay(Duration::from_secs_f64(seconds.min(MAX_CRAWL_DELAY.as_secs_f64())))
            })
        }
        b"sitemap" => Some(Line::Sitemap(value)),
        _ => None,
    }
}

/// Returns the leading product token of a `User-agent` value: `facecrawl` for `facecrawl/1.0`.
fn product_token(value: &[u8]) -> &[u8] {
    let end = value
        .iter()
        .position(|b| !(b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')))
        .unwrap_or(value.len());
    &value[..end]
}

#[cfg(test)]
mod tests;

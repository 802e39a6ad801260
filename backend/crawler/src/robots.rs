//! Parses robots.txt according to RFC 9309.
//!
//! The project has its own parser, because `texting_robots` has three defects. It does not compare
//! percent escapes as section 2.2.2 requires (`/%7Ejoe` and `/~joe`). It misses groups whose user
//! agent includes a version (`facecrawl/1.0`). It obeys rules outside any group. The tests compare
//! both parsers.
#[cfg(test)]
mod tests;
use crate::urls::percent_escape;
use memchr::memmem;
use std::collections::HashSet;
use std::time::Duration;
use url::{Position, Url};

/// Maximum number of bytes of robots.txt that are read (RFC 9309 2.5).
pub const MAX_BYTES: usize = 500 << 10;
/// Maximum `Crawl-delay`. Longer delays are reduced to this value.
pub const MAX_CRAWL_DELAY: Duration = Duration::from_secs(300);
/// Maximum number of `Sitemap` lines that are kept.
pub const MAX_SITEMAPS: usize = 1000;

/// The rules of one host for the crawler's agent.
#[derive(Clone, Debug, Default)]
pub struct Robots {
    /// Whether the whole host is disallowed, including robots.txt (RFC 9309 2.3.1.4: unreachable).
    disallows_all: bool,
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
    /// everything. `agent` is the crawler's product token.
    pub fn from_response(status: u16, body: &[u8], agent: &str) -> Self {
        match status {
            200..=299 => Self::parse(body, agent),
            300..=428 | 430..=499 => Self::default(),
            _ => Self { disallows_all: true, ..Self::default() },
        }
    }

    /// Parses the file. All groups that name `agent` are combined. If there are none, those for `*`
    /// are combined (RFC 9309 2.2.1). Rules before the first `User-agent` line apply to no agent.
    ///
    /// If a group has more than [`MAX_RULES`] rules and one beyond the limit is a `Disallow`, the
    /// whole host is disallowed. The paths that the omitted rules disallow are not known.
    fn parse(body: &[u8], agent: &str) -> Self {
        let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
        let mut own_group = Group::default();
        let mut general_group = Group::default();
        let (mut sitemaps, mut seen_sitemaps) = (Vec::new(), HashSet::new());
        let (mut in_own, mut in_general) = (false, false);
        let mut in_names = false;
        for line in lines(body).filter_map(read_line) {
            match line {
                Line::UserAgent(name) => {
                    if !in_names {
                        (in_own, in_general, in_names) = (false, false, true);
                    }
                    let token = product_token(name);
                    if name.first() == Some(&b'*') {
                        in_general = true;
                    } else if token.eq_ignore_ascii_case(agent.as_bytes()) {
                        (in_own, own_group.is_named) = (true, true);
                    }
                }
                Line::Rule(allow, value) => {
                    in_names = false;
                    let Some(rule) = (in_own || in_general).then(|| Rule::new(allow, value)).flatten() else {
                        continue;
                    };
                    if in_own {
                        own_group.add(rule.clone());
                    }
                    if in_general {
                        general_group.add(rule);
                    }
                }
                // `Crawl-delay` is not in the RFC, but authors use it as a rule of its group, so it
                // ends the list of names.
                Line::CrawlDelay(delay) => {
                    in_names = false;
                    for (applies, group) in [(in_own, &mut own_group), (in_general, &mut general_group)] {
                        group.delay = group.delay.max(applies.then_some(delay));
                    }
                }
                // A `Sitemap` line is not in a group and does not end one (RFC 9309 2.2.4).
                Line::Sitemap(text) => {
                    let url = std::str::from_utf8(text).ok().and_then(|t| crate::urls::parse(t).ok());
                    let url = url.filter(|url| crate::urls::credentials_error(url).is_none());
                    if let Some(url) = url
                        && sitemaps.len() < MAX_SITEMAPS
                        && seen_sitemaps.insert(url.clone())
                    {
                        sitemaps.push(url);
                    }
                }
            }
        }
        let group = if own_group.is_named { own_group } else { general_group };
        Self {
            disallows_all: group.omits_disallow,
            rules: Rules::new(group.rules),
            crawl_delay: group.delay,
            sitemaps,
        }
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
        if self.disallows_all || path == "/robots.txt" {
            return Verdict { allowed: !self.disallows_all, steps: 0 };
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
    is_named: bool,
    rules: Vec<Rule>,
    /// Whether rules were omitted because of the limit, with at least one `Disallow` among them.
    omits_disallow: bool,
    delay: Option<Duration>,
}

impl Group {
    fn add(&mut self, rule: Rule) {
        if self.rules.len() < MAX_RULES {
            self.rules.push(rule);
        } else {
            self.omits_disallow |= !rule.allow;
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

/// Maximum length in bytes of the value of an `Allow` or `Disallow` line. RFC 9309 sets no limit
/// for a rule. A path of this length is already treated as a trap ([`crate::urls::MAX_LENGTH`]).
pub const MAX_RULE_BYTES: usize = 2 << 10;
/// Maximum number of rules that are kept per group.
pub const MAX_RULES: usize = 10_000;
/// Maximum number of bytes of rules and path that are compared to decide about one URL. Rules
/// without `*` cannot reach this limit. The pattern of each is compared once, and the patterns of a
/// file have a length of at most three times 500 KiB in total.
pub const MAX_STEPS: usize = 2 << 20;

/// One rule. Its pattern is in canonical form (`append_canonical`); `*` is the only special byte.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    allow: bool,
    pattern: Box<[u8]>,
    /// Whether the pattern ended in `$`.
    is_anchored: bool,
}

impl Rule {
    /// Parses the value of a line. A `Disallow` value longer than [`MAX_RULE_BYTES`] is truncated;
    /// its beginning matches everything that the whole rule matches. An `Allow` that is too long is
    /// omitted (`None`), because its beginning could allow more than intended.
    fn new(allow: bool, value: &[u8]) -> Option<Self> {
        let (value, is_anchored) = match (truncate_value(value), value.strip_suffix(b"$")) {
            (Some(_), _) if allow => return None,
            (Some(beginning), _) => (beginning, false),
            (None, Some(rest)) => (rest, true),
            (None, None) => (value, false),
        };
        let mut pattern = Vec::with_capacity(value.len() + 1);
        // `private/` can only mean `/private/`, because every path starts with a slash.
        if !value.is_empty() && !matches!(value[0], b'/' | b'*') {
            pattern.push(b'/');
        }
        append_canonical(value, true, &mut pattern);
        pattern.dedup_by(|a, b| *a == b'*' && *b == b'*');
        Some(Self { allow, pattern: pattern.into(), is_anchored })
    }

    /// Returns the length in bytes that decides which match is the longest.
    fn length(&self) -> usize {
        self.pattern.len() + usize::from(self.is_anchored)
    }

    /// Returns whether the canonical path matches. Adds the number of compared bytes to `steps`.
    ///
    /// The cost is linear in the lengths of pattern and path. Each piece between two stars is
    /// searched for after the end of the previous one, with a linear search (`memmem`). The first
    /// occurrence is used, since a later one leaves less of the path for the pieces that follow.
    fn matches(&self, path: &[u8], steps: &mut usize) -> bool {
        let mut pieces = self.pattern.split(|byte| *byte == b'*');
        let first = pieces.next().unwrap_or_default();
        *steps += 1 + first.len();
        let Some(mut rest) = path.strip_prefix(first) else { return false };
        let Some(last) = pieces.next_back() else { return !self.is_anchored || rest.is_empty() };
        for piece in pieces {
            match skip_past(rest, piece, steps) {
                Some(tail) => rest = tail,
                None => return false,
            }
        }
        if !self.is_anchored {
            return skip_past(rest, last, steps).is_some();
        }
        *steps += last.len();
        rest.ends_with(last)
    }
}

/// Returns the text after the first occurrence of `piece`.
fn skip_past<'a>(text: &'a [u8], piece: &[u8], steps: &mut usize) -> Option<&'a [u8]> {
    let end = memmem::find(text, piece).map(|at| at + piece.len());
    *steps += piece.len() + end.unwrap_or(text.len());
    end.map(|end| &text[end..])
}

/// Returns the first [`MAX_RULE_BYTES`] bytes of a longer value, without a truncated escape at the
/// end. Returns `None` for a value that fits.
fn truncate_value(value: &[u8]) -> Option<&[u8]> {
    let prefix = value.get(..MAX_RULE_BYTES).filter(|_| value.len() > MAX_RULE_BYTES)?;
    let partial = prefix.iter().rev().take(2).position(|byte| *byte == b'%').map_or(0, |at| at + 1);
    Some(&prefix[..MAX_RULE_BYTES - partial])
}

/// The rules of a group, in the order in which they are evaluated.
#[derive(Clone, Debug, Default)]
struct Rules(Box<[Rule]>);

impl Rules {
    /// Sorts the rules: the longest first, and among equal lengths an `Allow` first. The first
    /// match then determines the result (RFC 9309 2.2.2).
    fn new(mut rules: Vec<Rule>) -> Self {
        // An empty pattern matches nothing, so `Disallow:` allows everything.
        rules.retain(|rule| rule.length() > 0);
        rules.sort_by_key(|rule| (std::cmp::Reverse(rule.length()), !rule.allow));
        Self(rules.into())
    }

    /// Decides about a path with its query. If no rule matches, the path is allowed. If more than
    /// [`MAX_STEPS`] bytes would be compared, the path is disallowed. Only hundreds of rules with
    /// stars, on a path of kilobytes, reach that limit.
    fn verdict(&self, path: &[u8]) -> Verdict {
        let mut text = Vec::with_capacity(path.len());
        append_canonical(path, false, &mut text);
        let mut steps = 0;
        for rule in &self.0 {
            if steps + rule.length() + text.len() > MAX_STEPS {
                return Verdict { allowed: false, steps };
            }
            if rule.matches(&text, &mut steps) {
                return Verdict { allowed: rule.allow, steps };
            }
        }
        Verdict { allowed: true, steps }
    }

    /// Returns the size of the rules in memory, in bytes.
    fn bytes(&self) -> usize {
        self.0.iter().map(|rule| size_of::<Rule>() + rule.pattern.len()).sum()
    }
}

/// Appends the form in which patterns and paths are compared (RFC 9309 2.2.2): unreserved
/// characters unescaped, everything outside printable ASCII escaped, escapes in upper case. `*` and
/// `$` are escaped unless they are the pattern's own special characters. So `%2A` in a pattern
/// means the character.
fn append_canonical(text: &[u8], is_pattern: bool, out: &mut Vec<u8>) {
    let mut index = 0;
    while let Some(byte) = text.get(index) {
        if let Some(value) = percent_escape(&text[index..]) {
            if value.is_ascii_alphanumeric() || matches!(value, b'-' | b'.' | b'_' | b'~') {
                out.push(value);
            } else {
                escape(value, out);
            }
            index += 3;
            continue;
        }
        match byte {
            b'*' if is_pattern => out.push(b'*'),
            byte if byte.is_ascii_graphic() && !matches!(byte, b'*' | b'$') => out.push(*byte),
            byte => escape(*byte, out),
        }
        index += 1;
    }
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

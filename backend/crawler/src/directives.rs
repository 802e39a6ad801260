//! Parses `X-Robots-Tag` headers and `<meta name=robots>` elements.
use domain::Reason;

/// The restrictions that a page or an image declares for robots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Directives {
    /// Do not store the page.
    pub noindex: bool,
    /// Do not follow the page's links.
    pub nofollow: bool,
    /// Do not use the page's images.
    pub noimageindex: bool,
    /// Do not use the page for machine learning.
    pub noai: bool,
    /// Do not use the page's images for machine learning.
    pub noimageai: bool,
}

/// Directives with a value after a colon. The text before that colon is not a user agent.
const DIRECTIVES_WITH_VALUE: &[&str] =
    &["unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"];

impl Directives {
    /// Parses header values (with or without a user agent prefix) or `content` values of `<meta>`.
    /// `agent` is the product token of the crawler.
    ///
    /// A prefix applies until the end of its value or the next prefix, because servers join several
    /// headers with commas. Directives for all agents and directives for this agent are combined.
    /// Unknown directives and parts of dates with commas are skipped.
    pub fn parse<'a>(values: impl IntoIterator<Item = &'a str>, agent: &str) -> Self {
        let mut directives = Self::default();
        for value in values {
            let mut applies = true;
            for part in value.split(',') {
                let mut word = part.trim();
                if let Some((prefix, rest)) = word.split_once(':') {
                    let prefix = prefix.trim();
                    if DIRECTIVES_WITH_VALUE.iter().any(|d| prefix.eq_ignore_ascii_case(d)) {
                        continue;
                    }
                    // A colon in the middle of a date ("25 Jun 2010 15:00:00") does not end an
                    // agent's name.
                    if is_token(prefix) {
                        applies = prefix.eq_ignore_ascii_case(agent) || prefix == "*";
                        word = rest.trim();
                    }
                }
                if applies {
                    directives.apply(word);
                }
            }
        }
        directives
    }

    fn apply(&mut self, word: &str) {
        match word.to_ascii_lowercase().as_str() {
            "noindex" => self.noindex = true,
            "nofollow" => self.nofollow = true,
            "none" => (self.noindex, self.nofollow) = (true, true),
            "noimageindex" => self.noimageindex = true,
            "noai" => self.noai = true,
            "noimageai" => self.noimageai = true,
            _ => {}
        }
    }

    pub fn union(self, other: Self) -> Self {
        Self {
            noindex: self.noindex || other.noindex,
            nofollow: self.nofollow || other.nofollow,
            noimageindex: self.noimageindex || other.noimageindex,
            noai: self.noai || other.noai,
            noimageai: self.noimageai || other.noimageai,
        }
    }

    /// Returns the directive that forbids the use of images, or `None` if images may be used.
    pub fn image_denial(&self) -> Option<Reason> {
        [
            (self.noindex, Reason::Noindex),
            (self.noimageindex, Reason::Noimageindex),
            (self.noai, Reason::Noai),
            (self.noimageai, Reason::Noimageai),
        ]
        .into_iter()
        .find_map(|(is_set, reason)| is_set.then_some(reason))
    }
}

/// Returns whether `text` is a product token (RFC 9309 2.2.1) or `*`.
fn is_token(text: &str) -> bool {
    text == "*"
        || (text.starts_with(|c: char| c.is_ascii_alphabetic())
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_')))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one letter for each directive that is set: i (noindex), f (nofollow), p
    /// (noimageindex), a (noai), m (noimageai).
    fn parse_letters(values: &[&str]) -> String {
        let d = Directives::parse(values.iter().copied(), "facecrawl");
        [(d.noindex, 'i'), (d.nofollow, 'f'), (d.noimageindex, 'p'), (d.noai, 'a'), (d.noimageai, 'm')]
            .into_iter()
            .filter_map(|(is_set, letter)| is_set.then_some(letter))
            .collect()
    }

    #[test]
    fn parses_robots_directives_in_every_form() {
        for (values, expected) in [
            (&["noindex"][..], "i"),
            (&["NOINDEX,  NoFollow"], "if"),
            (&["none"], "if"),
            (&["all"], ""),
            (&["index, follow"], ""),
            (&["noimageindex", "noai, noimageai"], "pam"),
            (&["facecrawl: noindex"], "i"),
            (&["FaceCrawl: noindex, nofollow"], "if"),
            (&["*: noindex"], "i"),
            (&["otherbot: noindex, nofollow"], ""),
            (&["otherbot: noindex", "nofollow"], "f"),
            (&["otherbot: noindex, facecrawl: nofollow, noai"], "fa"),
            (&["facecrawl: noai, otherbot: noindex"], "a"),
            (&["facecrawl2: noindex"], ""),
            (&["unavailable_after: Saturday, 25-Jun-2010 15:00:00 PST, noai"], "a"),
            (&["unavailable_after: 25 Jun 2010 15:00:00 PST"], ""),
            (&["otherbot: unavailable_after: 25 Jun 2010 15:00:00 PST, noindex"], ""),
            (&["max-snippet:20, max-image-preview: none, noai"], "a"),
            (&["", ",,,", ":", "noindexed", "no index"], ""),
        ] {
            assert_eq!(parse_letters(values), expected, "{values:?}");
        }
    }

    #[test]
    fn image_denial_returns_highest_priority_reason() {
        let parse = |v: &str| Directives::parse([v], "facecrawl");
        assert_eq!(parse("nofollow").image_denial(), None);
        assert_eq!(parse("noimageai").image_denial(), Some(Reason::Noimageai));
        assert_eq!(parse("noai").union(parse("noindex")).image_denial(), Some(Reason::Noindex));
        assert_eq!(parse("none").union(parse("noai")), parse("noindex, nofollow, noai"));
    }
}

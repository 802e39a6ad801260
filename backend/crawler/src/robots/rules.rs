//! Patterns of `Allow` and `Disallow`.
use crate::urls::hex_value;

/// One rule; its pattern is in canonical form (`canonical`), with `*` as the only special byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    allow: bool,
    pattern: Vec<u8>,
    /// The pattern ended in `$`.
    to_end: bool,
}

impl Rule {
    pub(super) fn new(allow: bool, value: &[u8]) -> Self {
        let (value, to_end) = match value.strip_suffix(b"$") {
            Some(rest) => (rest, true),
            None => (value, false),
        };
        let mut pattern = Vec::with_capacity(value.len() + 1);
        // `private/` can only mean `/private/`: every path starts with a slash.
        if !value.is_empty() && !matches!(value[0], b'/' | b'*') {
            pattern.push(b'/');
        }
        canonical(value, true, &mut pattern);
        pattern.dedup_by(|a, b| *a == b'*' && *b == b'*');
        Self { allow, pattern, to_end }
    }

    /// Octets that count for the longest match.
    fn length(&self) -> usize {
        self.pattern.len() + usize::from(self.to_end)
    }

    /// Whether the canonical path matches. Linear for patterns without stars, product of the lengths at worst.
    fn matches(&self, path: &[u8]) -> bool {
        let (pattern, mut p, mut t) = (self.pattern.as_slice(), 0, 0);
        // Where the last star stood in the pattern, and how much of the path it has eaten.
        let mut star: Option<(usize, usize)> = None;
        loop {
            if p == pattern.len() {
                if !self.to_end || t == path.len() {
                    return true;
                }
            } else if pattern[p] == b'*' {
                star = Some((p + 1, t));
                p += 1;
                continue;
            } else if t < path.len() && pattern[p] == path[t] {
                (p, t) = (p + 1, t + 1);
                continue;
            }
            match star {
                Some((after, eaten)) if eaten < path.len() => {
                    star = Some((after, eaten + 1));
                    (p, t) = (after, eaten + 1);
                }
                _ => return false,
            }
        }
    }
}

/// Whether `path` (with its query) may be fetched: the longest match decides, `Allow` wins a tie, no match allows.
pub(super) fn allowed(rules: &[Rule], path: &[u8]) -> bool {
    let mut text = Vec::with_capacity(path.len());
    canonical(path, false, &mut text);
    rules
        .iter()
        // An empty pattern matches nothing: `Disallow:` allows all.
        .filter(|rule| rule.length() > 0 && rule.matches(&text))
        .max_by_key(|rule| (rule.length(), rule.allow))
        .is_none_or(|rule| rule.allow)
}

/// The form in which patterns and paths are compared (RFC 9309 2.2.2): unreserved characters unescaped, everything outside printable ASCII
/// escaped, escapes in upper case. `*` and `$` are escaped unless they are the pattern's own specials, so that `%2A` in a pattern means
/// the character.
fn canonical(text: &[u8], pattern: bool, out: &mut Vec<u8>) {
    let mut at = 0;
    while at < text.len() {
        match text[at..] {
            [b'%', high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let value = (hex_value(high) << 4) | hex_value(low);
                if value.is_ascii_alphanumeric() || matches!(value, b'-' | b'.' | b'_' | b'~') {
                    out.push(value);
                } else {
                    escape(value, out);
                }
                at += 3;
                continue;
            }
            [b'*', ..] if pattern => out.push(b'*'),
            [byte @ (b'*' | b'$'), ..] => escape(byte, out),
            [byte, ..] if byte.is_ascii_graphic() => out.push(byte),
            [byte, ..] => escape(byte, out),
            [] => break,
        }
        at += 1;
    }
}

fn escape(byte: u8, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.extend([b'%', DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
}

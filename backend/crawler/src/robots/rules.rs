//! Matches the patterns of `Allow` and `Disallow` lines.
use super::Verdict;
use crate::urls::hex_value;
use memchr::memmem;

/// Maximum length in bytes of the value of an `Allow` or `Disallow` line. RFC 9309 sets no limit
/// for a rule. A path of this length is already treated as a trap ([`crate::urls::MAX_LENGTH`]).
pub const MAX_RULE_BYTES: usize = 2 << 10;
/// Maximum number of rules that are kept per group.
pub const MAX_RULES: usize = 10_000;
/// Maximum number of bytes of rules and path that are compared to judge one URL. Rules without `*`
/// cannot reach this limit. The pattern of each is compared once, and the patterns of a file have a
/// length of at most three times 500 KiB in total.
pub const MAX_STEPS: usize = 2 << 20;

/// One rule. Its pattern is in canonical form (see `canonical`); `*` is the only special byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    allow: bool,
    pattern: Box<[u8]>,
    /// Whether the pattern ended in `$`.
    to_end: bool,
}

impl Rule {
    /// Parses the value of a line. A `Disallow` value longer than [`MAX_RULE_BYTES`] is cut; its
    /// beginning matches everything that the whole rule matches. An `Allow` that is too long is
    /// omitted (`None`), because its beginning could allow more than intended.
    pub(super) fn new(allow: bool, value: &[u8]) -> Option<Self> {
        let (value, to_end) = match (shortened(value), value.strip_suffix(b"$")) {
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
        canonical(value, true, &mut pattern);
        pattern.dedup_by(|a, b| *a == b'*' && *b == b'*');
        Some(Self { allow, pattern: pattern.into(), to_end })
    }

    pub(super) fn is_allow(&self) -> bool {
        self.allow
    }

    /// Returns the number of bytes by which the longest match is determined.
    fn length(&self) -> usize {
        self.pattern.len() + usize::from(self.to_end)
    }

    /// Returns the size of the rule in memory, in bytes.
    fn bytes(&self) -> usize {
        size_of::<Self>() + self.pattern.len()
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
        let Some(last) = pieces.next_back() else { return !self.to_end || rest.is_empty() };
        for piece in pieces {
            match after(rest, piece, steps) {
                Some(found) => rest = found,
                None => return false,
            }
        }
        if !self.to_end {
            return after(rest, last, steps).is_some();
        }
        *steps += last.len();
        rest.ends_with(last)
    }
}

/// Returns the text after the first occurrence of `piece`.
fn after<'a>(text: &'a [u8], piece: &[u8], steps: &mut usize) -> Option<&'a [u8]> {
    let end = memmem::find(text, piece).map(|at| at + piece.len());
    *steps += piece.len() + end.unwrap_or(text.len());
    end.map(|end| &text[end..])
}

/// Returns the first [`MAX_RULE_BYTES`] bytes of a longer value, without a truncated escape at the
/// end. Returns `None` for a value that fits.
fn shortened(value: &[u8]) -> Option<&[u8]> {
    let cut = value.get(..MAX_RULE_BYTES).filter(|_| value.len() > MAX_RULE_BYTES)?;
    let torn = cut.iter().rev().take(2).position(|byte| *byte == b'%').map_or(0, |at| at + 1);
    Some(&cut[..MAX_RULE_BYTES - torn])
}

/// The rules of a group, in the order in which they are evaluated.
#[derive(Clone, Debug, Default)]
pub(super) struct Rules(Box<[Rule]>);

impl Rules {
    /// Sorts the rules: the longest first, and among equal lengths an `Allow` first. The first
    /// match then determines the result (RFC 9309 2.2.2).
    pub(super) fn new(mut rules: Vec<Rule>) -> Self {
        // An empty pattern matches nothing, so `Disallow:` allows everything.
        rules.retain(|rule| rule.length() > 0);
        rules.sort_by_key(|rule| (std::cmp::Reverse(rule.length()), !rule.allow));
        Self(rules.into())
    }

    /// Judges a path with its query. If no rule matches, the path is allowed. If more than
    /// [`MAX_STEPS`] bytes would be compared, the path is disallowed. Only hundreds of rules with
    /// stars, on a path of kilobytes, reach that limit.
    pub(super) fn verdict(&self, path: &[u8]) -> Verdict {
        let mut text = Vec::with_capacity(path.len());
        canonical(path, false, &mut text);
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

    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(Rule::bytes).sum()
    }
}

/// Appends the form in which patterns and paths are compared (RFC 9309 2.2.2): unreserved
/// characters unescaped, everything outside printable ASCII escaped, escapes in upper case. `*` and
/// `$` are escaped unless they are the pattern's own special characters. So `%2A` in a pattern
/// means the character.
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

//! Reads attribute values and text, with character references decoded.
use super::MAX_TEXT;
use lol_html::html_content::Element;
use std::borrow::Cow;

/// The attributes of an element: names in lower case, values as written. They are read once per
/// element, because some elements require dozens of look-ups.
pub(super) struct Attributes(pub(super) Vec<(String, String)>);

impl Attributes {
    pub(super) fn new(el: &Element<'_, '_>) -> Self {
        Self(el.attributes().iter().map(|a| (a.name(), a.value())).collect())
    }

    /// Returns the first value of the attribute with this name, with character references decoded.
    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.get_short(name, usize::MAX)
    }

    /// Works like [`Self::get`], and returns `None` for a value whose undecoded text has more than
    /// `max_bytes` bytes.
    pub(super) fn get_short(&self, name: &str, max_bytes: usize) -> Option<String> {
        let (_, value) = self.0.iter().find(|(n, _)| n == name)?;
        (value.len() <= max_bytes).then(|| unescape(value).into_owned())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _)| n == name)
    }
}

pub(super) fn unescape(value: &str) -> Cow<'_, str> {
    if value.contains('&') { htmlize::unescape_attribute(value) } else { value.into() }
}

/// Returns the target in `5; url='/next'` (HTML standard, shared declarative refresh steps), or
/// `None` for a plain reload.
pub(super) fn refresh_target(content: &str) -> Option<&str> {
    let rest = content.trim_ascii_start().trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
    let rest = rest.trim_ascii_start();
    let rest = rest.strip_prefix([';', ',']).unwrap_or(rest).trim_ascii_start();
    let target = match rest.get(..3) {
        Some(word) if word.eq_ignore_ascii_case("url") => {
            let after = rest[3..].trim_ascii_start();
            after.strip_prefix('=').map_or(rest, str::trim_ascii_start)
        }
        _ => rest,
    };
    let target = match target.chars().next()? {
        quote @ ('"' | '\'') => target[1..].split(quote).next().unwrap_or_default(),
        _ => target.trim_ascii_end(),
    };
    (!target.is_empty()).then_some(target)
}

/// Returns whether a list of words, such as `rel`, contains `token`.
pub(super) fn has_token(value: Option<String>, token: &str) -> bool {
    value.is_some_and(|v| v.split([' ', ',', '\t', '\n', '\r']).any(|t| t.eq_ignore_ascii_case(token)))
}

pub(super) fn is_image_property(itemprop: &str) -> bool {
    let is_image = |property| matches!(property, "image" | "thumbnailUrl" | "contentUrl" | "thumbnail");
    itemprop.split_ascii_whitespace().any(is_image)
}

/// Returns the text on one line, cut to `MAX_TEXT` characters.
pub(super) fn to_single_line(text: &str) -> String {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > 4 * MAX_TEXT {
            break;
        }
    }
    match line.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => line[..end].to_owned(),
        None => line,
    }
}

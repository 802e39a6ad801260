//! Parses the text of a variable. Each parser also describes what is allowed.
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;

type Parse<T> = Box<dyn Fn(&str) -> Option<T>>;

pub struct Parser<T> {
    allowed: String,
    parse: Parse<T>,
    /// A word that an earlier version allowed, and what to do instead.
    removed: Option<(&'static str, &'static str)>,
}

impl<T: 'static> Parser<T> {
    fn new(allowed: impl Into<String>, parse: impl Fn(&str) -> Option<T> + 'static) -> Self {
        Self { allowed: allowed.into(), parse: Box::new(parse), removed: None }
    }

    /// Returns what is allowed, as the end of the sentence "allowed: …".
    pub fn allowed(&self) -> &str {
        &self.allowed
    }

    /// Returns the value, or `None` if the text is not allowed.
    pub fn parse(&self, text: &str) -> Option<T> {
        (self.parse)(text)
    }

    /// Remembers a word that an earlier version allowed, and what to do instead.
    #[must_use]
    pub fn without(mut self, word: &'static str, instead: &'static str) -> Self {
        self.removed = Some((word, instead));
        self
    }

    /// Returns what to do instead if an earlier version allowed the text.
    pub fn instead_of(&self, text: &str) -> Option<&'static str> {
        self.removed.filter(|(word, _)| word.eq_ignore_ascii_case(text)).map(|(_, instead)| instead)
    }

    fn map<U: 'static>(self, f: impl Fn(T) -> U + 'static) -> Parser<U> {
        let Self { allowed, parse, .. } = self;
        Parser::new(allowed, move |text| parse(text).map(&f))
    }
}

/// Parses a number within `range`; integer or decimal, depending on `T`.
pub fn number<T>(range: RangeInclusive<T>) -> Parser<T>
where
    T: FromStr + PartialOrd + Display + 'static,
{
    let allowed = format!("a number from {} to {}", range.start(), range.end());
    Parser::new(allowed, move |text| text.parse().ok().filter(|n| range.contains(n)))
}

pub fn multiple(range: RangeInclusive<u32>, step: u32) -> Parser<u32> {
    let allowed = format!("a multiple of {step} from {} to {}", range.start(), range.end());
    Parser::new(allowed, move |text| {
        text.parse().ok().filter(|n: &u32| range.contains(n) && n.is_multiple_of(step))
    })
}

/// Parses `true` or `false`, also spelled 1, yes, on or 0, no, off.
pub fn flag() -> Parser<bool> {
    Parser::new("true or false", |text| match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    })
}

/// Parses one of the given words, in any case.
pub fn choice<T: Copy + 'static>(words: &'static [(&'static str, T)]) -> Parser<T> {
    let allowed = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    Parser::new(allowed, move |text| {
        words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)).map(|(_, value)| *value)
    })
}

/// Parses any text that the type's `FromStr` accepts.
pub fn typed<T: FromStr + 'static>(allowed: &'static str) -> Parser<T> {
    Parser::new(allowed, |text| text.parse().ok())
}

/// Accepts any text.
pub fn text(allowed: &'static str) -> Parser<String> {
    typed(allowed)
}

/// Parses a URL with one of the schemes. Returns the text as written.
pub fn url(schemes: &'static [&'static str], allowed: &'static str) -> Parser<String> {
    Parser::new(allowed, move |text| {
        let url = url::Url::parse(text).ok()?;
        schemes.contains(&url.scheme()).then(|| text.to_owned())
    })
}

/// Accepts any string for which `test` returns `true`.
pub fn checked(allowed: &'static str, test: fn(&str) -> bool) -> Parser<String> {
    Parser::new(allowed, move |text| test(text).then(|| text.to_owned()))
}

/// Parses the path of a file or folder, relative to the working folder.
pub fn path() -> Parser<PathBuf> {
    Parser::new("a path", |text| Some(PathBuf::from(text)))
}

pub fn certificates() -> Parser<crawler::Roots> {
    Parser::new("a readable file with one or more certificates in PEM form", |text| {
        crawler::Roots::from_pem(&std::fs::read(text).ok()?).ok()
    })
}

pub fn optional<T: 'static>(parser: Parser<T>) -> Parser<Option<T>> {
    let mut parser = parser.map(Some);
    parser.allowed.push_str(", or unset");
    let inner = parser.parse;
    Parser::new(parser.allowed, move |text| if text.is_empty() { Some(None) } else { inner(text) })
}

/// Parses values separated by commas. An empty string is an empty list.
pub fn list<T: 'static>(item: Parser<T>, allowed: &'static str) -> Parser<Vec<T>> {
    Parser::new(allowed, move |text| {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(|part| item.parse(part)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_to_their_range() {
        let parser = number(1u16..=10);
        assert_eq!(parser.parse("10"), Some(10));
        assert_eq!(parser.parse("11"), None);
        assert_eq!(parser.parse("ten"), None);
        assert_eq!(parser.allowed(), "a number from 1 to 10");
        assert_eq!(number(0.5f64..=64.0).parse("NaN"), None);
    }

    #[test]
    fn sides_of_a_canvas_are_multiples() {
        let parser = multiple(64..=4096, 32);
        assert_eq!(parser.parse("640"), Some(640));
        assert_eq!(parser.parse("650"), None);
        assert_eq!(parser.parse("32"), None);
    }

    #[test]
    fn words_and_flags_ignore_case() {
        let parser = choice(&[("auto", 1), ("cuda", 2)]);
        assert_eq!(parser.parse("CUDA"), Some(2));
        assert_eq!(parser.parse("vulkan"), None);
        assert_eq!(parser.allowed(), "auto, cuda");
        assert_eq!(flag().parse("Yes"), Some(true));
        assert_eq!(flag().parse("maybe"), None);
    }

    #[test]
    fn lists_are_comma_separated_and_one_bad_item_spoils_them() {
        let parser = || list(number(0u32..=255), "device numbers");
        assert_eq!(parser().parse("0, 1"), Some(vec![0, 1]));
        assert_eq!(parser().parse(""), Some(vec![]));
        assert_eq!(parser().parse("0,x"), None);
    }

    #[test]
    fn unset_is_none_only_where_it_is_optional() {
        assert_eq!(optional(flag()).parse(""), Some(None));
        assert_eq!(optional(flag()).parse("true"), Some(Some(true)));
        assert_eq!(flag().parse(""), None);
    }
}

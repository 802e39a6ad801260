//! Describes, parses and reads one variable, and masks secrets. The `settings!` macro generates the
//! typed fields and the table of variables from the same lines, so that both are always complete.
use crate::config::ConfigError;
use figment::Figment;
use figment::value::Value;
use pipeline::watch::mqtt::config::Authorities;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use url::Url;

/// A variable in the form that `.env.example` and `config check` show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// The name, such as `GPU_BATCH_SIZE`.
    pub name: &'static str,
    /// Title of the variable's group.
    pub group: &'static str,
    /// The default; empty if the variable is unset by default.
    pub default: &'static str,
    /// The description, in one or more sentences.
    pub meaning: String,
    pub allowed: String,
}

impl Variable {
    /// Creates a variable. `doc` is the field's doc comment, which starts with the variable's name.
    pub(super) fn new(
        name: &'static str,
        group: &'static str,
        default: &'static str,
        doc: &str,
        allowed: &str,
    ) -> Self {
        let meaning = doc.trim().trim_start_matches(&format!("`{name}`: ")).replace('`', "");
        Self { name, group, default, meaning, allowed: allowed.into() }
    }

    /// Returns the key in `facecrawl.toml`.
    pub fn key(&self) -> String {
        self.name.to_ascii_lowercase()
    }
}

/// The current value of a variable.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ResolvedVariable {
    pub name: &'static str,
    /// The text with secrets masked, or `None` if it is unset.
    pub value: Option<String>,
    /// `default`, the file, `environment`, or the flag.
    pub source: String,
}

/// Reads variables from the merged layers and collects all errors.
pub(super) struct Reader<'a> {
    pub(super) figment: &'a Figment,
    pub(super) errors: Vec<ConfigError>,
    pub(super) resolved: Vec<ResolvedVariable>,
}

impl Reader<'_> {
    pub(super) fn read<T: 'static>(&mut self, name: &'static str, parser: &Parser<T>) -> Option<T> {
        let value = self.figment.find_value(&name.to_ascii_lowercase()).ok()?;
        let source =
            self.figment.get_metadata(value.tag()).map_or_else(|| "default".into(), |m| m.name.to_string());
        let text = as_text(&value).unwrap_or_else(|| "{…}".into());
        let masked = mask(name, &text);
        let parsed = parser.parse(text.trim());
        if parsed.is_none() {
            let (key, value, origin) = (name.into(), masked.clone(), source.clone());
            self.errors.push(match parser.replacement(text.trim()) {
                Some(replacement) => ConfigError::Removed { key, value, origin, replacement },
                None => ConfigError::Invalid { key, value, origin, allowed: parser.allowed().into() },
            });
        }
        self.resolved.push(ResolvedVariable { name, value: (!text.is_empty()).then_some(masked), source });
        parsed
    }
}

/// Returns a TOML value as text, as in an environment variable. Returns `None` for a table.
pub(super) fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(_, text) => Some(text.clone()),
        Value::Char(_, c) => Some(c.to_string()),
        Value::Bool(_, flag) => Some(flag.to_string()),
        Value::Num(_, number) => number
            .to_i128()
            .map(|n| n.to_string())
            .or_else(|| number.to_u128().map(|n| n.to_string()))
            .or_else(|| number.to_f64().map(|n| n.to_string())),
        Value::Array(_, items) => {
            items.iter().map(as_text).collect::<Option<Vec<_>>>().map(|items| items.join(","))
        }
        Value::Empty(..) => Some(String::new()),
        Value::Dict(..) => None,
    }
}

/// Declares groups of fields. The syntax of a field is `/// doc`, `name: Type = VARIABLE,
/// "default", parser;`.
macro_rules! settings {
    ($(#[doc = $settings_doc:literal])+ pub struct $Settings:ident {
        $($(#[doc = $group_doc:literal])+ $group:ident: $Group:ident($title:literal) {
            $($(#[doc = $doc:literal])+ $field:ident: $Type:ty = $NAME:ident, $default:literal, $parser:expr;)+
        })+
    }) => {
        $(#[doc = $settings_doc])+
        #[derive(Clone, Debug)]
        pub struct $Settings {
            $($(#[doc = $group_doc])+ pub $group: $Group,)+
            /// Recipes that describe the markup of sites. Only the file contains them.
            pub recipes: crawler::Recipes,
            /// The checkout from which `scripts/run` was called, if it was used.
            pub root: Option<std::path::PathBuf>,
            /// How the program was installed.
            pub installation: crate::config::Installation,
        }
        $($(#[doc = $group_doc])+
        #[derive(Clone, Debug)]
        pub struct $Group {
            $($(#[doc = $doc])+ pub $field: $Type,)+
        }
        impl $Group {
            fn read(reader: &mut Reader<'_>) -> Option<Self> {
                $(let $field = reader.read::<$Type>(stringify!($NAME), &$parser);)+
                Some(Self { $($field: $field?,)+ })
            }
        })+
        impl $Settings {
            // All groups are read before the first one can fail, so that every error is reported.
            pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
                $(let $group = $Group::read(reader);)+
                Some(Self { $($group: $group?,)+ recipes: crawler::Recipes::default(), root: None, installation: crate::config::Installation::Checkout })
            }
        }
        /// Returns every variable, in the order of the documentation.
        pub fn variables() -> Vec<Variable> {
            vec![$($({
                let parser: Parser<$Type> = $parser;
                Variable::new(stringify!($NAME), $title, $default, concat!($($doc),+), parser.allowed())
            },)+)+]
        }
    };
}
pub(super) use settings;

type Parse<T> = Box<dyn Fn(&str) -> Option<T>>;

pub(super) struct Parser<T> {
    allowed: String,
    parse: Parse<T>,
    /// A value that only an earlier version allowed, and the replacement to suggest.
    removed: Option<(&'static str, &'static str)>,
}

impl<T: 'static> Parser<T> {
    fn new(allowed: impl Into<String>, parse: impl Fn(&str) -> Option<T> + 'static) -> Self {
        Self { allowed: allowed.into(), parse: Box::new(parse), removed: None }
    }

    /// Returns the description of the allowed values, such as `a path`.
    pub(super) fn allowed(&self) -> &str {
        &self.allowed
    }

    /// Returns the value, or `None` if the text is not allowed.
    pub(super) fn parse(&self, text: &str) -> Option<T> {
        (self.parse)(text)
    }

    /// Adds a value that only an earlier version allowed, and the replacement to suggest.
    #[must_use]
    pub(super) fn with_removed_value(mut self, value: &'static str, replacement: &'static str) -> Self {
        self.removed = Some((value, replacement));
        self
    }

    /// Returns the replacement to suggest if only an earlier version allowed the text.
    pub(super) fn replacement(&self, text: &str) -> Option<&'static str> {
        self.removed.filter(|(value, _)| value.eq_ignore_ascii_case(text)).map(|(_, replacement)| replacement)
    }

    fn map<U: 'static>(self, f: impl Fn(T) -> U + 'static) -> Parser<U> {
        let Self { allowed, parse, .. } = self;
        Parser::new(allowed, move |text| parse(text).map(&f))
    }
}

/// Parses a number within `range`; integer or decimal, depending on `T`.
pub(super) fn number<T>(range: RangeInclusive<T>) -> Parser<T>
where
    T: FromStr + PartialOrd + Display + 'static,
{
    let allowed = format!("a number from {} to {}", range.start(), range.end());
    Parser::new(allowed, move |text| text.parse().ok().filter(|n| range.contains(n)))
}

pub(super) fn multiple(range: RangeInclusive<u32>, step: u32) -> Parser<u32> {
    let allowed = format!("a multiple of {step} from {} to {}", range.start(), range.end());
    Parser::new(allowed, move |text| {
        text.parse().ok().filter(|n: &u32| range.contains(n) && n.is_multiple_of(step))
    })
}

/// Parses `true` or `false`, also spelled 1, yes, on or 0, no, off.
pub(super) fn flag() -> Parser<bool> {
    Parser::new("true or false", |text| match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    })
}

/// Parses one of the given words, in any case.
pub(super) fn choice<T: Copy + 'static>(words: &'static [(&'static str, T)]) -> Parser<T> {
    let allowed = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    Parser::new(allowed, move |text| {
        words.iter().find(|(word, _)| word.eq_ignore_ascii_case(text)).map(|(_, value)| *value)
    })
}

/// Parses any text that the type's `FromStr` accepts.
pub(super) fn typed<T: FromStr + 'static>(allowed: &'static str) -> Parser<T> {
    Parser::new(allowed, |text| text.parse().ok())
}

pub(super) fn text(allowed: &'static str) -> Parser<String> {
    typed(allowed)
}

/// Parses a URL with one of the schemes. Returns the text as written.
pub(super) fn url(schemes: &'static [&'static str], allowed: &'static str) -> Parser<String> {
    Parser::new(allowed, move |text| {
        let url = url::Url::parse(text).ok()?;
        schemes.contains(&url.scheme()).then(|| text.to_owned())
    })
}

/// Accepts any string for which `is_valid` returns `true`.
pub(super) fn checked(allowed: &'static str, is_valid: fn(&str) -> bool) -> Parser<String> {
    Parser::new(allowed, move |text| is_valid(text).then(|| text.to_owned()))
}

/// Parses the path of a file or folder, relative to the working folder.
pub(super) fn path() -> Parser<PathBuf> {
    Parser::new("a path", |text| Some(PathBuf::from(text)))
}

pub(super) fn certificates() -> Parser<crawler::Roots> {
    Parser::new("a readable file with one or more certificates in PEM form", |text| {
        crawler::Roots::from_pem(&std::fs::read(text).ok()?).ok()
    })
}

/// Reads a file of certificates like [`certificates`], for connections that are not HTTP.
pub(super) fn authorities() -> Parser<Authorities> {
    Parser::new("a readable file with one or more certificates in PEM form", |text| {
        Authorities::from_pem(&std::fs::read(text).ok()?)
    })
}

/// Word that stands for an empty list, and for no value where there is a default.
const NONE: &str = "none";

/// Parses names of collections, separated by commas. The word `none` is an empty list.
pub(super) fn collections() -> Parser<Vec<String>> {
    Parser::new("names of collections, comma-separated, or none", |text| match text {
        NONE => Some(Vec::new()),
        _ => {
            let names: Vec<String> =
                text.split(',').map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
            (!names.is_empty() && !names.iter().any(|name| name == NONE)).then_some(names)
        }
    })
}

/// Parses a value, or the word `none`.
pub(super) fn or_none<T: 'static>(parser: Parser<T>) -> Parser<Option<T>> {
    let allowed = format!("{}, or {NONE}", parser.allowed);
    let inner = parser.parse;
    Parser::new(allowed, move |text| if text == NONE { Some(None) } else { inner(text).map(Some) })
}

pub(super) fn optional<T: 'static>(parser: Parser<T>) -> Parser<Option<T>> {
    let mut parser = parser.map(Some);
    parser.allowed.push_str(", or unset");
    let inner = parser.parse;
    Parser::new(parser.allowed, move |text| if text.is_empty() { Some(None) } else { inner(text) })
}

/// Parses values separated by commas. An empty string is an empty list.
pub(super) fn list<T: 'static>(item: Parser<T>, allowed: &'static str) -> Parser<Vec<T>> {
    Parser::new(allowed, move |text| {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(|part| item.parse(part)).collect()
    })
}

const MASK: &str = "***";

/// Variables whose whole value is secret.
const SECRETS: [&str; 7] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "MQTT_PASSWORD",
    "QDRANT_API_KEY",
    "SUPPRESSION_SECRET",
    "WEBHOOK_SECRET",
];

/// Returns the value of `name` for display. Secret values, and passwords and keys inside URLs, are
/// replaced with `***`.
fn mask(name: &str, value: &str) -> String {
    if value.is_empty() {
        return String::new();
    }
    if SECRETS.contains(&name) {
        return MASK.into();
    }
    if !value.contains("://") {
        return value.into();
    }
    mask_url(value)
}

/// Returns a URL without its password and without the values of query parameters whose names
/// suggest a secret.
pub fn mask_url(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else {
        // The text is not a URL, but it may be a mistyped one that contains a password.
        return match (text.find("://"), text.rfind('@')) {
            (Some(scheme), Some(at)) if scheme < at => {
                format!("{}{MASK}{}", &text[..scheme + 3], &text[at..])
            }
            _ => text.into(),
        };
    };
    let is_secret_parameter = |key: &str| {
        let key = key.to_ascii_lowercase();
        ["password", "secret", "token", "key", "signature"].iter().any(|word| key.contains(word))
    };
    let mut changed = false;
    if url.password().is_some() {
        changed |= url.set_password(Some(MASK)).is_ok();
    }
    if url.query_pairs().any(|(key, _)| is_secret_parameter(&key)) {
        let pairs: Vec<(String, String)> = url.query_pairs().into_owned().collect();
        url.query_pairs_mut().clear().extend_pairs(pairs.iter().map(|(key, value)| {
            (key.as_str(), if is_secret_parameter(key) { MASK } else { value.as_str() })
        }));
        changed = true;
    }
    if changed { url.to_string() } else { text.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_parser_rejects_values_out_of_range() {
        let parser = number(1u16..=10);
        assert_eq!(parser.parse("10"), Some(10));
        assert_eq!(parser.parse("11"), None);
        assert_eq!(parser.parse("ten"), None);
        assert_eq!(parser.allowed(), "a number from 1 to 10");
        assert_eq!(number(0.5f64..=64.0).parse("NaN"), None);
    }

    #[test]
    fn multiple_parser_requires_multiple_within_range() {
        let parser = multiple(64..=4096, 32);
        assert_eq!(parser.parse("640"), Some(640));
        assert_eq!(parser.parse("650"), None);
        assert_eq!(parser.parse("32"), None);
    }

    #[test]
    fn choice_and_flag_parsers_ignore_case() {
        let parser = choice(&[("auto", 1), ("cuda", 2)]);
        assert_eq!(parser.parse("CUDA"), Some(2));
        assert_eq!(parser.parse("vulkan"), None);
        assert_eq!(parser.allowed(), "auto, cuda");
        assert_eq!(flag().parse("Yes"), Some(true));
        assert_eq!(flag().parse("maybe"), None);
    }

    #[test]
    fn list_parser_rejects_list_with_invalid_item() {
        let parser = || list(number(0u32..=255), "device numbers");
        assert_eq!(parser().parse("0, 1"), Some(vec![0, 1]));
        assert_eq!(parser().parse(""), Some(vec![]));
        assert_eq!(parser().parse("0,x"), None);
    }

    #[test]
    fn only_optional_parser_accepts_empty_value() {
        assert_eq!(optional(flag()).parse(""), Some(None));
        assert_eq!(optional(flag()).parse("true"), Some(Some(true)));
        assert_eq!(flag().parse(""), None);
    }

    #[test]
    fn none_stands_for_empty_list_and_no_value() {
        assert_eq!(collections().parse("none"), Some(vec![]));
        assert_eq!(collections().parse("home, garden"), Some(vec!["home".to_owned(), "garden".to_owned()]));
        for text in ["", ",", "home,none"] {
            assert_eq!(collections().parse(text), None, "{text}");
        }
        assert_eq!(or_none(number(1u8..=9)).parse("none"), Some(None));
        assert_eq!(or_none(number(1u8..=9)).parse("2"), Some(Some(2)));
        assert_eq!(or_none(number(1u8..=9)).parse("10"), None);
    }

    #[test]
    fn masks_only_secrets_in_values() {
        for (value, masked) in [
            ("postgres://u:p4ss@db:5432/faces", "postgres://u:***@db:5432/faces"),
            (
                "postgres://u@db/faces?password=p4ss&host=/run",
                "postgres://u@db/faces?password=***&host=%2Frun",
            ),
            ("s3://bucket/prefix", "s3://bucket/prefix"),
            ("postgres://u:p4ss@db:99999/faces", "postgres://***@db:99999/faces"),
            ("mqtt://u:p4ss@broker", "mqtt://u:***@broker"),
            ("compact", "compact"),
            ("", ""),
        ] {
            assert_eq!(mask("DATABASE_URL", value), masked);
        }
        assert_eq!(mask("AWS_SECRET_ACCESS_KEY", "abc"), "***");
        assert_eq!(mask("AWS_SECRET_ACCESS_KEY", ""), "");
    }
}

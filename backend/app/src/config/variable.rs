//! Describes the name, the default, the meaning and the allowed values of one variable. The
//! `settings!` macro generates the typed fields and the table of variables from the same lines, so
//! that both are always complete.
use super::error::ConfigError;
use super::parse::Parser;
use figment::Figment;
use figment::value::Value;

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
pub struct Resolved {
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
    pub(super) resolved: Vec<Resolved>,
}

impl Reader<'_> {
    pub(super) fn read<T: 'static>(&mut self, name: &'static str, parser: &Parser<T>) -> Option<T> {
        let value = self.figment.find_value(&name.to_ascii_lowercase()).ok()?;
        let source =
            self.figment.get_metadata(value.tag()).map_or_else(|| "default".into(), |m| m.name.to_string());
        let text = as_text(&value).unwrap_or_else(|| "{…}".into());
        let shown = super::mask::mask(name, &text);
        let parsed = parser.parse(text.trim());
        if parsed.is_none() {
            let (key, value, origin) = (name.into(), shown.clone(), source.clone());
            self.errors.push(match parser.instead_of(text.trim()) {
                Some(instead) => ConfigError::Removed { key, value, origin, instead },
                None => ConfigError::Invalid { key, value, origin, allowed: parser.allowed().into() },
            });
        }
        self.resolved.push(Resolved { name, value: (!text.is_empty()).then_some(shown), source });
        parsed
    }
}

/// Returns a TOML number, flag or array in the spelling of an environment variable.
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
                Some(Self { $($group: $group?,)+ recipes: crawler::Recipes::default(), root: None })
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

//! Defines the errors of a configuration. All of them are reported together.
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("{key}={value} (from {origin}) is not allowed; allowed: {allowed}")]
    Invalid {
        key: String,
        /// The value as given, with secrets masked.
        value: String,
        /// The layer that contains the value.
        origin: String,
        allowed: String,
    },
    #[error("{key}={value} (from {origin}) is no longer supported; {instead}")]
    Removed {
        key: String,
        /// The value as given, with secrets masked.
        value: String,
        origin: String,
        instead: &'static str,
    },
    #[error("unknown key `{key}` in {origin}; {hint}")]
    Unknown {
        /// The key as written.
        key: String,
        /// The file or flag that contains it.
        origin: String,
        /// The most similar name, or a reference to the list of names.
        hint: String,
    },
    #[error("{0}")]
    Contradiction(String),
    #[error("cannot read {file}: {reason}")]
    File { file: String, reason: String },
}

/// All errors that were found. The list is never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => write!(f, "the configuration has an error: {one}"),
            many => {
                write!(f, "the configuration has {} errors:", many.len())?;
                many.iter().try_for_each(|error| write!(f, "\n  - {error}"))
            }
        }
    }
}

impl std::error::Error for ConfigErrors {}

impl From<ConfigError> for ConfigErrors {
    fn from(error: ConfigError) -> Self {
        Self(vec![error])
    }
}

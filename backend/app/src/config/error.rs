//! What can be wrong with a configuration. All mistakes are reported at once.
use std::fmt;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A value that is not allowed.
    #[error("{key}={value} (from {origin}) is not allowed; allowed: {allowed}")]
    Invalid {
        /// The variable.
        key: String,
        /// As it was given, secrets masked.
        value: String,
        /// The layer it came from.
        origin: String,
        /// What is allowed.
        allowed: String,
    },
    /// A key that no variable has.
    #[error("unknown key `{key}` in {origin}; {hint}")]
    Unknown {
        /// As it was written.
        key: String,
        /// The file or flag.
        origin: String,
        /// The nearest name, or where the names are listed.
        hint: String,
    },
    /// Values that cannot hold together.
    #[error("{0}")]
    Contradiction(String),
    /// A file that cannot be read.
    #[error("cannot read {file}: {reason}")]
    File {
        /// Which.
        file: String,
        /// Why.
        reason: String,
    },
}

/// Every mistake that was found; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_slice() {
            [one] => write!(f, "the configuration has a mistake: {one}"),
            many => {
                write!(f, "the configuration has {} mistakes:", many.len())?;
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

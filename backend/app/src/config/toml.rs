//! Implements figment's format trait for TOML with the parser that the rest of the workspace uses.
use figment::providers::Format;
use serde::de::DeserializeOwned;

pub(super) struct Toml;

impl Format for Toml {
    type Error = ::toml::de::Error;
    const NAME: &'static str = "TOML";

    fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Self::Error> {
        ::toml::from_str(text)
    }
}

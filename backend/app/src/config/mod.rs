//! Loads the configuration. No other module reads the environment for settings.
//!
//! The layers, lowest first, are the defaults, `facecrawl.toml`, `.env`, the environment and the
//! flags. Unknown keys in the file, values that are not allowed, and contradictions are errors.
//! Each error names the key, the value, its source and what is allowed. All errors are reported
//! together.

mod contradictions;
mod convert;
mod environment;
mod error;
mod example;
mod layers;
mod library;
pub mod mask;
mod memory;
mod otlp;
pub mod parse;
mod performance;
mod recipes;
mod settings;
mod toml;
mod variable;

pub use convert::{DATABASE, cores};
pub use environment::restart_with_library_settings;
pub use error::{ConfigError, ConfigErrors};
pub use example::env_example;
pub use layers::{Flag, Sources};
pub use memory::MemoryLimit;
pub use otlp::Otlp;
pub use settings::{
    Crawl, Detection, Gpu, Log, LogFormat, Models, SearchIndex, Service, Settings, Storage, Tensorrt,
    variables,
};
pub use variable::{Resolved, Variable};

/// The settings, and the source of each value.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub settings: Settings,
    /// Every variable as text, with secrets masked, in the order of the documentation.
    pub resolved: Vec<Resolved>,
}

/// Reads, checks and converts every variable.
///
/// # Errors
/// Returns all errors in the configuration.
pub fn load(sources: &Sources) -> Result<Loaded, ConfigErrors> {
    let figment = layers::merge(sources, &variables())?;
    let mut reader = variable::Reader { figment: &figment, errors: Vec::new(), resolved: Vec::new() };
    let settings = Settings::read(&mut reader);
    let variable::Reader { errors, resolved, .. } = reader;
    let Some(mut settings) = settings else { return Err(ConfigErrors(errors)) };
    settings.recipes = recipes::read(sources)?;
    settings.root = sources.root();
    let resolved = library::show(&settings, performance::show(&settings, resolved));
    let loaded = Loaded { settings, resolved };
    let contradictions = contradictions::find(&loaded);
    if contradictions.is_empty() { Ok(loaded) } else { Err(ConfigErrors(contradictions)) }
}

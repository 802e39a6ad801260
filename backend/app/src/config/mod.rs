//! Loads the configuration. No other module reads the environment for settings.
//!
//! The layers, lowest first, are the defaults, `facecrawl.toml`, `.env`, the environment and the
//! flags. Unknown keys in the file, values that are not allowed, and contradictions are errors.
//! Each error names the key, the value, its source and the allowed values. All errors are reported
//! together.

mod contradictions;
mod convert;
mod environment;
mod layers;
mod packages;
mod resources;
mod settings;
mod streams;
mod variable;

pub use convert::DATABASE;
pub use environment::{Otlp, restart_with_library_settings};
pub use layers::{Flag, Sources};
pub use packages::{Installation, PythonPackages};
pub use resources::{MemoryLimit, cores};
pub use settings::{
    Crawl, Detection, Gpu, Log, LogFormat, Models, SearchIndex, Service, Settings, Storage, Tensorrt,
    variables,
};
pub use streams::{StreamsError, read_streams};
pub use variable::{ResolvedVariable, Variable, mask_url};

use std::fmt;

/// The settings, and the source of each value.
#[derive(Clone, Debug)]
pub struct LoadedConfig {
    pub settings: Settings,
    /// Every variable as text, with secrets masked, in the order of the documentation.
    pub resolved: Vec<ResolvedVariable>,
}

impl LoadedConfig {
    pub fn source(&self, name: &str) -> &str {
        self.resolved.iter().find(|resolved| resolved.name == name).map_or("default", |r| r.source.as_str())
    }

    /// Returns the current value of a variable as text with secrets masked, or `None` if it is
    /// unset.
    pub fn value(&self, name: &str) -> Option<&str> {
        self.resolved.iter().find(|resolved| resolved.name == name)?.value.as_deref()
    }

    /// Returns whether a variable is set in any layer.
    pub fn is_set(&self, name: &str) -> bool {
        self.source(name) != "default"
    }
}

/// Reads, checks and converts every variable.
///
/// # Errors
/// Returns all errors in the configuration.
pub fn load(sources: &Sources) -> Result<LoadedConfig, ConfigErrors> {
    let figment = layers::merge(sources, &variables())?;
    let mut reader = variable::Reader { figment: &figment, errors: Vec::new(), resolved: Vec::new() };
    let settings = Settings::read(&mut reader);
    let variable::Reader { errors, resolved, .. } = reader;
    let Some(mut settings) = settings else { return Err(ConfigErrors(errors)) };
    settings.recipes = layers::read_recipes(sources)?;
    settings.root = sources.root();
    settings.installation = Installation::of_process(sources.packages.is_some());
    let resolved = resources::fill_in_library(&settings, resources::fill_in_performance(&settings, resolved));
    let loaded = LoadedConfig { settings, resolved };
    let contradictions = contradictions::find(&loaded);
    if contradictions.is_empty() { Ok(loaded) } else { Err(ConfigErrors(contradictions)) }
}

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
    #[error("{key}={value} (from {origin}) is no longer supported; {replacement}")]
    Removed {
        key: String,
        /// The value as given, with secrets masked.
        value: String,
        origin: String,
        replacement: &'static str,
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

const LINE_WIDTH: usize = 110;

/// Variables that only docker-compose.yml reads: name, default, meaning.
const CONTAINER_VARIABLES: &[(&str, &str, &str)] = &[
    ("POSTGRES_PASSWORD", "facecrawl", "Password of the database. Only the containers can connect to it."),
    (
        "POSTGRES_SHARED_BUFFERS",
        "1GB",
        "Memory for the database's own cache: an eighth to a quarter of the machine's memory.",
    ),
    ("GPU_PORT", "8081", "Port of backend-gpu on this machine's loopback address."),
    ("ROCM_PORT", "8082", "Port of backend-rocm on this machine's loopback address."),
    ("WEBGPU_PORT", "8083", "Port of backend-webgpu on this machine's loopback address."),
    ("VIDEO_GID", "44", "Numeric id of the host's group video, for backend-rocm and backend-webgpu."),
    ("RENDER_GID", "109", "Numeric id of the host's group render, for backend-rocm and backend-webgpu."),
    ("PROMETHEUS_PORT", "9090", "Port of Prometheus on this machine's loopback address."),
    ("GRAFANA_PORT", "3000", "Port of Grafana on this machine's loopback address."),
    ("GRAFANA_PASSWORD", "facecrawl", "Initial password of Grafana's user admin."),
];

/// Returns `.env.example`: each variable with its meaning, its allowed values and its default.
pub fn env_example() -> String {
    let mut text = String::from(
        "# Configuration of facecrawl. Copy this file to .env and change what you need. Every line is optional.\n\
         # Later sources override earlier ones: defaults, facecrawl.toml (the same names in lower case), .env,\n\
         # the environment, flags. `facecrawl config check` prints every value and its source.\n",
    );
    let mut group = "";
    for variable in variables() {
        if variable.group != group {
            group = variable.group;
            text.push_str(&format!("\n# ---- {group} ----\n"));
        }
        text.push('\n');
        for line in wrap(&format!("{} Allowed: {}.", variable.meaning, variable.allowed)) {
            text.push_str(&format!("# {line}\n"));
        }
        text.push_str(&format!("#{}={}\n", variable.name, variable.default));
    }
    text.push_str("\n# ---- Containers (only docker-compose.yml reads these) ----\n");
    for (name, default, meaning) in CONTAINER_VARIABLES {
        text.push_str(&format!("\n# {meaning}\n#{name}={default}\n"));
    }
    text
}

fn wrap(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.len() - 1;
        if lines[last].is_empty() {
            lines[last].push_str(word);
        } else if lines[last].len() + 1 + word.len() <= LINE_WIDTH - 2 {
            lines[last].push(' ');
            lines[last].push_str(word);
        } else {
            lines.push(word.into());
        }
    }
    lines
}

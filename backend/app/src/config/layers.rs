//! Merges the layers of the configuration, lowest first: defaults, Python packages,
//! `facecrawl.toml`, `.env`, the environment, flags. Also reads the `[[recipe]]` tables of the
//! file, which no variable can set.
use super::packages::PythonPackages;
use super::variable::{Variable, as_text};
use crate::config::{ConfigError, ConfigErrors};
use crawler::{Recipe, Recipes};
use figment::providers::Format;
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::de::DeserializeOwned;
use std::path::PathBuf;

#[derive(Clone, Debug)]
pub struct Flag {
    /// The flag as typed: `--port`.
    pub flag: String,
    pub variable: String,
    pub value: String,
}

/// Variable that contains the folder to which the default paths are relative. `scripts/run` sets
/// it, because it can be called from any folder.
const ROOT_VARIABLE: &str = "FACECRAWL_ROOT";

#[derive(Clone, Debug)]
pub struct Sources {
    pub file: PathBuf,
    /// Whether the file must exist, because the user specified it.
    pub file_required: bool,
    /// The `.env` file, which may be absent.
    pub dotenv: PathBuf,
    /// The process environment. Names that are not variables are ignored.
    pub environment: Vec<(String, String)>,
    pub flags: Vec<Flag>,
    /// The Python environment of a program that pip installed.
    pub packages: Option<PythonPackages>,
}

impl Sources {
    /// Returns the files of the working folder (or of `FACECRAWL_ROOT`), the process environment,
    /// and `flags`.
    pub fn from_process(file: Option<PathBuf>, flags: Vec<Flag>) -> Self {
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        let root = std::env::var_os(ROOT_VARIABLE).map(PathBuf::from).unwrap_or_default();
        Self {
            file_required: file.is_some(),
            file: file.unwrap_or_else(|| root.join("facecrawl.toml")),
            dotenv: root.join(".env"),
            environment: std::env::vars_os().map(|(name, value)| (lossy(name), lossy(value))).collect(),
            flags,
            packages: PythonPackages::of_process(),
        }
    }

    /// Returns the value of `FACECRAWL_ROOT`.
    pub(super) fn root(&self) -> Option<PathBuf> {
        self.variable(ROOT_VARIABLE).map(PathBuf::from)
    }

    /// Returns a value of the environment that is not empty.
    fn variable(&self, name: &str) -> Option<String> {
        let found = self.environment.iter().find(|(known, value)| known == name && !value.is_empty());
        found.map(|(_, value)| value.clone())
    }
}

struct Layer {
    name: String,
    values: Dict,
}

impl Layer {
    /// Creates a layer. Empty values are treated as unset and are omitted.
    fn new(name: impl Into<String>, values: impl IntoIterator<Item = (String, Value)>) -> Self {
        let values =
            values.into_iter().filter(|(_, value)| as_text(value).is_none_or(|text| !text.trim().is_empty()));
        Self { name: name.into(), values: values.collect() }
    }
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }
    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}

/// Merges all layers. Fails on unknown keys in the file or on the command line, and on files that
/// cannot be read.
pub(super) fn merge(sources: &Sources, variables: &[Variable]) -> Result<Figment, ConfigErrors> {
    let mut errors = Vec::new();
    let defaults =
        variables.iter().map(|variable| (variable.key(), Value::from(variable.default))).collect::<Dict>();
    let mut figment = Figment::from(Layer { name: "default".into(), values: defaults });

    if let Some(packages) = &sources.packages {
        let values = packages.values(|name| sources.variable(name));
        figment = figment.merge(Layer::new("Python packages", known_values(variables, &values)));
    }
    figment = figment.merge(root_layer(sources, variables));
    match file_layer(sources, variables) {
        Ok(layer) => figment = figment.merge(layer),
        Err(mut invalid) => errors.append(&mut invalid),
    }
    match dotenv_layer(sources, variables) {
        Ok(layer) => figment = figment.merge(layer),
        Err(invalid) => errors.push(invalid),
    }
    figment = figment.merge(Layer::new("environment", known_values(variables, &sources.environment)));
    for flag in &sources.flags {
        match variables.iter().find(|variable| variable.name.eq_ignore_ascii_case(&flag.variable)) {
            Some(variable) => {
                let value = (variable.key(), Value::from(flag.value.as_str()));
                figment = figment.merge(Layer::new(flag.flag.as_str(), [value]));
            }
            None => errors.push(unknown_key_error(&flag.variable, &flag.flag, variables)),
        }
    }
    if errors.is_empty() { Ok(figment) } else { Err(ConfigErrors(errors)) }
}

/// Returns the default paths inside `FACECRAWL_ROOT`. The layer is empty if it is not set.
fn root_layer(sources: &Sources, variables: &[Variable]) -> Layer {
    let Some(root) = sources.root() else { return Layer::new(ROOT_VARIABLE, []) };
    let path_in_root = |name: &str, folder: &str| (name.to_owned(), root.join(folder).display().to_string());
    let mut pairs = vec![path_in_root("DATA_DIR", "data"), path_in_root("MODELS_DIR", "models")];
    if root.join("../shared/models").is_dir() {
        pairs.push(path_in_root("FACE_MODEL_MIRROR", "../shared/models"));
    }
    // If the program is outside the checkout, its parent folders do not contain `.runtime`.
    if root.join(".runtime/postgres/bin").exists() {
        pairs.push(path_in_root("POSTGRES_BIN_DIR", ".runtime/postgres/bin"));
    }
    Layer::new(ROOT_VARIABLE, known_values(variables, &pairs))
}

/// Returns the pairs whose key is a variable, with the variable's key.
fn known_values(variables: &[Variable], pairs: &[(String, String)]) -> Vec<(String, Value)> {
    let find = |name: &str| variables.iter().find(|variable| variable.name == name);
    pairs
        .iter()
        .filter_map(|(name, value)| find(name).map(|variable| (variable.key(), Value::from(value.as_str()))))
        .collect()
}

fn file_layer(sources: &Sources, variables: &[Variable]) -> Result<Layer, Vec<ConfigError>> {
    let name = sources.file.display().to_string();
    let to_error = |reason: String| vec![ConfigError::File { file: name.clone(), reason }];
    let text = match std::fs::read_to_string(&sources.file) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !sources.file_required => String::new(),
        Err(error) => return Err(to_error(error.to_string())),
    };
    let data = Toml::string(&text).data().map_err(|error| to_error(error.to_string().trim().to_owned()))?;
    let mut values: Dict = data.into_values().flatten().collect();
    values.remove(RECIPE_KEY);
    let unknown_keys: Vec<ConfigError> = values
        .keys()
        .filter(|key| !variables.iter().any(|variable| variable.key() == **key))
        .map(|key| unknown_key_error(key, &name, variables))
        .collect();
    if unknown_keys.is_empty() { Ok(Layer::new(name, values)) } else { Err(unknown_keys) }
}

fn dotenv_layer(sources: &Sources, variables: &[Variable]) -> Result<Layer, ConfigError> {
    let name = sources.dotenv.display().to_string();
    // The line may contain a secret, so the error does not repeat it.
    let to_error = |error: dotenvy::Error| {
        let reason = match error {
            dotenvy::Error::LineParse(_, at) => {
                format!("a line does not have the form NAME=value (at character {at})")
            }
            error => error.to_string(),
        };
        ConfigError::File { file: name.clone(), reason }
    };
    let pairs = match dotenvy::from_path_iter(&sources.dotenv) {
        Ok(pairs) => pairs.collect::<Result<Vec<_>, _>>().map_err(to_error)?,
        Err(error) if error.not_found() => Vec::new(),
        Err(error) => return Err(to_error(error)),
    };
    Ok(Layer::new(name.as_str(), known_values(variables, &pairs)))
}

fn unknown_key_error(key: &str, origin: &str, variables: &[Variable]) -> ConfigError {
    let upper = key.to_ascii_uppercase();
    let distances = variables.iter().map(|variable| (levenshtein_distance(&upper, variable.name), variable));
    let hint = match distances.min_by_key(|(distance, _)| *distance) {
        Some((0..=3, variable)) => format!("did you mean `{}`?", variable.key()),
        _ => "the keys are the variables of .env.example in lower case".into(),
    };
    ConfigError::Unknown { key: key.into(), origin: origin.into(), hint }
}

/// Computes the Levenshtein distance (Levenshtein 1966), row by row.
fn levenshtein_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

/// Key of the recipe tables in the file.
const RECIPE_KEY: &str = "recipe";

/// Reads and validates the recipes. If there is no file, there are no recipes.
pub(super) fn read_recipes(sources: &Sources) -> Result<Recipes, ConfigErrors> {
    let Ok(text) = std::fs::read_to_string(&sources.file) else { return Ok(Recipes::default()) };
    let file = Figment::from(Toml::string(&text));
    if !file.contains(RECIPE_KEY) {
        return Ok(Recipes::default());
    }
    let to_error = |reason: String| {
        ConfigErrors::from(ConfigError::File { file: sources.file.display().to_string(), reason })
    };
    let recipes: Vec<Recipe> = file.extract_inner(RECIPE_KEY).map_err(|error| {
        let form = "each is a [[recipe]] table with hosts and any of images, links and drop, which are lists of strings";
        to_error(format!("{error}; {form}"))
    })?;
    Recipes::new(&recipes).map_err(|error| to_error(error.to_string()))
}

struct Toml;

impl Format for Toml {
    type Error = ::toml::de::Error;
    const NAME: &'static str = "TOML";

    fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Self::Error> {
        ::toml::from_str(text)
    }
}

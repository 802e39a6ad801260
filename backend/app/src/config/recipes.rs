//! Reads the `[[recipe]]` tables of `facecrawl.toml`, which describe the markup of sites. Variables
//! cannot set recipes.
use super::error::{ConfigError, ConfigErrors};
use super::layers::Sources;
use super::toml::Toml;
use crawler::{Recipe, Recipes};
use figment::Figment;
use figment::providers::Format;

/// The key of the tables in the file.
pub(super) const KEY: &str = "recipe";

/// Reads and validates the recipes. If there is no file, there are no recipes.
pub(super) fn read(sources: &Sources) -> Result<Recipes, ConfigErrors> {
    let Ok(text) = std::fs::read_to_string(&sources.file) else { return Ok(Recipes::default()) };
    let file = Figment::from(Toml::string(&text));
    if !file.contains(KEY) {
        return Ok(Recipes::default());
    }
    let wrong = |reason: String| {
        ConfigErrors::from(ConfigError::File { file: sources.file.display().to_string(), reason })
    };
    let recipes: Vec<Recipe> = file.extract_inner(KEY).map_err(|error| {
        let form = "each is a [[recipe]] table with hosts and any of images, links and drop, which are lists of strings";
        wrong(format!("{error}; {form}"))
    })?;
    Recipes::new(&recipes).map_err(|error| wrong(error.to_string()))
}

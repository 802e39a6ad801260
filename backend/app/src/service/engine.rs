//! Models on disk, then in memory.
use crate::config::Settings;
use crate::models::ModelStore;
use anyhow::Context;
use inference::{Config, Engine, Manifest};

/// Fetches what is missing of the pack, loads it and warms it up.
pub async fn start_engine(settings: &Settings) -> anyhow::Result<Engine> {
    start_engine_with(settings, settings.inference()).await
}

/// The same with another configuration than the settings'.
pub async fn start_engine_with(settings: &Settings, config: Config) -> anyhow::Result<Engine> {
    let manifest = Manifest::builtin();
    let pack = manifest.pack(&settings.models.pack).context("the pack was checked with the configuration")?;
    let resolved = ModelStore::new(settings).prepare(pack).await?;
    Ok(tokio::task::spawn_blocking(move || Engine::start(&config, &resolved)).await??)
}

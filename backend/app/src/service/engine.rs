//! Models on disk, then in memory.
use crate::config::Settings;
use crate::models::ModelStore;
use anyhow::Context;
use inference::{Config, Engine, Manifest, ResolvedPack};

/// Fetches what is missing of the pack, and adds the quality model where it is installed.
pub async fn prepare_models(settings: &Settings) -> anyhow::Result<ResolvedPack> {
    let manifest = Manifest::of(&settings.models.dir).map_err(anyhow::Error::msg)?;
    let pack = manifest.pack(&settings.models.pack).context("the pack was checked with the configuration")?;
    let store = ModelStore::new(settings);
    let resolved = store.prepare(pack).await?;
    Ok(store.with_quality(resolved, &manifest).await?)
}

/// Fetches what is missing of the pack, loads it and warms it up.
pub async fn start_engine(settings: &Settings) -> anyhow::Result<Engine> {
    start_engine_with(settings, settings.inference()).await
}

/// The same with another configuration than the settings'.
pub async fn start_engine_with(settings: &Settings, config: Config) -> anyhow::Result<Engine> {
    let resolved = prepare_models(settings).await?;
    Ok(tokio::task::spawn_blocking(move || Engine::start(&config, &resolved)).await??)
}

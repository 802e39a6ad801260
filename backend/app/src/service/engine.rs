//! Installs the models and loads them into memory.
use crate::config::Settings;
use crate::models::ModelStore;
use anyhow::Context;
use inference::{Config, Engine, Manifest, ResolvedPack};

/// Fetches the missing files of the pack, and adds the quality model if it is installed.
pub async fn prepare_models(settings: &Settings) -> anyhow::Result<ResolvedPack> {
    let manifest = Manifest::load(&settings.models.dir).map_err(anyhow::Error::msg)?;
    let pack = manifest
        .pack(&settings.models.pack)
        .context("MODEL_PACK is not a pack of models.toml or packs.toml")?;
    let store = ModelStore::new(settings);
    let resolved = store.prepare(pack).await?;
    Ok(store.with_quality(resolved, &manifest).await?)
}

/// Fetches the missing files of the pack, loads the models and warms them up.
pub async fn start_engine(settings: &Settings) -> anyhow::Result<Engine> {
    start_engine_with(settings, settings.inference()).await
}

/// Works like [`start_engine`], with an inference configuration other than that of the settings.
pub async fn start_engine_with(settings: &Settings, config: Config) -> anyhow::Result<Engine> {
    let resolved = prepare_models(settings).await?;
    Ok(tokio::task::spawn_blocking(move || Engine::start(&config, &resolved)).await??)
}

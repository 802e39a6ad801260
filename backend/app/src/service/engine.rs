//! Models on disk, then in memory.
use crate::config::Settings;
use crate::models::ModelStore;
use anyhow::Context;
use inference::{Engine, Manifest};
use std::time::Instant;

/// Fetches what is missing of the pack, loads it and warms it up.
pub async fn start_engine(settings: &Settings) -> anyhow::Result<Engine> {
    let manifest = Manifest::builtin();
    let pack = manifest.pack(&settings.models.pack).context("the pack was checked with the configuration")?;
    let resolved = ModelStore::new(settings).prepare(pack).await?;
    let config = settings.inference();
    let started = Instant::now();
    let engine = tokio::task::spawn_blocking(move || Engine::start(&config, &resolved)).await??;
    tracing::info!(
        pack = pack.name,
        detector = engine.detector().name,
        embedder = engine.embedder().name,
        seconds = started.elapsed().as_secs_f64(),
        "models ready"
    );
    Ok(engine)
}

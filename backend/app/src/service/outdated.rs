//! Warns the operator when the embedding model has changed.
use super::Foundation;
use crate::config::{LogFormat, Settings};
use store::StoreError;

impl Foundation {
    /// Reports how many stored faces have embeddings of another model than the current one, and
    /// what to do. Search does not find those faces.
    pub async fn warn_about_outdated_faces(&self, settings: &Settings) -> Result<(), StoreError> {
        let others = self.store().faces_of_other_models(self.ingest.model_id()).await?;
        let faces: i64 = others.iter().map(|(_, faces)| faces).sum();
        if faces == 0 {
            return Ok(());
        }
        let models: Vec<&str> = others.iter().map(|(name, _)| name.as_str()).collect();
        let (models, model) = (models.join(", "), &self.analyzer.engine().embedder().name);
        tracing::warn!(faces, models, model, "stored faces have embeddings of another model; reembed them");
        if settings.log.format == LogFormat::Text {
            eprintln!(
                "{faces} stored faces have embeddings of another model ({models}); search does not find them.\n\
                 Run `facecrawl reembed` (./scripts/run reembed) to recompute their embeddings with {model},\n\
                 or set MODEL_PACK to the previous pack."
            );
        }
        Ok(())
    }
}

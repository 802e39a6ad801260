//! Recomputes embeddings from the stored chips for the current model, without another detection.

use crate::AnalyzeError;
use crate::images::face_store::{FaceStore, IngestError};
use bytes::Bytes;
use futures::StreamExt;
use inference::{Embedding, Priority};
use store::StoreError;
use store::faces::models::OutdatedFace;
use store::index::EmbeddingModel;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Number of faces whose embeddings are replaced in one transaction. If the process is killed, at
/// most this many embeddings are computed twice.
const BATCH: i64 = 256;
/// Number of chips that are processed concurrently. It suffices to fill a batch of the embedder.
const IN_FLIGHT: usize = 32;

/// A face that keeps an embedding of a different model.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NotReembedded {
    pub face_id: Uuid,
    /// Name of the model that computed its embedding.
    pub model: String,
    /// `no_chip`: no chip was stored. `chip_missing`: the blob store does not contain the chip.
    /// `chip_unreadable`: the chip cannot be decoded. `no_embedding`: no embedding could be
    /// computed for this face.
    pub reason: &'static str,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct ReembedResult {
    /// Number of faces whose embedding was replaced with one of the current model.
    pub done: u64,
    /// Faces whose embedding could not be recomputed.
    pub left: Vec<NotReembedded>,
}

/// Recomputes those embeddings of the collection's faces that a different model computed. Each
/// batch is one transaction, and finished faces are not processed again. The call can be
/// stopped or killed at any time and started again. `progress` is called after every batch.
///
/// # Errors
/// Fails if the store or the engine fails. Finished batches are kept.
pub async fn reembed(
    faces: &FaceStore,
    collection: Uuid,
    stop: &CancellationToken,
    mut progress: impl FnMut(&ReembedResult),
) -> Result<ReembedResult, IngestError> {
    let FaceStore { store, model_id, .. } = faces;
    let model = store.models().get(*model_id).await?;
    let mut total = ReembedResult::default();
    let mut after = Uuid::nil();
    while !stop.is_cancelled() {
        let batch = store.models().outdated_faces(collection, model.id, after, BATCH).await?;
        let Some(last) = batch.last() else { break };
        after = last.id;
        reembed_batch(faces, &model, batch, &mut total).await?;
        progress(&total);
    }
    Ok(total)
}

async fn reembed_batch(
    faces: &FaceStore,
    model: &EmbeddingModel,
    batch: Vec<OutdatedFace>,
    all: &mut ReembedResult,
) -> Result<(), IngestError> {
    let mut work = futures::stream::iter(batch)
        .map(|face| async move { (embed_chip(faces, &face).await, face) })
        .buffered(IN_FLIGHT);
    let mut embeddings = Vec::new();
    while let Some((embedded, face)) = work.next().await {
        match embedded? {
            Ok(embedding) => embeddings.push((face.id, embedding.as_slice().to_vec())),
            Err(reason) => all.left.push(NotReembedded { face_id: face.id, model: face.model, reason }),
        }
    }
    all.done += faces.store.models().replace_embeddings(model, &embeddings).await?;
    Ok(())
}

/// Returns an inner error if only this face fails, and an outer error that ends the call.
async fn embed_chip(
    faces: &FaceStore,
    face: &OutdatedFace,
) -> Result<Result<Embedding, &'static str>, IngestError> {
    let FaceStore { analyzer, blobs, .. } = faces;
    let Some(chip) = face.parts.chip() else { return Ok(Err("no_chip")) };
    let bytes = match blobs.get_part(&chip).await {
        Ok(Some(bytes)) => bytes,
        Ok(None) => match read_moved_chip(faces, face.id).await? {
            Some(bytes) => bytes,
            None => return Ok(Err("chip_missing")),
        },
        Err(StoreError::Invalid(_)) => return Ok(Err("no_chip")),
        Err(error) => return Err(error.into()),
    };
    let chip = match analyzer.decode(bytes, Priority::Background).await {
        Ok(image) => image.frame,
        Err(AnalyzeError::Decode(_) | AnalyzeError::Panicked) => return Ok(Err("chip_unreadable")),
        Err(error) => return Err(error.into()),
    };
    match analyzer.engine().embed(chip, Priority::Background).await {
        Ok(timed) => Ok(Ok(timed.output)),
        Err(error) if error.is_empty_output() => Ok(Err("no_embedding")),
        Err(error) => Err(AnalyzeError::from(error).into()),
    }
}

/// Reads the chip of a face whose blob was missing. Its files may have been written to a new blob
/// after the face was read, because another face of the image was deleted.
async fn read_moved_chip(faces: &FaceStore, id: Uuid) -> Result<Option<Bytes>, IngestError> {
    let chip = match faces.store.faces().get(id).await {
        Ok(face) => face.parts.chip(),
        Err(StoreError::NotFound { .. }) => None,
        Err(error) => return Err(error.into()),
    };
    match chip {
        Some(chip) => Ok(faces.blobs.get_part(&chip).await?),
        None => Ok(None),
    }
}

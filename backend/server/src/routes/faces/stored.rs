//! Defines a stored face with the places where its image was found.
use crate::routes::dto::{BoundingBox, FirstSources, ImageSources, Quality, Source, points};
use crate::{ApiError, AppState};
use serde::Serialize;
use std::collections::HashMap;
use store::faces::Face;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// A stored face.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct StoredFace {
    /// Its id.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b03")]
    pub(crate) id: Uuid,
    /// The collection of the face.
    #[schema(example = "default")]
    pub(crate) collection: String,
    /// The image it was found in.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b02")]
    pub(crate) image_id: Uuid,
    /// The box around the face.
    pub(crate) bbox: BoundingBox,
    /// The detector's confidence, 0 to 1.
    #[schema(example = 0.93)]
    pub(crate) det_score: f32,
    /// x and y of the right eye, left eye, nose tip, and right and left mouth corner. Left and
    /// right are those of the subject.
    #[schema(example = json!([[188.1, 202.1], [270.7, 198.8], [233.4, 248.9], [200.3, 290.9], [267.4, 286.9]]))]
    pub(crate) landmarks: Vec<[f32; 2]>,
    /// Quality of the face; null if it was not assessed.
    pub(crate) quality: Option<Quality>,
    /// The model of its embedding.
    #[schema(example = "sface")]
    pub(crate) embedding_model: String,
    /// The first places where its image was found.
    #[schema(value_type = Vec<Source>)]
    pub(crate) sources: FirstSources,
    /// Number of places where it was found. Counting stops at 1,000.
    #[schema(example = 1)]
    pub(crate) sources_total: i64,
    /// Whether `sources` is incomplete; `GET /images/{id}/sources` lists all places.
    #[schema(example = false)]
    pub(crate) sources_cut: bool,
    /// Time at which it was stored.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) created_at: OffsetDateTime,
}

impl StoredFace {
    pub(crate) fn new(face: Face, sources: FirstSources) -> Self {
        Self {
            id: face.id,
            collection: face.collection,
            image_id: face.image_id,
            bbox: BoundingBox::from_slice(&face.bbox),
            det_score: face.det_score,
            landmarks: points(&face.landmarks),
            quality: Quality::from_stored(face.quality),
            embedding_model: face.embedding_model,
            sources_total: sources.total,
            sources_cut: sources.is_truncated(),
            sources,
            created_at: face.created_at,
        }
    }
}

/// Adds the sources of all images in one query.
pub(crate) async fn with_sources(state: &AppState, faces: Vec<Face>) -> Result<Vec<StoredFace>, ApiError> {
    let images: Vec<Uuid> = faces.iter().map(|face| face.image_id).collect();
    let sources = sources_by_image(state, images).await?;
    let lists = faces.len();
    let found =
        |face: &Face| sources.get(&face.image_id).map(|sources| sources.first(lists)).unwrap_or_default();
    Ok(faces
        .into_iter()
        .map(|face| {
            let found = found(&face);
            StoredFace::new(face, found)
        })
        .collect())
}

/// Returns the places where several images were found, by image.
pub(crate) async fn sources_by_image(
    state: &AppState,
    mut images: Vec<Uuid>,
) -> Result<HashMap<Uuid, ImageSources>, ApiError> {
    images.sort_unstable();
    images.dedup();
    let lists = state.services.store.source_lists(&images).await?;
    Ok(lists.into_iter().map(|(image, list)| (image, list.into())).collect())
}

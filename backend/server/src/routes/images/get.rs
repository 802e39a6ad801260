use super::stored::StoredImage;
use crate::auth::Caller;
use crate::extract::Id;
use crate::routes::faces::{StoredFace, sources_by_image};
use crate::{ApiError, AppState, Scope, Spec};
use axum::Json;
use axum::extract::State;
use serde::Serialize;
use store::faces::FaceListQuery;
use utoipa::ToSchema;

/// Maximum number of faces in the response. No image is stored with more faces.
const MAX_FACES: i64 = 1000;

/// A stored image with its faces.
#[derive(Serialize, ToSchema)]
pub(super) struct ImageAnswer {
    #[serde(flatten)]
    image: StoredImage,
    /// Its faces. They have the same sources as the image.
    faces: Vec<StoredFace>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Return a stored image with its faces and the places where it was found.
#[utoipa::path(
    get, path = "/images/{id}", operation_id = "get_image", tag = "images",
    params(("id" = Uuid, Path, description = "Id of the image")),
    responses((status = 200, description = "The image", body = ImageAnswer)),
)]
pub(super) async fn get_image(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<ImageAnswer>, ApiError> {
    let store = caller.store();
    let image = store.image(id).await?;
    let list = FaceListQuery {
        collection: image.collection.clone(),
        image_id: Some(id),
        ..FaceListQuery::default()
    };
    let faces = store.faces(&list, None, MAX_FACES).await?;
    let all_sources = sources_by_image(&state, vec![id]).await?.remove(&id).unwrap_or_default();
    // The response contains one list of sources for each face, and one for the image.
    let sources = all_sources.first(faces.len() + 1);
    let faces = faces.into_iter().map(|face| StoredFace::new(face, sources.clone())).collect();
    Ok(Json(ImageAnswer { image: StoredImage::new(image, sources), faces }))
}

//! `POST /faces/detect`
use super::analysis::{DetectAnswer, DetectParams, analyze};
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::image::{ImageBody, ImageForm, ImageSource};
use crate::routes::dto::Binary;
use crate::{ApiError, AppState, Problem};
use axum::Json;
use axum::extract::State;

/// Find the faces in one picture.
///
/// Nothing is stored. The picture is a multipart part `image`, a raw body, or JSON with a URL or base64.
#[utoipa::path(
    post, path = "/faces/detect", operation_id = "detect_faces", tag = "faces",
    params(DetectParams),
    request_body(content(
        (ImageForm = "multipart/form-data"), (ImageSource = "application/json"), (Binary = "image/*"), (Binary = "application/octet-stream")
    )),
    responses(
        (status = 200, description = "The faces, best score first; possibly none", body = DetectAnswer),
        (status = 404, description = "No such collection", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "Too many bytes or pixels", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "Not an image, or a content type that carries none", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "A corrupt image, bad base64, or a URL that cannot be fetched", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn detect_faces(
    State(state): State<AppState>,
    caller: Caller,
    Query(params): Query<DetectParams>,
    ImageBody(bytes): ImageBody,
) -> Result<Json<DetectAnswer>, ApiError> {
    let analysis = analyze(&state, bytes, &params.options(&caller).await?).await?;
    Ok(Json(DetectAnswer::of(&analysis, state.services.analyzer.engine())))
}

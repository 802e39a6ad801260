use super::analysis::{DetectAnswer, DetectParams, analyze};
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::image::{ImageBody, ImageForm, ImageSource};
use crate::routes::dto::Binary;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;

pub(super) const SPEC: Spec =
    Spec::needs(Scope::Analyze).problems(&[Code::PICTURE, Code::FETCHED]).limited_elsewhere();

/// Find the faces in one image.
///
/// Nothing is stored. The image is a multipart part `image`, a raw body, or JSON with a URL or
/// base64.
#[utoipa::path(
    post, path = "/faces/detect", operation_id = "detect_faces", tag = "faces",
    params(DetectParams),
    request_body(content(
        (ImageForm = "multipart/form-data"), (ImageSource = "application/json"), (Binary = "image/*"), (Binary = "application/octet-stream")
    )),
    responses((status = 200, description = "The faces, by descending score; the list may be empty", body = DetectAnswer)),
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

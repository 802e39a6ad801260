//! Starts and stops cameras, and returns still pictures of them.
use super::view::StreamView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use pipeline::streams::still::StillError;
use serde_json::json;
use std::time::Duration;
use store::keys::audit::Action;
use store::retried;
use uuid::Uuid;

/// Time for the next frame of a camera. A camera is analysed at least every five seconds.
const STILL_TIMEOUT: Duration = Duration::from_secs(8);

pub(super) const CONTROL: Spec = Spec::needs(Scope::Watch);
pub(super) const STILL: Spec = Spec::needs(Scope::Watch).problems(&[&[Code::Conflict, Code::NotReady]]);

/// Start watching a camera. A worker that watches fewer cameras than its limit connects within
/// seconds.
#[utoipa::path(
    post, path = "/streams/{id}/start", operation_id = "start_stream", tag = "streams",
    params(("id" = Uuid, Path, description = "Id of the camera")),
    responses((status = 200, description = "The camera in its new state", body = StreamView)),
)]
pub(super) async fn start_stream(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<StreamView>> {
    set_wanted(&state, &caller, id, true).await
}

/// Stop watching a camera. The worker disconnects within seconds. Stored faces remain until the
/// retention of the camera deletes them.
#[utoipa::path(
    post, path = "/streams/{id}/stop", operation_id = "stop_stream", tag = "streams",
    params(("id" = Uuid, Path, description = "Id of the camera")),
    responses((status = 200, description = "The camera in its new state", body = StreamView)),
)]
pub(super) async fn stop_stream(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<StreamView>> {
    set_wanted(&state, &caller, id, false).await
}

async fn set_wanted(state: &AppState, caller: &Caller, id: Uuid, wanted: bool) -> Result<Json<StreamView>> {
    let store = caller.store();
    let collection = store.streams().get(id).await?.collection_id;
    retried("set_stream_wanted", || async {
        let mut tx = store.begin().await?;
        if store.streams().set_wanted(tx.conn(), id, wanted).await? {
            let action = if wanted { Action::StartStream } else { Action::StopStream };
            caller.audit(&mut tx, action, collection, json!({"stream_id": id})).await?;
        }
        Ok::<_, ApiError>(tx.commit().await?)
    })
    .await?;
    state.services.streams.reconcile().await?;
    Ok(Json(store.streams().get(id).await?.into()))
}

/// Return the next frame of a camera as a picture, and record this in the audit log. Only the
/// process that watches the camera has its frames; `holder` of the camera names it. A process of
/// `facecrawl worker` serves no pictures.
#[utoipa::path(
    get, path = "/streams/{id}/still", operation_id = "get_stream_still", tag = "streams",
    params(("id" = Uuid, Path, description = "Id of the camera")),
    responses(
        (status = 200, description = "The picture", content((Binary = "image/jpeg"))),
        (status = 409, description = "This process does not watch the camera, or the camera sent no frame in time"),
        (status = 429, description = "Too many requests wait for the next frame"),
    ),
)]
pub(super) async fn get_stream_still(state: AppState, caller: Caller, Id(id): Id) -> Result<Response> {
    let store = caller.store();
    let stream = store.streams().get(id).await?;
    caller.record(Action::ViewStream, stream.collection_id, &json!({"stream_id": id})).await?;
    let picture = tokio::time::timeout(STILL_TIMEOUT, state.services.stills.next(id)).await;
    match picture.unwrap_or(Err(StillError::NoFrame)) {
        Ok(picture) => {
            let headers = [(header::CONTENT_TYPE, "image/jpeg"), (header::CACHE_CONTROL, "no-store")];
            Ok((headers, picture).into_response())
        }
        Err(error @ StillError::TooManyRequests) => {
            Err(ApiError::overloaded(error.to_string(), STILL_TIMEOUT))
        }
        Err(error @ (StillError::NotHeld | StillError::NoFrame)) => {
            Err(ApiError::new(Code::Conflict, error.to_string()))
        }
    }
}

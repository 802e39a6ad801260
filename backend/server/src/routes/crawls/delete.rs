use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::deletion::{DeletionPreview, preview};
use crate::routes::images::drop_blobs;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use store::erasures::CarriedOut;
use store::erasures::retention::Extent;
use store::keys::audit::Action;
use store::retried;
use utoipa::IntoParams;

/// Options of the deletion of a crawl.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeleteParams {
    /// Also delete the images and videos that no other crawl or scan found, with their faces.
    #[param(default = false)]
    with_images: Option<bool>,
    /// Report what would be deleted without deleting anything.
    #[param(default = false)]
    dry_run: Option<bool>,
    /// `confirm` of a dry run of the same call, at most 15 minutes old. It is required if the call
    /// deletes more than `CONFIRM_ABOVE` images, videos and faces.
    confirm: Option<String>,
}

pub(super) const SPEC: Spec =
    Spec::needs(Scope::Erase).problems(&[&[Code::Conflict, Code::ConfirmationNeeded]]);

/// Delete a crawl that has ended, with its record of pages and image URLs.
///
/// Its images, videos and faces are kept, unless `with_images=true`.
#[utoipa::path(
    delete, path = "/crawls/{id}", operation_id = "delete_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl"), DeleteParams),
    responses(
        (status = 200, description = "What the call would delete (`dry_run`)", body = DeletionPreview),
        (status = 204, description = "The crawl was deleted"),
        (status = 409, description = "The crawl has not ended, or a further run is scheduled; cancel it first"),
    ),
)]
pub(super) async fn delete_crawl(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeleteParams>,
) -> Result<Response, ApiError> {
    let store = caller.store();
    let crawl = store.crawl(id).await?;
    if crawl.state.is_live() {
        return Err(ApiError::new(Code::Conflict, format!("the crawl is {}; cancel it first", crawl.state)));
    }
    if crawl.next_run_at.is_some() {
        let sentence = "the crawl has ended, but a further run is scheduled; cancel it first";
        return Err(ApiError::new(Code::Conflict, sentence));
    }
    let with_images = params.with_images.unwrap_or(false);
    let extent = if with_images { store.extent_of_crawl(id).await? } else { Extent::default() };
    let target = format!("delete_crawl.{id}.{with_images}");
    if let Some(response) = preview(&state, target, extent, params.dry_run, params.confirm.as_deref()).await?
    {
        return Ok(response);
    }
    let blobs = retried("delete_crawl", || async {
        let mut tx = store.begin().await?;
        let CarriedOut { blobs, jobs } = store.delete_crawl(tx.conn(), id, with_images).await?;
        pipeline::forget_jobs(&state.services.queue, &mut tx, &jobs).await?;
        let detail = json!({"crawl_id": id, "with_images": with_images});
        caller.audit(&mut tx, Action::DeleteCrawl, crawl.collection_id, detail).await?;
        tx.commit().await?;
        Ok::<_, ApiError>(blobs)
    })
    .await?;
    drop_blobs(&state, blobs).await;
    Ok(StatusCode::NO_CONTENT.into_response())
}

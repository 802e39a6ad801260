//! Pauses, resumes, cancels, follows and deletes crawls.
use super::view::CrawlView;
use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::follow::Snapshot;
use crate::openapi::example_of;
use crate::routes::shared::deletion::{DeletionParams, DeletionPreview, RequestedDeletion, carry_out};
use crate::routes::shared::events::events;
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;
use store::db::deletions::ErasureOutcome;
use store::erasures::retention::DeletionCounts;
use store::keys::audit::Action;
use utoipa::IntoParams;

pub(super) const CONTROL: Spec = Spec::needs(Scope::Crawl).problems(&[&[Code::Conflict]]);

/// Pause a crawl. Running jobs finish, and no further jobs begin.
#[utoipa::path(
    post, path = "/crawls/{id}/pause", operation_id = "pause_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl")),
    responses((status = 200, description = "The crawl in its new state", body = CrawlView)),
)]
pub(super) async fn pause_crawl(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<CrawlView>> {
    caller.store().crawls().get(id).await?;
    let crawl = state.services.crawls.pause(id).await?;
    CrawlView::load(&caller, crawl).await.map(Json)
}

/// Resume a paused crawl.
#[utoipa::path(
    post, path = "/crawls/{id}/resume", operation_id = "resume_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl")),
    responses((status = 200, description = "The crawl in its new state", body = CrawlView)),
)]
pub(super) async fn resume_crawl(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<CrawlView>> {
    caller.store().crawls().get(id).await?;
    let crawl = state.services.crawls.resume(id).await?;
    CrawlView::load(&caller, crawl).await.map(Json)
}

/// Cancel a crawl.
///
/// Queued pages and images are skipped with the reason `cancelled`; stored faces are kept.
///
/// For a crawl with a schedule, the id of any of its runs is accepted. The current run ends, and no
/// further run is started.
#[utoipa::path(
    post, path = "/crawls/{id}/cancel", operation_id = "cancel_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl")),
    responses((status = 200, description = "The crawl in its new state", body = CrawlView)),
)]
pub(super) async fn cancel_crawl(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<CrawlView>> {
    caller.store().crawls().get(id).await?;
    let crawl = state.services.crawls.cancel(id).await?;
    CrawlView::load(&caller, crawl).await.map(Json)
}

pub(super) const EVENTS: Spec = Spec::needs(Scope::Read).skip_connection_limit();

/// Follow a crawl as server-sent events.
///
/// The event `progress` contains the same JSON as `GET /crawls`, which lists only the first seeds.
/// It is sent immediately, and then at most twice per second after a change. When the crawl has
/// ended, the event `done` contains the same JSON, and the stream ends. The stream also ends when
/// the crawl is deleted or the service stops.
#[utoipa::path(
    get, path = "/crawls/{id}/events", operation_id = "follow_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl")),
    responses(
        (status = 200, description = "`progress` and `done` events", body = String, content_type = "text/event-stream",
            example = json!(format!("event: progress\ndata: {}\n\n", example_of::<CrawlView>()))),
        (status = 429, description = "The caller has the maximum number of open streams"),
    ),
)]
pub(super) async fn follow_crawl(state: AppState, caller: Caller, Id(id): Id) -> Result<impl IntoResponse> {
    let view = |caller: &Caller, crawl: &Snapshot| CrawlView::new(caller, crawl.clone());
    events(state.clone(), caller, &state.crawl_followers, id, view).await
}

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

pub(super) const DELETE: Spec =
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
    state: AppState,
    caller: Caller,
    Id(id): Id,
    Query(params): Query<DeleteParams>,
) -> Result<Response> {
    let (store, queue) = (caller.store(), &state.services.queue);
    let crawl = store.crawls().get(id).await?;
    if crawl.state.is_live() {
        return Err(ApiError::new(Code::Conflict, format!("the crawl is {}; cancel it first", crawl.state)));
    }
    if crawl.next_run_at.is_some() {
        let message = "the crawl has ended, but a further run is scheduled; cancel it first";
        return Err(ApiError::new(Code::Conflict, message));
    }
    let with_images = params.with_images.unwrap_or(false);
    let counts =
        if with_images { store.deletion_counts().of_crawl(id).await? } else { DeletionCounts::default() };
    let detail = json!({"crawl_id": id, "with_images": with_images});
    let deletion = RequestedDeletion {
        operation: "delete_crawl",
        target: format!("{id}.{with_images}"),
        counts,
        params: DeletionParams { dry_run: params.dry_run, confirm: params.confirm },
        audit: (Action::DeleteCrawl, crawl.collection_id, detail),
    };
    carry_out(&state, &caller, deletion, StatusCode::NO_CONTENT, |mut tx| async move {
        let ErasureOutcome { blobs, jobs } = store.crawls().delete(tx.conn(), id, with_images).await?;
        pipeline::forget_jobs(queue, &mut tx, &jobs).await?;
        Ok((blobs, tx))
    })
    .await
}

//! `POST /crawls/{id}/resume`
use super::view::CrawlView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, AppState, Problem};
use axum::Json;
use axum::extract::State;

/// Let a held crawl run again.
#[utoipa::path(
    post, path = "/crawls/{id}/resume", operation_id = "resume_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "The crawl")),
    responses(
        (status = 200, description = "The crawl in its new state", body = CrawlView),
        (status = 404, description = "No such crawl", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "Its state does not allow this", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn resume_crawl(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<CrawlView>, ApiError> {
    caller.store().crawl(id).await?;
    let crawl = state.services.crawls.resume(id).await?;
    CrawlView::of(&caller, crawl).await.map(Json)
}

use super::view::CrawlView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;

pub(super) const SPEC: Spec = Spec::needs(Scope::Crawl).problems(&[&[Code::Conflict]]);

/// Pause a crawl. Running jobs finish, and no further jobs begin.
#[utoipa::path(
    post, path = "/crawls/{id}/pause", operation_id = "pause_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl")),
    responses((status = 200, description = "The crawl in its new state", body = CrawlView)),
)]
pub(super) async fn pause_crawl(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<CrawlView>, ApiError> {
    caller.store().crawl(id).await?;
    let crawl = state.services.crawls.pause(id).await?;
    CrawlView::of(&caller, crawl).await.map(Json)
}

use super::view::CrawlView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;

pub(super) const SPEC: Spec = Spec::needs(Scope::Crawl).problems(&[&[Code::Conflict]]);

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
pub(super) async fn cancel_crawl(
    State(state): State<AppState>,
    caller: Caller,
    Id(id): Id,
) -> Result<Json<CrawlView>, ApiError> {
    caller.store().crawl(id).await?;
    let crawl = state.services.crawls.cancel(id).await?;
    CrawlView::of(&caller, crawl).await.map(Json)
}

use super::view::CrawlView;
use crate::auth::Caller;
use crate::extract::Id;
use crate::{ApiError, Scope, Spec};
use axum::Json;

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Return a crawl with its progress.
#[utoipa::path(
    get, path = "/crawls/{id}", operation_id = "get_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl")),
    responses((status = 200, description = "The crawl", body = CrawlView)),
)]
pub(super) async fn get_crawl(caller: Caller, Id(id): Id) -> Result<Json<CrawlView>, ApiError> {
    CrawlView::load(&caller, id).await.map(Json)
}

use super::view::CrawlView;
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::cursor::List;
use crate::extract::values::{Bounded, uuid};
use crate::{ApiError, Scope, Spec};
use axum::Json;
use domain::CrawlState;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use store::crawls::CrawlFilter;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Number of crawls whose counts are loaded at a time.
const CONCURRENT_COUNTS: usize = 4;

/// Selects the crawls to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only crawls of this collection.
    collection: Option<String>,
    /// Only crawls in this state.
    #[param(inline)]
    state: Option<CrawlState>,
    /// Only runs of the series with this id, which is the id of its first run.
    #[serde(deserialize_with = "uuid")]
    series_id: Option<Uuid>,
    /// Maximum number of crawls in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 100, default = 20)]
    limit: Option<Bounded<1, 100>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of crawls, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct CrawlList {
    crawls: Vec<CrawlView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// List crawls.
#[utoipa::path(
    get, path = "/crawls", operation_id = "list_crawls", tag = "crawls",
    params(ListParams),
    responses((status = 200, description = "A page of crawls, newest first", body = CrawlList)),
)]
pub(super) async fn list_crawls(
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<CrawlList>, ApiError> {
    let store = caller.store();
    if let Some(name) = &params.collection {
        store.collection(name).await?;
    }
    let limit = params.limit.map_or(20, Bounded::get);
    let filter = CrawlFilter {
        collection: params.collection.as_deref(),
        state: params.state,
        series: params.series_id,
    };
    let list = List::of("crawls", filter);
    let before = list.after(params.cursor.as_deref())?;
    let mut rows = store.crawls(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |crawl| crawl.id);
    let crawls = stream::iter(rows)
        .map(|crawl| CrawlView::of(&caller, crawl))
        .buffered(CONCURRENT_COUNTS)
        .try_collect()
        .await?;
    Ok(Json(CrawlList { crawls, next_cursor }))
}

use super::view::VideoView;
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::cursor::List;
use crate::extract::values::Bounded;
use crate::{ApiError, Scope, Spec};
use axum::Json;
use domain::VideoState;
use serde::{Deserialize, Serialize};
use store::videos::VideoFilter;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Selects the videos to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Only videos in this state.
    #[param(inline)]
    state: Option<VideoState>,
    /// Only videos that this crawl or scan found.
    crawl_id: Option<Uuid>,
    /// Maximum number of videos in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 100, default = 20)]
    limit: Option<Bounded<1, 100>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of videos, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct VideoList {
    videos: Vec<VideoView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// List videos.
#[utoipa::path(
    get, path = "/videos", operation_id = "list_videos", tag = "videos",
    params(ListParams),
    responses((status = 200, description = "A page of videos, newest first", body = VideoList)),
)]
pub(super) async fn list_videos(
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<VideoList>, ApiError> {
    let collection = caller.collection(params.collection.as_deref()).await?;
    let limit = params.limit.map_or(20, Bounded::get);
    let filter = VideoFilter { collection: collection.name, state: params.state, crawl_id: params.crawl_id };
    let list = List::of("videos", &filter);
    let before = list.after(params.cursor.as_deref())?;
    let mut rows = caller.store().videos(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |video| video.id);
    Ok(Json(VideoList { videos: rows.into_iter().map(VideoView::from).collect(), next_cursor }))
}

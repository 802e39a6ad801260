use crate::auth::Caller;
use crate::extract::cursor::List;
use crate::extract::values::Bounded;
use crate::extract::{Id, Query};
use crate::routes::dto::Source;
use crate::{ApiError, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Selects a page of the list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Maximum number of places in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 200, default = 50)]
    limit: Option<Bounded<1, 200>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of the places where an image was found, in the order of discovery.
#[derive(Serialize, ToSchema)]
pub(super) struct SourcePage {
    sources: Vec<Source>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AAAAAAAAA-g")]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// List the places where an image was found.
#[utoipa::path(
    get, path = "/images/{id}/sources", operation_id = "list_image_sources", tag = "images",
    params(("id" = Uuid, Path, description = "Id of the image"), ListParams),
    responses((status = 200, description = "A page of places, in the order in which they were found", body = SourcePage)),
)]
pub(super) async fn list_image_sources(
    caller: Caller,
    Id(id): Id,
    Query(params): Query<ListParams>,
) -> Result<Json<SourcePage>, ApiError> {
    let store = caller.store();
    let image = store.image(id).await?;
    let list = List::of("image_sources", id);
    let after = list.after(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut found = store.sources_of(image.id, after, limit + 1).await?;
    let next_cursor = list.paginate(&mut found, limit, |(number, _)| *number);
    Ok(Json(SourcePage {
        sources: found.into_iter().map(|(_, source)| source.into()).collect(),
        next_cursor,
    }))
}

use super::view::ErasureView;
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::cursor::List;
use crate::extract::values::Bounded;
use crate::{ApiError, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Selects the erasures to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Maximum number of erasures in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of erasures, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct ErasureList {
    erasures: Vec<ErasureView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Erase);

/// List the erasures of a collection. They contain counts only, nothing that identifies a person.
#[utoipa::path(
    get, path = "/erasures", operation_id = "list_erasures", tag = "erasures",
    params(ListParams),
    responses((status = 200, description = "A page of erasures, newest first", body = ErasureList)),
)]
pub(super) async fn list_erasures(
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<ErasureList>, ApiError> {
    let collection = caller.collection(params.collection.as_deref()).await?;
    let list = List::of("erasures", collection.id);
    let before = list.after(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = caller.store().erasures(collection.id, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |record| record.id);
    let erasures = rows.into_iter().map(|record| ErasureView::new(record, &collection.name)).collect();
    Ok(Json(ErasureList { erasures, next_cursor }))
}

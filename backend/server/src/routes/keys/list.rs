use super::view::KeyView;
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::cursor::List;
use crate::extract::values::Bounded;
use crate::{ApiError, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Selects the page of keys.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Maximum number of keys in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of keys, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct KeyList {
    keys: Vec<KeyView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Keys);

/// List the keys, including expired and revoked ones.
///
/// With a key for one collection, only the keys of that collection are listed.
#[utoipa::path(
    get, path = "/keys", operation_id = "list_keys", tag = "keys",
    params(ListParams),
    responses((status = 200, description = "A page of keys, newest first", body = KeyList)),
)]
pub(super) async fn list_keys(
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<KeyList>, ApiError> {
    let limit = params.limit.map_or(50, Bounded::get);
    let list = List::of("keys", ());
    let before = list.after(params.cursor.as_deref())?;
    let mut rows = caller.store().keys(before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |key| key.id);
    Ok(Json(KeyList { keys: rows.into_iter().map(Into::into).collect(), next_cursor }))
}

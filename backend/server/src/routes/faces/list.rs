use super::{StoredFace, filter, with_sources};
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::cursor::List;
use crate::extract::values::{Bounded, Fraction, site, time, uuid};
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use store::faces::FaceListQuery;
use store::faces::scope::{FaceFilter, Site};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Selects the faces to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Only faces in images that this crawl found.
    #[serde(deserialize_with = "uuid")]
    crawl_id: Option<Uuid>,
    /// Only faces in this image.
    #[serde(deserialize_with = "uuid")]
    image_id: Option<Uuid>,
    /// Only faces in images or videos found on this host or its subdomains. The host of the page
    /// counts. For a file that was not found on a page, the host of the file counts.
    #[param(value_type = Option<String>, min_length = 1, example = "example.org")]
    #[serde(deserialize_with = "site")]
    site: Option<Site>,
    /// Only faces stored at this time or later.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    since: Option<OffsetDateTime>,
    /// Only faces stored before this time.
    #[param(value_type = Option<String>, format = DateTime)]
    #[serde(deserialize_with = "time")]
    until: Option<OffsetDateTime>,
    /// Minimum overall quality of a face.
    #[param(value_type = Option<f32>, minimum = 0, maximum = 1)]
    min_quality: Option<Fraction>,
    /// `true`: only faces that met the quality profile when they were stored, or were not assessed.
    /// `false`: only the other faces.
    passed: Option<bool>,
    /// Maximum number of faces in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of faces, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct FaceList {
    faces: Vec<StoredFace>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = json!(null))]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// List stored faces.
#[utoipa::path(
    get, path = "/faces", operation_id = "list_faces", tag = "faces",
    params(ListParams),
    responses((status = 200, description = "A page of faces, newest first", body = FaceList)),
)]
pub(super) async fn list_faces(
    State(state): State<AppState>,
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<FaceList>, ApiError> {
    let store = caller.store();
    let collection = caller.collection(params.collection.as_deref()).await?;
    let filter = filter::checked(
        FaceFilter {
            crawl_id: params.crawl_id,
            site: params.site,
            since: params.since,
            until: params.until,
            min_quality: params.min_quality.map(Fraction::get),
        },
        Code::BadQuery,
    )?;
    let query = FaceListQuery {
        collection: collection.name,
        image_id: params.image_id,
        passed: params.passed,
        filter,
    };
    let list = List::of("faces", &query);
    let before = list.after(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut faces = store.faces(&query, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut faces, limit, |face| face.id);
    Ok(Json(FaceList { faces: with_sources(&state, faces).await?, next_cursor }))
}

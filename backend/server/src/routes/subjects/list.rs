//! `GET /subjects`
use super::view::SubjectView;
use crate::auth::Caller;
use crate::extract::values::Bounded;
use crate::extract::{Query, cursor};
use crate::{ApiError, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use store::subjects::SubjectFilter;
use utoipa::{IntoParams, ToSchema};

/// How a subject came to be.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Origin {
    /// By somebody's word.
    Enrolled,
    /// By clustering, and untouched since.
    Cluster,
}

/// Which subjects, and how many.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the key's own, else `default`.
    collection: Option<String>,
    /// Only subjects of this name, whatever its case.
    name: Option<String>,
    /// Only the subject with this key of yours.
    external_id: Option<String>,
    /// `enrolled` by somebody, or a `cluster` that nobody has touched yet.
    #[param(inline)]
    origin: Option<Origin>,
    /// Most subjects in the answer.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the page before.
    cursor: Option<String>,
}

/// A page of subjects, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct SubjectList {
    subjects: Vec<SubjectView>,
    /// Pass it as `cursor` for the next page; null on the last one.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// List subjects.
#[utoipa::path(
    get, path = "/subjects", operation_id = "list_subjects", tag = "subjects",
    params(ListParams),
    responses((status = 200, description = "A page of subjects, newest first", body = SubjectList)),
)]
pub(super) async fn list_subjects(
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<SubjectList>, ApiError> {
    let before = cursor::decode(params.cursor.as_deref())?;
    let filter = SubjectFilter {
        collection_id: caller.collection(params.collection.as_deref()).await?.id,
        name: params.name,
        external_id: params.external_id,
        origin: params.origin.map(|origin| match origin {
            Origin::Enrolled => "enrolled".into(),
            Origin::Cluster => "cluster".into(),
        }),
    };
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = caller.store().subjects(&filter, before, limit + 1).await?;
    let next_cursor = cursor::cut(&mut rows, limit, |row| row.id);
    Ok(Json(SubjectList { subjects: rows.into_iter().map(Into::into).collect(), next_cursor }))
}

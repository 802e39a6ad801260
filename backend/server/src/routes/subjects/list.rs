use super::view::{SubjectView, normal_text};
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::cursor::List;
use crate::extract::values::Bounded;
use crate::{ApiError, Scope, Spec};
use axum::Json;
use serde::{Deserialize, Serialize};
use store::people::SubjectFilter;
use utoipa::{IntoParams, ToSchema};

/// How a subject was created.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Origin {
    /// A caller created or changed the subject.
    Enrolled,
    /// Clustering created the subject, and no caller has changed it since.
    Cluster,
}

/// Selects the subjects to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
    /// Only subjects with this name; case and surrounding white space are ignored.
    name: Option<String>,
    /// Only the subject with this external id; surrounding white space is ignored.
    external_id: Option<String>,
    /// `enrolled` if a caller created or changed it; `cluster` if clustering created it and no
    /// caller has changed it.
    #[param(inline)]
    origin: Option<Origin>,
    /// Maximum number of subjects in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of subjects, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct SubjectList {
    subjects: Vec<SubjectView>,
    /// Send it as `cursor` to get the next page; null on the last page.
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
    let filter = SubjectFilter {
        collection_id: caller.collection(params.collection.as_deref()).await?.id,
        name: params.name.as_deref().map(normal_text).map(str::to_owned),
        external_id: params.external_id.as_deref().map(normal_text).map(str::to_owned),
        origin: params.origin.map(|origin| match origin {
            Origin::Enrolled => "enrolled".into(),
            Origin::Cluster => "cluster".into(),
        }),
    };
    let list = List::of("subjects", &filter);
    let before = list.after(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = caller.store().subjects(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |row| row.id);
    Ok(Json(SubjectList { subjects: rows.into_iter().map(Into::into).collect(), next_cursor }))
}

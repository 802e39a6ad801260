//! Gets and lists subjects, and checks the values that callers set.
use crate::auth::Caller;
use crate::extract::{Bounded, Id, List, Query};
use crate::{ApiError, Code, Result, Scope, Spec};
use axum::Json;
use pipeline::composed_name;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::people::{MAX_METADATA_BYTES, Subject, SubjectFilter};
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

pub(super) const READ: Spec = Spec::needs(Scope::Read);

/// Maximum length of a name and an external id, in characters.
const MAX_CHARS: usize = 200;
/// Maximum number of ids in one call.
const MAX_IDS: usize = 100;

/// A person.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(super) struct SubjectView {
    /// Its id.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b04")]
    id: Uuid,
    /// The collection of the subject.
    #[schema(example = "default")]
    collection: String,
    /// Display name; null for a cluster without a name.
    #[schema(example = "Ada Lovelace")]
    name: Option<String>,
    /// The caller's own id for the person, unique in the collection.
    #[schema(example = "crm-1815")]
    external_id: Option<String>,
    /// A JSON object that the caller sets.
    #[schema(value_type = Object, example = json!({"team": "engines"}))]
    metadata: Value,
    /// `enrolled` if a caller created or changed it; `cluster` if clustering created it and no
    /// caller has changed it.
    #[schema(example = "enrolled")]
    origin: String,
    /// Number of its faces.
    #[schema(example = 2)]
    face_count: i64,
    /// Its face with the best quality.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b03")]
    best_face_id: Option<Uuid>,
    /// Time of creation.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
}

impl From<Subject> for SubjectView {
    fn from(subject: Subject) -> Self {
        Self {
            id: subject.id,
            collection: subject.collection,
            name: subject.name,
            external_id: subject.external_id,
            metadata: subject.metadata,
            origin: subject.origin,
            face_count: subject.face_count,
            best_face_id: subject.best_face_id,
            created_at: subject.created_at,
        }
    }
}

/// Validates a name, and returns it [as it is stored](composed_name).
pub(crate) fn check_name(field: &str, name: Option<String>) -> Result<Option<String>> {
    Ok(check_text(field, name)?.map(|name| composed_name(&name).into_owned()))
}

/// Validates a text of a subject, and returns it without surrounding white space.
pub(super) fn check_text(field: &str, text: Option<String>) -> Result<Option<String>> {
    let Some(text) = text else { return Ok(None) };
    let normal = text.trim();
    let length = normal.chars().count();
    if (1..=MAX_CHARS).contains(&length) && !text.chars().any(char::is_control) {
        return Ok(Some(normal.to_owned()));
    }
    let allowed = format!("1 to {MAX_CHARS} characters without control characters");
    Err(ApiError::for_field(Code::InvalidField, field, format!("the value must have {allowed}"))
        .value(text)
        .allowed([allowed, "null".into()]))
}

/// Returns the ids without duplicates. Error messages call the resources `what`.
///
/// # Errors
/// Fails with 422 for no id, for too many, and for the id `except`.
pub(super) fn check_ids(
    field: &str,
    resources: &str,
    mut ids: Vec<Uuid>,
    except: Option<Uuid>,
) -> Result<Vec<Uuid>> {
    ids.sort_unstable();
    ids.dedup();
    if (1..=MAX_IDS).contains(&ids.len()) && !except.is_some_and(|id| ids.contains(&id)) {
        return Ok(ids);
    }
    let allowed = format!("1 to {MAX_IDS} ids of {resources}");
    let message = format!("the value must contain {allowed}");
    Err(ApiError::for_field(Code::InvalidField, field, message).allowed([allowed]))
}

/// Checks a JSON object that the caller sets.
pub(super) fn check_metadata(metadata: Value) -> Result<Value> {
    let refuse = |detail: String| {
        let allowed = format!("a JSON object of at most {MAX_METADATA_BYTES} bytes");
        ApiError::for_field(Code::InvalidField, "metadata", detail).allowed([allowed])
    };
    if !metadata.is_object() {
        return Err(refuse("the value must be a JSON object".into()));
    }
    let text = metadata.to_string();
    if text.len() > MAX_METADATA_BYTES {
        return Err(refuse(format!("it has {} bytes; at most {MAX_METADATA_BYTES} are allowed", text.len())));
    }
    Ok(metadata)
}

/// Return a subject.
#[utoipa::path(
    get, path = "/subjects/{id}", operation_id = "get_subject", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject")),
    responses((status = 200, description = "The subject", body = SubjectView)),
)]
pub(super) async fn get_subject(caller: Caller, Id(id): Id) -> Result<Json<SubjectView>> {
    Ok(Json(caller.store().people().get(id).await?.into()))
}

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

/// List subjects.
#[utoipa::path(
    get, path = "/subjects", operation_id = "list_subjects", tag = "subjects",
    params(ListParams),
    responses((status = 200, description = "A page of subjects, newest first", body = SubjectList)),
)]
pub(super) async fn list_subjects(
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<SubjectList>> {
    let filter = SubjectFilter {
        collection_id: caller.collection(params.collection.as_deref()).await?.id,
        name: params.name.as_deref().map(|name| composed_name(name).into_owned()),
        external_id: params.external_id.as_deref().map(str::trim).map(str::to_owned),
        origin: params.origin.map(|origin| match origin {
            Origin::Enrolled => "enrolled".into(),
            Origin::Cluster => "cluster".into(),
        }),
    };
    let list = List::new("subjects", &filter);
    let before = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(50, Bounded::get);
    let mut rows = caller.store().people().list(&filter, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |row| row.id);
    Ok(Json(SubjectList { subjects: rows.into_iter().map(Into::into).collect(), next_cursor }))
}

use super::view::SubjectView;
use crate::auth::Caller;
use crate::extract::{Id, Json as JsonBody};
use crate::{ApiError, Code, Scope, Spec};
use axum::Json;
use serde::Deserialize;
use serde_json::json;
use store::keys::audit::Action;
use store::people::MAX_METADATA_BYTES;
use store::{StoreError, retried};
use utoipa::ToSchema;
use uuid::Uuid;

/// Maximum number of subjects in one call.
const MAX_SUBJECTS: usize = 100;

/// The subjects to merge, which represent the same person.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MergeSubjects {
    /// 1 to 100 other subjects of the same collection.
    #[schema(min_items = 1, max_items = 100, example = json!(["0198f1c2-7d10-7000-8000-4a6f1f6e2b05"]))]
    subjects: Vec<Uuid>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Write).problems(&[&[Code::Conflict]]);

/// Merge several subjects into one.
///
/// The faces of the other subjects move to this subject, and the other subjects are deleted. This
/// subject inherits a name, an external id and metadata entries that it lacks. The merged metadata
/// may have at most 16 KiB. Clustering never splits the result.
#[utoipa::path(
    post, path = "/subjects/{id}/merge", operation_id = "merge_subject", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject that remains")),
    request_body = MergeSubjects,
    responses(
        (status = 200, description = "The merged subject", body = SubjectView),
        (status = 404, description = "One of the subjects does not exist"),
        (status = 409, description = "The subjects have different external ids"),
    ),
)]
pub(super) async fn merge_subject(
    caller: Caller,
    Id(id): Id,
    JsonBody(body): JsonBody<MergeSubjects>,
) -> Result<Json<SubjectView>, ApiError> {
    let mut others = body.subjects;
    others.sort_unstable();
    others.dedup();
    if !(1..=MAX_SUBJECTS).contains(&others.len()) || others.contains(&id) {
        let allowed = format!("1 to {MAX_SUBJECTS} ids of other subjects");
        return Err(ApiError::new(Code::InvalidField, format!("subjects: the value must contain {allowed}"))
            .field("subjects")
            .allowed([allowed]));
    }
    let store = caller.store();
    let subject = store.subject(id).await?;
    let mut all = others.clone();
    all.push(id);
    let invalid = |error| match error {
        StoreError::Invalid(sentence) => ApiError::new(Code::InvalidField, format!("subjects: {sentence}"))
            .field("subjects")
            .allowed([format!("subjects whose merged metadata has at most {MAX_METADATA_BYTES} bytes")]),
        error => error.into(),
    };
    retried("merge_subjects", || async {
        let mut tx = store.begin().await?;
        store.lock_subjects(tx.conn(), subject.collection_id, &all).await?;
        store.merge_subjects(tx.conn(), id, &others).await.map_err(invalid)?;
        let detail = json!({"subject_id": id, "merged": others});
        caller.audit(&mut tx, Action::MergeSubjects, subject.collection_id, detail).await?;
        Ok::<_, ApiError>(tx.commit().await?)
    })
    .await?;
    Ok(Json(store.subject(id).await?.into()))
}

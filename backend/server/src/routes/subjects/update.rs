use super::view::{SubjectView, check_metadata, check_text};
use crate::auth::Caller;
use crate::extract::values::double_option;
use crate::extract::{Id, Json as JsonBody};
use crate::routes::dto::ShortText;
use crate::{ApiError, Code, Scope, Spec};
use axum::Json;
use serde::Deserialize;
use serde_json::Value;
use store::people::SubjectPatch;
use store::retried;
use utoipa::ToSchema;

/// The changes to a subject. A field that is absent keeps its value.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "Ada Lovelace"}))]
pub(crate) struct UpdateSubject {
    /// The new name, 1 to 200 characters. Null removes the name.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(inline, value_type = Option<ShortText>)]
    name: Option<Option<String>>,
    /// The new external id, 1 to 200 characters, unique in the collection. Null removes it.
    #[serde(default, deserialize_with = "double_option")]
    #[schema(inline, value_type = Option<ShortText>)]
    external_id: Option<Option<String>>,
    /// The new metadata, which replaces the whole object.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Write).problems(&[&[Code::Conflict]]);

/// Change a subject. The origin of a changed cluster becomes `enrolled`.
#[utoipa::path(
    patch, path = "/subjects/{id}", operation_id = "update_subject", tag = "subjects",
    params(("id" = Uuid, Path, description = "Id of the subject")),
    request_body = UpdateSubject,
    responses(
        (status = 200, description = "The changed subject", body = SubjectView),
        (status = 409, description = "Another subject has this external id"),
    ),
)]
pub(super) async fn update_subject(
    caller: Caller,
    Id(id): Id,
    JsonBody(body): JsonBody<UpdateSubject>,
) -> Result<Json<SubjectView>, ApiError> {
    let patch = SubjectPatch {
        name: body.name.map(|name| check_text("name", name)).transpose()?,
        external_id: body.external_id.map(|text| check_text("external_id", text)).transpose()?,
        metadata: body.metadata.map(check_metadata).transpose()?,
    };
    let store = caller.store();
    let subject = store.subject(id).await?;
    retried("update_subject", || async {
        let mut tx = store.begin().await?;
        store.lock_subjects(tx.conn(), subject.collection_id, &[id]).await?;
        store.update_subject(tx.conn(), id, &patch).await?;
        tx.commit().await
    })
    .await?;
    Ok(Json(store.subject(id).await?.into()))
}

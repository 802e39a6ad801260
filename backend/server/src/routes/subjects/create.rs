use super::view::{SubjectView, check_metadata, check_text};
use crate::auth::Caller;
use crate::extract::Json as JsonBody;
use crate::routes::dto::ShortText;
use crate::{ApiError, Code, Scope, Spec};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value};
use store::people::NewSubject;
use store::{StoreError, retried};
use utoipa::ToSchema;

/// A person to enrol.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"name": "Ada Lovelace", "external_id": "crm-1815", "metadata": {"team": "engines"}}))]
pub(crate) struct CreateSubject {
    /// Display name, 1 to 200 characters.
    #[schema(inline, value_type = Option<ShortText>)]
    name: Option<String>,
    /// The caller's own id for the person, 1 to 200 characters, unique in the collection.
    #[schema(inline, value_type = Option<ShortText>)]
    external_id: Option<String>,
    /// An arbitrary JSON object, at most 16 KiB.
    #[schema(value_type = Option<Object>)]
    metadata: Option<Value>,
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Write).problems(&[&[Code::Conflict, Code::NotFound]]);

/// Create a subject, which represents a person.
///
/// It has no faces yet; `POST /subjects/{id}/faces` enrols them.
#[utoipa::path(
    post, path = "/subjects", operation_id = "create_subject", tag = "subjects",
    request_body = CreateSubject,
    responses(
        (status = 201, description = "The subject was created; its URL is in `Location`", body = SubjectView, headers(("location"))),
        (status = 409, description = "Another subject has this external id"),
    ),
)]
pub(super) async fn create_subject(
    caller: Caller,
    JsonBody(body): JsonBody<CreateSubject>,
) -> Result<Response, ApiError> {
    let new = NewSubject {
        name: check_text("name", body.name)?,
        external_id: check_text("external_id", body.external_id)?,
        metadata: check_metadata(body.metadata.unwrap_or_else(|| Map::new().into()))?,
    };
    let collection = caller.collection(body.collection.as_deref()).await?;
    let store = caller.store();
    let id = retried("create_subject", || async {
        let mut tx = store.begin().await?;
        let id = store.insert_subject(tx.conn(), collection.id, &new).await?;
        tx.commit().await?;
        Ok::<_, StoreError>(id)
    })
    .await?;
    let location = HeaderValue::from_str(&format!("/subjects/{id}")).map_err(ApiError::internal)?;
    let view = SubjectView::from(store.subject(id).await?);
    Ok((StatusCode::CREATED, [(header::LOCATION, location)], Json(view)).into_response())
}

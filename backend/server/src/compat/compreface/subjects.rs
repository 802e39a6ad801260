//! Implements `/recognition/subjects`: lists, creates, renames and deletes people by name.
use super::errors::{Failure, Number, Result};
use crate::auth::Caller;
use crate::compat::people::People;
use crate::extract::Json as JsonBody;
use crate::routes::people;
use crate::{AppState, Scope, Spec};
use axum::Json;
use axum::extract::Path;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

pub(super) const READ: Spec = Spec::needs(Scope::Read);
pub(super) const WRITE: Spec = Spec::needs(Scope::Write);
pub(super) const ERASE: Spec = Spec::needs(Scope::Erase);

/// The name of a subject. The Python client sends further fields, which are ignored.
#[derive(Deserialize, ToSchema)]
pub(super) struct SubjectBody {
    subject: String,
}

/// List the names of all subjects.
#[utoipa::path(get, path = "/api/v1/recognition/subjects")]
pub(super) async fn list_subjects(state: AppState, caller: Caller) -> Result<Json<Value>> {
    Ok(Json(json!({"subjects": People::new(&state, &caller).await?.names().await?})))
}

/// List the names of all subjects. The examples in CompreFace's documentation use this path.
#[utoipa::path(get, path = "/api/v1/recognition/subjects/")]
pub(super) async fn list_subjects_with_slash(state: AppState, caller: Caller) -> Result<Json<Value>> {
    list_subjects(state, caller).await
}

/// Create a subject without examples.
#[utoipa::path(post, path = "/api/v1/recognition/subjects", request_body = SubjectBody)]
pub(super) async fn create_subject(
    state: AppState,
    caller: Caller,
    JsonBody(body): JsonBody<SubjectBody>,
) -> Result<(StatusCode, Json<Value>)> {
    let people = People::new(&state, &caller).await?;
    match people.create(&body.subject).await? {
        true => Ok((StatusCode::CREATED, Json(json!({"subject": body.subject.trim()})))),
        false => Err(Failure::bad_request(Number::SubjectExists, "Subject already exists")),
    }
}

/// Rename a subject. If another subject has the new name, the examples move to it.
#[utoipa::path(put, path = "/api/v1/recognition/subjects/{subject}", request_body = SubjectBody,
    params(("subject" = String, Path)))]
pub(super) async fn rename_subject(
    state: AppState,
    caller: Caller,
    Path(name): Path<String>,
    JsonBody(body): JsonBody<SubjectBody>,
) -> Result<Json<Value>> {
    let people = People::new(&state, &caller).await?;
    let Some(subject) = people.find(&name).await? else { return Err(Failure::subject_not_found(&name)) };
    if body.subject.trim().is_empty() || body.subject == name {
        return Ok(Json(json!({"updated": false})));
    }
    match people.find(&body.subject).await? {
        Some(other) if other.id != subject.id => people::merge(&caller, &other, &[subject.id]).await?,
        _ => people.rename(&subject, &body.subject).await?,
    }
    Ok(Json(json!({"updated": true})))
}

/// Delete a subject with its examples.
#[utoipa::path(delete, path = "/api/v1/recognition/subjects/{subject}", params(("subject" = String, Path)))]
pub(super) async fn delete_subject(
    state: AppState,
    caller: Caller,
    Path(name): Path<String>,
) -> Result<Json<Value>> {
    let people = People::new(&state, &caller).await?;
    let Some(subject) = people.find(&name).await? else { return Err(Failure::subject_not_found(&name)) };
    people.delete(&subject).await?;
    Ok(Json(json!({"subject": subject.name})))
}

/// Reject the deletion of all subjects. One request without a name must not empty a collection.
#[utoipa::path(delete, path = "/api/v1/recognition/subjects")]
pub(super) async fn delete_all_subjects() -> Failure {
    let message = "facecrawl does not delete all subjects at once; name one: DELETE /api/v1/recognition/subjects/{subject}";
    Failure::bad_request(Number::MissingParameter, message)
}

//! Implements `/recognition/faces`: the examples of subjects. An example is a face that is assigned
//! to a person.
use super::errors::{Failure, Number, Result};
use super::images::{Options, read_images};
use crate::auth::Caller;
use crate::compat::people::{People, named_face};
use crate::extract::{Bounded, Id, Json as JsonBody, parse_query};
use crate::routes::people::{self, EnrolledImagesParams};
use crate::routes::shared::stored::blob_response;
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Scope, Spec};
use axum::Json;
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::HashSet;
use utoipa::ToSchema;
use uuid::Uuid;

pub(super) const READ: Spec = Spec::needs(Scope::Read);
pub(super) const WRITE: Spec = Spec::needs(Scope::Write);
pub(super) const ERASE: Spec = Spec::needs(Scope::Erase);

/// Default number of examples on a page.
const PAGE_SIZE: i64 = 20;
/// Maximum number of examples that one request deletes.
const MAX_IDS: usize = 100;

/// An example of a subject.
#[derive(Serialize)]
struct Example {
    /// Id of the stored face.
    image_id: Uuid,
    subject: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SubjectParam {
    subject: Option<String>,
}

impl SubjectParam {
    /// Returns the parameter `subject` of a request.
    fn required(query: &str) -> Result<String> {
        let name = parse_query::<Self>(query)?.subject.filter(|name| !name.trim().is_empty());
        name.ok_or_else(|| {
            Failure::bad_request(Number::MissingParameter, "Required parameter subject is missing")
        })
    }
}

/// An image in base64.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes the body")]
pub(super) struct FileBody {
    file: String,
}

/// Add an example to a subject. Creates the subject if no subject has this name.
#[utoipa::path(post, path = "/api/v1/recognition/faces",
    request_body(content((Binary = "multipart/form-data"), (FileBody = "application/json"))))]
pub(super) async fn add_example(
    state: AppState,
    caller: Caller,
    request: Request,
) -> Result<(StatusCode, Json<Value>)> {
    let name = SubjectParam::required(request.uri().query().unwrap_or_default())?;
    let options = Options::read(&request)?;
    let [image] = read_images(&state, request, &["file"]).await?;
    let enrolled = People::new(&state, &caller).await?.enrol(&name, image, options.min_score()).await?;
    Ok((StatusCode::CREATED, Json(json!({"image_id": enrolled.face, "subject": name.trim()}))))
}

/// Selects a page of the list.
#[derive(Default, Deserialize)]
#[serde(default)]
struct PageParams {
    page: Option<Bounded<0, 1_000_000>>,
    size: Option<Bounded<1, 1000>>,
    subject: Option<String>,
}

/// List examples, oldest first.
#[utoipa::path(get, path = "/api/v1/recognition/faces")]
pub(super) async fn list_examples(state: AppState, caller: Caller, request: Request) -> Result<Json<Value>> {
    let params: PageParams = parse_query(request.uri().query().unwrap_or_default())?;
    let (page, size) = (params.page.map_or(0, Bounded::get), params.size.map_or(PAGE_SIZE, Bounded::get));
    let people = People::new(&state, &caller).await?;
    let subject = match params.subject.filter(|name| !name.is_empty()) {
        Some(name) => match people.find(&name).await? {
            Some(subject) => Some(subject.id),
            None => return Ok(Json(page_of(&[], page, size, 0))),
        },
        None => None,
    };
    let collection = people.collection.id;
    let store = caller.store().people();
    let total = store.count_named_faces(collection, subject).await?;
    let rows = store.named_faces(collection, subject, page.saturating_mul(size), size).await?;
    let faces: Vec<Example> =
        rows.into_iter().map(|(image_id, subject)| Example { image_id, subject }).collect();
    Ok(Json(page_of(&faces, page, size, total)))
}

fn page_of(faces: &[Example], page: i64, size: i64, total: i64) -> Value {
    json!({
        "faces": faces, "page_number": page, "page_size": size,
        "total_pages": total.div_euclid(size) + i64::from(total % size > 0), "total_elements": total,
    })
}

/// Return the crop of the face. CompreFace returns the image as it was sent, but this service does
/// not keep it. For an unknown id, both return an empty body.
#[utoipa::path(get, path = "/api/v1/recognition/faces/{id}/img", params(("id" = Uuid, Path)))]
pub(super) async fn get_image(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    headers: HeaderMap,
) -> Result<Response> {
    let people = People::new(&state, &caller).await?;
    if named_face(&people, id).await?.is_none() {
        return Ok(StatusCode::OK.into_response());
    }
    let store = caller.store();
    let response =
        blob_response(&state, &headers, || async move { Ok(store.faces().get(id).await?.parts.crop()) })
            .await?;
    Ok(response.unwrap_or_else(|| StatusCode::OK.into_response()))
}

/// Delete a subject with all its examples. Returns 0 if there is no such subject.
#[utoipa::path(delete, path = "/api/v1/recognition/faces")]
pub(super) async fn delete_examples_of_subject(
    state: AppState,
    caller: Caller,
    request: Request,
) -> Result<Json<Value>> {
    let name = SubjectParam::required(request.uri().query().unwrap_or_default())?;
    let people = People::new(&state, &caller).await?;
    let deleted = match people.find(&name).await? {
        Some(subject) => people.delete(&subject).await?,
        None => 0,
    };
    Ok(Json(json!({"deleted": deleted})))
}

/// Delete an example.
#[utoipa::path(delete, path = "/api/v1/recognition/faces/{id}", params(("id" = Uuid, Path)))]
pub(super) async fn delete_example(state: AppState, caller: Caller, Id(id): Id) -> Result<Json<Value>> {
    let people = People::new(&state, &caller).await?;
    let deleted = delete(&state, &caller, &people, id).await?;
    Ok(Json(json!(deleted.ok_or_else(|| Failure::image_not_found(id))?)))
}

/// Delete several examples. Unknown ids are ignored.
#[utoipa::path(post, path = "/api/v1/recognition/faces/delete", request_body = Vec<Uuid>)]
pub(super) async fn delete_several_examples(
    state: AppState,
    caller: Caller,
    JsonBody(mut ids): JsonBody<Vec<Uuid>>,
) -> Result<Json<Value>> {
    if ids.len() > MAX_IDS {
        return Err(Failure::bad_request(Number::Invalid, format!("at most {MAX_IDS} ids are allowed")));
    }
    let people = People::new(&state, &caller).await?;
    let mut distinct = HashSet::new();
    ids.retain(|id| distinct.insert(*id));
    let mut rows = 0;
    for id in &ids {
        if let Some((subject, _)) = named_face(&people, *id).await? {
            rows += caller.store().deletion_counts().of_enrolled(Some(subject), Some(*id)).await?.rows();
        }
    }
    // Checks the sum, because each deletion alone can be below the limit.
    state.confirmations().await?.check("delete_examples", rows, None)?;
    let mut deleted = Vec::new();
    // If one deletion fails, the earlier ones remain. The request can be repeated.
    for id in ids {
        deleted.extend(delete(&state, &caller, &people, id).await?);
    }
    Ok(Json(json!(deleted)))
}

/// Removes a face from its person. Deletes the image if it was sent only for enrolment. Returns
/// `None` if there is no such example.
async fn delete(
    state: &AppState,
    caller: &Caller,
    people: &People<'_>,
    id: Uuid,
) -> Result<Option<Example>, ApiError> {
    let Some((subject_id, subject)) = named_face(people, id).await? else { return Ok(None) };
    let person = caller.store().people().get(subject_id).await?;
    people::remove_face(state, caller, (&person, id), EnrolledImagesParams::default()).await?;
    Ok(Some(Example { image_id: id, subject }))
}

//! The face API of DeepStack and CodeProject.AI at `/v1/vision/face`.
//!
//! Source of paths, fields and responses: the documentation of DeepStack ("Face Recognition"), and
//! its Python client. The people are those of the collection of the key, else of `default`. If the
//! service requires keys, the key is the field `api_key` of the form, or in a header.
mod form;

use self::form::with_form;
use super::people::{Candidate, People, analyze, cosine, embedding};
use crate::auth::Caller;
use crate::operation::{Access, Routes};
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Code, Result, Scope, Spec};
use axum::Json;
use axum::body::to_bytes;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use pipeline::{AnalyzedFace, MIN_SCORE_FLOOR};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa_axum::routes;

const ANALYZE: Spec = Spec::new(Access::NeedsInForm(Scope::Analyze));
const SEARCH: Spec = Spec::new(Access::NeedsInForm(Scope::Search));
const READ: Spec = Spec::new(Access::NeedsInForm(Scope::Read));
const WRITE: Spec = Spec::new(Access::NeedsInForm(Scope::Write));
const ERASE: Spec = Spec::new(Access::NeedsInForm(Scope::Erase));

/// Default of `min_confidence` of a recognition, as in DeepStack.
const MIN_CONFIDENCE: f64 = 0.67;
/// The `userid` of a face whose similarity to each person is below the minimum.
const UNKNOWN: &str = "unknown";
/// Maximum size of a problem document of this service in bytes.
const MAX_PROBLEM_BYTES: usize = 64 << 10;

pub(super) fn router() -> Routes {
    Routes::default()
        .add(ANALYZE, routes!(detect))
        .add(SEARCH, routes!(recognize))
        .add(ANALYZE, routes!(match_faces))
        .add(WRITE, routes!(register))
        .add(READ, routes!(list))
        .add(ERASE, routes!(delete))
}

/// A face of an image, in pixels.
#[derive(Serialize)]
struct Prediction {
    confidence: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    userid: Option<String>,
    y_min: i64,
    x_min: i64,
    y_max: i64,
    x_max: i64,
}

impl Prediction {
    fn new(face: &AnalyzedFace, confidence: f64, userid: Option<String>) -> Self {
        let bbox = &face.detection.bbox;
        let pixel = |value: f32| (value.round() as i64).max(0);
        Self {
            confidence,
            userid,
            y_min: pixel(bbox.y),
            x_min: pixel(bbox.x),
            y_max: pixel(bbox.y + bbox.height),
            x_max: pixel(bbox.x + bbox.width),
        }
    }
}

fn success(fields: Value) -> Json<Value> {
    let mut answer = json!({"success": true});
    if let (Value::Object(answer), Value::Object(fields)) = (&mut answer, fields) {
        answer.extend(fields);
    }
    Json(answer)
}

/// Find the faces of an image.
#[utoipa::path(post, path = "/v1/vision/face", request_body(content((Binary = "multipart/form-data"))))]
async fn detect(state: AppState, caller: Caller, request: Request) -> Result<Json<Value>> {
    with_form(&state, caller, request, Scope::Analyze, async |form, _| {
        let min_score = form.min_confidence()?.map(|score| (score as f32).max(MIN_SCORE_FLOOR));
        let [image] = form.images()?;
        let analysis = analyze(&state, image, min_score, false).await?;
        let describe = |face: &AnalyzedFace| Prediction::new(face, face.detection.det_score.into(), None);
        let predictions: Vec<Prediction> = analysis.faces.iter().map(describe).collect();
        Ok(success(json!({"predictions": predictions})))
    })
    .await
}

/// Find the faces of an image, and the person whom each one resembles most.
#[utoipa::path(post, path = "/v1/vision/face/recognize", request_body(content((Binary = "multipart/form-data"))))]
async fn recognize(state: AppState, caller: Caller, request: Request) -> Result<Json<Value>> {
    with_form(&state, caller, request, Scope::Search, async |form, caller| {
        let min_confidence = form.min_confidence()?.unwrap_or(MIN_CONFIDENCE);
        let [image] = form.images()?;
        let people = People::new(&state, caller).await?;
        let analysis = analyze(&state, image, None, true).await?;
        let embeddings = analysis.faces.iter().map(embedding).collect::<Result<Vec<_>>>()?;
        let found = people.recognize(&embeddings, 1).await?;
        let describe = |(face, mut candidates): (&AnalyzedFace, Vec<Candidate>)| {
            let best = candidates.pop().filter(|best| best.similarity >= min_confidence);
            let (name, confidence) =
                best.map_or((UNKNOWN.to_owned(), 0.0), |best| (best.name, best.similarity));
            Prediction::new(face, confidence, Some(name))
        };
        let predictions: Vec<Prediction> = analysis.faces.iter().zip(found).map(describe).collect();
        Ok(success(json!({"predictions": predictions})))
    })
    .await
}

/// Compare the largest faces of two images.
#[utoipa::path(post, path = "/v1/vision/face/match", request_body(content((Binary = "multipart/form-data"))))]
async fn match_faces(state: AppState, caller: Caller, request: Request) -> Result<Json<Value>> {
    with_form(&state, caller, request, Scope::Analyze, async |form, caller| {
        let images: [Bytes; 2] = form.images()?;
        let people = People::new(&state, caller).await?;
        let mut embeddings = Vec::with_capacity(images.len());
        for image in images {
            let analysis = analyze(&state, image, None, true).await?;
            let no_face = || ApiError::new(Code::NoFace, "no face was found in an image");
            embeddings.push(embedding(analysis.faces.first().ok_or_else(no_face)?)?);
        }
        Ok(success(json!({"similarity": people.similarity(cosine(&embeddings[0], &embeddings[1]))})))
    })
    .await
}

/// Enrol a person from one or more images, each of which shows only this person.
#[utoipa::path(post, path = "/v1/vision/face/register", request_body(content((Binary = "multipart/form-data"))))]
async fn register(state: AppState, caller: Caller, request: Request) -> Result<Json<Value>> {
    with_form(&state, caller, request, Scope::Write, async |form, caller| {
        let people = People::new(&state, caller).await?;
        let (name, images) = (form.user_id()?, form.all_images()?);
        if images.len() > 1 {
            // An image without a face must not leave those before it enrolled.
            for (number, image) in (1..).zip(&images) {
                let found = analyze(&state, image.clone(), None, false).await?.faces.len();
                if found != 1 {
                    let detail =
                        format!("image {number} has {found} faces; each image must show exactly one");
                    return Err(ApiError::new(Code::NoSuchFace, detail));
                }
            }
        }
        for image in images {
            people.enrol(&name, image, None).await?;
        }
        Ok(success(json!({"message": "face added"})))
    })
    .await
}

/// List the names of all people.
#[utoipa::path(post, path = "/v1/vision/face/list",
    request_body(content((Binary = "multipart/form-data"), (Binary = "application/x-www-form-urlencoded"))))]
async fn list(state: AppState, caller: Caller, request: Request) -> Result<Json<Value>> {
    with_form(&state, caller, request, Scope::Read, async |_, caller| {
        Ok(success(json!({"faces": People::new(&state, caller).await?.names().await?})))
    })
    .await
}

/// Delete a person. A name that nobody has is not an error.
#[utoipa::path(post, path = "/v1/vision/face/delete",
    request_body(content((Binary = "multipart/form-data"), (Binary = "application/x-www-form-urlencoded"))))]
async fn delete(state: AppState, caller: Caller, request: Request) -> Result<Json<Value>> {
    with_form(&state, caller, request, Scope::Erase, async |form, caller| {
        let people = People::new(&state, caller).await?;
        if let Some(subject) = people.find(&form.user_id()?).await? {
            people.delete(&subject).await?;
        }
        Ok(success(json!({})))
    })
    .await
}

#[derive(Deserialize)]
struct Problem {
    detail: String,
}

/// Converts a problem document to an error of DeepStack. The statuses 422 and 415 become 400, as
/// clients expect. Other statuses are kept.
pub(super) async fn translate(response: Response) -> Response {
    let Some(code) = response.extensions().get::<Code>().copied() else { return response };
    let (mut parts, body) = response.into_parts();
    let problem = to_bytes(body, MAX_PROBLEM_BYTES).await.ok();
    let problem = problem.and_then(|bytes| serde_json::from_slice::<Problem>(&bytes).ok());
    let detail = problem.map_or_else(|| code.title().to_owned(), |problem| problem.detail);
    let message = if code == Code::NoFace { "No face detected".to_owned() } else { detail };
    if matches!(code.status(), StatusCode::UNPROCESSABLE_ENTITY | StatusCode::UNSUPPORTED_MEDIA_TYPE) {
        parts.status = StatusCode::BAD_REQUEST;
    }
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::CONTENT_TYPE);
    let body = Json(json!({"success": false, "error": message, "code": parts.status.as_u16()}));
    let (json, body) = body.into_response().into_parts();
    parts.headers.extend(json.headers);
    Response::from_parts(parts, body)
}

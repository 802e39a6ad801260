//! Implements `/recognition/recognize` and `/detection/detect`: finds the faces of an image, and
//! the people whom they resemble.
use super::errors::{Failure, Number, Result};
use super::examples::FileBody;
use super::images::{Face, Options, Versions, read_images};
use crate::auth::Caller;
use crate::compat::people::{Candidate, People, embedding};
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::Request;
use inference::Embedding;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

pub(super) const SEARCH: Spec = Spec::needs(Scope::Search);
pub(super) const ANALYZE: Spec = Spec::needs(Scope::Analyze).skip_connection_limit();

/// Maximum number of embeddings in a request.
pub(super) const MAX_EMBEDDINGS: usize = 100;

/// A person who resembles a face.
#[derive(Serialize)]
struct Prediction {
    subject: String,
    similarity: f64,
}

impl From<Candidate> for Prediction {
    fn from(candidate: Candidate) -> Self {
        Self { subject: candidate.name, similarity: candidate.similarity }
    }
}

#[derive(Serialize)]
struct RecognizedFace {
    #[serde(flatten)]
    face: Face,
    subjects: Vec<Prediction>,
}

/// The response of an operation on the faces of one image.
#[derive(Serialize)]
pub(super) struct Faces<T> {
    pub(super) result: Vec<T>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) plugins_versions: Option<Versions>,
}

/// Find the people who resemble each face of an image most, whatever their similarity.
#[utoipa::path(post, path = "/api/v1/recognition/recognize",
    request_body(content((Binary = "multipart/form-data"), (FileBody = "application/json"))))]
pub(super) async fn recognize(state: AppState, caller: Caller, request: Request) -> Result<Json<Value>> {
    let options = Options::read(&request)?;
    let [image] = read_images(&state, request, &["file"]).await?;
    let people = People::new(&state, &caller).await?;
    let analysis = options.analyze(&state, image, true).await?;
    let embeddings = analysis.faces.iter().map(embedding).collect::<Result<Vec<_>, ApiError>>()?;
    let candidates = people.recognize(&embeddings, options.predictions()).await?;
    let mut result = Vec::with_capacity(candidates.len());
    for (face, candidates) in analysis.faces.iter().zip(candidates) {
        let subjects = candidates.into_iter().map(Prediction::from).collect();
        result.push(RecognizedFace { face: options.describe(face, &analysis.timings)?, subjects });
    }
    Ok(Json(json!(Faces { result, plugins_versions: options.versions(&state) })))
}

/// Embeddings to recognise.
#[derive(Deserialize, ToSchema)]
pub(super) struct EmbeddingsBody {
    pub(super) embeddings: Vec<Vec<f32>>,
}

/// Checks embeddings of a request, and normalises them to length 1.
///
/// # Errors
/// Fails with 400 if there are none or too many, or if one does not fit the model of the service.
pub(super) fn check_embeddings(state: &AppState, embeddings: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
    if embeddings.is_empty() || embeddings.len() > MAX_EMBEDDINGS {
        let message =
            format!("1 to {MAX_EMBEDDINGS} embeddings are required, but {} were sent", embeddings.len());
        return Err(Failure::bad_request(Number::WrongCount, message));
    }
    let dimensions = state.services.analyzer.engine().embedder().dimensions;
    let check = |values: &Vec<f32>| {
        let embedding = Embedding::from_raw(values.clone()).filter(|_| values.len() == dimensions);
        let detail = format!(
            "an embedding must have {dimensions} numbers, not all zero; this one has {}",
            values.len()
        );
        Ok(embedding.ok_or_else(|| ApiError::new(Code::InvalidField, detail))?.as_slice().to_vec())
    };
    embeddings.iter().map(check).collect()
}

/// Find the people who resemble each embedding most.
#[utoipa::path(post, path = "/api/v1/recognition/embeddings/recognize", request_body = EmbeddingsBody)]
pub(super) async fn recognize_embeddings(
    state: AppState,
    caller: Caller,
    request: Request,
) -> Result<Json<Value>> {
    let options = Options::read(&request)?;
    let body: EmbeddingsBody = crate::extract::image::read_json(request, &state).await?;
    let embeddings = check_embeddings(&state, &body.embeddings)?;
    let people = People::new(&state, &caller).await?;
    let found = people.recognize(&embeddings, options.predictions()).await?;
    let result: Vec<Value> = body
        .embeddings
        .into_iter()
        .zip(found)
        .map(|(embedding, candidates)| {
            let similarities: Vec<Prediction> = candidates.into_iter().map(Prediction::from).collect();
            json!({"embedding": embedding, "similarities": similarities})
        })
        .collect();
    Ok(Json(json!({"result": result})))
}

/// Find the faces of an image.
#[utoipa::path(post, path = "/api/v1/detection/detect",
    request_body(content((Binary = "multipart/form-data"), (FileBody = "application/json"))))]
pub(super) async fn detect(state: AppState, request: Request) -> Result<Json<Value>> {
    let options = Options::read(&request)?;
    let [image] = read_images(&state, request, &["file"]).await?;
    let analysis = options.analyze(&state, image, false).await?;
    let describe = |face| options.describe(face, &analysis.timings);
    let result = analysis.faces.iter().map(describe).collect::<Result<Vec<Face>, ApiError>>()?;
    Ok(Json(json!(Faces { result, plugins_versions: options.versions(&state) })))
}

//! Implements the verification operations, which compare two faces.
use super::errors::{Failure, Number, Result};
use super::examples::FileBody;
use super::images::{Face, Options, Versions, read_images};
use super::recognition::{EmbeddingsBody, Faces, check_embeddings};
use crate::auth::Caller;
use crate::compat::people::{People, cosine, embedding, named_face};
use crate::extract::Id;
use crate::extract::image::read_json;
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::Request;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;
use uuid::Uuid;

pub(super) const SEARCH: Spec = Spec::needs(Scope::Search);
pub(super) const ANALYZE: Spec = Spec::needs(Scope::Analyze);

/// A face and its similarity to the other one.
#[derive(Serialize)]
struct Verified {
    #[serde(flatten)]
    face: Face,
    /// Name of the subject, in a comparison with a stored example.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<String>,
    similarity: f64,
}

/// Returns the name and the embedding of a stored example.
///
/// # Errors
/// Fails with 404 if there is no such example, and with 409 if its embedding is from a different
/// model.
async fn example(
    state: &AppState,
    caller: &Caller,
    people: &People<'_>,
    id: Uuid,
) -> Result<(String, Vec<f32>)> {
    let (_, name) = named_face(people, id).await?.ok_or_else(|| Failure::image_not_found(id))?;
    let (model, embedding) = caller.store().faces().embedding(id).await?;
    if model != state.services.face_store.model_id() {
        let detail = "the embedding of the example is from a different model; run facecrawl reembed";
        return Err(ApiError::new(Code::ModelMismatch, detail).into());
    }
    Ok((name, embedding))
}

/// Records in the audit log that faces are compared with a stored example. Comparisons with many
/// examples identify a person, like a search.
async fn record_comparison(people: &People<'_>, example: Uuid, faces: usize) -> Result<()> {
    people.record_search(&json!({"probe": "image", "faces": faces, "face_id": example})).await?;
    Ok(())
}

/// Compare the faces of an image with a stored example.
#[utoipa::path(post, path = "/api/v1/recognition/faces/{id}/verify", params(("id" = Uuid, Path)),
    request_body(content((Binary = "multipart/form-data"), (FileBody = "application/json"))))]
pub(super) async fn verify_example(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    request: Request,
) -> Result<Json<Value>> {
    let options = Options::read(&request)?;
    let [image] = read_images(&state, request, &["file"]).await?;
    let people = People::new(&state, &caller).await?;
    let (name, stored) = example(&state, &caller, &people, id).await?;
    let analysis = options.analyze(&state, image, true).await?;
    record_comparison(&people, id, analysis.faces.len()).await?;
    let mut result = Vec::with_capacity(analysis.faces.len());
    for face in &analysis.faces {
        result.push(Verified {
            similarity: people.similarity(cosine(&stored, &embedding(face)?)),
            subject: Some(name.clone()),
            face: options.describe(face, &analysis.timings)?,
        });
    }
    Ok(Json(json!(Faces { result, plugins_versions: options.versions(&state) })))
}

/// Returns the similarity of each embedding, the highest first.
fn by_similarity(people: &People<'_>, source: &[f32], targets: &[Vec<f32>]) -> Vec<Value> {
    let mut found: Vec<(f64, &Vec<f32>)> =
        targets.iter().map(|target| (people.similarity(cosine(source, target)), target)).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found
        .into_iter()
        .map(|(similarity, target)| json!({"embedding": target, "similarity": similarity}))
        .collect()
}

/// Compare embeddings with a stored example.
#[utoipa::path(post, path = "/api/v1/recognition/embeddings/faces/{id}/verify", params(("id" = Uuid, Path)),
    request_body = EmbeddingsBody)]
pub(super) async fn verify_example_embeddings(
    state: AppState,
    caller: Caller,
    Id(id): Id,
    request: Request,
) -> Result<Json<Value>> {
    let body: EmbeddingsBody = read_json(request, &state).await?;
    let targets = check_embeddings(&state, &body.embeddings)?;
    let people = People::new(&state, &caller).await?;
    let (_, stored) = example(&state, &caller, &people, id).await?;
    record_comparison(&people, id, targets.len()).await?;
    Ok(Json(json!({"result": by_similarity(&people, &stored, &targets)})))
}

/// Two images in base64.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes the body")]
pub(super) struct PairBody {
    source_image: String,
    target_image: String,
}

/// The face of the source image, and the faces of the target image.
#[derive(Serialize)]
struct Pair {
    source_image_face: Face,
    face_matches: Vec<Verified>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plugins_versions: Option<Versions>,
}

/// Compare the only face of one image with the faces of another.
#[utoipa::path(post, path = "/api/v1/verification/verify",
    request_body(content((Binary = "multipart/form-data"), (PairBody = "application/json"))))]
pub(super) async fn verify(state: AppState, caller: Caller, request: Request) -> Result<Json<Value>> {
    let options = Options::read(&request)?;
    let [source, target] = read_images(&state, request, &["source_image", "target_image"]).await?;
    let people = People::new(&state, &caller).await?;
    let source = options.analyze(&state, source, true).await?;
    let [source_face] = &source.faces[..] else {
        return Err(Failure::bad_request(Number::TooManyFaces, "More than one face in the source image"));
    };
    let target = options.analyze(&state, target, true).await?;
    let source_embedding = embedding(source_face)?;
    let mut face_matches = Vec::with_capacity(target.faces.len());
    for face in &target.faces {
        face_matches.push(Verified {
            similarity: people.similarity(cosine(&source_embedding, &embedding(face)?)),
            subject: None,
            face: options.describe(face, &target.timings)?,
        });
    }
    face_matches.sort_by(|a, b| b.similarity.total_cmp(&a.similarity));
    let source_image_face = options.describe(source_face, &source.timings)?;
    let pair = Pair { source_image_face, face_matches, plugins_versions: options.versions(&state) };
    Ok(Json(json!({"result": [pair]})))
}

/// An embedding, and the embeddings to compare it with.
#[derive(Deserialize, ToSchema)]
pub(super) struct SourceAndTargets {
    source: Vec<f32>,
    targets: Vec<Vec<f32>>,
}

/// Compare embeddings.
#[utoipa::path(post, path = "/api/v1/verification/embeddings/verify", request_body = SourceAndTargets)]
pub(super) async fn verify_embeddings(
    state: AppState,
    caller: Caller,
    request: Request,
) -> Result<Json<Value>> {
    let body: SourceAndTargets = read_json(request, &state).await?;
    let source = check_embeddings(&state, std::slice::from_ref(&body.source))?.remove(0);
    let targets = check_embeddings(&state, &body.targets)?;
    let people = People::new(&state, &caller).await?;
    Ok(Json(json!({"result": by_similarity(&people, &source, &targets)})))
}

use super::analysis::{DetectedFace, ImageInfo};
use super::likeness::Likeness;
use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::image::{BodyFormat, ImageSource, pair_of_parts, pair_of_sources, read_json};
use crate::extract::values::{Bounded, Cosine, Score};
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::{Request, State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Options of a comparison.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CompareParams {
    /// Minimum similarity at which `match` is true; the default is that of the collection, else of
    /// the embedding model.
    #[param(value_type = Option<f32>, minimum = -1, maximum = 1, example = 0.5)]
    threshold: Option<Cosine>,
    /// Minimum `det_score` of a face.
    #[param(value_type = Option<f32>, minimum = 0.1, maximum = 1)]
    min_score: Option<Score>,
    /// Index of the face in the first image, by descending score, starting at 0.
    #[param(value_type = Option<u32>, minimum = 0, maximum = 999, default = 0)]
    face_a: Option<Bounded<0, 999>>,
    /// Index of the face in the second image, as for `face_a`.
    #[param(value_type = Option<u32>, minimum = 0, maximum = 999, default = 0)]
    face_b: Option<Bounded<0, 999>>,
    /// Use the threshold of this collection; the default is the collection of the key.
    collection: Option<String>,
}

/// Two images in JSON.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"a": {"url": "https://example.org/portrait.jpg"}, "b": {"url": "https://example.org/team.jpg"}}))]
pub(crate) struct CompareBody {
    /// The first image.
    a: ImageSource,
    /// The second image.
    b: ImageSource,
}

/// Two images as parts: `image_a` and `image_b`, or `image` twice.
#[derive(ToSchema)]
#[allow(dead_code, reason = "only describes the body in the OpenAPI document")]
pub(super) struct CompareForm {
    /// The first image.
    #[schema(value_type = String, format = Binary, content_media_type = "application/octet-stream", example = "@portrait.jpg")]
    image_a: Vec<u8>,
    /// The second image.
    #[schema(value_type = String, format = Binary, content_media_type = "application/octet-stream", example = "@team.jpg")]
    image_b: Vec<u8>,
}

/// One of the two images of a comparison.
#[derive(Serialize, ToSchema)]
pub(super) struct ComparedFace {
    image: ImageInfo,
    face: DetectedFace,
}

impl From<Likeness> for ComparedFace {
    fn from(Likeness { image, face, .. }: Likeness) -> Self {
        Self { image, face }
    }
}

/// The similarity of two faces.
#[derive(Serialize, ToSchema)]
pub(super) struct CompareAnswer {
    /// Cosine of the two embeddings, -1 to 1.
    #[schema(example = 0.71)]
    similarity: f32,
    /// Whether the similarity reaches the threshold. A higher threshold causes fewer false matches
    /// and more missed matches. A match does not prove identity.
    #[schema(example = true)]
    r#match: bool,
    /// Share of pairs of different people that reach this threshold, as measured for the embedding
    /// model. Null if the threshold is not the model's own, or if its rate was not measured.
    #[schema(example = 0.0023)]
    match_fmr: Option<f64>,
    /// The threshold that was used.
    #[schema(example = 0.5)]
    threshold: f32,
    a: ComparedFace,
    b: ComparedFace,
    /// The embedding model.
    #[schema(example = "sface")]
    model: String,
}

pub(super) const SPEC: Spec =
    Spec::needs(Scope::Analyze).problems(&[Code::PICTURE, Code::FETCHED, Code::FACE]).limited_elsewhere();

/// Compare the faces of two images (1:1).
///
/// Compares the faces with the highest score of each image, unless `face_a` or `face_b` chooses
/// another. Nothing is stored.
#[utoipa::path(
    post, path = "/faces/compare", operation_id = "compare_faces", tag = "faces",
    params(CompareParams),
    request_body(content((CompareForm = "multipart/form-data"), (CompareBody = "application/json"))),
    responses(
        (status = 200, description = "The similarity of the two faces", body = CompareAnswer),
        (status = 415, description = "The content is not an image, or the content type does not allow two images"),
        (status = 422, description = "One of the images (`field` contains its name) has no face or is invalid"),
    ),
)]
pub(super) async fn compare_faces(
    State(state): State<AppState>,
    caller: Caller,
    Query(params): Query<CompareParams>,
    request: Request,
) -> Result<Json<CompareAnswer>, ApiError> {
    let collection_threshold = caller
        .settings_collection(params.collection.as_deref())
        .await?
        .and_then(|collection| collection.match_threshold);
    let [a, b] = match BodyFormat::of(request.headers())? {
        BodyFormat::Multipart => pair_of_parts(request, &state).await?,
        BodyFormat::Json => {
            let body: CompareBody = read_json(request, &state).await?;
            pair_of_sources(&state, body.a, body.b).await?
        }
        BodyFormat::Raw => {
            return Err(ApiError::new(
                Code::UnsupportedMediaType,
                "a raw body contains only one image; two images are required",
            )
            .field("content-type")
            .allowed(["multipart/form-data", "application/json"]));
        }
    };
    let (a, b) = tokio::try_join!(
        Likeness::of(&state, a, params.face_a, params.min_score, "a"),
        Likeness::of(&state, b, params.face_b, params.min_score, "b"),
    )?;
    let similarity = a
        .embedding
        .similarity(&b.embedding)
        .ok_or_else(|| ApiError::internal("embeddings of two lengths"))?;
    let threshold = state.match_threshold(params.threshold.map(Cosine::get), collection_threshold).value;
    Ok(Json(CompareAnswer {
        similarity,
        r#match: similarity >= threshold,
        match_fmr: state.match_fmr(threshold),
        threshold,
        a: a.into(),
        b: b.into(),
        model: state.services.analyzer.engine().embedder().name.clone(),
    }))
}

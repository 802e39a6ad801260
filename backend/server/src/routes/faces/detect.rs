//! Detects and compares the faces of images in requests. Nothing is stored.
use crate::auth::Caller;
use crate::extract::image::{
    BatchBody, BatchForm, BatchInput, BodyFormat, ImageBody, ImageForm, ImageSource, read_batch, read_json,
    two_parts, two_sources,
};
use crate::extract::{Bounded, Cosine, DetSize, Query, Score};
use crate::routes::shared::analysis::{
    DetectedFace, FaceChoice, ImageInfo, Likeness, ModelNames, ProfileParam, RotateParam, Timings, analyze,
};
use crate::routes::shared::values::Binary;
use crate::{ApiError, AppState, Code, Problem, Result, Scope, Spec};
use axum::Json;
use axum::extract::Request;
use futures::{StreamExt, stream};
use inference::{Engine, Priority};
use pipeline::{Analysis, AnalyzeOptions, Enhance, Passes, Rotate, profile_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use utoipa::{IntoParams, ToSchema};

/// Options of an analysis.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DetectParams {
    /// Minimum `det_score`; the default depends on the detector (YuNet 0.6, SCRFD 0.5).
    #[param(value_type = Option<f32>, minimum = 0.1, maximum = 1, example = 0.7)]
    pub(super) min_score: Option<Score>,
    /// Maximum number of faces; those with the best scores are kept.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 1000)]
    pub(super) max_faces: Option<Bounded<1, 1000>>,
    /// Whether to return the embeddings.
    #[param(default = true)]
    pub(super) embeddings: Option<bool>,
    /// Whether to assess the quality of each face.
    #[param(default = true)]
    pub(super) quality: Option<bool>,
    /// `auto`: if no face of the image is certainly upright, compare the best boxes at 0, 90, 180
    /// and 270 degrees, and repeat the detection at the rotation at which they are upright. If
    /// there is no box, repeat the detection at every rotation.
    #[param(inline, value_type = Option<RotateParam>)]
    pub(super) rotate: Option<Rotate>,
    /// `auto`: if the short side of an image is under 400 pixels and no face or only faces with low
    /// scores are found, enhance the image and repeat the detection (see `POST /images/enhance`).
    /// Coordinates refer to the image that was sent.
    #[param(inline, value_type = Option<EnhanceParam>)]
    pub(super) enhance: Option<Enhance>,
    /// Side of the detector's square canvas in pixels, a multiple of 32. A larger canvas finds
    /// smaller faces and takes longer.
    #[param(value_type = Option<u32>, minimum = 64, maximum = 2048, multiple_of = 32, example = 640)]
    pub(super) det_size: Option<DetSize>,
    /// Detection passes. `single` runs one pass. `auto` starts with a reduced image. If it shows no
    /// sign of a face, the search ends, except for images of more than 2,560 pixels. Otherwise
    /// `auto` runs the pass of `single`, and adds tiles if faces are tiny or a large image has no
    /// face with a high score. `thorough` always adds a reduced image and tiles, up to the full
    /// resolution of the image. The default is that of the service.
    #[param(inline, value_type = Option<PassesParam>)]
    pub(super) passes: Option<Passes>,
    /// Quality profile that determines `quality.passed`; the default is that of the collection,
    /// else of the service.
    #[param(inline, value_type = Option<ProfileParam>)]
    pub(super) quality_profile: Option<vision::Profile>,
    /// Use the quality profile of this collection; the default is the collection of the key.
    /// Nothing is stored in it.
    pub(super) collection: Option<String>,
}

/// Whether to repeat the detection on enhanced images of low resolution.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes pipeline::Enhance in the OpenAPI document")]
pub(super) enum EnhanceParam {
    Off,
    Auto,
}

/// Which versions and tiles of an image the detector processes.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes pipeline::Passes in the OpenAPI document")]
pub(super) enum PassesParam {
    Single,
    Auto,
    Thorough,
}

impl DetectParams {
    pub(super) async fn options(&self, caller: &Caller) -> Result<AnalyzeOptions> {
        let defaults = AnalyzeOptions::default();
        let collection = caller.settings_collection(self.collection.as_deref()).await?;
        Ok(AnalyzeOptions {
            min_score: self.min_score.map(Score::get),
            max_faces: self.max_faces.map(Bounded::index),
            embeddings: self.embeddings.unwrap_or(defaults.embeddings),
            passed_only: false,
            quality: self.quality.unwrap_or(defaults.quality),
            chips: false,
            rotate: self.rotate.unwrap_or_default(),
            enhance: self.enhance.unwrap_or_default(),
            det_size: self.det_size.map(|side| side.0),
            passes: self.passes,
            quality_profile: self.quality_profile.or_else(|| collection.as_ref().and_then(profile_of)),
        })
    }
}

/// The faces of one image, by descending score. An image without faces is not an error.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DetectAnswer {
    pub(super) image: ImageInfo,
    pub(super) faces: Vec<DetectedFace>,
    pub(super) models: ModelNames,
    /// The device of each operation.
    #[schema(example = json!({
        "face_detection": "cpu", "face_embedding": "cpu", "image_enhancement": "cpu", "image_processing": "cpu", "quality_checks": "cpu"
    }))]
    pub(super) devices: BTreeMap<String, String>,
    pub(super) timings_ms: Timings,
}

impl DetectAnswer {
    pub(crate) fn new(analysis: &Analysis, engine: &Engine) -> Self {
        Self {
            image: ImageInfo::new(analysis),
            faces: analysis.faces.iter().map(|face| DetectedFace::new(face, true)).collect(),
            models: ModelNames::new(engine),
            devices: engine
                .operations()
                .into_iter()
                .map(|report| (report.operation.to_string(), report.effective.to_string()))
                .collect(),
            timings_ms: analysis.timings.into(),
        }
    }
}

pub(super) const DETECT: Spec =
    Spec::needs(Scope::Analyze).problems(&[Code::IMAGE, Code::FETCHED]).skip_connection_limit();

/// Find the faces in one image.
///
/// Nothing is stored. The image is a multipart part `image`, a raw body, or JSON with a URL or
/// base64.
#[utoipa::path(
    post, path = "/faces/detect", operation_id = "detect_faces", tag = "faces",
    params(DetectParams),
    request_body(content(
        (ImageForm = "multipart/form-data"), (ImageSource = "application/json"), (Binary = "image/*"), (Binary = "application/octet-stream")
    )),
    responses((status = 200, description = "The faces, by descending score; the list may be empty", body = DetectAnswer)),
)]
pub(super) async fn detect_faces(
    state: AppState,
    caller: Caller,
    Query(params): Query<DetectParams>,
    ImageBody(bytes): ImageBody,
) -> Result<Json<DetectAnswer>> {
    let analysis = analyze(&state, bytes, &params.options(&caller).await?).await?;
    Ok(Json(DetectAnswer::new(&analysis, state.services.analyzer.engine())))
}

/// The result for one image of a batch: its faces, or a problem.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(super) enum BatchResult {
    /// The faces of this image.
    Found(Box<DetectAnswer>),
    /// The image could not be analysed.
    Failed {
        /// The problem with this image.
        problem: Box<Problem>,
    },
}

/// The response to a batch.
#[derive(Serialize, ToSchema)]
pub(super) struct BatchAnswer {
    /// The results, in the order of the images.
    results: Vec<BatchResult>,
}

// A problem with a single image is reported in its entry of the response.
pub(super) const DETECT_BATCH: Spec = Spec::needs(Scope::Analyze).skip_connection_limit();

/// Find the faces in many images.
///
/// Takes up to 64 images, as multipart parts `image` or as JSON. The response contains one result
/// or problem per image, in the same order. An image that fails does not affect the others.
#[utoipa::path(
    post, path = "/faces/detect/batch", operation_id = "detect_faces_batch", tag = "faces",
    params(DetectParams),
    request_body(content((BatchForm = "multipart/form-data"), (BatchBody = "application/json"))),
    responses(
        (status = 200, description = "One result or problem per image", body = BatchAnswer),
        (status = 413, description = "Too many bytes or images"),
        (status = 415, description = "The content type is not supported for a batch"),
    ),
)]
pub(super) async fn detect_faces_batch(
    state: AppState,
    caller: Caller,
    Query(params): Query<DetectParams>,
    request: Request,
) -> Result<Json<BatchAnswer>> {
    let options = Arc::new(params.options(&caller).await?);
    let inputs = read_batch(request, &state).await?;
    let permit = state.analyses.admit(inputs.len())?;
    let concurrency = state.config.batch_concurrency.max(1);
    let results = stream::iter(inputs.into_iter().enumerate())
        .map(|(index, input)| analyze_batch_image(state.clone(), index, input, options.clone()))
        .buffered(concurrency)
        .collect()
        .await;
    drop(permit);
    Ok(Json(BatchAnswer { results }))
}

async fn analyze_batch_image(
    state: AppState,
    index: usize,
    input: BatchInput,
    options: Arc<AnalyzeOptions>,
) -> BatchResult {
    let analyzer = state.analyzer();
    let result = async {
        let bytes = input.bytes(&state).await?;
        let analysis = analyzer.analyze(bytes, &options, Priority::Interactive).await?;
        Ok::<_, ApiError>(DetectAnswer::new(&analysis, analyzer.engine()))
    };
    match result.await {
        Ok(result) => BatchResult::Found(Box::new(result)),
        Err(error) => {
            BatchResult::Failed { problem: error.prefix_path(&format!("images[{index}]")).into_problem() }
        }
    }
}

/// Options of a comparison.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CompareParams {
    /// Minimum similarity at which `match` is true; the default is that of the collection, else
    /// `MATCH_THRESHOLD`, else that of the embedding model.
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

pub(super) const COMPARE: Spec =
    Spec::needs(Scope::Analyze).problems(&[Code::IMAGE, Code::FETCHED, Code::FACE]).skip_connection_limit();

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
    state: AppState,
    caller: Caller,
    Query(params): Query<CompareParams>,
    request: Request,
) -> Result<Json<CompareAnswer>> {
    let collection_threshold = caller
        .settings_collection(params.collection.as_deref())
        .await?
        .and_then(|collection| collection.match_threshold);
    let [a, b] = match BodyFormat::from_headers(request.headers())? {
        BodyFormat::Multipart => two_parts(request, &state).await?,
        BodyFormat::Json => {
            let body: CompareBody = read_json(request, &state).await?;
            two_sources(&state, body.a, body.b).await?
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
    let choice = |index| FaceChoice { index, min_score: params.min_score, must_be_unambiguous: false };
    let (a, b) = tokio::try_join!(
        Likeness::new(&state, a, choice(params.face_a), "a"),
        Likeness::new(&state, b, choice(params.face_b), "b"),
    )?;
    let similarity = a
        .embedding
        .similarity(&b.embedding)
        .ok_or_else(|| ApiError::internal("the two embeddings have different lengths"))?;
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

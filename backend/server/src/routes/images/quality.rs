use crate::auth::Caller;
use crate::extract::Query;
use crate::extract::image::{ImageBody, ImageForm, ImageSource};
use crate::extract::values::Score;
use crate::routes::dto::Binary;
use crate::routes::faces::{DetectedFace, ImageInfo, ProfileParam, Timings, analyze};
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;
use inference::Priority;
use pipeline::{AnalyzeOptions, profile_of};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Options of a quality report.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct QualityParams {
    /// Minimum `det_score` of a face.
    #[param(value_type = Option<f32>, minimum = 0.1, maximum = 1)]
    min_score: Option<Score>,
    /// Quality profile that determines `quality.passed`; the default is that of the collection,
    /// else of the service.
    #[param(inline, value_type = Option<ProfileParam>)]
    quality_profile: Option<vision::Profile>,
    /// Use the quality profile of this collection; the default is the collection of the key.
    collection: Option<String>,
}

/// Grey-level statistics of the whole image, computed as in OpenCV (BT.601 grey; Laplacian and 3x3
/// Sobel).
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"laplacian_variance": 337.4, "tenengrad": 4766.1, "mean": 135.5, "std": 51.6, "clipped": 0.0002}))]
pub(super) struct Statistics {
    /// Variance of the Laplacian. Low values indicate blur.
    laplacian_variance: f64,
    /// Mean squared Sobel gradient.
    tenengrad: f64,
    /// Mean grey level, 0 to 255.
    mean: f64,
    /// Standard deviation of the grey level.
    std: f64,
    /// Share of pixels with a grey level of at most 5 or at least 250, 0 to 1.
    clipped: f64,
}

/// The quality of an image.
#[derive(Serialize, ToSchema)]
pub(super) struct QualityAnswer {
    image: ImageInfo,
    statistics: Statistics,
    /// The faces with their quality, by descending score.
    faces: Vec<DetectedFace>,
    timings_ms: Timings,
}

pub(super) const SPEC: Spec =
    Spec::needs(Scope::Analyze).problems(&[Code::PICTURE, Code::FETCHED]).limited_elsewhere();

/// Measure the quality of an image and of the faces in it.
///
/// Nothing is stored.
#[utoipa::path(
    post, path = "/images/quality", operation_id = "report_quality", tag = "images",
    params(QualityParams),
    request_body(content(
        (ImageForm = "multipart/form-data"), (ImageSource = "application/json"), (Binary = "image/*"), (Binary = "application/octet-stream")
    )),
    responses((status = 200, description = "The quality of the image and of its faces", body = QualityAnswer)),
)]
pub(super) async fn report_quality(
    State(state): State<AppState>,
    caller: Caller,
    Query(params): Query<QualityParams>,
    ImageBody(bytes): ImageBody,
) -> Result<Json<QualityAnswer>, ApiError> {
    let collection = caller.settings_collection(params.collection.as_deref()).await?;
    let options = AnalyzeOptions {
        min_score: params.min_score.map(Score::get),
        embeddings: false,
        quality: true,
        quality_profile: params.quality_profile.or_else(|| collection.as_ref().and_then(profile_of)),
        ..AnalyzeOptions::default()
    };
    let analysis = analyze(&state, bytes, &options).await?;
    let analyzer = state.analyzer();
    let grey = analyzer.pixels().statistics(analysis.frame.clone(), Priority::Interactive).await?.output;
    Ok(Json(QualityAnswer {
        image: ImageInfo::of(&analysis),
        statistics: Statistics {
            laplacian_variance: grey.laplacian_variance,
            tenengrad: grey.tenengrad,
            mean: grey.mean,
            std: grey.std,
            clipped: grey.clipped,
        },
        faces: analysis.faces.iter().map(|face| DetectedFace::of(face, false)).collect(),
        timings_ms: analysis.timings.into(),
    }))
}

//! Analyses an image for an operation, and describes the image and its faces in responses.
use crate::extract::{Bounded, Score};
use crate::routes::shared::values::{BoundingBox, Quality, hash_hex, milliseconds};
use crate::{ApiError, AppState, Code, Result};
use bytes::Bytes;
use inference::{Embedding, Engine, Priority};
use pipeline::{Analysis, AnalyzeOptions, AnalyzedFace};
use serde::Serialize;
use utoipa::ToSchema;
use vision::QualityReport;

/// Whether to detect rotated faces.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes pipeline::Rotate in the OpenAPI document")]
pub(crate) enum RotateParam {
    Off,
    Auto,
}

/// A named set of quality requirements.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes vision::Profile in the OpenAPI document")]
pub(crate) enum ProfileParam {
    Off,
    Standard,
    Strict,
}

/// An image that was analysed.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(example = json!({
    "width": 480, "height": 560, "format": "jpeg", "sha256": "b7c0ab6c412b751031fb091d747ab6a7a41ff258fd2fc4879b826772c317530c",
    "phash": "6cc143f08e9f929c", "rotation": 0
}))]
pub(crate) struct ImageInfo {
    /// Width in pixels, after the file's orientation is applied.
    #[schema(example = 480)]
    pub(crate) width: u32,
    /// Height in pixels, after the file's orientation is applied.
    #[schema(example = 560)]
    pub(crate) height: u32,
    /// Format, detected from the content: `jpeg`, `png`, `webp`, `gif`, `bmp`, and, if the service
    /// has ffmpeg, `avif`, `heic`, `jxl`, `tiff` and `jp2`.
    #[schema(example = "jpeg")]
    pub(crate) format: String,
    /// SHA-256 hash of the file, in hexadecimal.
    pub(crate) sha256: String,
    /// Perceptual hash of the image, as 16 hexadecimal digits.
    #[schema(example = "6cc143f08e9f929c")]
    pub(crate) phash: String,
    /// Clockwise rotation in degrees that makes the faces upright.
    pub(crate) rotation: u32,
    /// Scale of the enhanced image relative to the image. Present only if the faces were found in
    /// the enhanced image.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = 2.5)]
    pub(crate) enhancement_scale: Option<f32>,
}

impl ImageInfo {
    pub(crate) fn new(analysis: &Analysis) -> Self {
        Self {
            width: analysis.frame.width(),
            height: analysis.frame.height(),
            format: analysis.format.name().to_owned(),
            sha256: hex::encode(analysis.sha256),
            phash: hash_hex(analysis.hashes.p),
            rotation: analysis.rotation,
            enhancement_scale: analysis.enhancement_scale,
        }
    }
}

/// A face found in an image.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DetectedFace {
    /// The box around the face.
    pub(crate) bbox: BoundingBox,
    /// The detector's confidence, 0 to 1.
    #[schema(example = 0.93)]
    pub(crate) det_score: f32,
    /// x and y of the right eye, left eye, nose tip, and right and left mouth corner. Left and
    /// right are those of the subject.
    #[schema(example = json!([[188.1, 202.1], [270.7, 198.8], [233.4, 248.9], [200.3, 290.9], [267.4, 286.9]]))]
    pub(crate) landmarks: Vec<[f32; 2]>,
    /// Quality of the face; absent with `quality=false`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Quality>)]
    pub(crate) quality: Option<QualityReport>,
    /// Embedding of the face, a vector of length 1; absent with `embeddings=false`. Only vectors of
    /// the same model can be compared. They have 128 or 512 components, depending on the model;
    /// examples show the first four.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = json!([0.1137, -0.0901, 0.1633, -0.0394]))]
    pub(crate) embedding: Option<Vec<f32>>,
}

impl DetectedFace {
    pub(crate) fn new(face: &AnalyzedFace, with_embedding: bool) -> Self {
        Self {
            bbox: face.detection.bbox.into(),
            det_score: face.detection.det_score,
            landmarks: face.detection.landmarks.iter().map(|point| [point.x, point.y]).collect(),
            quality: face.quality.clone(),
            embedding: face.embedding.as_ref().filter(|_| with_embedding).map(|e| e.as_slice().to_vec()),
        }
    }
}

/// The models that produced the response.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct ModelNames {
    /// The detector.
    #[schema(example = "face_detection_yunet_dynamic")]
    pub(crate) detector: String,
    /// The embedder.
    #[schema(example = "sface")]
    pub(crate) embedder: String,
    /// The model of `quality.learned`; absent if none is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "ediffiqa_tiny_jun2024")]
    pub(crate) quality: Option<String>,
}

impl ModelNames {
    pub(crate) fn new(engine: &Engine) -> Self {
        Self {
            detector: engine.detector().name.clone(),
            embedder: engine.embedder().name.clone(),
            quality: engine.scorer().map(|scorer| scorer.name.clone()),
        }
    }
}

/// Durations of the steps in milliseconds; `queue` is the time spent waiting for memory, a thread
/// or a session.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(example = json!({"decode": 6.1, "detect": 8.0, "align": 0.2, "quality": 0.3, "embed": 5.0, "queue": 0.1, "total": 19.9}))]
pub(crate) struct Timings {
    decode: f64,
    detect: f64,
    align: f64,
    quality: f64,
    embed: f64,
    queue: f64,
    total: f64,
}

impl From<pipeline::Timings> for Timings {
    fn from(timings: pipeline::Timings) -> Self {
        Self {
            decode: milliseconds(timings.decode),
            detect: milliseconds(timings.letterbox + timings.detect),
            align: milliseconds(timings.align),
            quality: milliseconds(timings.quality),
            embed: milliseconds(timings.embed),
            queue: milliseconds(timings.queue),
            total: milliseconds(timings.total),
        }
    }
}

/// Analyses one image for a caller, if the limit on analyses allows it.
pub(crate) async fn analyze(state: &AppState, bytes: Bytes, options: &AnalyzeOptions) -> Result<Analysis> {
    let permit = state.analyses.admit(1)?;
    let analysis = state.analyzer().analyze(bytes, options, Priority::Interactive).await?;
    drop(permit);
    Ok(analysis)
}

/// A face of an image in a request, with the descriptions of the face and of the image.
pub(crate) struct Likeness {
    pub(crate) embedding: Embedding,
    pub(crate) image: ImageInfo,
    pub(crate) face: DetectedFace,
}

/// Selects a face of an image.
pub(crate) struct FaceChoice {
    /// Index by descending score; the default is the face with the highest score.
    pub(crate) index: Option<Bounded<0, 999>>,
    pub(crate) min_score: Option<Score>,
    /// Whether an image with several faces needs an index.
    pub(crate) must_be_unambiguous: bool,
}

impl Likeness {
    /// Analyses the image and returns the selected face. Problems refer to the image as `field`.
    pub(crate) async fn new(state: &AppState, bytes: Bytes, choice: FaceChoice, field: &str) -> Result<Self> {
        let index = choice.index.map_or(0, Bounded::index);
        let options = AnalyzeOptions {
            min_score: choice.min_score.map(Score::get),
            max_faces: Some((index + 1).max(if choice.must_be_unambiguous { 2 } else { 1 })),
            ..AnalyzeOptions::default()
        };
        let analysis = analyze(state, bytes, &options).await.map_err(|error| error.prefix_path(field))?;
        if choice.must_be_unambiguous && choice.index.is_none() && analysis.faces.len() > 1 {
            let message = format!("`{field}` has several faces; `face_index` must name one of them");
            return Err(ApiError::new(Code::NoSuchFace, message).field("face_index"));
        }
        let face_count = analysis.faces.len();
        let face = analysis.faces.get(index).ok_or_else(|| no_such_face(face_count, index, field))?;
        let embedding =
            face.embedding.clone().ok_or_else(|| ApiError::internal("a face without its embedding"))?;
        Ok(Self { embedding, image: ImageInfo::new(&analysis), face: DetectedFace::new(face, false) })
    }
}

fn no_such_face(face_count: usize, index: usize, field: &str) -> ApiError {
    if face_count == 0 {
        return ApiError::new(Code::NoFace, format!("no face was found in `{field}`")).field(field);
    }
    let message = format!("`{field}` has {face_count} faces; there is no face with index {index}");
    ApiError::new(Code::NoSuchFace, message)
        .field(field)
        .value(index.to_string())
        .allowed([format!("0 to {}", face_count - 1)])
}

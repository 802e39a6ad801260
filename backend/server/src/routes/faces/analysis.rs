//! Analyses an image, and defines the options and the response of an analysis.
use crate::auth::Caller;
use crate::extract::values::{Bounded, DetSize, Score};
use crate::routes::dto::{BoundingBox, Quality, hash_hex, milliseconds};
use crate::{ApiError, AppState};
use bytes::Bytes;
use inference::{Engine, Priority};
use pipeline::{Analysis, AnalyzeOptions, AnalyzedFace, Enhance, Passes, Rotate, profile_of};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::{IntoParams, ToSchema};

/// Options of an analysis.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct DetectParams {
    /// Minimum `det_score`; the default depends on the detector (YuNet 0.6, SCRFD 0.5).
    #[param(value_type = Option<f32>, minimum = 0.1, maximum = 1, example = 0.7)]
    pub(crate) min_score: Option<Score>,
    /// Maximum number of faces; those with the best scores are kept.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 1000)]
    pub(crate) max_faces: Option<Bounded<1, 1000>>,
    /// Whether to return the embeddings.
    #[param(default = true)]
    pub(crate) embeddings: Option<bool>,
    /// Whether to assess the quality of each face.
    #[param(default = true)]
    pub(crate) quality: Option<bool>,
    /// `auto`: if no face of the image is certainly upright, compare the best boxes at 0, 90, 180
    /// and 270 degrees, and repeat the detection at the rotation at which they are upright. If
    /// there is no box, repeat the detection at every rotation.
    #[param(inline, value_type = Option<RotateParam>)]
    pub(crate) rotate: Option<Rotate>,
    /// `auto`: if the short side of an image is under 400 pixels and no face or only faces with low
    /// scores are found, enhance the image and repeat the detection (see `POST /images/enhance`).
    /// Coordinates refer to the image that was sent.
    #[param(inline, value_type = Option<EnhanceParam>)]
    pub(crate) enhance: Option<Enhance>,
    /// Side of the detector's square canvas in pixels, a multiple of 32. A larger canvas finds
    /// smaller faces and takes longer.
    #[param(value_type = Option<u32>, minimum = 64, maximum = 2048, multiple_of = 32, example = 640)]
    pub(crate) det_size: Option<DetSize>,
    /// Detection passes. `single` runs one pass. `auto` starts with a reduced image. If it shows no
    /// sign of a face, the search ends, except for images of more than 2,560 pixels. Otherwise
    /// `auto` runs the pass of `single`, and adds tiles if faces are tiny or a large image has no
    /// face with a high score. `thorough` always adds a reduced image and tiles, up to the full
    /// resolution of the image. The default is that of the service.
    #[param(inline, value_type = Option<PassesParam>)]
    pub(crate) passes: Option<Passes>,
    /// Quality profile that determines `quality.passed`; the default is that of the collection,
    /// else of the service.
    #[param(inline, value_type = Option<ProfileParam>)]
    pub(crate) quality_profile: Option<vision::Profile>,
    /// Use the quality profile of this collection; the default is the collection of the key.
    /// Nothing is stored in it.
    pub(crate) collection: Option<String>,
}

/// Whether to detect rotated faces.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes pipeline::Rotate in the OpenAPI document")]
pub(crate) enum RotateParam {
    Off,
    Auto,
}

/// Whether to repeat the detection on enhanced images of low resolution.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes pipeline::Enhance in the OpenAPI document")]
pub(crate) enum EnhanceParam {
    Off,
    Auto,
}

/// Which versions and tiles of an image the detector processes.
#[derive(ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "only describes pipeline::Passes in the OpenAPI document")]
pub(crate) enum PassesParam {
    Single,
    Auto,
    Thorough,
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

impl DetectParams {
    pub(crate) async fn options(&self, caller: &Caller) -> Result<AnalyzeOptions, ApiError> {
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
    pub(crate) fn of(analysis: &Analysis) -> Self {
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
    pub(crate) quality: Option<Quality>,
    /// Embedding of the face, a vector of length 1; absent with `embeddings=false`. Only vectors of
    /// the same model can be compared. They have 128 or 512 components, depending on the model;
    /// examples show the first four.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = json!([0.1137, -0.0901, 0.1633, -0.0394]))]
    pub(crate) embedding: Option<Vec<f32>>,
}

impl DetectedFace {
    pub(crate) fn of(face: &AnalyzedFace, with_embedding: bool) -> Self {
        Self {
            bbox: face.detection.bbox.into(),
            det_score: face.detection.det_score,
            landmarks: face.detection.landmarks.iter().map(|point| [point.x, point.y]).collect(),
            quality: face.quality.clone().map(Into::into),
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
    pub(crate) fn of(engine: &Engine) -> Self {
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

/// The faces of one image, by descending score. An image without faces is not an error.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DetectAnswer {
    pub(crate) image: ImageInfo,
    pub(crate) faces: Vec<DetectedFace>,
    pub(crate) models: ModelNames,
    /// The device of each operation.
    #[schema(example = json!({
        "face_detection": "cpu", "face_embedding": "cpu", "image_enhancement": "cpu", "image_processing": "cpu", "quality_checks": "cpu"
    }))]
    pub(crate) devices: BTreeMap<String, String>,
    pub(crate) timings_ms: Timings,
}

impl DetectAnswer {
    pub(crate) fn of(analysis: &Analysis, engine: &Engine) -> Self {
        Self {
            image: ImageInfo::of(analysis),
            faces: analysis.faces.iter().map(|face| DetectedFace::of(face, true)).collect(),
            models: ModelNames::of(engine),
            devices: engine
                .operations()
                .into_iter()
                .map(|report| (report.operation.to_string(), report.effective.to_string()))
                .collect(),
            timings_ms: analysis.timings.into(),
        }
    }
}

/// Analyses one image for a caller, if the limit on analyses allows it.
pub(crate) async fn analyze(
    state: &AppState,
    bytes: Bytes,
    options: &AnalyzeOptions,
) -> Result<Analysis, ApiError> {
    let permit = state.admit(1)?;
    let analysis = state.analyzer().analyze(bytes, options, Priority::Interactive).await?;
    drop(permit);
    Ok(analysis)
}

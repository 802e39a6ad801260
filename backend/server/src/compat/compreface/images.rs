//! Reads the images and options of requests, and describes faces in responses.
use crate::compat::people::{analyze, decode, embedding};
use crate::compat::similarity::round;
use crate::extract::image::{BodyFormat, named_parts, read_json};
use crate::{ApiError, AppState, Code, Result};
use axum::extract::Request;
use bytes::Bytes;
use pipeline::{Analysis, AnalyzedFace, MIN_SCORE_FLOOR, Timings};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::HashMap;

/// Slugs of the plug-ins that this service has.
const LANDMARKS: &str = "landmarks";
const EMBEDDING: &str = "calculator";

/// Query parameters of the operations on images. Unknown parameters are ignored, as by CompreFace.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Options {
    /// Maximum number of faces. The largest faces are kept; 0 means the maximum, 100.
    limit: usize,
    /// Minimum confidence of the detector, 0 to 1.
    det_prob_threshold: Option<f32>,
    /// Number of people to return for each face.
    #[serde(deserialize_with = "prediction_count")]
    prediction_count: Option<usize>,
    face_plugins: String,
    /// Whether the response contains `execution_time` and `plugins_versions`.
    #[serde(deserialize_with = "flag")]
    status: Option<bool>,
    /// Whether the faces must be found first. Only `true` is supported.
    #[serde(deserialize_with = "flag")]
    detect_faces: Option<bool>,
}

/// Reads a flag and ignores its case, because the Python client sends `True`.
fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<bool>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.to_ascii_lowercase().as_str() {
        "true" => Ok(Some(true)),
        "false" | "" => Ok(Some(false)),
        _ => Err(D::Error::invalid_value(Unexpected::Str(&text), &"true or false")),
    }
}

/// Reads the number of people for each face: a positive number, or -1 for [`MAX_PREDICTIONS`].
fn prediction_count<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<usize>, D::Error> {
    let text = String::deserialize(deserializer)?;
    match text.parse() {
        Ok(-1) => Ok(Some(MAX_PREDICTIONS)),
        Ok(count @ 1_i64..) => {
            Ok(Some(usize::try_from(count).unwrap_or(MAX_PREDICTIONS).min(MAX_PREDICTIONS)))
        }
        _ => Err(D::Error::invalid_value(Unexpected::Str(&text), &"a positive number or -1")),
    }
}

/// Maximum number of people for each face.
const MAX_PREDICTIONS: usize = 100;

impl Options {
    /// Parses the query of a request.
    ///
    /// # Errors
    /// Fails with 400 for an invalid value, and for `detect_faces=false`, which is not supported.
    pub(super) fn read(request: &Request) -> Result<Self> {
        let options: Self = crate::extract::parse_query(request.uri().query().unwrap_or_default())?;
        if options.det_prob_threshold.is_some_and(|score| !(0.0..=1.0).contains(&score)) {
            return Err(ApiError::for_field(
                Code::BadQuery,
                "det_prob_threshold",
                "the value must be a number from 0 to 1",
            ));
        }
        if options.detect_faces == Some(false) {
            let detail = "only true is supported: facecrawl always searches the image for faces";
            return Err(ApiError::for_field(Code::BadQuery, "detect_faces", detail));
        }
        Ok(options)
    }

    /// Returns the minimum score of the detector, which is at least [`MIN_SCORE_FLOOR`].
    pub(super) fn min_score(&self) -> Option<f32> {
        self.det_prob_threshold.map(|score| score.max(MIN_SCORE_FLOOR))
    }

    pub(super) fn predictions(&self) -> usize {
        self.prediction_count.unwrap_or(1)
    }

    fn has_plugin(&self, slug: &str) -> bool {
        self.face_plugins.split(',').any(|plugin| plugin.trim() == slug)
    }

    fn has_status(&self) -> bool {
        self.status.unwrap_or(false)
    }

    /// Analyses an image, and keeps at most `limit` faces. Computes embeddings if
    /// `needs_embeddings` is set or the caller asked for them.
    ///
    /// # Errors
    /// Fails with 422 `no_face` if the image shows no face.
    pub(super) async fn analyze(
        &self,
        state: &AppState,
        image: Bytes,
        needs_embeddings: bool,
    ) -> Result<Analysis> {
        let with_embeddings = needs_embeddings || self.has_plugin(EMBEDDING);
        let mut analysis = analyze(state, image, self.min_score(), with_embeddings).await?;
        if analysis.faces.is_empty() {
            return Err(ApiError::new(Code::NoFace, "no face was found in the image"));
        }
        if self.limit > 0 {
            analysis.faces.truncate(self.limit);
        }
        Ok(analysis)
    }

    pub(super) fn describe(&self, face: &AnalyzedFace, timings: &Timings) -> Result<Face> {
        let bbox = &face.detection.bbox;
        let pixel = |value: f32| value.round() as i64;
        let landmarks =
            || face.detection.landmarks.iter().map(|point| [pixel(point.x), pixel(point.y)]).collect();
        Ok(Face {
            r#box: FaceBox {
                probability: round(face.detection.det_score.into()),
                x_max: pixel(bbox.x + bbox.width),
                y_max: pixel(bbox.y + bbox.height),
                x_min: pixel(bbox.x),
                y_min: pixel(bbox.y),
            },
            embedding: self.has_plugin(EMBEDDING).then(|| embedding(face)).transpose()?,
            landmarks: self.has_plugin(LANDMARKS).then(landmarks),
            execution_time: self.has_status().then(|| ExecutionTime::new(timings)),
        })
    }

    /// Returns the names of the models, if the caller asked for them.
    pub(super) fn versions(&self, state: &AppState) -> Option<Versions> {
        let engine = state.services.analyzer.engine();
        self.has_status().then(|| Versions {
            detector: engine.detector().name.clone(),
            calculator: engine.embedder().name.clone(),
        })
    }
}

/// A face in a response. The service has no plug-ins for age, gender, pose and mask.
#[derive(Serialize)]
pub(super) struct Face {
    r#box: FaceBox,
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding: Option<Vec<f32>>,
    /// x and y of both eyes, the nose and both corners of the mouth. Of each pair, the one on the
    /// left in the image is first.
    #[serde(skip_serializing_if = "Option::is_none")]
    landmarks: Option<Vec<[i64; 2]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    execution_time: Option<ExecutionTime>,
}

/// The box around a face in pixels. Its edges can be outside the image.
#[derive(Serialize)]
struct FaceBox {
    probability: f64,
    x_max: i64,
    y_max: i64,
    x_min: i64,
    y_min: i64,
}

/// Durations in milliseconds, for all faces of the image.
#[derive(Serialize)]
pub(super) struct ExecutionTime {
    detector: f64,
    calculator: f64,
}

impl ExecutionTime {
    fn new(timings: &Timings) -> Self {
        let milliseconds = |time: std::time::Duration| (time.as_secs_f64() * 1e4).round() / 10.0;
        Self {
            detector: milliseconds(timings.letterbox + timings.detect),
            calculator: milliseconds(timings.embed),
        }
    }
}

/// The names of the models.
#[derive(Serialize)]
pub(super) struct Versions {
    detector: String,
    calculator: String,
}

/// Reads the images with these names, from the parts of a form or from base64 in JSON.
///
/// # Errors
/// Fails with 400 if one of them is missing.
pub(super) async fn read_images<const N: usize>(
    state: &AppState,
    request: Request,
    names: &'static [&'static str; N],
) -> Result<[Bytes; N]> {
    let mut found: HashMap<String, Bytes> = match BodyFormat::from_headers(request.headers())? {
        BodyFormat::Multipart => named_parts(request, state, names).await?.into_iter().collect(),
        BodyFormat::Json => {
            let mut texts: HashMap<String, serde_json::Value> = read_json(request, state).await?;
            let mut found = HashMap::new();
            for name in names {
                if let Some(serde_json::Value::String(text)) = texts.remove(*name) {
                    let bytes = decode(state, text).await.map_err(|error| error.field(*name))?;
                    found.insert((*name).to_owned(), bytes);
                }
            }
            found
        }
        BodyFormat::Raw => {
            let detail = "the body must be multipart/form-data or application/json";
            return Err(ApiError::new(Code::UnsupportedMediaType, detail));
        }
    };
    let mut images = [const { Bytes::new() }; N];
    for (image, name) in images.iter_mut().zip(names) {
        let missing =
            || ApiError::new(Code::MissingImage, format!("Required part {name} is missing")).field(*name);
        *image = found.remove(*name).ok_or_else(missing)?;
    }
    Ok(images)
}

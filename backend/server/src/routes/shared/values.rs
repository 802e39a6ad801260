//! Values that responses and requests of several nouns contain.
use crate::{ApiError, Code, Result};
use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use crawler::{FetchError, Guard};
use serde::Serialize;
use url::Url;
use utoipa::ToSchema;
use uuid::Uuid;
use vision::{QualityReport, Rect};

/// The bytes of a file.
#[derive(ToSchema)]
#[schema(value_type = String, format = Binary)]
#[allow(dead_code, reason = "only describes raw bodies in the OpenAPI document")]
pub(crate) struct Binary(Vec<u8>);

/// A name. It contains no control characters and at least one character that is not white space.
#[derive(ToSchema)]
#[schema(
    max_length = 200,
    pattern = r"^[^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f][^\u0000-\u001f\u007f-\u009f]*$"
)]
#[allow(dead_code, reason = "only describes texts in the OpenAPI document")]
pub(crate) struct ShortText(String);

/// A rectangle in pixels of the image after its orientation is applied. It lies inside the image,
/// except for faces that version 0.1.0 stored.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(example = json!({"x": 136.6, "y": 108.5, "width": 185.7, "height": 244.3}))]
pub(crate) struct BoundingBox {
    /// Left edge.
    pub(crate) x: f32,
    /// Top edge.
    pub(crate) y: f32,
    /// Width.
    pub(crate) width: f32,
    /// Height.
    pub(crate) height: f32,
}

impl From<vision::Rect> for BoundingBox {
    fn from(rect: vision::Rect) -> Self {
        Self { x: rect.x, y: rect.y, width: rect.width, height: rect.height }
    }
}

impl BoundingBox {
    /// Converts x, y, width and height to a box.
    pub(crate) fn from_slice(values: &[f32]) -> Self {
        let at = |i: usize| values.get(i).copied().unwrap_or_default();
        Self { x: at(0), y: at(1), width: at(2), height: at(3) }
    }
}

/// A score and the raw value from which it was computed.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"value": 0.95, "raw": 22970.6}))]
#[allow(dead_code, reason = "only describes vision::quality::Measure in the OpenAPI document")]
pub(crate) struct Measure {
    /// 0 to 1, higher is better.
    pub(crate) value: f32,
    /// The raw value, in the unit of the measure.
    pub(crate) raw: f32,
}

/// Head pose, estimated from the five landmarks.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "only describes vision::quality::Pose in the OpenAPI document")]
#[schema(example = json!({"value": 0.97, "yaw": 2.5, "pitch": 0.0, "roll": -2.7}))]
pub(crate) struct Pose {
    /// 0 to 1, 1 is frontal.
    pub(crate) value: f32,
    /// Degrees, positive to the subject's left.
    pub(crate) yaw: f32,
    /// Degrees, positive up.
    pub(crate) pitch: f32,
    /// Degrees, positive clockwise in the image.
    pub(crate) roll: f32,
}

/// Quality of a face.
#[derive(Serialize, ToSchema)]
#[allow(dead_code, reason = "only describes vision::QualityReport in the OpenAPI document")]
#[schema(example = json!({
    "overall": 0.96, "passed": true, "reasons": [],
    "blur": {"value": 1.0, "raw": 2632.8}, "sharpness": {"value": 0.95, "raw": 22970.6}, "brightness": {"value": 1.0, "raw": 109.4},
    "contrast": {"value": 0.87, "raw": 51.1}, "exposure": {"value": 1.0, "raw": 0.0001}, "size": {"value": 0.94, "raw": 82.6},
    "pose": {"value": 0.97, "yaw": 2.5, "pitch": 0.0, "roll": -2.7}, "truncation": {"value": 1.0, "raw": 1.0},
    "det_score": {"value": 0.93, "raw": 0.93}
}))]
pub(crate) struct Quality {
    /// 0 to 1.
    pub(crate) overall: f32,
    /// Whether the face passes the quality profile.
    pub(crate) passed: bool,
    /// Codes of the requirements that the face fails.
    pub(crate) reasons: Vec<String>,
    /// Laplacian variance.
    pub(crate) blur: Measure,
    /// Tenengrad.
    pub(crate) sharpness: Measure,
    /// Mean grey level.
    pub(crate) brightness: Measure,
    /// Deviation of the grey level.
    pub(crate) contrast: Measure,
    /// Share of clipped pixels.
    pub(crate) exposure: Measure,
    /// Distance between the eyes in pixels.
    pub(crate) size: Measure,
    /// Head pose.
    pub(crate) pose: Pose,
    /// Share of the box inside the image.
    pub(crate) truncation: Measure,
    /// Score of the detector.
    pub(crate) det_score: Measure,
    /// Score of a learned model, if one is installed (`models.quality` contains its name). It does
    /// not affect `overall`, and no profile has a requirement for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) learned: Option<Measure>,
}

/// Parses the stored quality. Returns `None` for a face without a stored quality, or with the
/// measures of an earlier version.
pub(crate) fn stored_quality(value: Option<serde_json::Value>) -> Option<QualityReport> {
    serde_json::from_value(value?).ok()
}

/// Returns a response whose header `Location` is the path of the resource.
///
/// # Errors
/// Fails if `path` is not a value of a header.
pub(crate) fn with_location(status: StatusCode, path: &str, view: impl Serialize) -> Result<Response> {
    let location = HeaderValue::from_str(path).map_err(ApiError::internal)?;
    Ok((status, [(header::LOCATION, location)], Json(view)).into_response())
}

/// Reads the URL of a webhook. Checks that the guard allows it, as far as is known without DNS.
pub(crate) fn parse_webhook(text: &str, guard: &Guard) -> Result<Url> {
    let url = crawler::urls::parse(text.trim())
        .map_err(|error| ApiError::for_field(Code::InvalidField, "webhook", error))?;
    guard.check_url(&url).map_err(|error| ApiError::from(FetchError::from(error)).field("webhook"))?;
    Ok(url)
}

/// Converts ten numbers to five points.
pub(crate) fn points(values: &[f32]) -> Vec<[f32; 2]> {
    values.as_chunks::<2>().0.to_vec()
}

/// Formats 64 bits as 16 hexadecimal digits.
pub(crate) fn hash_hex(bits: u64) -> String {
    format!("{bits:016x}")
}

/// Time in milliseconds, x, y, width and height in pixels.
pub(crate) type TrackBox = (i64, f32, f32, f32, f32);

pub(crate) fn track_box(at_us: i64, Rect { x, y, width, height }: Rect) -> TrackBox {
    (to_ms(at_us), x, y, width, height)
}

/// Decodes the stored boxes of a track.
pub(crate) fn decode_track_boxes(encoded: &[u8]) -> Result<Vec<TrackBox>> {
    let boxes = pipeline::decode_boxes(encoded).map_err(ApiError::internal)?;
    Ok(boxes.iter().map(|timed| track_box(timed.at_us, timed.bbox)).collect())
}

/// Converts microseconds to milliseconds, rounded down.
pub(crate) fn to_ms(us: i64) -> i64 {
    us.div_euclid(1000)
}

/// Returns a duration in milliseconds, rounded to two decimals.
pub(crate) fn milliseconds(duration: std::time::Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 1e2
}

/// Rejects invalid names of collections. In a path, a name that has the form of an id could refer
/// to a different collection.
pub(crate) fn check_name(field: &str, name: &str) -> Result<()> {
    let is_valid = (1..=64).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
        && Uuid::parse_str(name).is_err();
    if is_valid {
        return Ok(());
    }
    Err(ApiError::for_field(Code::InvalidField, field, "the value is not a valid collection name")
        .value(name)
        .allowed(["1 to 64 characters of a-z, 0-9, - and _, but not a UUID"]))
}

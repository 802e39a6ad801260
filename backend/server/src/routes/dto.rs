//! Defines types that several resources share.
use crate::ApiError;
use serde::{Deserialize, Serialize, Serializer};
use std::sync::Arc;
use store::images::sources::{MAX_SOURCES_BYTES, SourceList};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;
use vision::Rect;

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
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({"value": 0.95, "raw": 22970.6}))]
pub(crate) struct Measure {
    /// 0 to 1, higher is better.
    pub(crate) value: f32,
    /// The raw value, in the unit of the measure.
    pub(crate) raw: f32,
}

impl From<vision::quality::Measure> for Measure {
    fn from(measure: vision::quality::Measure) -> Self {
        Self { value: measure.value, raw: measure.raw }
    }
}

/// Head pose, estimated from the five landmarks.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
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
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
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

impl From<vision::QualityReport> for Quality {
    fn from(report: vision::QualityReport) -> Self {
        let pose = report.pose;
        Self {
            overall: report.overall,
            passed: report.passed,
            reasons: report.reasons,
            blur: report.blur.into(),
            sharpness: report.sharpness.into(),
            brightness: report.brightness.into(),
            contrast: report.contrast.into(),
            exposure: report.exposure.into(),
            size: report.size.into(),
            pose: Pose { value: pose.value, yaw: pose.yaw, pitch: pose.pitch, roll: pose.roll },
            truncation: report.truncation.into(),
            det_score: report.det_score.into(),
            learned: report.learned.map(Into::into),
        }
    }
}

impl Quality {
    /// Parses the stored quality. Returns `None` for a face without a stored quality, or with the
    /// measures of an earlier version.
    pub(crate) fn from_stored(value: Option<serde_json::Value>) -> Option<Self> {
        serde_json::from_value(value?).ok()
    }
}

/// Where an image was found.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Source {
    /// The page that contains the image; null if the image was a seed or a local file.
    #[schema(example = "https://example.org/team")]
    pub(crate) page_url: Option<String>,
    /// URL of the image file.
    #[schema(example = "https://example.org/img/portrait.jpg")]
    pub(crate) image_url: String,
    /// The crawl that found it; null if the crawl was deleted.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b01")]
    pub(crate) crawl_id: Option<Uuid>,
    /// Its alternative text on the page, cut at 500 characters.
    #[schema(example = "Ada Lovelace, portrait")]
    pub(crate) alt: Option<String>,
    /// `crawl` for an image that a crawl or a scan found, `enrolment` for an image that was sent to
    /// enrol a person.
    #[schema(example = "crawl")]
    pub(crate) kind: String,
    /// Time at which the image was found there.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) found_at: OffsetDateTime,
}

impl From<store::images::Source> for Source {
    fn from(source: store::images::Source) -> Self {
        Self {
            page_url: source.page_url,
            image_url: source.image_url,
            crawl_id: source.crawl_id,
            alt: source.alt,
            kind: source.kind,
            found_at: source.found_at,
        }
    }
}

/// The places where an image was found. All faces of the image in one response share them, because
/// an image can have a thousand faces.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageSources {
    list: Arc<[Source]>,
    total: i64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct FirstSources {
    list: Arc<[Source]>,
    shown: usize,
    /// Number of places. Counting stops at 1,000.
    pub(crate) total: i64,
}

/// Approximate number of bytes of a source in a response, without its strings.
const SOURCE_OVERHEAD: usize = 200;

impl ImageSources {
    /// Returns the first places, at least one. A response with `lists` lists of places divides its
    /// size limit for places equally among the lists.
    pub(crate) fn first(&self, lists: usize) -> FirstSources {
        let share = MAX_SOURCES_BYTES / lists.max(1);
        let mut bytes = 0;
        let fits = |source: &&Source| {
            bytes += SOURCE_OVERHEAD + source.image_url.len();
            bytes +=
                source.page_url.as_ref().map_or(0, String::len) + source.alt.as_ref().map_or(0, String::len);
            bytes <= share
        };
        let shown = self.list.iter().take_while(fits).count().max(1).min(self.list.len());
        FirstSources { list: self.list.clone(), shown, total: self.total }
    }
}

impl FirstSources {
    pub(crate) fn is_truncated(&self) -> bool {
        i64::try_from(self.shown).is_ok_and(|shown| shown < self.total)
    }
}

impl From<SourceList> for ImageSources {
    fn from(list: SourceList) -> Self {
        Self { list: list.sources.into_iter().map(Source::from).collect(), total: list.total }
    }
}

impl Serialize for FirstSources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.list[..self.shown])
    }
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

/// Decodes the stored boxes of a track.
pub(crate) fn boxes(encoded: &[u8]) -> Result<Vec<TrackBox>, ApiError> {
    let boxed = |at_us, Rect { x, y, width, height }| (to_ms(at_us), x, y, width, height);
    let boxes = pipeline::decode_boxes(encoded).map_err(ApiError::internal)?;
    Ok(boxes.iter().map(|timed| boxed(timed.at_us, timed.bbox)).collect())
}

/// Converts microseconds to milliseconds, rounded down.
pub(crate) fn to_ms(us: i64) -> i64 {
    us.div_euclid(1000)
}

/// Returns a duration in milliseconds, rounded to two decimals.
pub(crate) fn milliseconds(duration: std::time::Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 1e2
}

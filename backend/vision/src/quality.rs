//! How usable a face is.
use crate::{Detection, Frame};
use serde::{Deserialize, Serialize};

/// One measure: a score 0..1, higher is better, and the raw value that it came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// 0..1.
    pub value: f32,
    /// In the measure's own unit.
    pub raw: f32,
}

/// Head pose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pose {
    /// 0..1, 1 is frontal.
    pub value: f32,
    /// Degrees, positive to the subject's left.
    pub yaw: f32,
    /// Degrees, positive up.
    pub pitch: f32,
    /// Degrees, positive clockwise in the image.
    pub roll: f32,
}

/// Named demands on a face.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Everything passes.
    Off,
    /// Usable for search.
    #[default]
    Standard,
    /// Usable as an enrolment photograph.
    Strict,
}

/// The quality of one face.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QualityReport {
    /// 0..1.
    pub overall: f32,
    /// Whether the profile's demands are met.
    pub passed: bool,
    /// Stable codes of the demands that are not met.
    pub reasons: Vec<String>,
    /// Laplacian variance.
    pub blur: Measure,
    /// Tenengrad.
    pub sharpness: Measure,
    /// Mean grey.
    pub brightness: Measure,
    /// Grey deviation.
    pub contrast: Measure,
    /// Share of clipped pixels.
    pub exposure: Measure,
    /// Distance between the eyes in pixels.
    pub size: Measure,
    /// Head pose.
    pub pose: Pose,
    /// Share of the box inside the image.
    pub truncation: Measure,
    /// The detector's score.
    pub det_score: Measure,
}

/// Grey-level statistics of a frame, equal to OpenCV's (BT.601 grey rounded to 8 bits; Laplacian and 3x3 Sobel with reflect-101 borders).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GreyStatistics {
    /// Variance of the Laplacian.
    pub laplacian_variance: f64,
    /// Mean squared Sobel gradient.
    pub tenengrad: f64,
    /// Mean grey level.
    pub mean: f64,
    /// Standard deviation of the grey level.
    pub std: f64,
    /// Share of pixels at most 5 or at least 250.
    pub clipped: f64,
}

/// Measures a frame.
pub fn grey_statistics(_frame: &Frame) -> GreyStatistics {
    todo!()
}

/// Judges one face: `chip` is its aligned 112x112 chip, `image` the size of the picture it was found in.
pub fn assess(_chip: &Frame, _detection: &Detection, _image: (u32, u32), _profile: Profile) -> QualityReport {
    todo!()
}

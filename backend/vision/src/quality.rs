//! Assesses the quality of a face for recognition.
//!
//! Every measure has a raw value in its own unit and a score 0..1. Image measures are computed on
//! the aligned 112x112 chip, which is the embedder's input, so they are comparable for all sizes of
//! faces.
//!
//! | measure | raw | score |
//! |---|---|---|
//! | `blur` | variance of the Laplacian (Pech-Pacheco 2000) | `hill(raw, 100)` |
//! | `sharpness` | Tenengrad: mean squared 3x3 Sobel gradient (Krotkov 1988) | `hill(raw, 5000)` |
//! | `brightness` | mean grey, 0..255 | 1 in 90..=165, falling linearly to 0 at 0 and at 255 |
//! | `contrast` | standard deviation of grey | `hill(raw, 20)` |
//! | `exposure` | share of pixels at most 5 or at least 250, 0..1 | `1 - raw` |
//! | `size` | distance of the eyes in image pixels | `hill(raw, 20)` |
//! | `pose` | yaw, pitch, roll in degrees ([`pose`]) | 1 - (angle to the camera axis) / 90 |
//! | `truncation` | share of the box inside the image, 0..1 | raw |
//! | `det_score` | the detector's score | raw |
//! | `learned` | eDifFIQA's output (Babnik et al. 2024), if installed | raw, clamped to 0..1 |
//!
//! `hill(x, k) = x² / (x² + k²)` is Hill's saturation curve of order two: it is 0 at 0, one half at
//! `k`, and strictly increasing. `overall` is the weighted geometric mean of the scores, so that
//! one bad measure has a large effect. [`Profile`] defines the limits.
//!
//! `learned` estimates how reliably such faces are recognised. It is not part of `overall`, and no
//! profile has a limit for it, so it does not decide whether a face passes.
pub mod pose;
mod statistics;
use crate::{Detection, Frame, Rect};
use serde::{Deserialize, Serialize};
pub use statistics::{GreyStatistics, grey_statistics};

/// One measure: a raw value, and a score 0..1 that is computed from it; a higher score is better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// The score, 0..1.
    pub value: f32,
    /// The raw value, in the measure's own unit.
    pub raw: f32,
}

/// Head pose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pose {
    /// The score, 0..1; 1 is frontal.
    pub value: f32,
    /// Degrees, positive towards the person's left.
    pub yaw: f32,
    /// Degrees, positive upwards.
    pub pitch: f32,
    /// Degrees, positive clockwise in the image, -180..=180.
    pub roll: f32,
}

/// Named sets of limits for a face.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// Every face passes.
    Off,
    /// Limits for search.
    #[default]
    Standard,
    /// Limits for enrolment photographs.
    Strict,
}

/// The measures of a face; see the table of this module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QualityReport {
    /// The weighted geometric mean of the scores, 0..1.
    pub overall: f32,
    /// Whether the face meets all limits of the profile.
    pub passed: bool,
    /// Stable codes of the limits that the face does not meet.
    pub reasons: Vec<String>,
    pub blur: Measure,
    pub sharpness: Measure,
    pub brightness: Measure,
    pub contrast: Measure,
    pub exposure: Measure,
    pub size: Measure,
    pub pose: Pose,
    pub truncation: Measure,
    pub det_score: Measure,
    /// The score of a learned model, if one is installed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub learned: Option<Measure>,
}

impl Measure {
    /// Returns the measure of a model's score, which may be slightly outside 0..1.
    pub fn learned(raw: f32) -> Self {
        Self::new(raw.into(), raw.into())
    }

    fn new(raw: f64, value: f64) -> Self {
        Self { value: unit(value), raw: if raw.is_finite() { raw as f32 } else { 0.0 } }
    }
}

impl QualityReport {
    /// Returns the codes of the limits of `profile` that the measures do not meet, in the order of
    /// the measures. `profile` may differ from that of the assessment.
    pub fn unmet_limits(&self, profile: Profile) -> Vec<String> {
        let Some(limits) = profile.limits() else { return Vec::new() };
        // NaN does not meet a limit, because it compares as false.
        let at_least = |raw: f32, limit: f32| raw >= limit;
        let at_most = |raw: f32, limit: f32| raw <= limit;
        let pose = &self.pose;
        let is_facing = pose.value > 0.0
            && at_most(pose.yaw.abs(), limits.yaw)
            && at_most(pose.pitch.abs(), limits.pitch);
        let is_sharp = at_least(self.blur.raw, limits.blur) && at_least(self.sharpness.raw, limits.sharpness);
        [
            (is_sharp, "too_blurry"),
            (at_least(self.brightness.raw, limits.min_brightness), "too_dark"),
            (at_most(self.brightness.raw, limits.max_brightness), "too_bright"),
            (at_least(self.contrast.raw, limits.contrast), "low_contrast"),
            (at_most(self.exposure.raw, limits.clipped), "clipped"),
            (at_least(self.size.raw, limits.size), "too_small"),
            (is_facing, "turned_away"),
            (at_most(pose.roll.abs(), limits.roll), "not_upright"),
            (at_least(self.truncation.raw, limits.inside), "truncated"),
            (at_least(self.det_score.raw, limits.det_score), "low_score"),
        ]
        .into_iter()
        .filter(|(is_met, _)| !is_met)
        .map(|(_, code)| code.to_owned())
        .collect()
    }

    /// Replaces the roll (degrees, clockwise) of a rotated face with the landmarks of an upright
    /// face, and applies the limits of `profile` again.
    pub fn correct_roll(&mut self, roll: f32, profile: Profile) {
        self.pose.roll = roll;
        self.apply_limits(profile);
    }

    fn apply_limits(&mut self, profile: Profile) {
        self.reasons = self.unmet_limits(profile);
        self.passed = self.reasons.is_empty();
    }
}

/// Assesses one face. `chip` is its aligned 112x112 chip, and `image` is the size (width, height)
/// of the image. Measures that are not finite get the score 0.
pub fn assess(chip: &Frame, detection: &Detection, image: (u32, u32), profile: Profile) -> QualityReport {
    let grey = grey_statistics(chip);
    let [right_eye, left_eye, ..] = detection.landmarks;
    let measure = Measure::new;
    let eyes = f64::from(right_eye.distance(left_eye));
    let inside = inside_share(&detection.bbox, image);
    let score = f64::from(detection.det_score);
    let mut report = QualityReport {
        blur: measure(grey.laplacian_variance, hill(grey.laplacian_variance, 100.0)),
        sharpness: measure(grey.tenengrad, hill(grey.tenengrad, 5000.0)),
        brightness: measure(grey.mean, (grey.mean / 90.0).min((255.0 - grey.mean) / 90.0)),
        contrast: measure(grey.std, hill(grey.std, 20.0)),
        exposure: measure(grey.clipped, 1.0 - grey.clipped),
        size: measure(eyes, hill(eyes, 20.0)),
        pose: pose::estimate(&detection.landmarks),
        truncation: measure(inside, inside),
        det_score: measure(score, score),
        ..QualityReport::default()
    };
    report.overall = overall_score(&report);
    report.apply_limits(profile);
    report
}

/// Returns Hill's saturation curve of order two.
fn hill(x: f64, half: f64) -> f64 {
    x * x / (x * x + half * half)
}

/// Clamps to 0..=1; NaN becomes 0.
fn unit(value: f64) -> f32 {
    if value > 0.0 { value.min(1.0) as f32 } else { 0.0 }
}

/// Returns the share of the box inside the image; 0 for an empty box.
fn inside_share(bbox: &Rect, image: (u32, u32)) -> f64 {
    let whole = Rect { x: 0.0, y: 0.0, width: image.0 as f32, height: image.1 as f32 };
    let area = f64::from(bbox.area());
    if area > 0.0 { f64::from(bbox.intersection(&whole).area()) / area } else { 0.0 }
}

/// Limits on raw values. The code after each limit is reported for a face that does not meet it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QualityLimits {
    /// Minimum Laplacian variance: `too_blurry`.
    pub blur: f32,
    /// Minimum Tenengrad: `too_blurry`.
    pub sharpness: f32,
    /// Minimum mean grey: `too_dark`.
    pub min_brightness: f32,
    /// Maximum mean grey: `too_bright`.
    pub max_brightness: f32,
    /// Minimum standard deviation of grey: `low_contrast`.
    pub contrast: f32,
    /// Maximum share of clipped pixels: `clipped`.
    pub clipped: f32,
    /// Minimum distance of the eyes in pixels: `too_small`.
    pub size: f32,
    /// Maximum yaw to either side in degrees: `turned_away`.
    pub yaw: f32,
    /// Maximum pitch up or down in degrees: `turned_away`.
    pub pitch: f32,
    /// Maximum roll to either side in degrees: `not_upright`.
    pub roll: f32,
    /// Minimum share of the box inside the image: `truncated`.
    pub inside: f32,
    /// Minimum detector score: `low_score`.
    pub det_score: f32,
}

/// Maximum roll in degrees. Alignment removes the roll, but detectors are trained on upright faces.
/// At a roll of 90 degrees, landmarks of SCRFD 2.5G are so inaccurate that the mean similarity to
/// the same face upright is 0.3. No upright face in the photographs has a roll over 35 degrees.
const MAX_ROLL: f32 = 60.0;

#[rustfmt::skip]
const STANDARD: QualityLimits = QualityLimits {
    blur: 15.0, sharpness: 3000.0, min_brightness: 40.0, max_brightness: 225.0, contrast: 15.0,
    clipped: 0.40, size: 12.0, yaw: 55.0, pitch: 45.0, roll: MAX_ROLL, inside: 0.75, det_score: 0.5,
};
#[rustfmt::skip]
const STRICT: QualityLimits = QualityLimits {
    blur: 150.0, sharpness: 6000.0, min_brightness: 60.0, max_brightness: 205.0, contrast: 25.0,
    clipped: 0.20, size: 40.0, yaw: 25.0, pitch: 25.0, roll: MAX_ROLL, inside: 0.95, det_score: 0.7,
};

impl Profile {
    /// Returns the profile's limits; `None` for `off`.
    pub fn limits(self) -> Option<&'static QualityLimits> {
        match self {
            Self::Off => None,
            Self::Standard => Some(&STANDARD),
            Self::Strict => Some(&STRICT),
        }
    }
}

/// Returns the weighted geometric mean of the scores, 0..1. Size, pose and sharpness influence a
/// match most; each has weight 2, which for sharpness is divided between two measures. Truncation
/// and detector score have weight 1, and the three measures of light have weight 0.5 each. Scores
/// below 0.01 count as 0.01, so that a score of 0 does not make the result 0.
fn overall_score(report: &QualityReport) -> f32 {
    let weighted = [
        (report.blur.value, 1.0),
        (report.sharpness.value, 1.0),
        (report.brightness.value, 0.5),
        (report.contrast.value, 0.5),
        (report.exposure.value, 0.5),
        (report.size.value, 2.0),
        (report.pose.value, 2.0),
        (report.truncation.value, 1.0),
        (report.det_score.value, 1.0),
    ];
    let total: f32 = weighted.iter().map(|(_, weight)| weight).sum();
    let sum: f32 = weighted.iter().map(|(value, weight)| weight * value.max(0.01).ln()).sum();
    (sum / total).exp()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{ARCFACE_TEMPLATE, Point};

    fn checkerboard(dark: u8, light: u8, square: u32) -> Frame {
        let level =
            |i: u32| if (i % 112 / square + i / 112 / square).is_multiple_of(2) { dark } else { light };
        Frame::new(112, 112, (0..112 * 112).flat_map(|i| [level(i); 3]).collect()).unwrap()
    }

    fn face() -> Detection {
        let bbox = Rect { x: 20.0, y: 10.0, width: 200.0, height: 300.0 };
        // The eyes are 70 pixels apart.
        let landmarks = ARCFACE_TEMPLATE.map(|p| Point { x: p.x * 2.0, y: p.y * 2.0 });
        Detection { bbox, det_score: 0.9, landmarks }
    }

    #[test]
    fn each_quality_defect_has_its_reason_code() {
        let standard =
            |chip: &Frame, detection: &Detection| assess(chip, detection, (400, 400), Profile::Standard);
        let good = checkerboard(60, 180, 9);
        let report = standard(&good, &face());
        assert!(report.passed && report.reasons.is_empty(), "{report:?}");
        assert!(report.overall > 0.8);

        let reasons_after = |change: fn(&mut Detection)| {
            let mut detection = face();
            change(&mut detection);
            standard(&good, &detection).reasons
        };
        let reasons_at = |place: fn(Point) -> Point| {
            let detection = Detection { landmarks: face().landmarks.map(place), ..face() };
            standard(&good, &detection).reasons
        };
        assert_eq!(reasons_at(|p| Point { x: p.x / 8.0, y: p.y / 8.0 }), ["too_small"]);
        assert_eq!(reasons_after(|d| d.landmarks[2].x += 60.0), ["turned_away"]);
        // Rotated by 180 and by 90 degrees.
        assert_eq!(reasons_at(|p| Point { x: 224.0 - p.x, y: 224.0 - p.y }), ["not_upright"]);
        assert_eq!(reasons_at(|p| Point { x: p.y, y: 224.0 - p.x }), ["not_upright"]);
        assert_eq!(reasons_after(|d| d.bbox.x = -150.0), ["truncated"]);
        assert_eq!(reasons_after(|d| d.det_score = 0.3), ["low_score"]);
        assert_eq!(reasons_after(|d| d.det_score = f32::NAN), ["low_score"]);
        assert_eq!(reasons_after(|d| d.landmarks[0].x = f32::NAN), ["too_small", "turned_away"]);

        let codes = |chip: &Frame| standard(chip, &face()).reasons;
        assert_eq!(codes(&checkerboard(10, 60, 9)), ["too_dark"]);
        assert_eq!(codes(&checkerboard(205, 249, 4)), ["too_bright"]);
        assert_eq!(codes(&checkerboard(0, 255, 20)), ["clipped"]);
        assert_eq!(codes(&Frame::filled(112, 112, [120; 3])), ["too_blurry", "low_contrast"]);
    }

    #[test]
    fn corrected_roll_is_compared_with_limit() {
        for profile in [Profile::Standard, Profile::Strict] {
            let mut report = assess(&checkerboard(60, 180, 9), &face(), (400, 400), profile);
            assert!(report.passed, "{report:?}");
            report.correct_roll(180.0, profile);
            assert!(!report.passed && report.reasons == ["not_upright"], "{report:?}");
            assert_eq!(report.unmet_limits(Profile::Off), [""; 0]);
        }
    }

    #[test]
    fn quality_profile_off_accepts_every_face() {
        let mut detection = face();
        detection.det_score = 0.0;
        let report = assess(&Frame::filled(112, 112, [0; 3]), &detection, (1, 1), Profile::Off);
        assert!(report.passed && report.reasons.is_empty());
        assert!(report.overall < 0.1, "{report:?}");
    }

    #[test]
    fn quality_report_round_trips_through_json() {
        let mut detection = face();
        detection.bbox.width = f32::INFINITY;
        detection.det_score = f32::NAN;
        detection.landmarks[4].y = f32::NEG_INFINITY;
        let report = assess(&checkerboard(0, 255, 1), &detection, (10, 10), Profile::Strict);
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<QualityReport>(&text).unwrap(), report);
    }
}

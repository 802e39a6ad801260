//! The limits of the named profiles, and the weights of the measures.

use super::{Profile, QualityReport};

/// Limits on raw values. Each has the reason code that is reported for a face outside the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QualityLimits {
    /// Minimum Laplacian variance: `too_blurry`.
    pub blur: f32,
    /// Minimum Tenengrad: `too_blurry`.
    pub sharpness: f32,
    /// Minimum mean grey: `too_dark`.
    pub darkest: f32,
    /// Maximum mean grey: `too_bright`.
    pub brightest: f32,
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

/// Alignment removes the roll of a face, but detectors are trained on upright faces: at a roll of
/// 90 degrees, landmarks of SCRFD 2.5G are so inaccurate that the mean similarity to the same face
/// upright is 0.3. In the photographs, no upright face has a roll over 35 degrees.
const MAX_ROLL: f32 = 60.0;

/// The limits of `standard` and `strict`, in this order.
const TABLE: [QualityLimits; 2] = {
    #[rustfmt::skip]
    let standard = QualityLimits {
        blur: 15.0, sharpness: 3000.0, darkest: 40.0, brightest: 225.0, contrast: 15.0, clipped: 0.40,
        size: 12.0, yaw: 55.0, pitch: 45.0, roll: MAX_ROLL, inside: 0.75, det_score: 0.5,
    };
    #[rustfmt::skip]
    let strict = QualityLimits {
        blur: 150.0, sharpness: 6000.0, darkest: 60.0, brightest: 205.0, contrast: 25.0, clipped: 0.20,
        size: 40.0, yaw: 25.0, pitch: 25.0, roll: MAX_ROLL, inside: 0.95, det_score: 0.7,
    };
    [standard, strict]
};

impl Profile {
    /// Returns the profile's limits; `None` for `off`.
    pub fn limits(self) -> Option<&'static QualityLimits> {
        match self {
            Self::Off => None,
            Self::Standard => Some(&TABLE[0]),
            Self::Strict => Some(&TABLE[1]),
        }
    }
}

/// Returns the codes of the limits that a report does not meet, in the order of the measures.
pub(super) fn unmet_limits(report: &QualityReport, profile: Profile) -> Vec<String> {
    let Some(limits) = profile.limits() else { return Vec::new() };
    // Written so that NaN does not meet a limit.
    let at_least = |raw: f32, limit: f32| raw >= limit;
    let at_most = |raw: f32, limit: f32| raw <= limit;
    let pose = &report.pose;
    let facing =
        pose.value > 0.0 && at_most(pose.yaw.abs(), limits.yaw) && at_most(pose.pitch.abs(), limits.pitch);
    let sharp = at_least(report.blur.raw, limits.blur) && at_least(report.sharpness.raw, limits.sharpness);
    [
        (sharp, "too_blurry"),
        (at_least(report.brightness.raw, limits.darkest), "too_dark"),
        (at_most(report.brightness.raw, limits.brightest), "too_bright"),
        (at_least(report.contrast.raw, limits.contrast), "low_contrast"),
        (at_most(report.exposure.raw, limits.clipped), "clipped"),
        (at_least(report.size.raw, limits.size), "too_small"),
        (facing, "turned_away"),
        (at_most(pose.roll.abs(), limits.roll), "not_upright"),
        (at_least(report.truncation.raw, limits.inside), "truncated"),
        (at_least(report.det_score.raw, limits.det_score), "low_score"),
    ]
    .into_iter()
    .filter(|(met, _)| !met)
    .map(|(_, code)| code.to_owned())
    .collect()
}

/// Returns the weighted geometric mean of the scores, 0..1. Size, pose and sharpness influence a
/// match most; each has weight 2, which for sharpness is divided between two measures. Truncation
/// and detector score have weight 1, and the three measures of light have weight 0.5 each. Scores
/// below 0.01 count as 0.01, so a single zero lowers the result but bad faces can still be ordered.
pub(super) fn overall(report: &QualityReport) -> f32 {
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

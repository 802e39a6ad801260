//! What the named profiles demand, and how measures combine.

use super::{Profile, QualityReport};

/// Limits on raw values; a face outside one of them has the reason code named beside it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demands {
    /// Least Laplacian variance: `too_blurry`.
    pub blur: f32,
    /// Least Tenengrad: `too_blurry`.
    pub sharpness: f32,
    /// Least mean grey: `too_dark`.
    pub darkest: f32,
    /// Greatest mean grey: `too_bright`.
    pub brightest: f32,
    /// Least grey deviation: `low_contrast`.
    pub contrast: f32,
    /// Greatest share of clipped pixels: `clipped`.
    pub clipped: f32,
    /// Least distance of the eyes in pixels: `too_small`.
    pub size: f32,
    /// Greatest yaw to either side in degrees: `turned_away`.
    pub yaw: f32,
    /// Greatest pitch up or down in degrees: `turned_away`.
    pub pitch: f32,
    /// Least share of the box inside the image: `truncated`.
    pub inside: f32,
    /// Least detector score: `low_score`.
    pub det_score: f32,
}

/// The table: one line per measure, `standard` and `strict` side by side.
const TABLE: [Demands; 2] = {
    #[rustfmt::skip]
    let standard = Demands {
        blur: 15.0, sharpness: 3000.0, darkest: 40.0, brightest: 225.0, contrast: 15.0, clipped: 0.40,
        size: 12.0, yaw: 55.0, pitch: 45.0, inside: 0.75, det_score: 0.5,
    };
    #[rustfmt::skip]
    let strict = Demands {
        blur: 150.0, sharpness: 6000.0, darkest: 60.0, brightest: 205.0, contrast: 25.0, clipped: 0.20,
        size: 40.0, yaw: 25.0, pitch: 25.0, inside: 0.95, det_score: 0.7,
    };
    [standard, strict]
};

impl Profile {
    /// The profile's limits; `None` for `off`, which demands nothing.
    pub fn demands(self) -> Option<&'static Demands> {
        match self {
            Self::Off => None,
            Self::Standard => Some(&TABLE[0]),
            Self::Strict => Some(&TABLE[1]),
        }
    }
}

/// Stable codes of the demands that a report does not meet, in the order of the table.
pub(super) fn unmet(report: &QualityReport, profile: Profile) -> Vec<String> {
    let Some(limits) = profile.demands() else { return Vec::new() };
    // Written so that a value that is not a number fails.
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
        (at_least(report.truncation.raw, limits.inside), "truncated"),
        (at_least(report.det_score.raw, limits.det_score), "low_score"),
    ]
    .into_iter()
    .filter(|(met, _)| !met)
    .map(|(_, code)| code.to_owned())
    .collect()
}

/// Weighted geometric mean of the scores, 0..1. What decides a match counts most (size, pose, sharpness); light
/// and framing count less. Scores are floored at 0.01, so that a single zero lowers the result but still leaves an order
/// among the bad ones.
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

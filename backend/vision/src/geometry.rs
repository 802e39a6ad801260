//! Points, rectangles and detections.

use serde::{Deserialize, Serialize};

/// A point in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// To the right.
    pub x: f32,
    /// Down.
    pub y: f32,
}

/// An axis-aligned rectangle in pixels; may reach outside the image, as detectors' boxes do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Rect {
    /// Left edge.
    pub x: f32,
    /// Top edge.
    pub y: f32,
    /// Width, never negative.
    pub width: f32,
    /// Height, never negative.
    pub height: f32,
}

/// Right eye, left eye, nose tip, right and left mouth corner; the subject's right comes first.
pub type Landmarks = [Point; 5];

/// One face as a detector reports it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detection {
    /// The box around the face.
    pub bbox: Rect,
    /// The detector's confidence, 0..1.
    pub det_score: f32,
    /// Five landmarks.
    pub landmarks: Landmarks,
}

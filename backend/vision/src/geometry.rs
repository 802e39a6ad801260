use serde::{Deserialize, Serialize};

/// A point in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Distance from the left edge.
    pub x: f32,
    /// Distance from the top edge.
    pub y: f32,
}

/// An axis-aligned rectangle in pixels. It may extend outside the image, as detectors' boxes do.
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

impl Rect {
    pub fn area(&self) -> f32 {
        self.width.max(0.0) * self.height.max(0.0)
    }

    /// Returns the intersection of the two rectangles; zero-sized if they do not overlap.
    pub fn intersection(&self, other: &Self) -> Self {
        let (x, y) = (self.x.max(other.x), self.y.max(other.y));
        let width = ((self.x + self.width).min(other.x + other.width) - x).max(0.0);
        let height = ((self.y + self.height).min(other.y + other.height) - y).max(0.0);
        Self { x, y, width, height }
    }

    /// Returns intersection over union, 0..1; 0 if both are empty.
    pub fn iou(&self, other: &Self) -> f32 {
        let shared = self.intersection(other).area();
        let union = self.area() + other.area() - shared;
        if union > 0.0 { shared / union } else { 0.0 }
    }

    fn is_finite(&self) -> bool {
        [self.x, self.y, self.width, self.height].iter().all(|v| v.is_finite())
    }
}

/// A part of an image in whole pixels; never empty, always inside the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Left edge.
    pub x: u32,
    /// Top edge.
    pub y: u32,
    pub width: u32,
    pub height: u32,
}

impl Region {
    pub(crate) fn whole((width, height): (u32, u32)) -> Self {
        Self { x: 0, y: 0, width, height }
    }
}

impl Point {
    pub fn distance(self, other: Self) -> f32 {
        (self.x - other.x).hypot(self.y - other.y)
    }
}

/// Right eye, left eye, nose tip, right and left mouth corner. Right and left are those of the
/// person.
pub type Landmarks = [Point; 5];

/// One face as a detector reports it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Detection {
    pub bbox: Rect,
    /// The detector's confidence, 0..1.
    pub det_score: f32,
    pub landmarks: Landmarks,
}

impl Detection {
    pub fn is_finite(&self) -> bool {
        let landmarks = self.landmarks.iter().all(|point| point.x.is_finite() && point.y.is_finite());
        self.det_score.is_finite() && self.bbox.is_finite() && landmarks
    }
}

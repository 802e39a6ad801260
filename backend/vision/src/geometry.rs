use serde::{Deserialize, Serialize};

/// A point in pixels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Distance from the left edge.
    pub x: f32,
    /// Distance from the top edge.
    pub y: f32,
}

/// An axis-aligned rectangle in pixels. A detector's box may extend outside the image;
/// [`Rect::clip_to`] returns the part inside.
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

    /// Returns the intersection of the two rectangles; a side is 0 if they do not overlap.
    pub fn intersection(&self, other: &Self) -> Self {
        let (x, y) = (self.x.max(other.x), self.y.max(other.y));
        let width = ((self.x + self.width).min(other.x + other.width) - x).max(0.0);
        let height = ((self.y + self.height).min(other.y + other.height) - y).max(0.0);
        Self { x, y, width, height }
    }

    /// Returns the part inside an image of this size (width, height), or `None` if no part is
    /// inside or a number is not finite. The sum of the left edge and the width is at most the
    /// width of the image, also in JSON; the same applies to the top edge and the height.
    pub fn clip_to(&self, (width, height): (u32, u32)) -> Option<Self> {
        if !self.is_finite() {
            return None;
        }
        let (x, width) = clip_span(self.x, self.width, width)?;
        let (y, height) = clip_span(self.y, self.height, height)?;
        Some(Self { x, y, width, height })
    }

    /// Returns intersection over union, 0..1; 0 if both are empty.
    pub fn iou(&self, other: &Self) -> f32 {
        let shared = self.intersection(other).area();
        let union = self.area() + other.area() - shared;
        if union > 0.0 { shared / union } else { 0.0 }
    }

    /// Returns whether the point is inside the rectangle, or at most `border` pixels outside.
    pub(crate) fn contains(&self, point: Point, border: f32) -> bool {
        (self.x - border..=self.x + self.width + border).contains(&point.x)
            && (self.y - border..=self.y + self.height + border).contains(&point.y)
    }

    fn is_finite(&self) -> bool {
        [self.x, self.y, self.width, self.height].iter().all(|v| v.is_finite())
    }
}

/// Returns start and length of the part of a span between 0 and `whole`.
fn clip_span(start: f32, length: f32, whole: u32) -> Option<(f32, f32)> {
    let whole = f64::from(whole);
    let first = start.clamp(0.0, whole as f32);
    let mut length = (length - (first - start)).min((whole - parse_json_number(first)) as f32);
    // Rounding can move the end slightly beyond the image.
    while length > 0.0 && max_end(first, length) > whole {
        length = length.next_down();
    }
    (length > 0.0).then_some((first, length))
}

/// Returns the largest sum that a client can compute from both numbers.
fn max_end(start: f32, length: f32) -> f64 {
    (f64::from(start) + f64::from(length)).max(parse_json_number(start) + parse_json_number(length))
}

/// Returns the number that a client parses from JSON. JSON contains the shortest decimal that
/// identifies the 32-bit number, and clients parse it with 64 bits.
fn parse_json_number(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
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

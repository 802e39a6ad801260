//! Alignment of a face to the ArcFace template.
use crate::{Frame, Landmarks, Point};

/// Landmark positions in an aligned 112x112 chip (InsightFace's `arcface_dst`).
pub const ARCFACE_TEMPLATE: Landmarks = [
    Point { x: 38.2946, y: 51.6963 },
    Point { x: 73.5318, y: 51.5014 },
    Point { x: 56.0252, y: 71.7366 },
    Point { x: 41.5493, y: 92.3655 },
    Point { x: 70.7299, y: 92.2041 },
];

/// A similarity transform `[a -b tx; b a ty]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// `scale * cos(angle)`.
    pub a: f32,
    /// `scale * sin(angle)`.
    pub b: f32,
    /// Translation in x.
    pub tx: f32,
    /// Translation in y.
    pub ty: f32,
}

impl Similarity {
    /// Least-squares fit of `from` onto `to` (Umeyama 1991); `None` when all `from` points coincide.
    pub fn estimate(_from: &Landmarks, _to: &Landmarks) -> Option<Self> {
        todo!()
    }
}

/// The aligned `size`x`size` chip of the face (bilinear, black outside the image).
pub fn norm_crop(_frame: &Frame, _landmarks: &Landmarks, _size: u32) -> Option<Frame> {
    todo!()
}

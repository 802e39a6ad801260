//! Crops and thumbnails.
use crate::{Frame, Rect};

/// The face with `margin` (fraction of the larger box side) on each side, clamped to the image.
pub fn face_crop(_frame: &Frame, _bbox: &Rect, _margin: f32) -> Frame {
    todo!()
}

/// The image scaled down so that its longer side is at most `max_side`; never scaled up.
pub fn thumbnail(_frame: &Frame, _max_side: u32) -> Frame {
    todo!()
}

/// The frame turned clockwise by `degrees` (0, 90, 180 or 270).
pub fn rotate(_frame: &Frame, _degrees: u32) -> Frame {
    todo!()
}

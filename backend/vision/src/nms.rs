//! Non-maximum suppression.
use crate::Detection;

/// Keeps the best of every group that overlaps by more than `iou`; sorted by score, best first.
pub fn nms(_detections: Vec<Detection>, _iou: f32) -> Vec<Detection> {
    todo!()
}

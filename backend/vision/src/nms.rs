//! Non-maximum suppression.

use crate::Detection;

/// Keeps the best of every group that overlaps by more than `iou` (intersection over union of plain areas, 0..1);
/// sorted by score, best first. Greedy: a box is dropped when it overlaps a better one that was kept. Boxes or
/// scores that are not finite are dropped, as they can be compared with nothing.
pub fn nms(mut detections: Vec<Detection>, iou: f32) -> Vec<Detection> {
    detections.retain(|detection| detection.is_finite());
    // Stable, so that equal scores keep the model's order and the result never depends on the sort.
    detections.sort_by(|a, b| b.det_score.total_cmp(&a.det_score));
    let mut kept: Vec<Detection> = Vec::with_capacity(detections.len().min(64));
    for candidate in detections {
        if kept.iter().all(|better| better.bbox.iou(&candidate.bbox) <= iou) {
            kept.push(candidate);
        }
    }
    kept
}

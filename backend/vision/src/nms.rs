//! Non-maximum suppression.

use crate::Detection;

/// Maximum number of detections that [`nms`] compares; it uses the best ones. This limits the work
/// to 12.5 million comparisons of two boxes, some tens of milliseconds. OpenCV's `FaceDetectorYN`
/// has the same limit by default.
pub const MAX_CANDIDATES: usize = 5000;

/// Keeps the best `limit` detections, in no particular order, in linear time. Detections that are
/// not finite are dropped first, because they cannot be compared.
pub fn keep_best(detections: &mut Vec<Detection>, limit: usize) {
    detections.retain(Detection::is_finite);
    if detections.len() <= limit {
        return;
    }
    if limit > 0 {
        detections.select_nth_unstable_by(limit - 1, |a, b| b.det_score.total_cmp(&a.det_score));
    }
    detections.truncate(limit);
}

/// Keeps the best detection of every group that overlaps by more than `iou` (intersection over
/// union of plain areas, 0..1). Returns them sorted by score, best first.
///
/// The method is greedy: a box is dropped if it overlaps a better box that was kept. Boxes or
/// scores that are not finite are dropped, because they cannot be compared. Only the best
/// [`MAX_CANDIDATES`] detections are considered, which bounds the time.
pub fn nms(mut detections: Vec<Detection>, iou: f32) -> Vec<Detection> {
    keep_best(&mut detections, MAX_CANDIDATES);
    // A stable sort keeps the model's order for equal scores, so results do not depend on it.
    detections.sort_by(|a, b| b.det_score.total_cmp(&a.det_score));
    let mut kept: Vec<Detection> = Vec::with_capacity(detections.len().min(64));
    for candidate in detections {
        if kept.iter().all(|better| better.bbox.iou(&candidate.bbox) <= iou) {
            kept.push(candidate);
        }
    }
    kept
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Rect;

    fn face(x: f32, det_score: f32) -> Detection {
        let bbox = Rect { x, y: 0.0, width: 10.0, height: 10.0 };
        Detection { bbox, det_score, landmarks: Default::default() }
    }

    fn scores(detections: Vec<Detection>, iou: f32) -> Vec<f32> {
        nms(detections, iou).iter().map(|d| d.det_score).collect()
    }

    #[test]
    fn best_first_and_overlaps_dropped() {
        // Neighbours 2 apart overlap by 8 / 12, those 4 apart by 6 / 14.
        let row = vec![face(4.0, 0.7), face(0.0, 0.9), face(2.0, 0.8), face(50.0, 0.95)];
        assert_eq!(scores(row.clone(), 0.4), [0.95, 0.9]);
        assert_eq!(scores(row.clone(), 0.5), [0.95, 0.9, 0.7]);
        assert_eq!(scores(row, 0.7), [0.95, 0.9, 0.8, 0.7]);
    }

    #[test]
    fn a_dropped_box_drops_nothing() {
        // The third overlaps only the second, which the first has removed.
        let chain = vec![face(0.0, 0.9), face(4.0, 0.8), face(8.0, 0.7)];
        assert_eq!(scores(chain, 0.4), [0.9, 0.7]);
    }

    #[test]
    fn of_very_many_only_the_best_are_compared() {
        let row = |count: usize| (0..count).map(|i| face(20.0 * i as f32, (i as f32 + 1.0) / 1e6)).collect();
        assert_eq!(nms(row(MAX_CANDIDATES), 0.4).len(), MAX_CANDIDATES);
        let best = nms(row(20_000), 0.4);
        assert_eq!(best.len(), MAX_CANDIDATES);
        assert_eq!((best[0].det_score, best[4_999].det_score), (0.02, 0.015001));
        let mut some: Vec<Detection> = row(3);
        keep_best(&mut some, 0);
        assert!(some.is_empty());
    }

    #[test]
    fn what_is_no_number_is_dropped() {
        let mut odd =
            vec![face(f32::NAN, 0.9), face(0.0, f32::NAN), face(30.0, f32::INFINITY), face(60.0, 0.5)];
        odd[3].landmarks[2].x = f32::NAN;
        odd.push(face(90.0, 0.4));
        assert_eq!(scores(odd, 0.4), [0.4]);
        assert!(nms(Vec::new(), 0.4).is_empty());
    }
}

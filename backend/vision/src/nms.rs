//! Non-maximum suppression.

use crate::{Detection, Point, Rect};

/// Maximum number of detections that [`nms`] compares; it uses the best ones. This limits the work
/// to 12.5 million comparisons of two boxes, some tens of milliseconds. OpenCV's `FaceDetectorYN`
/// has the same limit by default.
pub const MAX_CANDIDATES: usize = 5000;

/// Minimum share of a smaller box inside a better and larger one from which both can be on the same
/// face. In twelve group photographs (1,247 boxes), two boxes lie more than 60 % inside a better,
/// larger box. Both are on its forehead.
const PART_SHARE: f32 = 0.6;

/// Minimum number of landmarks of the smaller box that lie inside the larger one. A neighbour's
/// box overlaps a face with its edge, and most of the neighbour's landmarks lie outside.
const PART_LANDMARKS: usize = 4;

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
/// union of plain areas, 0..1), or of which one shows a part of the other's face. Returns them
/// sorted by score, best first.
///
/// The method is greedy: a box is dropped if it overlaps a better box that was kept. A smaller box
/// with a lower score is also dropped if it lies on a part of the face, such as the forehead. Such
/// a box overlaps that of the face too little for any `iou` that keeps neighbours apart. It is
/// dropped if most of its area and of its landmarks lie inside.
///
/// Boxes or scores that are not finite are dropped, because they cannot be compared. Only the best
/// [`MAX_CANDIDATES`] detections are considered, which bounds the time.
pub fn nms(mut detections: Vec<Detection>, iou: f32) -> Vec<Detection> {
    keep_best(&mut detections, MAX_CANDIDATES);
    // A stable sort keeps the model's order for equal scores, so results do not depend on it.
    detections.sort_by(|a, b| b.det_score.total_cmp(&a.det_score));
    let mut kept: Vec<Detection> = Vec::with_capacity(detections.len().min(64));
    for candidate in detections {
        if !kept.iter().any(|better| repeats(&candidate, better, iou)) {
            kept.push(candidate);
        }
    }
    kept
}

/// Returns whether `candidate` overlaps the better box, or is a box on a part of its face.
fn repeats(candidate: &Detection, better: &Detection, iou: f32) -> bool {
    let shared = candidate.bbox.intersection(&better.bbox).area();
    // Most pairs do not overlap, so the landmarks are not compared.
    if shared <= 0.0 {
        return false;
    }
    let (area, better_area) = (candidate.bbox.area(), better.bbox.area());
    shared / (area + better_area - shared) > iou
        || (area < better_area && shared > PART_SHARE * area && has_landmarks_in(candidate, &better.bbox))
}

/// Returns whether most of the landmarks of the face lie inside the box.
fn has_landmarks_in(face: &Detection, bbox: &Rect) -> bool {
    face.landmarks.iter().filter(|point| contains(bbox, **point)).count() >= PART_LANDMARKS
}

fn contains(rect: &Rect, point: Point) -> bool {
    (rect.x..=rect.x + rect.width).contains(&point.x) && (rect.y..=rect.y + rect.height).contains(&point.y)
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
    fn nms_sorts_by_score_and_drops_overlaps() {
        // Neighbours 2 apart overlap by 8 / 12, those 4 apart by 6 / 14.
        let row = vec![face(4.0, 0.7), face(0.0, 0.9), face(2.0, 0.8), face(50.0, 0.95)];
        assert_eq!(scores(row.clone(), 0.4), [0.95, 0.9]);
        assert_eq!(scores(row.clone(), 0.5), [0.95, 0.9, 0.7]);
        assert_eq!(scores(row, 0.7), [0.95, 0.9, 0.8, 0.7]);
    }

    /// Returns a face with landmarks at the usual places of its box.
    fn at([x, y, width, height]: [f32; 4], det_score: f32) -> Detection {
        let places = [[0.3, 0.4], [0.7, 0.4], [0.5, 0.6], [0.35, 0.8], [0.65, 0.8]];
        let landmarks = places.map(|[across, down]| Point { x: x + across * width, y: y + down * height });
        Detection { bbox: Rect { x, y, width, height }, det_score, landmarks }
    }

    #[test]
    fn nms_drops_box_on_part_of_face() {
        // The smaller box lies on the forehead and the hair; 67 % of it are inside.
        let (face, forehead) = (at([0.0, 0.0, 70.0, 87.0], 0.92), at([-2.0, -16.0, 37.0, 55.0], 0.8));
        assert!(face.bbox.iou(&forehead.bbox) < 0.3);
        assert_eq!(scores(vec![forehead, face], 0.3), [0.92]);
        // The better of both decides. A box that spans two faces does not drop either of them.
        let span = Detection { det_score: 0.7, ..face };
        assert_eq!(scores(vec![span, forehead], 0.3), [0.8, 0.7]);
    }

    #[test]
    fn nms_keeps_neighbours_of_large_face() {
        let face = at([0.0, 0.0, 70.0, 87.0], 0.92);
        for neighbour in [
            // Behind the shoulder, beside the cheek, and in front of the chin.
            at([50.0, -20.0, 37.0, 45.0], 0.6),
            at([50.0, 30.0, 37.0, 45.0], 0.6),
            at([20.0, 65.0, 37.0, 45.0], 0.6),
        ] {
            assert_eq!(scores(vec![face, neighbour], 0.3), [0.92, 0.6], "{neighbour:?}");
        }
        // Two thirds of this box are inside, but its landmarks are not: the face looks out.
        let mut looks_out = at([45.0, 20.0, 37.0, 45.0], 0.6);
        looks_out.landmarks.iter_mut().for_each(|point| point.x = point.x.max(72.0));
        assert!(face.bbox.intersection(&looks_out.bbox).area() > PART_SHARE * looks_out.bbox.area());
        assert_eq!(scores(vec![face, looks_out], 0.3), [0.92, 0.6]);
    }

    #[test]
    fn dropped_box_does_not_suppress_others() {
        // The third overlaps only the second, which the first has removed.
        let chain = vec![face(0.0, 0.9), face(4.0, 0.8), face(8.0, 0.7)];
        assert_eq!(scores(chain, 0.4), [0.9, 0.7]);
    }

    #[test]
    fn nms_compares_only_best_candidates() {
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
    fn nms_drops_detections_with_non_finite_values() {
        let mut odd =
            vec![face(f32::NAN, 0.9), face(0.0, f32::NAN), face(30.0, f32::INFINITY), face(60.0, 0.5)];
        odd[3].landmarks[2].x = f32::NAN;
        odd.push(face(90.0, 0.4));
        assert_eq!(scores(odd, 0.4), [0.4]);
        assert!(nms(Vec::new(), 0.4).is_empty());
    }
}

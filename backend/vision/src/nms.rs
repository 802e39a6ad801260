//! Non-maximum suppression.

use crate::{Detection, Point, Rect};

/// Maximum number of detections that [`nms`] compares; it uses those with the best scores. This
/// limits the time to 12.5 million comparisons, some tens of milliseconds. OpenCV's
/// `FaceDetectorYN` has the same limit by default.
pub const MAX_CANDIDATES: usize = 5000;

/// Minimum share of a smaller box inside a better, larger box on the same face. In twelve group
/// photographs (1,247 boxes), only two boxes exceed it. Both are on the forehead.
const MIN_PART_SHARE: f32 = 0.6;

/// Minimum number of landmarks of the smaller box inside the larger box. The box of an adjacent
/// face can overlap a face, but most of its landmarks are outside.
const MIN_PART_LANDMARKS: usize = 4;

/// Keeps the best `limit` detections, in no particular order, in linear time. Drops detections that
/// are not finite.
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

/// Removes detections that repeat a better one, and returns the others by score, best first.
///
/// The method is greedy. A detection is removed if its intersection over union (0..1) with a better
/// box that was kept is over `iou`. A smaller detection is also removed if most of its area and of
/// its landmarks are inside the better box: it is then on a part of the face, such as the forehead.
/// The `iou` of such boxes is often lower than that of adjacent faces.
///
/// Detections that are not finite are removed. Only the best [`MAX_CANDIDATES`] detections are
/// considered, which bounds the time.
pub fn nms(mut detections: Vec<Detection>, iou: f32) -> Vec<Detection> {
    keep_best(&mut detections, MAX_CANDIDATES);
    // The sort is stable: detections with equal scores keep the order of the model.
    detections.sort_by(|a, b| b.det_score.total_cmp(&a.det_score));
    let mut kept: Vec<Detection> = Vec::with_capacity(detections.len().min(64));
    for candidate in detections {
        if !kept.iter().any(|better| is_repeat(&candidate, better, iou)) {
            kept.push(candidate);
        }
    }
    kept
}

/// Returns whether `candidate` overlaps the better box, or is on a part of its face.
fn is_repeat(candidate: &Detection, better: &Detection, iou: f32) -> bool {
    let shared = candidate.bbox.intersection(&better.bbox).area();
    if shared <= 0.0 {
        return false;
    }
    let (area, better_area) = (candidate.bbox.area(), better.bbox.area());
    shared / (area + better_area - shared) > iou
        || (area < better_area && shared > MIN_PART_SHARE * area && has_landmarks_in(candidate, &better.bbox))
}

/// Returns whether most landmarks of the face are inside the box.
fn has_landmarks_in(face: &Detection, bbox: &Rect) -> bool {
    face.landmarks.iter().filter(|point| contains(bbox, **point)).count() >= MIN_PART_LANDMARKS
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
        // The IoU of boxes at a distance of 2 is 8 / 12, and at a distance of 4 it is 6 / 14.
        let row = vec![face(4.0, 0.7), face(0.0, 0.9), face(2.0, 0.8), face(50.0, 0.95)];
        assert_eq!(scores(row.clone(), 0.4), [0.95, 0.9]);
        assert_eq!(scores(row.clone(), 0.5), [0.95, 0.9, 0.7]);
        assert_eq!(scores(row, 0.7), [0.95, 0.9, 0.8, 0.7]);
    }

    /// Returns a face with landmarks at the usual places of its box.
    fn face_in([x, y, width, height]: [f32; 4], det_score: f32) -> Detection {
        let places = [[0.3, 0.4], [0.7, 0.4], [0.5, 0.6], [0.35, 0.8], [0.65, 0.8]];
        let landmarks = places.map(|[across, down]| Point { x: x + across * width, y: y + down * height });
        Detection { bbox: Rect { x, y, width, height }, det_score, landmarks }
    }

    #[test]
    fn nms_drops_box_on_part_of_face() {
        // The smaller box is on the forehead and the hair; 67 % of it is inside the larger box.
        let face = face_in([0.0, 0.0, 70.0, 87.0], 0.92);
        let forehead = face_in([-2.0, -16.0, 37.0, 55.0], 0.8);
        assert!(face.bbox.iou(&forehead.bbox) < 0.3);
        assert_eq!(scores(vec![forehead, face], 0.3), [0.92]);
        // A smaller box with a better score is kept, and so is the larger box.
        let worse_face = Detection { det_score: 0.7, ..face };
        assert_eq!(scores(vec![worse_face, forehead], 0.3), [0.8, 0.7]);
    }

    #[test]
    fn nms_keeps_neighbours_of_large_face() {
        let face = face_in([0.0, 0.0, 70.0, 87.0], 0.92);
        for neighbour in [
            // Above the shoulder, next to the cheek, and below the chin.
            face_in([50.0, -20.0, 37.0, 45.0], 0.6),
            face_in([50.0, 30.0, 37.0, 45.0], 0.6),
            face_in([20.0, 65.0, 37.0, 45.0], 0.6),
        ] {
            assert_eq!(scores(vec![face, neighbour], 0.3), [0.92, 0.6], "{neighbour:?}");
        }
        // Two thirds of this box are inside the larger box, but its landmarks are outside.
        let mut turned_away = face_in([45.0, 20.0, 37.0, 45.0], 0.6);
        turned_away.landmarks.iter_mut().for_each(|point| point.x = point.x.max(72.0));
        assert!(face.bbox.intersection(&turned_away.bbox).area() > MIN_PART_SHARE * turned_away.bbox.area());
        assert_eq!(scores(vec![face, turned_away], 0.3), [0.92, 0.6]);
    }

    #[test]
    fn dropped_box_does_not_suppress_others() {
        // The third box overlaps only the second, which is dropped because of the first.
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
        let mut three: Vec<Detection> = row(3);
        keep_best(&mut three, 0);
        assert!(three.is_empty());
    }

    #[test]
    fn nms_drops_detections_with_non_finite_values() {
        let mut detections =
            vec![face(f32::NAN, 0.9), face(0.0, f32::NAN), face(30.0, f32::INFINITY), face(60.0, 0.5)];
        detections[3].landmarks[2].x = f32::NAN;
        detections.push(face(90.0, 0.4));
        assert_eq!(scores(detections, 0.4), [0.4]);
        assert!(nms(Vec::new(), 0.4).is_empty());
    }
}

//! Draws boxes and landmarks on an image.
use vision::{Detection, Frame};

const BOX: [u8; 3] = [64, 255, 64];
/// One colour per landmark: right eye, left eye, nose, right and left mouth corner.
const POINTS: [[u8; 3]; 5] = [[255, 64, 64], [64, 64, 255], [255, 255, 64], [255, 64, 255], [64, 255, 255]];

/// Draws every face onto the frame. The lines are thick enough to be visible at any image size.
pub(super) fn faces(frame: &mut Frame, faces: &[Detection]) {
    let thickness = (frame.width().max(frame.height()) / 400).max(2);
    for face in faces {
        let (x, y) = (face.bbox.x, face.bbox.y);
        let (right, bottom) = (x + face.bbox.width, y + face.bbox.height);
        let t = thickness as f32;
        fill(frame, x, y, right, y + t, BOX);
        fill(frame, x, bottom - t, right, bottom, BOX);
        fill(frame, x, y, x + t, bottom, BOX);
        fill(frame, right - t, y, right, bottom, BOX);
        for (point, colour) in face.landmarks.iter().zip(POINTS) {
            fill(frame, point.x - t, point.y - t, point.x + t, point.y + t, colour);
        }
    }
}

/// Fills the part of a rectangle that lies on the frame.
fn fill(frame: &mut Frame, left: f32, top: f32, right: f32, bottom: f32, colour: [u8; 3]) {
    let (width, height) = (frame.width(), frame.height());
    // `as` saturates: values outside the frame end at its border, and NaN becomes 0.
    let clamp = |value: f32, limit: u32| (value.round().max(0.0) as u32).min(limit);
    let (left, right) = (clamp(left, width), clamp(right, width));
    for y in clamp(top, height)..clamp(bottom, height) {
        for x in left..right {
            let at = (y as usize * width as usize + x as usize) * 3;
            frame.data_mut()[at..at + 3].copy_from_slice(&colour);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vision::{Point, Rect};

    #[test]
    fn a_box_has_its_edges_and_leaves_its_middle() {
        let mut frame = Frame::filled(60, 50, [0; 3]);
        let landmarks = [Point { x: 30.0, y: 30.0 }; 5];
        let bbox = Rect { x: 10.0, y: 10.0, width: 40.0, height: 30.0 };
        faces(&mut frame, &[Detection { bbox, det_score: 1.0, landmarks }]);
        assert_eq!(frame.pixel(10, 10), BOX);
        assert_eq!(frame.pixel(49, 39), BOX);
        assert_eq!(frame.pixel(20, 20), [0; 3]);
        assert_eq!(frame.pixel(9, 10), [0; 3]);
        assert_eq!(frame.pixel(30, 30), POINTS[4]);
    }

    #[test]
    fn what_lies_outside_is_cut_off() {
        let mut frame = Frame::filled(20, 20, [0; 3]);
        let landmarks = [Point { x: f32::NAN, y: -50.0 }; 5];
        let bbox = Rect { x: -100.0, y: -100.0, width: 1e9, height: 105.0 };
        faces(&mut frame, &[Detection { bbox, det_score: 1.0, landmarks }]);
        assert_eq!(frame.pixel(0, 4), BOX);
        assert_eq!(frame.pixel(0, 6), [0; 3]);
    }
}

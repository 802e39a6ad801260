//! Rotation of coordinates by multiples of 90 degrees. [`rotate`] maps coordinates of an image to
//! coordinates of the same image rotated clockwise by `degrees`. Pixels are rotated elsewhere, by
//! `vision::crop::rotate`.

use vision::{Detection, Point, Rect};

/// Rotates the point clockwise together with its `width`x`height` image.
fn rotate_point(p: Point, (width, height): (f32, f32), degrees: u32) -> Point {
    match degrees {
        90 => Point { x: height - p.y, y: p.x },
        180 => Point { x: width - p.x, y: height - p.y },
        270 => Point { x: p.y, y: width - p.x },
        _ => p,
    }
}

/// Rotates a detection clockwise together with its image of `size` (width, height). Box sides
/// remain parallel to the axes, so the box remains exact.
pub(super) fn rotate(detection: &Detection, size: (u32, u32), degrees: u32) -> Detection {
    let size = (size.0 as f32, size.1 as f32);
    let Rect { x, y, width, height } = detection.bbox;
    let rotated = |p| rotate_point(p, size, degrees);
    let (a, b) = (rotated(Point { x, y }), rotated(Point { x: x + width, y: y + height }));
    let quarter = matches!(degrees, 90 | 270);
    Detection {
        bbox: Rect {
            x: a.x.min(b.x),
            y: a.y.min(b.y),
            width: if quarter { height } else { width },
            height: if quarter { width } else { height },
        },
        det_score: detection.det_score,
        landmarks: detection.landmarks.map(rotated),
    }
}

/// Inverts [`rotate`]: maps a detection in the rotated image to the original of `size`.
pub(super) fn unrotate(detection: &Detection, size: (u32, u32), degrees: u32) -> Detection {
    let turned = rotated_size(size, degrees);
    rotate(detection, turned, (360 - degrees) % 360)
}

pub(super) fn rotated_size((width, height): (u32, u32), degrees: u32) -> (u32, u32) {
    if matches!(degrees, 90 | 270) { (height, width) } else { (width, height) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use vision::{Frame, crop};

    fn detection() -> Detection {
        Detection {
            bbox: Rect { x: 3.0, y: 5.0, width: 4.0, height: 7.0 },
            det_score: 0.9,
            landmarks: std::array::from_fn(|i| Point { x: 3.5 + i as f32, y: 6.5 - i as f32 }),
        }
    }

    #[test]
    fn a_turn_and_back_is_where_it_was() {
        for degrees in [0, 90, 180, 270] {
            let there = rotate(&detection(), (40, 30), degrees);
            assert_eq!(unrotate(&there, (40, 30), degrees), detection(), "{degrees}");
        }
    }

    #[test]
    fn coordinates_turn_the_way_pixels_do() {
        let mut frame = Frame::filled(5, 3, [0; 3]);
        let (x, y) = (4_u32, 1_u32);
        let at = ((y * 5 + x) * 3) as usize;
        frame.data_mut()[at..at + 3].copy_from_slice(&[255; 3]);
        for degrees in [0, 90, 180, 270] {
            let turned = crop::rotate(&frame, degrees);
            let centre = Point { x: x as f32 + 0.5, y: y as f32 + 0.5 };
            let p = rotate_point(centre, (5.0, 3.0), degrees);
            assert_eq!(rotated_size((5, 3), degrees), (turned.width(), turned.height()));
            assert_eq!(turned.pixel(p.x as u32, p.y as u32), [255; 3], "{degrees}");
        }
    }
}

//! Crops, thumbnails and rotations.

use crate::geometry::Region;
use crate::{Frame, Point, Rect, resize};

/// Returns the face with `margin` (a fraction of the larger side of the box) on each side, clamped
/// to the image. The crop has at least one pixel: for a box outside the image, the nearest pixel.
pub fn face_crop(frame: &Frame, bbox: &Rect, margin: f32) -> Frame {
    crop_region(frame, expanded_region(frame, bbox, margin))
}

/// Works like [`face_crop`], and covers the boxes `hidden` of other faces with grey. Their margin
/// `hidden_margin`, a fraction of the larger side of the hidden box, is also covered, except inside
/// `bbox`.
pub fn face_crop_covering_others(
    frame: &Frame,
    bbox: &Rect,
    margin: f32,
    hidden: &[Rect],
    hidden_margin: f32,
) -> Frame {
    let region = expanded_region(frame, bbox, margin);
    let mut crop = crop_region(frame, region);
    // A pixel is covered if its centre is inside a hidden box or at most one pixel outside.
    let border = |rect: &Rect| 1.0 + hidden_margin.max(0.0) * rect.width.max(rect.height);
    let (left, top) = (region.x as f32, region.y as f32);
    let (right, bottom) = (left + region.width as f32, top + region.height as f32);
    let nearby: Vec<&Rect> = hidden
        .iter()
        .filter(|rect| {
            let border = border(rect);
            rect.x - border < right
                && rect.x + rect.width + border > left
                && rect.y - border < bottom
                && rect.y + rect.height + border > top
        })
        .collect();
    if nearby.is_empty() {
        return crop;
    }
    let width = region.width as usize;
    for (index, pixel) in crop.data_mut().as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let centre = Point { x: left + (index % width) as f32 + 0.5, y: top + (index / width) as f32 + 0.5 };
        let is_own_box = bbox.contains(centre, 0.0);
        if nearby.iter().any(|rect| rect.contains(centre, if is_own_box { 1.0 } else { border(rect) })) {
            *pixel = [127; 3];
        }
    }
    crop
}

/// Covers the area of [`face_crop`] with grey.
pub fn paint_over(frame: &mut Frame, bbox: &Rect, margin: f32) {
    let Region { x, y, width, height } = expanded_region(frame, bbox, margin);
    let row = frame.width() as usize * 3;
    for line in frame.data_mut().chunks_exact_mut(row).skip(y as usize).take(height as usize) {
        line[x as usize * 3..(x + width) as usize * 3].fill(127);
    }
}

/// Returns the box with its margin, clamped to the frame, with at least one pixel.
fn expanded_region(frame: &Frame, bbox: &Rect, margin: f32) -> Region {
    let border = margin.max(0.0) * bbox.width.max(bbox.height);
    // A cast from float to integer saturates and maps NaN to zero, so every box has a valid span.
    let span = |start: f32, length: f32, limit: u32| {
        let first = ((start - border).floor() as u32).min(limit - 1);
        let last = ((start + length + border).ceil() as u32).min(limit);
        (first, last.max(first + 1))
    };
    let (left, right) = span(bbox.x, bbox.width, frame.width());
    let (top, bottom) = span(bbox.y, bbox.height, frame.height());
    Region { x: left, y: top, width: right - left, height: bottom - top }
}

/// Copies the pixels of a region that lies inside the frame.
pub(crate) fn crop_region(frame: &Frame, Region { x, y, width, height }: Region) -> Frame {
    let columns = x as usize * 3..(x + width) as usize * 3;
    let mut data = Vec::with_capacity(columns.len() * height as usize);
    let rows = frame.data().chunks_exact(frame.width() as usize * 3);
    for row in rows.skip(y as usize).take(height as usize) {
        data.extend_from_slice(&row[columns.clone()]);
    }
    Frame::new(width, height, data).expect("the region lies inside the frame and is not empty")
}

/// Returns the image scaled down (Lanczos) so that its longer side is at most `max_side`. A smaller
/// image is returned unchanged.
pub fn thumbnail(frame: &Frame, max_side: u32) -> Frame {
    let longer = frame.width().max(frame.height());
    if longer <= max_side {
        return frame.clone();
    }
    let scale = f64::from(max_side.max(1)) / f64::from(longer);
    let side = |v: u32| ((f64::from(v) * scale).round() as u32).clamp(1, max_side.max(1));
    resize::resize_lanczos(frame, (side(frame.width()), side(frame.height())))
}

/// Rotates the frame clockwise by `degrees` (0, 90, 180 or 270). Other values are rounded down to a
/// quarter turn, modulo 360.
pub fn rotate(frame: &Frame, degrees: u32) -> Frame {
    match degrees / 90 % 4 {
        0 => frame.clone(),
        1 => rotate_quarter_turn(frame, |x, y, height| (height - 1 - y, x)),
        2 => {
            let mut rotated = frame.clone();
            rotated.data_mut().as_chunks_mut::<3>().0.reverse();
            rotated
        }
        _ => {
            let width = frame.width() as usize;
            rotate_quarter_turn(frame, move |x, y, _| (y, width - 1 - x))
        }
    }
}

/// Returns the frame with left and right exchanged.
pub fn mirror(frame: &Frame) -> Frame {
    let mut mirrored = frame.clone();
    for row in mirrored.data_mut().chunks_exact_mut(frame.width() as usize * 3) {
        row.as_chunks_mut::<3>().0.reverse();
    }
    mirrored
}

/// Rotates by a quarter turn. `move_pixel` returns the target column and row of a source pixel from
/// `(x, y, source height)`.
fn rotate_quarter_turn(frame: &Frame, move_pixel: impl Fn(usize, usize, usize) -> (usize, usize)) -> Frame {
    /// Side of the blocks in which pixels are copied. Both blocks fit in the L1 cache.
    const BLOCK: usize = 32;
    let (width, height) = (frame.width() as usize, frame.height() as usize);
    let mut rotated = Frame::filled(frame.height(), frame.width(), [0; 3]);
    let (source, _) = frame.data().as_chunks::<3>();
    let (target, _) = rotated.data_mut().as_chunks_mut::<3>();
    for top in (0..height).step_by(BLOCK) {
        for left in (0..width).step_by(BLOCK) {
            for y in top..(top + BLOCK).min(height) {
                let right = (left + BLOCK).min(width);
                for (x, pixel) in (left..right).zip(&source[y * width + left..y * width + right]) {
                    let (column, row) = move_pixel(x, y, height);
                    target[row * height + column] = *pixel;
                }
            }
        }
    }
    rotated
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn covers_other_faces_in_crop() {
        let frame = Frame::filled(100, 60, [200, 10, 10]);
        let rect = |x, width| Rect { x, y: 20.0, width, height: 20.0 };
        let (own, near, far) = (rect(40.0, 20.0), rect(64.0, 20.0), rect(0.0, 8.0));
        let plain = face_crop(&frame, &own, 0.5);
        let crop = face_crop_covering_others(&frame, &own, 0.5, &[near, far], 0.0);
        assert_eq!((crop.width(), crop.height()), (plain.width(), plain.height()));
        // The crop begins at x = 30, y = 10.
        assert_eq!(crop.pixel(36, 20), [127; 3], "the face on the right is covered");
        assert_eq!(crop.pixel(20, 20), [200, 10, 10], "the own face is visible");
        assert_eq!(crop.pixel(36, 2), [200, 10, 10], "the area above the face on the right is visible");
        // The margin of the other face is covered, but not inside the own box.
        let crop = face_crop_covering_others(&frame, &own, 0.5, &[near], 0.4);
        assert_eq!(crop.pixel(36, 6), [127; 3]);
        assert_eq!(crop.pixel(29, 20), [200, 10, 10]);
        // Where the boxes overlap, the own face is covered.
        let crop = face_crop_covering_others(&frame, &own, 0.5, &[rect(50.0, 20.0)], 0.0);
        assert_eq!((crop.pixel(25, 20), crop.pixel(12, 20)), ([127; 3], [200, 10, 10]));
    }

    fn numbered_frame(width: u32, height: u32) -> Frame {
        Frame::new(width, height, (0..width * height).flat_map(|i| [i as u8, (i >> 8) as u8, 0]).collect())
            .unwrap()
    }

    #[test]
    fn crop_has_margin_and_is_clamped_to_image() {
        let frame = numbered_frame(100, 80);
        let bbox = Rect { x: 20.0, y: 30.0, width: 20.0, height: 10.0 };
        let tight = face_crop(&frame, &bbox, 0.0);
        assert_eq!((tight.width(), tight.height(), tight.pixel(0, 0)), (20, 10, frame.pixel(20, 30)));
        let wide = face_crop(&frame, &bbox, 0.25);
        assert_eq!((wide.width(), wide.height(), wide.pixel(0, 0)), (30, 20, frame.pixel(15, 25)));
        let corner = face_crop(&frame, &Rect { x: -5.0, y: 70.5, width: 20.0, height: 40.0 }, 0.0);
        assert_eq!((corner.width(), corner.height(), corner.pixel(0, 0)), (15, 10, frame.pixel(0, 70)));
    }

    #[test]
    fn empty_crop_is_one_pixel() {
        let frame = numbered_frame(10, 10);
        for (x, y) in [(500.0, 500.0), (-500.0, -500.0), (f32::NAN, f32::INFINITY)] {
            let crop = face_crop(&frame, &Rect { x, y, width: 0.0, height: 0.0 }, 0.0);
            assert_eq!((crop.width(), crop.height()), (1, 1));
        }
    }

    #[test]
    fn thumbnails_keep_proportions_and_colours() {
        let frame = Frame::filled(1000, 400, [10, 200, 90]);
        let small = thumbnail(&frame, 100);
        assert_eq!(small, Frame::filled(100, 40, [10, 200, 90]));
        assert_eq!(thumbnail(&frame, 1000), frame);
        assert_eq!(thumbnail(&frame, 5000), frame);
        assert_eq!(thumbnail(&Frame::filled(4000, 1, [7; 3]), 16), Frame::filled(16, 1, [7; 3]));
        assert_eq!(thumbnail(&Frame::filled(3, 2000, [7; 3]), 1), Frame::filled(1, 1, [7; 3]));
    }

    #[test]
    fn thumbnail_pixels_are_area_means() {
        // Stripes of one pixel must become uniform grey.
        let data = (0..600u32 * 600).flat_map(|i| [if i % 2 == 0 { 0 } else { 200 }; 3]).collect();
        let small = thumbnail(&Frame::new(600, 600, data).unwrap(), 150);
        assert!(small.data().iter().all(|v| v.abs_diff(100) <= 3), "{:?}", &small.data()[..12]);
    }
}

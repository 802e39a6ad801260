//! Covers parts of an image in the aligned chips that were cut from it.
use crate::align::template;
use crate::{Frame, Landmarks, Point, Rect, Similarity};

/// Covering colour, the same as in [`crate::crop::paint_over`].
const GREY: [u8; 3] = [127; 3];
/// Maximum distance in pixels from a hidden box at which a sample can include its pixels.
const REACH: f32 = 4.0;

/// Covers the visible parts of the boxes `hidden` in the chip of a face with grey. `landmarks` are
/// those of the face; all coordinates are those of the image. `margin`, a fraction of the larger
/// side of a hidden box, is also covered, except inside the face's `own` box.
pub fn cover_in_chip(chip: &mut Frame, landmarks: &Landmarks, own: &Rect, hidden: &[Rect], margin: f32) {
    let back = Similarity::estimate(landmarks, &template(chip.width())).and_then(|fit| fit.inverse());
    let width = chip.width() as usize;
    for (at, pixel) in chip.data_mut().as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let place = Point { x: (at % width) as f32, y: (at / width) as f32 };
        let covered = back.is_none_or(|back| {
            let place = back.apply(place);
            hidden.iter().any(|hidden| {
                let border = REACH.max(margin * hidden.width.max(hidden.height));
                contains(hidden, place, REACH)
                    || (contains(hidden, place, border) && !contains(own, place, 0.0))
            })
        });
        if covered {
            *pixel = GREY;
        }
    }
}

fn contains(rect: &Rect, point: Point, border: f32) -> bool {
    (rect.x - border..=rect.x + rect.width + border).contains(&point.x)
        && (rect.y - border..=rect.y + rect.height + border).contains(&point.y)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{ARCFACE_TEMPLATE, norm_crop};

    /// Returns a white image with a red box.
    fn picture(red: &Rect) -> Frame {
        let mut frame = Frame::filled(300, 300, [255; 3]);
        for (at, pixel) in frame.data_mut().as_chunks_mut::<3>().0.iter_mut().enumerate() {
            if contains(red, Point { x: (at % 300) as f32, y: (at / 300) as f32 }, 0.0) {
                *pixel = [255, 0, 0];
            }
        }
        frame
    }

    #[test]
    fn nothing_of_a_hidden_box_is_left_in_a_chip_however_it_is_turned() {
        let red = Rect { x: 170.0, y: 90.0, width: 60.0, height: 80.0 };
        let own = Rect { x: 90.0, y: 90.0, width: 70.0, height: 90.0 };
        let frame = picture(&red);
        for degrees in [0.0_f32, 25.0, -40.0, 90.0, 180.0] {
            let (sin, cos) = degrees.to_radians().sin_cos();
            // The face is next to the box, at several rotations.
            let landmarks = ARCFACE_TEMPLATE.map(|p| {
                let (x, y) = (p.x - 56.0, p.y - 56.0);
                Point { x: 130.0 + 0.9 * (cos * x - sin * y), y: 135.0 + 0.9 * (sin * x + cos * y) }
            });
            let mut chip = norm_crop(&frame, &landmarks, 112).unwrap();
            let reds = |chip: &Frame| {
                let pixels = chip.data().as_chunks::<3>().0.iter();
                pixels.filter(|[r, g, _]| r.abs_diff(*g) > 8).count()
            };
            assert!(reds(&chip) > 0, "{degrees}");
            cover_in_chip(&mut chip, &landmarks, &own, &[red], 0.3);
            assert_eq!(reds(&chip), 0, "{degrees}");
            assert!(chip.data().contains(&255), "{degrees}: the rest is unchanged");
        }
    }
}

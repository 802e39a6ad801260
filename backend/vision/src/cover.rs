//! Covering a part of a picture in the aligned chips that were cut from it.
use crate::{ARCFACE_TEMPLATE, Frame, Landmarks, Point, Rect, Similarity};

/// What is covered with: as [`crate::crop::paint_over`] paints.
const GREY: [u8; 3] = [127; 3];
/// Pixels around a hidden box that a sample inside it can take part in.
const REACH: f32 = 4.0;

/// Paints over what the chip of a face shows of the boxes `hidden`, in grey. `landmarks` are the face's, and all coordinates those of the picture.
/// `margin` (a fraction of the larger side of a hidden box) is covered too, but for what lies in the face's `own` box.
pub fn cover_in_chip(chip: &mut Frame, landmarks: &Landmarks, own: &Rect, hidden: &[Rect], margin: f32) {
    let ratio = chip.width() as f32 / 112.0;
    let template = ARCFACE_TEMPLATE.map(|p| Point { x: p.x * ratio, y: p.y * ratio });
    let back = Similarity::estimate(landmarks, &template).and_then(|fit| fit.inverse());
    let width = chip.width() as usize;
    for (at, pixel) in chip.data_mut().as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let place = Point { x: (at % width) as f32, y: (at / width) as f32 };
        let covered = back.is_none_or(|back| {
            let place = back.apply(place);
            hidden.iter().any(|hidden| {
                let border = REACH.max(margin * hidden.width.max(hidden.height));
                holds(hidden, place, REACH) || (holds(hidden, place, border) && !holds(own, place, 0.0))
            })
        });
        if covered {
            *pixel = GREY;
        }
    }
}

fn holds(rect: &Rect, point: Point, border: f32) -> bool {
    (rect.x - border..=rect.x + rect.width + border).contains(&point.x)
        && (rect.y - border..=rect.y + rect.height + border).contains(&point.y)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::norm_crop;

    /// A white picture with a red box.
    fn picture(red: &Rect) -> Frame {
        let mut frame = Frame::filled(300, 300, [255; 3]);
        for (at, pixel) in frame.data_mut().as_chunks_mut::<3>().0.iter_mut().enumerate() {
            if holds(red, Point { x: (at % 300) as f32, y: (at / 300) as f32 }, 0.0) {
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
            // The face stands beside the box, upside down and otherwise.
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
            assert!(chip.data().contains(&255), "{degrees}: the rest is as it was");
        }
    }
}

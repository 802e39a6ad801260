//! Computes the region of an image that the aligned chip of a face covers. The geometry is that of
//! `vision::norm_crop`: the similarity transform that best fits the five landmarks to the ArcFace
//! template of 112x112 pixels.

/// Landmark positions in a chip.
const TEMPLATE: [[f64; 2]; 5] =
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]];
const SIDE: f64 = 112.0;
/// Margin, in pixels of the image, from which interpolation can add pixels to the edge of a chip,
/// even if the image was upscaled first.
const BORDER: f64 = 4.0;

/// Returns `true` if the chip of a face with these landmarks may contain a part of the box `other`.
/// `landmarks` are x, y pairs; `other` is x, y, width, height. Also `true` for landmarks from which
/// no chip can be cut.
pub(super) fn chip_shows(landmarks: &[f32], other: [f32; 4]) -> bool {
    let Some([left, top, right, bottom]) = footprint(landmarks) else { return true };
    let [x, y, width, height] = other.map(f64::from);
    x < right + BORDER && x + width > left - BORDER && y < bottom + BORDER && y + height > top - BORDER
}

/// Returns the bounding box of a chip: left, top, right, bottom in pixels of the image.
fn footprint(landmarks: &[f32]) -> Option<[f64; 4]> {
    let from: Vec<[f64; 2]> =
        landmarks.as_chunks::<2>().0.iter().map(|[x, y]| [f64::from(*x), f64::from(*y)]).collect();
    let mean = |points: &[[f64; 2]], axis: usize| points.iter().map(|point| point[axis]).sum::<f64>() / 5.0;
    let (fx, fy) = (mean(&from, 0), mean(&from, 1));
    let (tx, ty) = (mean(&TEMPLATE, 0), mean(&TEMPLATE, 1));
    let (mut along, mut across, mut spread) = (0.0, 0.0, 0.0);
    for (f, t) in from.iter().zip(&TEMPLATE) {
        let (ux, uy, vx, vy) = (f[0] - fx, f[1] - fy, t[0] - tx, t[1] - ty);
        along += ux * vx + uy * vy;
        across += ux * vy - uy * vx;
        spread += ux * ux + uy * uy;
    }
    let (a, b) = (along / spread, across / spread);
    let square = a * a + b * b;
    if from.len() != 5 || !square.is_finite() || square < 1e-12 {
        return None;
    }
    let corners = [[0.0, 0.0], [SIDE, 0.0], [0.0, SIDE], [SIDE, SIDE]].map(|[u, v]| {
        let (du, dv) = (u - tx, v - ty);
        [fx + (a * du + b * dv) / square, fy + (a * dv - b * du) / square]
    });
    let least = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::INFINITY, f64::min);
    let most = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::NEG_INFINITY, f64::max);
    Some([least(0), least(1), most(0), most(1)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chip_shows_what_lies_inside_its_footprint_and_no_more() {
        // Scale 2 and an offset: the chip covers x from 100 to 324 and y from 50 to 274.
        let landmarks: Vec<f32> =
            TEMPLATE.iter().flat_map(|[x, y]| [(100.0 + 2.0 * x) as f32, (50.0 + 2.0 * y) as f32]).collect();
        for (x, shown) in [(330.0, false), (327.0, true), (200.0, true), (40.0, false), (50.0, true)] {
            assert_eq!(chip_shows(&landmarks, [x, 100.0, 50.0, 50.0]), shown, "{x}");
        }
        assert!(!chip_shows(&landmarks, [200.0, 280.0, 50.0, 50.0]));
        assert!(chip_shows(&[1.0; 10], [900.0, 900.0, 5.0, 5.0]), "degenerate landmarks count as shown");
        assert!(chip_shows(&[], [900.0, 900.0, 5.0, 5.0]));
    }
}

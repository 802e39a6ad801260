//! Alignment of a face to the ArcFace template.
use crate::{Frame, Landmarks, Point};

/// Landmark positions in an aligned 112x112 chip (InsightFace's `arcface_dst`).
pub const ARCFACE_TEMPLATE: Landmarks = [
    Point { x: 38.2946, y: 51.6963 },
    Point { x: 73.5318, y: 51.5014 },
    Point { x: 56.0252, y: 71.7366 },
    Point { x: 41.5493, y: 92.3655 },
    Point { x: 70.7299, y: 92.2041 },
];

/// A similarity transform `[a -b tx; b a ty]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Similarity {
    /// `scale * cos(angle)`.
    pub a: f32,
    /// `scale * sin(angle)`.
    pub b: f32,
    /// Translation in x.
    pub tx: f32,
    /// Translation in y.
    pub ty: f32,
}

impl Similarity {
    /// Least-squares fit of `from` onto `to` (Umeyama 1991, "Least-squares estimation of transformation parameters
    /// between two point patterns"); `None` when all `from` points coincide or a coordinate is not finite.
    ///
    /// In the plane the best proper rotation and scale have a closed form, the regression of complex numbers, which is
    /// the solution of Umeyama's singular value decomposition with its sign matrix. A mirrored face therefore gives
    /// the best turn without a reflection, never a reflected chip.
    pub fn estimate(from: &Landmarks, to: &Landmarks) -> Option<Self> {
        let [a, b, tx, ty] = fit(from, to)?.map(|v| v as f32);
        Some(Self { a, b, tx, ty })
    }

    /// Where the transform takes a point.
    pub fn apply(&self, point: Point) -> Point {
        Point {
            x: self.a * point.x - self.b * point.y + self.tx,
            y: self.b * point.x + self.a * point.y + self.ty,
        }
    }
}

/// `[a, b, tx, ty]` of the least-squares similarity.
fn fit(from: &Landmarks, to: &Landmarks) -> Option<[f64; 4]> {
    let mean = |points: &Landmarks| {
        let sum = points.iter().fold((0.0, 0.0), |(x, y), p| (x + f64::from(p.x), y + f64::from(p.y)));
        (sum.0 / 5.0, sum.1 / 5.0)
    };
    let ((fx, fy), (gx, gy)) = (mean(from), mean(to));
    let (mut along, mut across, mut spread) = (0.0, 0.0, 0.0);
    for (f, t) in from.iter().zip(to) {
        let (ux, uy) = (f64::from(f.x) - fx, f64::from(f.y) - fy);
        let (vx, vy) = (f64::from(t.x) - gx, f64::from(t.y) - gy);
        along += ux * vx + uy * vy;
        across += ux * vy - uy * vx;
        spread += ux * ux + uy * uy;
    }
    let (a, b) = (along / spread, across / spread);
    let fitted = [a, b, gx - a * fx + b * fy, gy - b * fx - a * fy];
    (spread > 0.0 && fitted.iter().all(|v| v.is_finite())).then_some(fitted)
}

/// The aligned `size`x`size` chip of the face: the similarity that takes `landmarks` to [`ARCFACE_TEMPLATE`] (scaled by
/// `size / 112`), sampled bilinearly, black outside the image, as OpenCV's `warpAffine` does it. `None` when the
/// landmarks determine no such transform (they coincide, are not finite, or are a pure reflection) or `size` is zero.
pub fn norm_crop(frame: &Frame, landmarks: &Landmarks, size: u32) -> Option<Frame> {
    let ratio = size as f32 / 112.0;
    let template = ARCFACE_TEMPLATE.map(|p| Point { x: p.x * ratio, y: p.y * ratio });
    let [a, b, tx, ty] = fit(landmarks, &template)?;
    let square = a * a + b * b;
    if size == 0 || square < 1e-12 {
        return None;
    }
    // Chip to image: the inverse of [a -b tx; b a ty].
    let (ia, ib) = (a / square, b / square);
    let mut chip = vec![0; size as usize * size as usize * 3];
    for (v, row) in (0u32..).zip(chip.chunks_exact_mut(size as usize * 3)) {
        let dy = f64::from(v) - ty;
        for (u, pixel) in (0u32..).zip(row.as_chunks_mut::<3>().0) {
            let dx = f64::from(u) - tx;
            *pixel = sample(frame, ia * dx + ib * dy, ia * dy - ib * dx);
        }
    }
    Frame::new(size, size, chip)
}

/// Bilinear sample with integer coordinates on pixel centres; weights in 1/2048, black outside.
fn sample(frame: &Frame, x: f64, y: f64) -> [u8; 3] {
    let (width, height) = (i64::from(frame.width()), i64::from(frame.height()));
    let (left, top) = (x.floor(), y.floor());
    let (wx, wy) = (((x - left) * 2048.0) as i32, ((y - top) * 2048.0) as i32);
    // A float-to-integer cast saturates, so that far-away coordinates stay outside.
    let (left, top) = (left as i64, top as i64);
    if left < -1 || top < -1 || left >= width || top >= height {
        return [0; 3];
    }
    let weights = [(2048 - wx) * (2048 - wy), wx * (2048 - wy), (2048 - wx) * wy, wx * wy];
    let stride = width as usize * 3;
    let inside = left >= 0 && top >= 0 && left + 1 < width && top + 1 < height;
    let corners: [[u8; 3]; 4] = if inside {
        let at = top as usize * stride + left as usize * 3;
        let (upper, lower) = (&frame.data()[at..at + 6], &frame.data()[at + stride..at + stride + 6]);
        [
            [upper[0], upper[1], upper[2]],
            [upper[3], upper[4], upper[5]],
            [lower[0], lower[1], lower[2]],
            [lower[3], lower[4], lower[5]],
        ]
    } else {
        let pixel = |x: i64, y: i64| {
            let there = (0..width).contains(&x) && (0..height).contains(&y);
            if there { frame.pixel(x as u32, y as u32) } else { [0; 3] }
        };
        [pixel(left, top), pixel(left + 1, top), pixel(left, top + 1), pixel(left + 1, top + 1)]
    };
    std::array::from_fn(|channel| {
        let sum: i32 = corners.iter().zip(weights).map(|(corner, w)| i32::from(corner[channel]) * w).sum();
        ((sum + (1 << 21)) >> 22) as u8
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn picture(width: u32, height: u32) -> Frame {
        let pixel = |i: u32| [(i * 7) as u8, (i / 3) as u8, (i * i / 11) as u8];
        Frame::new(width, height, (0..width * height).flat_map(pixel).collect()).unwrap()
    }

    #[test]
    fn landmarks_in_place_give_the_pixels_unchanged() {
        let picture = picture(112, 112);
        assert_eq!(norm_crop(&picture, &ARCFACE_TEMPLATE, 112).unwrap(), picture);
        let whole_pixels = ARCFACE_TEMPLATE.map(|p| Point { x: p.x + 8.0, y: p.y - 3.0 });
        let chip = norm_crop(&picture, &whole_pixels, 112).unwrap();
        assert_eq!(chip.pixel(0, 3), picture.pixel(8, 0));
        assert_eq!(chip.pixel(50, 60), picture.pixel(58, 57));
        // Black outside: above and to the right.
        assert_eq!((chip.pixel(0, 2), chip.pixel(104, 60)), ([0; 3], [0; 3]));
    }

    #[test]
    fn a_mirrored_face_is_turned_but_never_reflected() {
        let mirrored = ARCFACE_TEMPLATE.map(|p| Point { x: 112.0 - p.x, y: p.y });
        let fitted = Similarity::estimate(&mirrored, &ARCFACE_TEMPLATE).unwrap();
        // Upright and smaller is the best a proper similarity can do for a face this symmetric.
        assert!(fitted.a.abs() < 0.6 && fitted.b.abs() < 0.1, "{fitted:?}");
        assert!(norm_crop(&picture(112, 112), &mirrored, 112).is_some());
        // Points on a line and its mirror image determine no turn at all.
        let cross: Landmarks =
            [(0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)].map(|(x, y)| Point { x, y });
        let reflected = cross.map(|p| Point { x: -p.x, y: p.y });
        let fitted = Similarity::estimate(&cross, &reflected).unwrap();
        assert_eq!((fitted.a, fitted.b), (0.0, 0.0));
    }

    #[test]
    fn impossible_landmarks_are_none() {
        let picture = picture(20, 20);
        let same = [Point { x: 5.0, y: 5.0 }; 5];
        assert_eq!(Similarity::estimate(&same, &ARCFACE_TEMPLATE), None);
        let mut odd = ARCFACE_TEMPLATE;
        odd[1].y = f32::NAN;
        let mut far = ARCFACE_TEMPLATE;
        far[0].x = f32::INFINITY;
        for landmarks in [same, odd, far] {
            assert!(norm_crop(&picture, &landmarks, 112).is_none());
        }
        assert!(norm_crop(&picture, &ARCFACE_TEMPLATE, 0).is_none());
        // Far outside is no error: the chip is black.
        let outside = ARCFACE_TEMPLATE.map(|p| Point { x: p.x + 1e7, y: p.y - 1e7 });
        assert_eq!(norm_crop(&picture, &outside, 8).unwrap(), Frame::filled(8, 8, [0; 3]));
    }

    #[test]
    fn other_sizes_scale_the_template() {
        let picture = picture(112, 112);
        let chip = norm_crop(&picture, &ARCFACE_TEMPLATE, 56).unwrap();
        assert_eq!(chip.pixel(20, 30), picture.pixel(40, 60));
    }
}

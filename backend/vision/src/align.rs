//! Aligns faces to the ArcFace template, and covers other faces in the aligned chips.
use crate::{Frame, Landmarks, Point, Rect};

/// Side of an aligned chip in pixels.
pub const CHIP_SIDE: u32 = 112;

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
pub struct SimilarityTransform {
    /// `scale * cos(angle)`.
    pub a: f32,
    /// `scale * sin(angle)`.
    pub b: f32,
    pub tx: f32,
    pub ty: f32,
}

impl SimilarityTransform {
    /// Fits `from` onto `to` by least squares (Umeyama 1991, "Least-squares estimation of
    /// transformation parameters between two point patterns"). Returns `None` if all `from` points
    /// coincide or a coordinate is not finite.
    ///
    /// In two dimensions, the solution has a closed form: a linear regression of complex numbers.
    /// It equals Umeyama's solution by singular value decomposition. For a mirrored face, the
    /// result is the best rotation, never a reflection.
    pub fn estimate(from: &Landmarks, to: &Landmarks) -> Option<Self> {
        let [a, b, tx, ty] = fit(from, to)?.map(|v| v as f32);
        Some(Self { a, b, tx, ty })
    }

    /// Returns the inverse transform; `None` if the transform maps all points to a single point.
    pub fn inverse(&self) -> Option<Self> {
        let square = self.a * self.a + self.b * self.b;
        let (a, b) = (self.a / square, -self.b / square);
        let inverse = Self { a, b, tx: -(a * self.tx - b * self.ty), ty: -(b * self.tx + a * self.ty) };
        (square > 0.0 && inverse.a.is_finite() && inverse.b.is_finite()).then_some(inverse)
    }

    pub fn apply(&self, point: Point) -> Point {
        Point {
            x: self.a * point.x - self.b * point.y + self.tx,
            y: self.b * point.x + self.a * point.y + self.ty,
        }
    }
}

/// Returns `[a, b, tx, ty]` of the least-squares similarity.
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
    let transform = [a, b, gx - a * fx + b * fy, gy - b * fx - a * fy];
    (spread > 0.0 && transform.iter().all(|v| v.is_finite())).then_some(transform)
}

/// Returns the landmark positions in an aligned chip with `size` pixels per side.
fn scaled_template(size: u32) -> Landmarks {
    let ratio = size as f32 / CHIP_SIDE as f32;
    ARCFACE_TEMPLATE.map(|p| Point { x: p.x * ratio, y: p.y * ratio })
}

/// Returns the aligned `size`x`size` chip of the face. The similarity maps `landmarks` to
/// [`ARCFACE_TEMPLATE`] (scaled to `size`). Samples are bilinear and black outside the image,
/// as in OpenCV's `warpAffine`.
///
/// Returns `None` if the landmarks determine no such transform (they coincide, are not finite, or
/// are a pure reflection) or `size` is zero.
pub fn norm_crop(frame: &Frame, landmarks: &Landmarks, size: u32) -> Option<Frame> {
    let [a, b, tx, ty] = fit(landmarks, &scaled_template(size))?;
    let square = a * a + b * b;
    if size == 0 || square < 1e-12 {
        return None;
    }
    // From chip to image: the inverse of [a -b tx; b a ty].
    let (ia, ib) = (a / square, b / square);
    let mut chip = vec![0; size as usize * size as usize * 3];
    for (v, row) in (0u32..).zip(chip.chunks_exact_mut(size as usize * 3)) {
        let dy = f64::from(v) - ty;
        let source = |u: u32| {
            let dx = f64::from(u) - tx;
            (to_fixed_point(ia * dx + ib * dy), to_fixed_point(ia * dy - ib * dx))
        };
        // If both end points of a row are inside, all points between them are inside too.
        let inside = is_inside(frame, source(0)) && is_inside(frame, source(size - 1));
        for (u, pixel) in (0u32..).zip(row.as_chunks_mut::<3>().0) {
            *pixel = if inside { inner_sample(frame, source(u)) } else { sample(frame, source(u)) };
        }
    }
    Frame::new(size, size, chip)
}

/// Number of fraction bits of a coordinate, and of a weight.
const FRACTION_BITS: u32 = 11;
/// One pixel in fixed point, which is also the sum of the weights of two neighbours.
const ONE: i64 = 1 << FRACTION_BITS;

/// Converts a coordinate to 1/2048 pixels, rounded down. Casts saturate, so that very large
/// coordinates remain outside the image.
fn to_fixed_point(coordinate: f64) -> i64 {
    let scaled = coordinate * ONE as f64;
    let truncated = scaled as i64;
    truncated - i64::from(truncated as f64 > scaled)
}

/// Returns whether all four pixels around the point are inside the frame.
fn is_inside(frame: &Frame, (x, y): (i64, i64)) -> bool {
    let is_in_range = |at: i64, length: u32| at >= 0 && (at >> FRACTION_BITS) + 1 < i64::from(length);
    is_in_range(x, frame.width()) && is_in_range(y, frame.height())
}

/// Interpolates between four pixels: upper left, upper right, lower left, lower right.
#[inline(always)]
fn interpolate([a, b, c, d]: [u8; 4], (x, y): (i64, i64)) -> u8 {
    let (x, y) = ((x & (ONE - 1)) as i32, (y & (ONE - 1)) as i32);
    let mix = |a: i32, b: i32, weight: i32| (a << FRACTION_BITS) + (b - a) * weight;
    let upper = mix(a.into(), b.into(), x);
    let lower = mix(c.into(), d.into(), x);
    ((mix(upper, lower, y) + (1 << (2 * FRACTION_BITS - 1))) >> (2 * FRACTION_BITS)) as u8
}

/// Works like [`sample`], but is faster. Requires [`is_inside`].
fn inner_sample(frame: &Frame, (x, y): (i64, i64)) -> [u8; 3] {
    let stride = frame.width() as usize * 3;
    let index = (y >> FRACTION_BITS) as usize * stride + (x >> FRACTION_BITS) as usize * 3;
    let (upper, lower) = (&frame.data()[index..index + 6], &frame.data()[index + stride..index + stride + 6]);
    // Written out because `array::from_fn` is not inlined here.
    let channel = |c: usize| interpolate([upper[c], upper[c + 3], lower[c], lower[c + 3]], (x, y));
    [channel(0), channel(1), channel(2)]
}

/// Returns the interpolated colour at a point in 1/2048 pixels. Whole coordinates are pixel
/// centres. Pixels outside the image are black.
fn sample(frame: &Frame, (x, y): (i64, i64)) -> [u8; 3] {
    let (left, top) = (x >> FRACTION_BITS, y >> FRACTION_BITS);
    let pixel = |x: i64, y: i64| {
        let valid = (0..i64::from(frame.width())).contains(&x) && (0..i64::from(frame.height())).contains(&y);
        if valid { frame.pixel(x as u32, y as u32) } else { [0; 3] }
    };
    let corners = [pixel(left, top), pixel(left + 1, top), pixel(left, top + 1), pixel(left + 1, top + 1)];
    std::array::from_fn(|c| interpolate(corners.map(|corner| corner[c]), (x, y)))
}

/// The colour that covers faces, as in [`crate::crop::paint_over`].
const COVER_COLOUR: [u8; 3] = [127; 3];
/// Maximum distance in pixels from a hidden box at which a sample can include its pixels.
const REACH: f32 = 4.0;

/// Covers the boxes `hidden` of other faces in the chip of a face with grey. `landmarks` are those
/// of the face in the chip, and `own` is its box. All coordinates are those of the image. `margin`,
/// a fraction of the larger side of a hidden box, is also covered, except inside `own`.
pub fn cover_in_chip(chip: &mut Frame, landmarks: &Landmarks, own: &Rect, hidden: &[Rect], margin: f32) {
    let to_chip = SimilarityTransform::estimate(landmarks, &scaled_template(chip.width()));
    let to_image = to_chip.and_then(|transform| transform.inverse());
    let width = chip.width() as usize;
    for (index, pixel) in chip.data_mut().as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let point = Point { x: (index % width) as f32, y: (index / width) as f32 };
        let is_covered = to_image.is_none_or(|to_image| {
            let point = to_image.apply(point);
            hidden.iter().any(|hidden| {
                let border = REACH.max(margin * hidden.width.max(hidden.height));
                hidden.contains(point, REACH) || (hidden.contains(point, border) && !own.contains(point, 0.0))
            })
        });
        if is_covered {
            *pixel = COVER_COLOUR;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn image(width: u32, height: u32) -> Frame {
        let pixel = |i: u32| [(i * 7) as u8, (i / 3) as u8, (i * i / 11) as u8];
        Frame::new(width, height, (0..width * height).flat_map(pixel).collect()).unwrap()
    }

    #[test]
    fn landmarks_on_template_keep_pixels_unchanged() {
        let frame = image(112, 112);
        assert_eq!(norm_crop(&frame, &ARCFACE_TEMPLATE, 112).unwrap(), frame);
        let whole_pixels = ARCFACE_TEMPLATE.map(|p| Point { x: p.x + 8.0, y: p.y - 3.0 });
        let chip = norm_crop(&frame, &whole_pixels, 112).unwrap();
        assert_eq!(chip.pixel(0, 3), frame.pixel(8, 0));
        assert_eq!(chip.pixel(50, 60), frame.pixel(58, 57));
        // Black outside the image: above and to the right.
        assert_eq!((chip.pixel(0, 2), chip.pixel(104, 60)), ([0; 3], [0; 3]));
    }

    #[test]
    fn mirrored_landmarks_are_rotated_but_not_reflected() {
        let mirrored = ARCFACE_TEMPLATE.map(|p| Point { x: 112.0 - p.x, y: p.y });
        let transform = SimilarityTransform::estimate(&mirrored, &ARCFACE_TEMPLATE).unwrap();
        // For such a symmetric face, the best transform only scales it down.
        assert!(transform.a.abs() < 0.6 && transform.b.abs() < 0.1, "{transform:?}");
        assert!(norm_crop(&image(112, 112), &mirrored, 112).is_some());
        // A cross and its mirror image determine no rotation.
        let cross: Landmarks =
            [(0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0)].map(|(x, y)| Point { x, y });
        let reflected = cross.map(|p| Point { x: -p.x, y: p.y });
        let transform = SimilarityTransform::estimate(&cross, &reflected).unwrap();
        assert_eq!((transform.a, transform.b), (0.0, 0.0));
    }

    #[test]
    fn fast_and_general_sampling_agree() {
        let frame = image(150, 130);
        let mut compared = 0;
        for x in (-2 * ONE..152 * ONE).step_by(777) {
            for y in (-2 * ONE..132 * ONE).step_by(993) {
                if is_inside(&frame, (x, y)) {
                    assert_eq!(inner_sample(&frame, (x, y)), sample(&frame, (x, y)), "{x} {y}");
                    compared += 1;
                }
            }
        }
        assert!(compared > 50_000, "{compared}");
        assert_eq!(
            (to_fixed_point(-0.25), to_fixed_point(0.25), to_fixed_point(-3.0), to_fixed_point(1e300)),
            (-512, 512, -3 * ONE, i64::MAX)
        );
    }

    #[test]
    fn degenerate_landmarks_give_no_chip() {
        let frame = image(20, 20);
        let same = [Point { x: 5.0, y: 5.0 }; 5];
        assert_eq!(SimilarityTransform::estimate(&same, &ARCFACE_TEMPLATE), None);
        let mut not_finite = ARCFACE_TEMPLATE;
        not_finite[1].y = f32::NAN;
        let mut infinite = ARCFACE_TEMPLATE;
        infinite[0].x = f32::INFINITY;
        for landmarks in [same, not_finite, infinite] {
            assert!(norm_crop(&frame, &landmarks, 112).is_none());
        }
        assert!(norm_crop(&frame, &ARCFACE_TEMPLATE, 0).is_none());
        // A face far outside the image is not an error: the chip is black.
        let outside = ARCFACE_TEMPLATE.map(|p| Point { x: p.x + 1e7, y: p.y - 1e7 });
        assert_eq!(norm_crop(&frame, &outside, 8).unwrap(), Frame::filled(8, 8, [0; 3]));
    }

    #[test]
    fn chip_size_scales_template() {
        let frame = image(112, 112);
        let chip = norm_crop(&frame, &ARCFACE_TEMPLATE, 56).unwrap();
        assert_eq!(chip.pixel(20, 30), frame.pixel(40, 60));
    }

    /// Returns a white image with a red box.
    fn image_with_box(red: &Rect) -> Frame {
        let mut frame = Frame::filled(300, 300, [255; 3]);
        for (index, pixel) in frame.data_mut().as_chunks_mut::<3>().0.iter_mut().enumerate() {
            if red.contains(Point { x: (index % 300) as f32, y: (index / 300) as f32 }, 0.0) {
                *pixel = [255, 0, 0];
            }
        }
        frame
    }

    #[test]
    fn cover_hides_box_in_chip_at_every_rotation() {
        let red = Rect { x: 170.0, y: 90.0, width: 60.0, height: 80.0 };
        let own = Rect { x: 90.0, y: 90.0, width: 70.0, height: 90.0 };
        let frame = image_with_box(&red);
        for degrees in [0.0_f32, 25.0, -40.0, 90.0, 180.0] {
            let (sin, cos) = degrees.to_radians().sin_cos();
            let landmarks = ARCFACE_TEMPLATE.map(|p| {
                let (x, y) = (p.x - 56.0, p.y - 56.0);
                Point { x: 130.0 + 0.9 * (cos * x - sin * y), y: 135.0 + 0.9 * (sin * x + cos * y) }
            });
            let mut chip = norm_crop(&frame, &landmarks, 112).unwrap();
            let red_count = |chip: &Frame| {
                let pixels = chip.data().as_chunks::<3>().0.iter();
                pixels.filter(|[r, g, _]| r.abs_diff(*g) > 8).count()
            };
            assert!(red_count(&chip) > 0, "{degrees}");
            cover_in_chip(&mut chip, &landmarks, &own, &[red], 0.3);
            assert_eq!(red_count(&chip), 0, "{degrees}");
            assert!(chip.data().contains(&255), "{degrees}: the rest of the chip is visible");
        }
    }
}

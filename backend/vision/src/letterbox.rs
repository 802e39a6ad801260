//! Fits an image into a detector's canvas, top-left, and maps coordinates back.

use crate::resize::{linear_into_top_left, linear_taps};
use crate::{Detection, Frame, Point, Rect, Taps};

/// One filter for each axis.
#[derive(Clone, Debug, PartialEq)]
pub struct AxisTaps {
    /// The filter along x, from left to right.
    pub columns: Taps,
    /// The filter along y, from top to bottom.
    pub rows: Taps,
}

/// The placement of a `width`x`height` image on a canvas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Letterbox {
    /// Canvas pixels per image pixel.
    pub scale: f32,
    /// Canvas size in pixels.
    pub canvas: (u32, u32),
    /// Size of the scaled image on the canvas.
    pub content: (u32, u32),
}

impl Letterbox {
    /// Places an image by InsightFace's rule. It keeps the aspect ratio and fills the longer side
    /// (small images are enlarged). Content is at the top left, black below and to the right. Sides
    /// are `(width, height)` in pixels; a side of zero is treated as one.
    pub fn fit(image: (u32, u32), canvas: (u32, u32)) -> Self {
        let (width, height) = (image.0.max(1), image.1.max(1));
        let (canvas_width, canvas_height) = (canvas.0.max(1), canvas.1.max(1));
        let image_ratio = f64::from(height) / f64::from(width);
        let canvas_ratio = f64::from(canvas_height) / f64::from(canvas_width);
        // The casts drop the fraction, as Python's `int()` does in InsightFace. This determines the
        // content's last column.
        let (new_width, new_height) = if image_ratio > canvas_ratio {
            ((f64::from(canvas_height) / image_ratio) as u32, canvas_height)
        } else {
            (canvas_width, (f64::from(canvas_width) * image_ratio) as u32)
        };
        let content = (new_width.clamp(1, canvas_width), new_height.clamp(1, canvas_height));
        Self {
            scale: (f64::from(content.1) / f64::from(height)) as f32,
            canvas: (canvas_width, canvas_height),
            content,
        }
    }

    /// Returns the same placement on the smallest canvas whose sides are multiples of `step` pixels
    /// (at least 1). Only black pixels are removed.
    #[must_use]
    pub fn trimmed(self, step: u32) -> Self {
        let step = step.max(1);
        let trim = |content: u32, canvas: u32| content.next_multiple_of(step).min(canvas);
        Self { canvas: (trim(self.content.0, self.canvas.0), trim(self.content.1, self.canvas.1)), ..self }
    }

    /// Draws the scaled image onto a new canvas. The interpolation is bilinear without smoothing,
    /// within one grey level of OpenCV's `INTER_LINEAR`, with which detectors were trained.
    pub fn draw(&self, frame: &Frame) -> Frame {
        let mut canvas = Frame::filled(self.canvas.0, self.canvas.1, [0; 3]);
        linear_into_top_left(frame, &mut canvas, self.content);
        canvas
    }

    /// Returns the placement of a frame that is already the canvas.
    pub fn identity(canvas: (u32, u32)) -> Self {
        Self { scale: 1.0, canvas, content: canvas }
    }

    /// Returns the filters of [`Self::draw`] for an `image` (width, height). Rows are filtered
    /// first and not rounded, then columns, rounded half up.
    pub fn taps(&self, image: (u32, u32)) -> AxisTaps {
        AxisTaps {
            columns: linear_taps(image.0, self.content.0, self.canvas.0, false),
            rows: linear_taps(image.1, self.content.1, self.canvas.1, true),
        }
    }

    /// Converts canvas coordinates to image coordinates.
    pub fn restore(&self, detection: &Detection) -> Detection {
        let back = 1.0 / f64::from(self.scale);
        let back = |v: f32| (f64::from(v) * back) as f32;
        let Rect { x, y, width, height } = detection.bbox;
        Detection {
            bbox: Rect { x: back(x), y: back(y), width: back(width), height: back(height) },
            det_score: detection.det_score,
            landmarks: detection.landmarks.map(|p| Point { x: back(p.x), y: back(p.y) }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn insightface_sizes() {
        // (image, content, scale) computed by hand from InsightFace's rule on a 640x640 canvas.
        let cases = [
            ((910, 1137), (512, 640), 640.0 / 1137.0),
            ((1920, 1080), (640, 360), 360.0 / 1080.0),
            ((320, 240), (640, 480), 2.0),
            ((640, 640), (640, 640), 1.0),
            ((333, 500), (426, 640), 640.0 / 500.0),
            ((1000, 667), (640, 426), 426.0 / 667.0),
            ((5000, 2), (640, 1), 0.5),
        ];
        for (image, content, scale) in cases {
            let fitted = Letterbox::fit(image, (640, 640));
            assert_eq!(fitted.content, content, "{image:?}");
            assert!((fitted.scale - scale).abs() < 1e-6, "{image:?}: {}", fitted.scale);
        }
    }

    #[test]
    fn a_trimmed_canvas_holds_the_same_picture_and_less_black() {
        for (image, canvas) in [
            ((1920, 1080), (640, 384)),
            ((910, 1137), (512, 640)),
            ((5000, 2), (640, 32)),
            ((8, 8), (640, 640)),
        ] {
            let fitted = Letterbox::fit(image, (640, 640));
            let trimmed = fitted.trimmed(32);
            assert_eq!(trimmed, Letterbox { canvas, ..fitted }, "{image:?}");
            let frame = Frame::filled(image.0, image.1, [90, 140, 200]);
            let (drawn, whole) = (trimmed.draw(&frame), fitted.draw(&frame));
            for (x, y) in [(0, 0), (canvas.0 - 1, 0), (0, canvas.1 - 1), (canvas.0 - 1, canvas.1 - 1)] {
                assert_eq!(drawn.pixel(x, y), whole.pixel(x, y), "{image:?} at {x},{y}");
            }
        }
        let narrow = Letterbox { canvas: (100, 100), ..Letterbox::fit((10, 9), (100, 100)) };
        assert_eq!(narrow.trimmed(32).canvas, (100, 96), "never larger than the original canvas");
    }

    /// Computes the bilinear interpolation directly from its definition.
    fn reference(frame: &Frame, (width, height): (u32, u32), x: u32, y: u32) -> [f64; 3] {
        let at = |i: u32, from: u32, to: u32| {
            let at = (f64::from(i) + 0.5) * f64::from(from) / f64::from(to) - 0.5;
            let at = at.clamp(0.0, f64::from(from - 1));
            (at as u32, (at as u32 + 1).min(from - 1), at.fract())
        };
        let (x0, x1, wx) = at(x, frame.width(), width);
        let (y0, y1, wy) = at(y, frame.height(), height);
        std::array::from_fn(|c| {
            let pixel = |x, y| f64::from(frame.pixel(x, y)[c]);
            let upper = pixel(x0, y0) * (1.0 - wx) + pixel(x1, y0) * wx;
            let lower = pixel(x0, y1) * (1.0 - wx) + pixel(x1, y1) * wx;
            upper * (1.0 - wy) + lower * wy
        })
    }

    #[test]
    fn drawing_is_bilinear_at_the_top_left_on_black() {
        for (width, height) in [(50, 31), (31, 50), (7, 200), (64, 64), (1, 1), (300, 180)] {
            let data = (0..width * height * 3).map(|i: u32| (i.wrapping_mul(i) / 7 + i * 31) as u8).collect();
            let frame = Frame::new(width, height, data).unwrap();
            let fitted = Letterbox::fit((width, height), (64, 64));
            let canvas = fitted.draw(&frame);
            for y in 0..64 {
                for x in 0..64 {
                    let pixel = canvas.pixel(x, y);
                    if x >= fitted.content.0 || y >= fitted.content.1 {
                        assert_eq!(pixel, [0; 3]);
                        continue;
                    }
                    for (found, wanted) in pixel.iter().zip(reference(&frame, fitted.content, x, y)) {
                        assert!((f64::from(*found) - wanted).abs() <= 1.01, "{width}x{height} at {x},{y}");
                    }
                }
            }
        }
    }
}

//! Fit an image into a detector's canvas, top-left, and map coordinates back.

use crate::resize::{self, Filter};
use crate::{Detection, Frame, Point, Rect};

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
    /// InsightFace's rule: keep the aspect ratio, fill the longer side (small images are enlarged), content at the top
    /// left, black below and right. Sides are `(width, height)` in pixels; a side of zero counts as one.
    pub fn fit(image: (u32, u32), canvas: (u32, u32)) -> Self {
        let (width, height) = (image.0.max(1), image.1.max(1));
        let (canvas_width, canvas_height) = (canvas.0.max(1), canvas.1.max(1));
        let image_ratio = f64::from(height) / f64::from(width);
        let canvas_ratio = f64::from(canvas_height) / f64::from(canvas_width);
        // The conversions drop the fraction, as Python's int() does there; that decides the content's last column.
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

    /// Draws the scaled image onto a new canvas. Bilinear without smoothing, equal to OpenCV's `INTER_LINEAR` within a
    /// grey level: the detectors were trained and measured on that.
    pub fn draw(&self, frame: &Frame) -> Frame {
        let mut canvas = Frame::filled(self.canvas.0, self.canvas.1, [0; 3]);
        resize::into_top_left(frame, &mut canvas, self.content, Filter::OpenCvLinear);
        canvas
    }

    /// Canvas coordinates to image coordinates.
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

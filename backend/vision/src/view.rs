//! The views of an image that a detector processes: the whole image, the whole image at a small
//! size, one tile of it, or the surroundings of one box. A [`Letterbox`] fits a view into the
//! detector's canvas, top-left, and maps coordinates back.
//!
//! A detector finds only faces of certain sizes on its canvas. It misses a face of a few pixels,
//! and SCRFD misses a face that fills the canvas. Views change the size of a face on the canvas: a
//! small view shrinks large faces, and tiles enlarge small faces.
use crate::geometry::Region;
use crate::resize::{draw_bilinear, letterbox_taps};
use crate::{Detection, Frame, Point, Rect, Taps};

/// Share of a tile's side that overlaps the next tile. A face that is larger than the overlap is
/// completely visible in the views of half the scale. There, its size is at least a tenth of the
/// canvas.
const TILE_OVERLAP: f64 = 0.2;
/// Minimum distance of a box from a border of the view inside the image, as a share of the box's
/// longer side. A border that is closer cuts the box.
const CUT_MARGIN_SHARE: f32 = 0.1;

/// A part of an image and its placement on a detector's canvas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Size of the image, width and height.
    pub image: (u32, u32),
    /// The visible part of the image.
    pub region: Region,
    /// The placement of the region on the canvas.
    pub letterbox: Letterbox,
}

impl View {
    /// Returns the view of the whole image on the canvas.
    pub fn whole(image: (u32, u32), canvas: (u32, u32)) -> Self {
        Self { image, region: Region::whole(image), letterbox: Letterbox::fit(image, canvas) }
    }

    /// Returns the view of the whole image, scaled to fit `content` (width, height) at the top left
    /// of the canvas. `content` must fit the canvas.
    pub fn small(image: (u32, u32), content: (u32, u32), canvas: (u32, u32)) -> Self {
        let letterbox = Letterbox { canvas, ..Letterbox::fit(image, content) };
        Self { image, region: Region::whole(image), letterbox }
    }

    /// Returns tiles that cover the image at `scale` canvas pixels per image pixel, row by row.
    /// Adjacent tiles overlap by at least a fifth of a canvas. If the image fits the canvas at that
    /// scale, the result is one tile with the whole image.
    pub fn tiles(image: (u32, u32), canvas: (u32, u32), scale: f64) -> Vec<Self> {
        let columns = tile_spans(image.0, f64::from(canvas.0) / scale);
        let rows = tile_spans(image.1, f64::from(canvas.1) / scale);
        let tile = |(x, width): (u32, u32), (y, height): (u32, u32)| Self {
            image,
            region: Region { x, y, width, height },
            letterbox: Letterbox::fit((width, height), canvas),
        };
        rows.iter().flat_map(|row| columns.iter().map(|column| tile(*column, *row))).collect()
    }

    /// Returns a view of the surroundings of a box (image coordinates) at about `scale` canvas
    /// pixels per image pixel. The box is in the middle, except near a border of the image. A side
    /// of the image that is shorter than the canvas at that scale is completely visible.
    pub fn around(image: (u32, u32), bbox: &Rect, canvas: (u32, u32), scale: f64) -> Self {
        let span = |start: f32, length: f32, canvas: u32, whole: u32| {
            let size = ((f64::from(canvas) / scale).round() as u32).clamp(1, whole.max(1));
            let first = (start + length / 2.0 - size as f32 / 2.0).round().max(0.0) as u32;
            (first.min(whole.max(1) - size), size)
        };
        let (x, width) = span(bbox.x, bbox.width, canvas.0, image.0);
        let (y, height) = span(bbox.y, bbox.height, canvas.1, image.1);
        let region = Region { x, y, width, height };
        Self { image, region, letterbox: Letterbox::fit((width, height), canvas) }
    }

    pub fn is_whole(&self) -> bool {
        self.region == Region::whole(self.image)
    }

    pub fn crop(&self, frame: &Frame) -> Frame {
        crate::crop::crop_region(frame, self.region)
    }

    /// Converts canvas coordinates to image coordinates.
    pub fn map_to_image(&self, detection: &Detection) -> Detection {
        let Detection { bbox, det_score, landmarks } = self.letterbox.map_to_image(detection);
        let (x, y) = (self.region.x as f32, self.region.y as f32);
        Detection {
            bbox: Rect { x: bbox.x + x, y: bbox.y + y, ..bbox },
            det_score,
            landmarks: landmarks.map(|p| Point { x: p.x + x, y: p.y + y }),
        }
    }

    /// Returns whether a border of the region that is inside the image cuts the box (image
    /// coordinates) or is close to it. Another view then contains the whole face.
    pub fn cuts(&self, bbox: &Rect) -> bool {
        let margin = CUT_MARGIN_SHARE * bbox.width.max(bbox.height);
        let Region { x, y, width, height } = self.region;
        let is_cut = |start: u32, length: u32, from: f32, size: f32, whole: u32| {
            let is_cut_at_start = start > 0 && from < start as f32 + margin;
            let end = start + length;
            is_cut_at_start || end < whole && from + size > end as f32 - margin
        };
        is_cut(x, width, bbox.x, bbox.width, self.image.0)
            || is_cut(y, height, bbox.y, bbox.height, self.image.1)
    }
}

/// Returns spans `(start, length)` of about `tile` pixels that cover `length` pixels evenly and
/// overlap by at least [`TILE_OVERLAP`].
fn tile_spans(length: u32, tile: f64) -> Vec<(u32, u32)> {
    let whole = f64::from(length);
    if tile >= whole {
        return vec![(0, length)];
    }
    let tile = tile.max(1.0);
    let count = ((whole - tile * TILE_OVERLAP) / (tile * (1.0 - TILE_OVERLAP))).ceil().max(2.0) as u32;
    let width = (tile.round() as u32).clamp(1, length);
    let step = f64::from(length - width) / f64::from(count - 1);
    (0..count).map(|i| ((f64::from(i) * step).round() as u32, width)).collect()
}

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
    /// Places an image by InsightFace's rule. The image keeps its aspect ratio and is scaled up or
    /// down until it fills one side of the canvas. It is at the top left; the rest is black. Sizes
    /// are `(width, height)` in pixels; a side of zero is treated as one.
    pub fn fit(image: (u32, u32), canvas: (u32, u32)) -> Self {
        let (width, height) = (image.0.max(1), image.1.max(1));
        let (canvas_width, canvas_height) = (canvas.0.max(1), canvas.1.max(1));
        let image_ratio = f64::from(height) / f64::from(width);
        let canvas_ratio = f64::from(canvas_height) / f64::from(canvas_width);
        // The casts drop the fraction, as Python's `int()` does in InsightFace.
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
    pub fn trim_canvas(self, step: u32) -> Self {
        let step = step.max(1);
        let trim = |content: u32, canvas: u32| content.next_multiple_of(step).min(canvas);
        Self { canvas: (trim(self.content.0, self.canvas.0), trim(self.content.1, self.canvas.1)), ..self }
    }

    /// Draws the scaled image onto a new canvas. The interpolation is bilinear without smoothing.
    /// The result is within one grey level of OpenCV's `INTER_LINEAR`, with which detectors were
    /// trained.
    pub fn draw(&self, frame: &Frame) -> Frame {
        let mut canvas = Frame::filled(self.canvas.0, self.canvas.1, [0; 3]);
        draw_bilinear(frame, &mut canvas, self.content);
        canvas
    }

    /// Returns the placement of a frame that is already the canvas.
    pub fn identity(canvas: (u32, u32)) -> Self {
        Self { scale: 1.0, canvas, content: canvas }
    }

    /// Returns the filters of [`Self::draw`] for an `image` (width, height). `rows` is applied
    /// first, without rounding. The result of `columns` is rounded half up.
    pub fn taps(&self, image: (u32, u32)) -> AxisTaps {
        AxisTaps {
            columns: letterbox_taps(image.0, self.content.0, self.canvas.0, false),
            rows: letterbox_taps(image.1, self.content.1, self.canvas.1, true),
        }
    }

    /// Converts canvas coordinates to image coordinates.
    pub fn map_to_image(&self, detection: &Detection) -> Detection {
        let ratio = 1.0 / f64::from(self.scale);
        let to_image = |v: f32| (f64::from(v) * ratio) as f32;
        let Rect { x, y, width, height } = detection.bbox;
        Detection {
            bbox: Rect { x: to_image(x), y: to_image(y), width: to_image(width), height: to_image(height) },
            det_score: detection.det_score,
            landmarks: detection.landmarks.map(|p| Point { x: to_image(p.x), y: to_image(p.y) }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn letterbox_sizes_match_insightface() {
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
    fn trimming_canvas_removes_only_black_pixels() {
        for (image, canvas) in [
            ((1920, 1080), (640, 384)),
            ((910, 1137), (512, 640)),
            ((5000, 2), (640, 32)),
            ((8, 8), (640, 640)),
        ] {
            let fitted = Letterbox::fit(image, (640, 640));
            let trimmed = fitted.trim_canvas(32);
            assert_eq!(trimmed, Letterbox { canvas, ..fitted }, "{image:?}");
            let frame = Frame::filled(image.0, image.1, [90, 140, 200]);
            let (drawn, whole) = (trimmed.draw(&frame), fitted.draw(&frame));
            for (x, y) in [(0, 0), (canvas.0 - 1, 0), (0, canvas.1 - 1), (canvas.0 - 1, canvas.1 - 1)] {
                assert_eq!(drawn.pixel(x, y), whole.pixel(x, y), "{image:?} at {x},{y}");
            }
        }
        let not_multiple = Letterbox { canvas: (100, 100), ..Letterbox::fit((10, 9), (100, 100)) };
        assert_eq!(not_multiple.trim_canvas(32).canvas, (100, 96), "the canvas does not become larger");
    }

    /// Computes the bilinear interpolation directly from its definition.
    fn bilinear_pixel(frame: &Frame, (width, height): (u32, u32), x: u32, y: u32) -> [f64; 3] {
        let neighbours = |i: u32, from: u32, to: u32| {
            let position = (f64::from(i) + 0.5) * f64::from(from) / f64::from(to) - 0.5;
            let position = position.clamp(0.0, f64::from(from - 1));
            (position as u32, (position as u32 + 1).min(from - 1), position.fract())
        };
        let (x0, x1, wx) = neighbours(x, frame.width(), width);
        let (y0, y1, wy) = neighbours(y, frame.height(), height);
        std::array::from_fn(|c| {
            let pixel = |x, y| f64::from(frame.pixel(x, y)[c]);
            let upper = pixel(x0, y0) * (1.0 - wx) + pixel(x1, y0) * wx;
            let lower = pixel(x0, y1) * (1.0 - wx) + pixel(x1, y1) * wx;
            upper * (1.0 - wy) + lower * wy
        })
    }

    #[test]
    fn letterbox_draws_bilinear_image_at_top_left() {
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
                    for (actual, expected) in pixel.iter().zip(bilinear_pixel(&frame, fitted.content, x, y)) {
                        assert!((f64::from(*actual) - expected).abs() <= 1.01, "{width}x{height} at {x},{y}");
                    }
                }
            }
        }
    }
}

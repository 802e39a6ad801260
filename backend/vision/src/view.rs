//! The views of an image that a detector processes: the whole image, the whole image at a small
//! size, one tile of it, or the surroundings of one box.
//!
//! A detector finds only faces of certain sizes on its canvas. A face of a few pixels is too small,
//! and SCRFD misses a face that fills the canvas. Views change the size of a face on the canvas: a
//! small view shrinks large faces, tiles enlarge small ones.

use crate::geometry::Region;
use crate::{Detection, Frame, Letterbox, Point, Rect};

/// Share of a tile's side that overlaps its neighbour. A face that is larger than the overlap is
/// completely visible in the views of half the scale. In these views, it has at least a tenth of
/// the canvas's size.
const OVERLAP: f64 = 0.2;
/// Distance from a border inside the image, as a share of the box's longer side, below which the
/// border is considered to cut the box.
const CUT_MARGIN: f32 = 0.1;

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

    /// Returns the view of the whole image in the top-left `content` (width, height) of the canvas.
    /// `content` must fit the canvas.
    pub fn small(image: (u32, u32), content: (u32, u32), canvas: (u32, u32)) -> Self {
        let letterbox = Letterbox { canvas, ..Letterbox::fit(image, content) };
        Self { image, region: Region::whole(image), letterbox }
    }

    /// Returns tiles that cover the image at `scale` canvas pixels per image pixel, row by row.
    /// Neighbours share at least a fifth of a canvas. If the image fits the canvas at that scale,
    /// the result is one tile with the whole image.
    pub fn tiles(image: (u32, u32), canvas: (u32, u32), scale: f64) -> Vec<Self> {
        let columns = spans(image.0, f64::from(canvas.0) / scale);
        let rows = spans(image.1, f64::from(canvas.1) / scale);
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
    pub fn restore(&self, detection: &Detection) -> Detection {
        let Detection { bbox, det_score, landmarks } = self.letterbox.restore(detection);
        let (x, y) = (self.region.x as f32, self.region.y as f32);
        Detection {
            bbox: Rect { x: bbox.x + x, y: bbox.y + y, ..bbox },
            det_score,
            landmarks: landmarks.map(|p| Point { x: p.x + x, y: p.y + y }),
        }
    }

    /// Returns whether a border of the region that lies inside the image cuts the box, or nearly
    /// does (image coordinates). This view then contains only a part of the face; another view
    /// contains the whole face.
    pub fn cuts(&self, bbox: &Rect) -> bool {
        let margin = CUT_MARGIN * bbox.width.max(bbox.height);
        let Region { x, y, width, height } = self.region;
        let ends = |start: u32, length: u32, from: f32, size: f32, whole: u32| {
            let before = start > 0 && from < start as f32 + margin;
            let after = start + length < whole && from + size > (start + length) as f32 - margin;
            before || after
        };
        ends(x, width, bbox.x, bbox.width, self.image.0) || ends(y, height, bbox.y, bbox.height, self.image.1)
    }
}

/// Returns spans `(start, length)` of about `tile` pixels that cover `length` pixels evenly and
/// overlap by at least [`OVERLAP`].
fn spans(length: u32, tile: f64) -> Vec<(u32, u32)> {
    let whole = f64::from(length);
    if tile >= whole {
        return vec![(0, length)];
    }
    let tile = tile.max(1.0);
    let count = ((whole - tile * OVERLAP) / (tile * (1.0 - OVERLAP))).ceil().max(2.0) as u32;
    let width = (tile.round() as u32).clamp(1, length);
    let step = f64::from(length - width) / f64::from(count - 1);
    (0..count).map(|i| ((f64::from(i) * step).round() as u32, width)).collect()
}

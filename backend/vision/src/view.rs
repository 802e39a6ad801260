//! Where a detector looks: at the whole picture, at the whole picture made small, or at one tile of it.
//!
//! A detector knows faces of some sizes on its canvas: a few pixels are too little, and SCRFD overlooks a face that fills the
//! canvas. Views change the size at which it sees a face: a small view brings large faces down, tiles bring small ones up.

use crate::{Detection, Frame, Letterbox, Point, Rect};

/// Share of a tile's side that it has in common with its neighbour. A face that does not fit into it is seen whole, and at least
/// a tenth of the canvas in size, by the views of half the scale.
const OVERLAP: f64 = 0.2;
/// A box that comes nearer than this share of its longer side to a border inside the picture counts as cut by it.
const CUT_MARGIN: f32 = 0.1;

/// A part of a picture in whole pixels; never empty, always inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Left edge.
    pub x: u32,
    /// Top edge.
    pub y: u32,
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
}

/// A part of a picture and how it lies on a detector's canvas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Size of the picture, width and height.
    pub image: (u32, u32),
    /// What is seen of it.
    pub region: Region,
    /// How the region lies on the canvas.
    pub letterbox: Letterbox,
}

impl View {
    /// The whole picture on the canvas.
    pub fn whole(image: (u32, u32), canvas: (u32, u32)) -> Self {
        Self { image, region: Region::whole(image), letterbox: Letterbox::fit(image, canvas) }
    }

    /// The whole picture in the top-left `content` (width, height) of the canvas, which is not smaller.
    pub fn small(image: (u32, u32), content: (u32, u32), canvas: (u32, u32)) -> Self {
        let letterbox = Letterbox { canvas, ..Letterbox::fit(image, content) };
        Self { image, region: Region::whole(image), letterbox }
    }

    /// Tiles that cover the picture at `scale` canvas pixels per image pixel, row by row, neighbours sharing at least a fifth
    /// of a canvas. One tile, the whole, where the picture at that scale fits the canvas.
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

    /// Whether the region is the whole picture.
    pub fn is_whole(&self) -> bool {
        self.region == Region::whole(self.image)
    }

    /// The region's pixels.
    pub fn cut(&self, frame: &Frame) -> Frame {
        crate::crop::cut(frame, self.region)
    }

    /// Canvas coordinates to image coordinates.
    pub fn restore(&self, detection: &Detection) -> Detection {
        let Detection { bbox, det_score, landmarks } = self.letterbox.restore(detection);
        let (x, y) = (self.region.x as f32, self.region.y as f32);
        Detection {
            bbox: Rect { x: bbox.x + x, y: bbox.y + y, ..bbox },
            det_score,
            landmarks: landmarks.map(|p| Point { x: p.x + x, y: p.y + y }),
        }
    }

    /// Whether a border of the region that lies inside the picture cuts the box, or nearly so (image coordinates). What this view
    /// knows of such a face is a part; another view has the whole.
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

impl Region {
    fn whole((width, height): (u32, u32)) -> Self {
        Self { x: 0, y: 0, width, height }
    }
}

/// Spans `(start, length)` of about `tile` pixels that cover `length` pixels evenly and overlap by [`OVERLAP`].
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

//! Fit an image into a detector's canvas, top-left, and map coordinates back.
use crate::{Detection, Frame};

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
    /// InsightFace's rule: keep the aspect ratio, fill the longer side, content at the top left, black below and right.
    pub fn fit(_image: (u32, u32), _canvas: (u32, u32)) -> Self {
        todo!()
    }
    /// Draws the scaled image onto a new canvas (bilinear).
    pub fn draw(&self, _frame: &Frame) -> Frame {
        todo!()
    }
    /// Canvas coordinates to image coordinates.
    pub fn restore(&self, _detection: &Detection) -> Detection {
        todo!()
    }
}

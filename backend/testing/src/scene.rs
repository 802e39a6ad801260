//! Composes large images with small faces from photographs.
use vision::{Frame, crop};

/// An image that contains a smaller image.
#[derive(Clone, Debug)]
pub struct Scene {
    pub frame: Frame,
    /// Left edge of the smaller image, in pixels.
    pub left: u32,
    /// Top edge of the smaller image, in pixels.
    pub top: u32,
    /// Scale factor applied to the smaller image.
    pub scale: f32,
}

/// Composes an image of `size` (width, height). It tiles `background`, mirroring every other copy
/// so that the edges match. It then pastes `inset`, scaled by `scale` (at most 1), to the left of
/// and below the centre.
pub fn scene(background: &Frame, inset: &Frame, scale: f64, size: (u32, u32)) -> Scene {
    let copies = [background.clone(), crop::mirror(background)];
    let upside_down = copies.each_ref().map(|copy| crop::mirror(&crop::rotate(copy, 180)));
    let mut frame = Frame::filled(size.0, size.1, [0; 3]);
    for (row, top) in (0..size.1).step_by(background.height() as usize).enumerate() {
        let line = if row % 2 == 0 { &copies } else { &upside_down };
        for (column, left) in (0..size.0).step_by(background.width() as usize).enumerate() {
            paste(&mut frame, &line[column % 2], left, top);
        }
    }
    let longer = inset.width().max(inset.height());
    let small = crop::thumbnail(inset, (f64::from(longer) * scale).round() as u32);
    let (left, top) = ((size.0 - small.width()) * 3 / 8, (size.1 - small.height()) * 5 / 8);
    paste(&mut frame, &small, left, top);
    Scene { frame, left, top, scale: small.width() as f32 / inset.width() as f32 }
}

/// Pastes `from` into `onto`, cropped at the edges.
fn paste(onto: &mut Frame, from: &Frame, left: u32, top: u32) {
    let (width, height) = (onto.width(), onto.height());
    let bytes = from.width().min(width - left) as usize * 3;
    let rows = from.data().chunks_exact(from.width() as usize * 3);
    for (y, row) in (top..height).zip(rows) {
        let at = (y as usize * width as usize + left as usize) * 3;
        onto.data_mut()[at..at + bytes].copy_from_slice(&row[..bytes]);
    }
}

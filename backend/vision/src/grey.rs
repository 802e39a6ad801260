//! Grey levels.

use crate::Frame;

/// BT.601 grey in OpenCV's fixed-point form (`COLOR_RGB2GRAY` on bytes: 15-bit weights, rounded), one byte per pixel.
pub(crate) fn grey(frame: &Frame) -> Vec<u8> {
    let (pixels, _) = frame.data().as_chunks::<3>();
    let mut out = vec![0; pixels.len()];
    for (grey, [r, g, b]) in out.iter_mut().zip(pixels) {
        let weighted = u32::from(*r) * 9798 + u32::from(*g) * 19235 + u32::from(*b) * 3735;
        *grey = ((weighted + (1 << 14)) >> 15) as u8;
    }
    out
}

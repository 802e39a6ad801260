use crate::Frame;
use multiversion::multiversion;

/// Converts to BT.601 grey in OpenCV's fixed-point form (`COLOR_RGB2GRAY` on bytes: 15-bit weights,
/// rounded), one byte per pixel.
pub(crate) fn grey(frame: &Frame) -> Vec<u8> {
    let mut out = vec![0; frame.data().len() / 3];
    grey_row(frame.data(), &mut out);
    out
}

/// Converts a run of pixels in the same way; `out` may be longer.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn grey_row(rgb: &[u8], out: &mut [u8]) {
    for (grey, [r, g, b]) in out.iter_mut().zip(rgb.as_chunks::<3>().0) {
        let weighted = u32::from(*r) * 9798 + u32::from(*g) * 19235 + u32::from(*b) * 3735;
        *grey = ((weighted + (1 << 14)) >> 15) as u8;
    }
}

//! An image in memory, as all crates use it, with its attached value and its conversion to grey.
use multiversion::multiversion;
use std::any::Any;
use std::sync::Arc;

/// An 8-bit RGB image, rows top to bottom, pixels interleaved, no padding: `data.len() == width *
/// height * 3`.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    width: u32,
    height: u32,
    data: Vec<u8>,
    attachment: Attachment,
}

impl Frame {
    /// Wraps `data`. Returns `None` if its length is not `width * height * 3` or a side is zero.
    pub fn new(width: u32, height: u32, data: Vec<u8>) -> Option<Self> {
        let length = (width as usize).checked_mul(height as usize)?.checked_mul(3)?;
        let attachment = Attachment::default();
        (length > 0 && data.len() == length).then_some(Self { width, height, data, attachment })
    }

    /// Creates a frame of one colour.
    ///
    /// # Panics
    /// Panics if a side is zero.
    pub fn filled(width: u32, height: u32, rgb: [u8; 3]) -> Self {
        assert!(width > 0 && height > 0, "a frame must have at least one pixel");
        let pixels = width as usize * height as usize;
        // `vec![0; n]` requests zeroed memory, which is faster than writing zeros.
        let data = if rgb == [0; 3] { vec![0; 3 * pixels] } else { rgb.repeat(pixels) };
        Self { width, height, data, attachment: Attachment::default() }
    }

    /// Attaches a value that is dropped when these pixels and all their clones are dropped, such as
    /// a permit for memory. It replaces the previously attached value.
    #[must_use]
    pub fn with_attachment(mut self, value: impl Any + Send + Sync) -> Self {
        self.attachment = Attachment(Some(Arc::new(value)));
        self
    }

    /// Attaches the value that is attached to `other`; both frames share it.
    #[must_use]
    pub fn with_attachment_of(mut self, other: &Self) -> Self {
        self.attachment = other.attachment.clone();
        self
    }

    pub fn width(&self) -> u32 {
        self.width
    }

    pub fn height(&self) -> u32 {
        self.height
    }

    /// Returns the interleaved RGB bytes.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// Returns the colour at column `x`, row `y`.
    ///
    /// # Panics
    /// Panics if the position is outside the frame.
    pub fn pixel(&self, x: u32, y: u32) -> [u8; 3] {
        let index = (y as usize * self.width as usize + x as usize) * 3;
        [self.data[index], self.data[index + 1], self.data[index + 2]]
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({}x{})", self.width, self.height)
    }
}

/// A value that is dropped with the last frame to which it is attached. All attachments compare
/// equal, so that frames with equal pixels are equal.
#[derive(Clone, Default)]
struct Attachment(
    #[expect(dead_code, reason = "only dropping the value has an effect")] Option<Arc<dyn Any + Send + Sync>>,
);

impl PartialEq for Attachment {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Attachment {}

/// Converts to BT.601 grey in OpenCV's fixed-point form (`COLOR_RGB2GRAY` on bytes: 15-bit weights,
/// rounded), one byte per pixel.
pub(crate) fn to_grey(frame: &Frame) -> Vec<u8> {
    let mut out = vec![0; frame.data().len() / 3];
    write_grey(frame.data(), &mut out);
    out
}

/// Converts RGB pixels as [`to_grey`] does. `out` may be longer than needed.
#[multiversion(targets("x86_64+avx2"))]
pub(crate) fn write_grey(rgb: &[u8], out: &mut [u8]) {
    for (grey, [r, g, b]) in out.iter_mut().zip(rgb.as_chunks::<3>().0) {
        let weighted = u32::from(*r) * 9798 + u32::from(*g) * 19235 + u32::from(*b) * 3735;
        *grey = ((weighted + (1 << 14)) >> 15) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn attachment_is_dropped_with_last_frame() {
        let value = Arc::new(());
        let frame = Frame::filled(2, 2, [7; 3]).with_attachment(value.clone());
        assert_eq!(frame, Frame::filled(2, 2, [7; 3]), "the attached value is not compared");
        let copy = frame.clone();
        let derived = Frame::filled(1, 1, [0; 3]).with_attachment_of(&copy);
        drop((frame, copy));
        assert_eq!(Arc::strong_count(&value), 2);
        drop(derived.into_data());
        assert_eq!(Arc::strong_count(&value), 1);
    }
}

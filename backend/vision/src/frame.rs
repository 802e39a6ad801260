//! The one pixel container that travels between the crates.

use std::any::Any;
use std::sync::Arc;

/// An 8-bit RGB image, rows top to bottom, pixels interleaved, no padding: `data.len() == width * height * 3`.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    width: u32,
    height: u32,
    data: Vec<u8>,
    held: Held,
}

/// What is let go with the pixels. It is no part of the picture: frames with equal pixels are equal.
#[derive(Clone, Default)]
struct Held(#[expect(dead_code, reason = "it is there to be dropped")] Option<Arc<dyn Any + Send + Sync>>);

impl PartialEq for Held {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Held {}

impl Frame {
    /// Wraps `data`, or returns `None` when its length is not `width * height * 3` or a side is zero.
    pub fn new(width: u32, height: u32, data: Vec<u8>) -> Option<Self> {
        let wanted = (width as usize).checked_mul(height as usize)?.checked_mul(3)?;
        (wanted > 0 && data.len() == wanted).then_some(Self { width, height, data, held: Held::default() })
    }

    /// A frame of one colour. Panics when a side is zero: that is a mistake of the caller, never of the input.
    pub fn filled(width: u32, height: u32, rgb: [u8; 3]) -> Self {
        assert!(width > 0 && height > 0, "a frame has at least one pixel");
        let data = rgb.repeat(width as usize * height as usize);
        Self { width, height, data, held: Held::default() }
    }

    /// The same, with something that is dropped when these pixels and every clone of them are gone, whoever was the last to use them: a place in memory that
    /// somebody counts. It takes the place of what was held before.
    #[must_use]
    pub fn holding(mut self, thing: impl Any + Send + Sync) -> Self {
        self.held = Held(Some(Arc::new(thing)));
        self
    }

    /// The same, sharing what `other` holds.
    #[must_use]
    pub fn holding_as(mut self, other: &Self) -> Self {
        self.held = other.held.clone();
        self
    }

    /// Width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The interleaved RGB bytes.
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The interleaved RGB bytes, writable.
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// Gives the bytes away.
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// The colour at column `x`, row `y`. Panics outside the frame.
    pub fn pixel(&self, x: u32, y: u32) -> [u8; 3] {
        let at = (y as usize * self.width as usize + x as usize) * 3;
        [self.data[at], self.data[at + 1], self.data[at + 2]]
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Frame({}x{})", self.width, self.height)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_goes_with_the_last_of_the_pixels() {
        let thing = Arc::new(());
        let frame = Frame::filled(2, 2, [7; 3]).holding(thing.clone());
        assert_eq!(frame, Frame::filled(2, 2, [7; 3]), "it is no part of the picture");
        let copy = frame.clone();
        let derived = Frame::filled(1, 1, [0; 3]).holding_as(&copy);
        drop((frame, copy));
        assert_eq!(Arc::strong_count(&thing), 2);
        drop(derived.into_data());
        assert_eq!(Arc::strong_count(&thing), 1);
    }
}

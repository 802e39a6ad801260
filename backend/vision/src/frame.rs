//! The one pixel container that travels between the crates.

/// An 8-bit RGB image, rows top to bottom, pixels interleaved, no padding: `data.len() == width * height * 3`.
#[derive(Clone, PartialEq, Eq)]
pub struct Frame {
    width: u32,
    height: u32,
    data: Vec<u8>,
}

impl Frame {
    /// Wraps `data`, or returns `None` when its length is not `width * height * 3` or a side is zero.
    pub fn new(width: u32, height: u32, data: Vec<u8>) -> Option<Self> {
        let wanted = (width as usize).checked_mul(height as usize)?.checked_mul(3)?;
        (wanted > 0 && data.len() == wanted).then_some(Self { width, height, data })
    }

    /// A frame of one colour. Panics when a side is zero: that is a mistake of the caller, never of the input.
    pub fn filled(width: u32, height: u32, rgb: [u8; 3]) -> Self {
        assert!(width > 0 && height > 0, "a frame has at least one pixel");
        Self { width, height, data: rgb.repeat(width as usize * height as usize) }
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

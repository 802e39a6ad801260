//! Bytes to pixels.
use crate::Frame;

/// What is refused before anything is allocated for it.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest accepted file.
    pub max_bytes: usize,
    /// Most pixels.
    pub max_pixels: u64,
    /// Longest side in pixels.
    pub max_side: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 25 << 20, max_pixels: 50_000_000, max_side: 16_384 }
    }
}

/// The formats told apart by their first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// WebP.
    Webp,
    /// GIF, first frame.
    Gif,
    /// Windows bitmap.
    Bmp,
    /// AVIF, where built.
    Avif,
}

impl Format {
    /// Tells the format from the content alone.
    pub fn sniff(_bytes: &[u8]) -> Option<Self> {
        todo!()
    }
    /// `image/…`.
    pub fn mime(self) -> &'static str {
        todo!()
    }
    /// Lower-case name, as the API shows it.
    pub fn name(self) -> &'static str {
        todo!()
    }
}

/// A decoded, upright image.
#[derive(Clone, Debug)]
pub struct Decoded {
    /// The pixels, orientation applied.
    pub frame: Frame,
    /// What the content was.
    pub format: Format,
}

/// Why bytes are not an image we can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Nothing known starts like this.
    #[error("the content is not an image of a supported format (jpeg, png, webp, gif, bmp)")]
    NotAnImage,
    /// Known, but not built in.
    #[error("{0} images are not supported by this build")]
    Unsupported(&'static str),
    /// Longer than `Limits::max_bytes`.
    #[error("the image has {bytes} bytes; at most {limit} are accepted")]
    TooManyBytes {
        /// Length of the input.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// Over the pixel or side limit.
    #[error(
        "the image is {width}x{height} pixels; at most {max_pixels} pixels and {max_side} a side are accepted"
    )]
    TooLarge {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
        /// The limit.
        max_pixels: u64,
        /// The limit.
        max_side: u32,
    },
    /// Starts like an image, but cannot be decoded.
    #[error("the {format} image is truncated or corrupt: {reason}")]
    Corrupt {
        /// Its format.
        format: &'static str,
        /// What the decoder said.
        reason: String,
    },
}

impl DecodeError {
    /// Stable code: `not_an_image`, `unsupported_format`, `too_many_bytes`, `image_too_large`, `corrupt_image`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotAnImage => "not_an_image",
            Self::Unsupported(_) => "unsupported_format",
            Self::TooManyBytes { .. } => "too_many_bytes",
            Self::TooLarge { .. } => "image_too_large",
            Self::Corrupt { .. } => "corrupt_image",
        }
    }
}

/// Decodes `bytes` into an upright RGB frame.
pub fn decode(_bytes: &[u8], _limits: &Limits) -> Result<Decoded, DecodeError> {
    todo!()
}

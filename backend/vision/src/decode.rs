//! Bytes to pixels.
//!
//! The format is told by the content, never by a name or a header of the transport. The size is read and refused
//! before anything is allocated for it. What comes out is 8-bit RGB, upright (EXIF orientation applied), with alpha
//! composed on white, as a browser would show the picture on a blank page. Colour profiles are not applied.

#[cfg(any(feature = "avif", feature = "heic"))]
mod heif;
mod jpeg;
mod raster;
mod sniff;
mod webp;

use crate::Frame;
use image::metadata::Orientation;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
    /// AVIF, with the Cargo feature `avif`.
    Avif,
    /// HEIC and other HEIF, with the Cargo feature `heic`.
    Heic,
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
    #[error("the content is not an image of a supported format ({})", formats())]
    NotAnImage,
    /// Known, but nothing here can read it.
    #[error("{format} images are not supported: {reason}")]
    Unsupported {
        /// Its format.
        format: &'static str,
        /// What is missing.
        reason: String,
    },
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
            Self::Unsupported { .. } => "unsupported_format",
            Self::TooManyBytes { .. } => "too_many_bytes",
            Self::TooLarge { .. } => "image_too_large",
            Self::Corrupt { .. } => "corrupt_image",
        }
    }
}

/// Decodes `bytes` into an upright RGB frame.
///
/// A format that the build has no decoder for ([`Format::in_build`]) is [`DecodeError::Unsupported`].
///
/// A JPEG whose end is missing gives the part that is there as long as at least a tenth of its rows could be decoded:
/// the rest is mid grey in a baseline file, while a progressive one is coarser as a whole. Every other damage is [`DecodeError::Corrupt`].
/// Never panics: a panic inside a decoder is caught and reported as `Corrupt`.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded, DecodeError> {
    if bytes.len() > limits.max_bytes {
        return Err(DecodeError::TooManyBytes { bytes: bytes.len(), limit: limits.max_bytes });
    }
    let Some(format) = Format::sniff(bytes) else {
        return Err(sniff::known_only_by_name(bytes)
            .map_or(DecodeError::NotAnImage, |name| unsupported(name, "there is no decoder for them")));
    };
    if !format.in_build() {
        return Err(unsupported(
            format.name(),
            format_args!("this program was built without the Cargo feature `{}`", format.name()),
        ));
    }
    let decoded = catch_unwind(AssertUnwindSafe(|| match format {
        Format::Jpeg => jpeg::decode(bytes, limits),
        #[cfg(any(feature = "avif", feature = "heic"))]
        Format::Avif | Format::Heic => heif::decode(format, bytes, limits),
        _ => raster::decode(format, bytes, limits),
    }));
    let (frame, orientation) = decoded.unwrap_or_else(|_| Err(corrupt(format, "the decoder gave up")))?;
    Ok(Decoded { frame: upright(frame, orientation), format })
}

impl Limits {
    /// `Err` when a picture of this size is over the limits.
    fn check(&self, width: u32, height: u32) -> Result<(), DecodeError> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels > self.max_pixels || width > self.max_side || height > self.max_side {
            let Self { max_pixels, max_side, .. } = *self;
            return Err(DecodeError::TooLarge { width, height, max_pixels, max_side });
        }
        Ok(())
    }
}

fn unsupported(format: &'static str, reason: impl std::fmt::Display) -> DecodeError {
    DecodeError::Unsupported { format, reason: reason.to_string() }
}

/// The names of the formats that this build reads.
fn formats() -> String {
    let names: Vec<&str> =
        Format::ALL.into_iter().filter(|format| format.in_build()).map(Format::name).collect();
    names.join(", ")
}

fn corrupt(format: Format, reason: impl std::fmt::Display) -> DecodeError {
    DecodeError::Corrupt { format: format.name(), reason: reason.to_string() }
}

/// Undoes the turn that the camera noted.
fn upright(frame: Frame, orientation: Orientation) -> Frame {
    use crate::crop::{mirror, rotate};
    match orientation {
        Orientation::NoTransforms => frame,
        Orientation::Rotate90 => rotate(&frame, 90),
        Orientation::Rotate180 => rotate(&frame, 180),
        Orientation::Rotate270 => rotate(&frame, 270),
        Orientation::FlipHorizontal => mirror(&frame),
        Orientation::FlipVertical => mirror(&rotate(&frame, 180)),
        Orientation::Rotate90FlipH => mirror(&rotate(&frame, 90)),
        Orientation::Rotate270FlipH => mirror(&rotate(&frame, 270)),
    }
}

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

/// What the head of a file says of the picture in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// What the content is.
    pub format: Format,
    /// Width in pixels as it is stored: an orientation may still turn it.
    pub width: u32,
    /// Height in pixels as it is stored.
    pub height: u32,
    /// Most bytes for each pixel that decoding holds at once: the result, and what its decoder and the steps after it need beside it.
    decoding_bytes: u32,
}

impl Head {
    /// Bytes of the decoded picture.
    pub fn decoded_bytes(&self) -> u64 {
        self.pixels() * BYTES_PER_PIXEL
    }

    /// Most bytes that [`decode`] holds at once, the result included: three for each pixel of a plain JPEG, eleven of a PNG with alpha and 16 bits. Reckoned
    /// from the decoders' buffers, and measured by a test; those that do not grow with the picture (64 MiB at most) come on top.
    pub fn decoding_bytes(&self) -> u64 {
        self.pixels() * u64::from(self.decoding_bytes)
    }

    fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

/// Bytes of a pixel of a [`Frame`].
pub const BYTES_PER_PIXEL: u64 = 3;

/// Bytes for each pixel while a decoded picture is turned: it and the turned one.
const TURNING: u32 = 6;

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
    let format = known(bytes, limits)?;
    let (frame, orientation) = guarded(format, || match format {
        Format::Jpeg => jpeg::decode(bytes, limits),
        #[cfg(any(feature = "avif", feature = "heic"))]
        Format::Avif | Format::Heic => heif::decode(format, bytes, limits),
        _ => raster::decode(format, bytes, limits),
    })?;
    Ok(Decoded { frame: upright(frame, orientation), format })
}

/// Reads the head of a file alone: what [`decode`] will need memory for.
///
/// # Errors
/// Those of [`decode`] for the same bytes and limits, as far as the head tells them: a file whose head is whole may still be corrupt. Never panics.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<Head, DecodeError> {
    let format = known(bytes, limits)?;
    guarded(format, || match format {
        Format::Jpeg => jpeg::probe(bytes, limits),
        #[cfg(any(feature = "avif", feature = "heic"))]
        Format::Avif | Format::Heic => heif::probe(format, bytes, limits),
        _ => raster::probe(format, bytes, limits),
    })
}

/// The format, where this build reads it and the file is not too long.
fn known(bytes: &[u8], limits: &Limits) -> Result<Format, DecodeError> {
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
    Ok(format)
}

/// A decoder's answer; a panic inside it makes the file corrupt.
fn guarded<T>(format: Format, decoder: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    catch_unwind(AssertUnwindSafe(decoder)).unwrap_or_else(|_| Err(corrupt(format, "the decoder gave up")))
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

/// Undoes the turn that the camera noted. Each step lets go of the picture before it, so that two are there at once and not three.
fn upright(mut frame: Frame, orientation: Orientation) -> Frame {
    use crate::crop::{mirror, rotate};
    let (degrees, mirrored) = match orientation {
        Orientation::NoTransforms => (0, false),
        Orientation::Rotate90 => (90, false),
        Orientation::Rotate180 => (180, false),
        Orientation::Rotate270 => (270, false),
        Orientation::FlipHorizontal => (0, true),
        Orientation::FlipVertical => (180, true),
        Orientation::Rotate90FlipH => (90, true),
        Orientation::Rotate270FlipH => (270, true),
    };
    if degrees != 0 {
        frame = rotate(&frame, degrees);
    }
    if mirrored {
        frame = mirror(&frame);
    }
    frame
}

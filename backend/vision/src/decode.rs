//! Decodes image files to pixels.
//!
//! The format is detected from the content, never from a file name or an HTTP header. The size is
//! checked before memory is allocated. The result is 8-bit RGB, upright (with the EXIF orientation
//! applied), and composed on white, as a browser shows the image on a blank page. Colour profiles
//! are not applied.

mod coded;
mod headers;
mod heif;
mod jpeg;
mod raster;

pub use coded::{Assembly, CodedImage, CodedPictures, Coding, ColourDescription};

use crate::Frame;
use domain::Reason;
use image::metadata::Orientation;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Limits that are checked before memory is allocated.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum size of a file in bytes.
    pub max_bytes: usize,
    pub max_pixels: u64,
    /// Maximum side in pixels.
    pub max_side: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 25 << 20, max_pixels: 50_000_000, max_side: 16_384 }
    }
}

/// The formats that are detected by their first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    Jpeg,
    Png,
    Webp,
    /// GIF, first frame.
    Gif,
    Bmp,
    Avif,
    /// HEIC and other HEIF, decoded by ffmpeg.
    Heic,
    /// JPEG XL, decoded by ffmpeg; first frame.
    Jxl,
    /// TIFF, decoded by ffmpeg; first page.
    Tiff,
    Jp2,
}

/// A decoded, upright image.
#[derive(Clone, Debug)]
pub struct Decoded {
    pub frame: Frame,
    pub format: Format,
}

/// The properties of an image that the header of its file states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    pub format: Format,
    /// Stored width in pixels; the EXIF orientation is not applied.
    pub width: u32,
    /// Stored height in pixels; the EXIF orientation is not applied.
    pub height: u32,
    /// Maximum number of bytes per pixel that decoding allocates at the same time, for the result
    /// and for the buffers of the decoder and of later steps.
    decoding_bytes_per_pixel: u32,
}

impl ImageHeader {
    pub fn decoded_bytes(&self) -> u64 {
        self.pixels() * BYTES_PER_PIXEL
    }

    /// Returns the maximum number of bytes that [`decode`] allocates at the same time, including
    /// the result. This is three bytes per pixel for a plain JPEG, and eleven for a 16-bit PNG with
    /// alpha. The values are derived from the decoders' code, and a test measures them. Buffers
    /// that do not depend on the size of the image (at most 64 MiB) are not included.
    pub fn decoding_bytes(&self) -> u64 {
        self.pixels() * u64::from(self.decoding_bytes_per_pixel)
    }

    fn pixels(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

pub const BYTES_PER_PIXEL: u64 = 3;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first bytes match no known format.
    #[error("the content is not an image of a supported format ({})", Format::ALL.map(Format::name).join(", "))]
    NotAnImage,
    /// The format is known, but there is no decoder for it or for the coding of the file.
    #[error("this {format} image cannot be decoded: {reason}")]
    Unsupported {
        /// The format; for a coding that is not supported, the name of the coding.
        format: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The format requires ffmpeg, and no suitable ffmpeg is available.
    #[error(
        "{format} images are decoded by ffmpeg, which this service cannot use; run ./scripts/video, \
         or set FFMPEG to the path of ffmpeg 6.0 or newer, and restart the service"
    )]
    NeedsFfmpeg { format: &'static str },
    #[error("the image has {bytes} bytes; at most {limit} are allowed")]
    TooManyBytes { bytes: usize, limit: usize },
    #[error(
        "the image has {width}x{height} pixels; at most {max_pixels} pixels, and {max_side} pixels per side, are allowed"
    )]
    TooLarge { width: u32, height: u32, max_pixels: u64, max_side: u32 },
    /// The first bytes are those of an image, but the file cannot be decoded.
    #[error("the {format} image is truncated or corrupt: {reason}")]
    Corrupt {
        format: &'static str,
        /// The decoder's message.
        reason: String,
    },
}

impl DecodeError {
    /// Returns the reason for the ledgers and the API.
    pub fn reason(&self) -> Reason {
        match self {
            Self::NotAnImage => Reason::NotAnImage,
            Self::Unsupported { .. } => Reason::UnsupportedFormat,
            Self::NeedsFfmpeg { .. } => Reason::NeedsFfmpeg,
            Self::TooManyBytes { .. } => Reason::TooManyBytes,
            Self::TooLarge { .. } => Reason::ImageTooLarge,
            Self::Corrupt { .. } => Reason::CorruptImage,
        }
    }
}

/// Decodes `bytes` into an upright RGB frame. A truncated JPEG is accepted if at least a tenth of
/// its rows can be decoded. The missing rows of a baseline file are mid grey; a progressive file
/// has less detail in all rows.
///
/// # Errors
/// Fails with [`DecodeError::NeedsFfmpeg`] if [`Format::needs_ffmpeg`]; see [`read_coded_image`].
/// Fails with [`DecodeError::Unsupported`] if there is no decoder for the coding, such as
/// arithmetic-coded JPEG. Fails with [`DecodeError::Corrupt`] if the file is damaged in any other
/// way. Never panics: a panic inside a decoder is caught and reported as `Corrupt`.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<Decoded, DecodeError> {
    let format = detect_format(bytes, limits)?;
    if format.needs_ffmpeg() {
        return Err(DecodeError::NeedsFfmpeg { format: format.name() });
    }
    let (frame, orientation) = catch_panic(format, || match format {
        Format::Jpeg => jpeg::decode(bytes, limits),
        _ => raster::decode(format, bytes, limits),
    })?;
    Ok(Decoded { frame: make_upright(frame, orientation), format })
}

/// Reads only the header of a file, which determines how much memory decoding needs.
///
/// # Errors
/// Fails with the errors of [`decode`] that can be detected in the header. Never panics.
pub fn probe(bytes: &[u8], limits: &Limits) -> Result<ImageHeader, DecodeError> {
    let format = detect_format(bytes, limits)?;
    if format.needs_ffmpeg() {
        return Ok(read_coded_image(bytes, limits)?.header);
    }
    catch_panic(format, || match format {
        Format::Jpeg => jpeg::probe(bytes, limits),
        _ => raster::probe(format, bytes, limits),
    })
}

/// Reads the structure of a file of a format with [`Format::needs_ffmpeg`], without decoding it.
/// Checks the limits with the sizes in the headers.
///
/// # Errors
/// Fails with the errors of [`decode`]. Never panics.
pub fn read_coded_image<'a>(bytes: &'a [u8], limits: &Limits) -> Result<CodedImage<'a>, DecodeError> {
    let format = detect_format(bytes, limits)?;
    catch_panic(format, || match format {
        Format::Avif | Format::Heic => heif::read(format, bytes, limits),
        _ => headers::read(format, bytes, limits),
    })
}

/// Returns the format. Fails if it is unknown or the file is too long.
fn detect_format(bytes: &[u8], limits: &Limits) -> Result<Format, DecodeError> {
    if bytes.len() > limits.max_bytes {
        return Err(DecodeError::TooManyBytes { bytes: bytes.len(), limit: limits.max_bytes });
    }
    Format::sniff(bytes).ok_or(DecodeError::NotAnImage)
}

/// Runs a decoder, and reports a panic inside it as [`DecodeError::Corrupt`].
fn catch_panic<T>(format: Format, read: impl FnOnce() -> Result<T, DecodeError>) -> Result<T, DecodeError> {
    catch_unwind(AssertUnwindSafe(read))
        .unwrap_or_else(|_| Err(corrupt(format, "the decoder failed unexpectedly")))
}

impl Limits {
    /// Fails if an image of this size exceeds the limits.
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

fn corrupt(format: Format, reason: impl std::fmt::Display) -> DecodeError {
    // Some messages of decoders end with a line break.
    DecodeError::Corrupt { format: format.name(), reason: reason.to_string().trim_end().to_owned() }
}

/// Returns the bytes per pixel for the source and the result of a rotation.
fn rotation_bytes_per_pixel(orientation: Orientation) -> u32 {
    if orientation == Orientation::NoTransforms { 0 } else { 6 }
}

/// Applies the EXIF orientation. At most two frames exist at the same time.
fn make_upright(mut frame: Frame, orientation: Orientation) -> Frame {
    use crate::crop::{mirror, rotate};
    let (degrees, is_mirrored) = match orientation {
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
    if is_mirrored {
        frame = mirror(&frame);
    }
    frame
}

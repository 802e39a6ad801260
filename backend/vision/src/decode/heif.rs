//! Decodes AVIF and HEIC with the system's libheif, to 8-bit RGB. The library applies the
//! container's own rotations, mirrors and crops (`irot`, `imir`, `clap`). An EXIF orientation only
//! repeats them, so it is ignored, as in browsers.

use super::raster::on_white;
use super::{DecodeError, Format, ImageHeader, Limits, corrupt, unsupported};
use crate::Frame;
use image::metadata::Orientation;
use libheif_rs::{
    ColorSpace, DecodingOptions, HeifContext, HeifError, HeifErrorCode, ImageHandle, LibHeif, RgbChroma,
    SecurityLimits,
};
use std::sync::LazyLock;

/// Kept until the process ends: dropping the last guard would unload the library's decoders.
static LIBRARY: LazyLock<LibHeif> = LazyLock::new(LibHeif::new);

/// Version of the library that the bindings are made for: the Cargo feature `v1_23` of
/// `libheif-rs`. The bindings copy `heif_security_limits` from the library, with the version number
/// of the library's structure. From this number, the library concludes how many fields it can read.
/// A newer library would read past the end of the smaller structure of the bindings.
const VERSION: [u8; 2] = [1, 23];

/// Side in pixels of the largest HEVC block. AV1's blocks may be twice as large, but its frames
/// have the size of the image.
const BLOCK: u32 = 64;

/// Maximum number of bytes per pixel. The codec and the library each hold three planes of 16 bits;
/// the conversion to 8-bit RGB and the result are added.
const DECODING_BYTES: u32 = 20;

/// Reads the container, checks the size of its image, and passes the image to `then`.
fn with_image<T>(
    format: Format,
    bytes: &[u8],
    limits: &Limits,
    then: impl FnOnce(&ImageHandle) -> Result<T, DecodeError>,
) -> Result<T, DecodeError> {
    let failed = |error| decode_error(format, error);
    let [major, minor, _] = LIBRARY.version();
    if [major, minor] != VERSION {
        let [wanted, exactly] = VERSION;
        let reason = format!("libheif {major}.{minor} is installed, but this build needs {wanted}.{exactly}");
        return Err(unsupported(format.name(), reason));
    }
    let mut context: HeifContext<'_> = HeifContext::new().map_err(failed)?;
    // Reading the container allocates no pixels. A size over the limits is rejected below.
    context.set_security_limits(&security_limits(0)).map_err(failed)?;
    // Decodes on the caller's thread, which belongs to a bounded pool.
    context.set_max_decoding_threads(0);
    context.read_bytes(bytes).map_err(failed)?;
    let picture = context.primary_image_handle().map_err(failed)?;
    // The displayed size is checked first, because the allowance for padding depends on it.
    limits.check(picture.width(), picture.height())?;
    let coded_limits = coded_limits(&picture, limits);
    check_coded(&picture, limits, &coded_limits)?;
    context.set_security_limits(&security_limits(coded_limits.max_pixels)).map_err(failed)?;
    then(&picture)
}

fn decode_error(format: Format, error: HeifError) -> DecodeError {
    match error.code {
        HeifErrorCode::UnsupportedFeature | HeifErrorCode::UnsupportedFileType => {
            unsupported(format.name(), error.message)
        }
        _ => corrupt(format, error.message),
    }
}

pub(super) fn probe(format: Format, bytes: &[u8], limits: &Limits) -> Result<ImageHeader, DecodeError> {
    with_image(format, bytes, limits, |picture| {
        let (width, height) = (picture.width(), picture.height());
        Ok(ImageHeader { format, width, height, decoding_bytes: DECODING_BYTES })
    })
}

pub(super) fn decode(
    format: Format,
    bytes: &[u8],
    limits: &Limits,
) -> Result<(Frame, Orientation), DecodeError> {
    let frame = with_image(format, bytes, limits, |picture| pixels(format, picture, limits))?;
    Ok((frame, Orientation::NoTransforms))
}

/// Returns the displayed image: the library rotates, mirrors and crops it.
fn pixels(format: Format, picture: &ImageHandle, limits: &Limits) -> Result<Frame, DecodeError> {
    let failed = |error| decode_error(format, error);
    let alpha = picture.has_alpha_channel();
    let chroma = if alpha { RgbChroma::Rgba } else { RgbChroma::Rgb };
    let mut options = DecodingOptions::new().ok_or_else(|| corrupt(format, "not enough memory"))?;
    options.set_convert_hdr_to_8bit(true);
    let decoded = LIBRARY.decode(picture, ColorSpace::Rgb(chroma), Some(options)).map_err(failed)?;
    let planes = decoded.planes();
    let plane = planes.interleaved.ok_or_else(|| corrupt(format, "it has no pixels"))?;
    limits.check(plane.width, plane.height)?;
    let row = plane.width as usize * if alpha { 4 } else { 3 };
    let rows = plane.data.chunks(plane.stride.max(1)).take(plane.height as usize);
    let mut pixels = Vec::with_capacity(plane.width as usize * plane.height as usize * 3);
    for line in rows {
        let line = line.get(..row).ok_or_else(|| corrupt(format, "its rows are too short"))?;
        if alpha {
            compose(line, picture.is_premultiplied_alpha(), &mut pixels);
        } else {
            pixels.extend_from_slice(line);
        }
    }
    let frame = Frame::new(plane.width, plane.height, pixels);
    frame.ok_or_else(|| corrupt(format, "it has no pixels"))
}

/// Returns the library's own limits, with `max_pixels` for an image; 0 means no limit.
fn security_limits(max_pixels: u64) -> SecurityLimits {
    let mut security = SecurityLimits::new();
    security.set_max_image_size_pixels(max_pixels);
    security
}

/// Returns the limits on the coded image, before rotations and crops. They are slightly above those
/// on the displayed image, because codecs pad images to whole blocks.
fn coded_limits(picture: &ImageHandle, limits: &Limits) -> Limits {
    let padding = BLOCK * (picture.width() + picture.height() + BLOCK);
    Limits {
        max_pixels: limits.max_pixels.saturating_add(u64::from(padding)),
        max_side: limits.max_side.saturating_add(BLOCK),
        ..*limits
    }
}

/// Checks the coded size that the container states. In a malformed file the coded image may be
/// larger; the library rejects it.
fn check_coded(picture: &ImageHandle, limits: &Limits, coded_limits: &Limits) -> Result<(), DecodeError> {
    let [width, height] =
        [picture.ispe_width(), picture.ispe_height()].map(|side| u32::try_from(side).unwrap_or(u32::MAX));
    match coded_limits.check(width, height) {
        Ok(()) => Ok(()),
        Err(_) => limits.check(width, height),
    }
}

/// Composes a row of RGBA on white.
fn compose(line: &[u8], premultiplied: bool, pixels: &mut Vec<u8>) {
    for [r, g, b, alpha] in line.as_chunks::<4>().0 {
        let shown = |value: u8| match premultiplied {
            true => value.saturating_add(255 - alpha),
            false => on_white(value, *alpha),
        };
        pixels.extend([*r, *g, *b].map(shown));
    }
}

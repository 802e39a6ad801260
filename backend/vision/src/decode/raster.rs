//! Decodes PNG, WebP, GIF and BMP with the `image` crate, to 8-bit RGB.
//!
//! This module reads the orientation, because memory for a rotation is reserved before decoding.
//! The PNG decoder reads later chunks only after the pixels. This module also checks the sizes of
//! the frames of a WebP, because the decoder does not limit its allocations for them.
use super::{
    BYTES_PER_PIXEL, DecodeError, Format, ImageHeader, Limits, corrupt, rotation_bytes_per_pixel, unsupported,
};
use crate::Frame;
use image::codecs::bmp::BmpDecoder;
use image::codecs::gif::GifDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageError};
use std::io::Cursor;

/// Maximum number of bytes that a decoder may allocate in addition to its output.
const WORKING_MEMORY_BYTES: u64 = 64 << 20;

/// Maximum number of bytes per pixel of a decoder in addition to its output. A GIF decoder
/// allocates a frame that it draws onto the image. A WebP decoder allocates the colour planes and,
/// if alpha is compressed, an alpha image. For an animation, it also allocates a canvas and a
/// frame.
const GIF_EXTRA_BYTES_PER_PIXEL: u32 = 4;
const WEBP_EXTRA_BYTES_PER_PIXEL: u32 = 7;
const ANIMATED_WEBP_EXTRA_BYTES_PER_PIXEL: u32 = 15;

/// A decoder that has read the header.
struct OpenDecoder<'a> {
    decoder: Box<dyn ImageDecoder + 'a>,
    width: u32,
    height: u32,
    orientation: Orientation,
    /// Bytes per pixel of the decoder in addition to its output.
    extra_bytes_per_pixel: u32,
}

fn open<'a>(format: Format, bytes: &'a [u8], limits: &Limits) -> Result<OpenDecoder<'a>, DecodeError> {
    let to_error = |error| decode_error(format, error);
    let input = Cursor::new(bytes);
    let mut orientation = Orientation::NoTransforms;
    let (mut decoder, extra_bytes_per_pixel): (Box<dyn ImageDecoder + 'a>, u32) = match format {
        Format::Png => {
            check_png_header(bytes, limits)?;
            orientation = png_orientation(bytes);
            let allowed = allocation_limits(limits, limits.max_pixels);
            (Box::new(PngDecoder::with_limits(input, allowed).map_err(to_error)?), 0)
        }
        Format::Webp => {
            check_frames(bytes, limits)?;
            orientation = webp_orientation(bytes);
            let decoder = WebPDecoder::new(input).map_err(to_error)?;
            match decoder.has_animation() {
                true => (Box::new(decoder), ANIMATED_WEBP_EXTRA_BYTES_PER_PIXEL),
                false => (Box::new(decoder), WEBP_EXTRA_BYTES_PER_PIXEL),
            }
        }
        Format::Gif => (Box::new(GifDecoder::new(input).map_err(to_error)?), GIF_EXTRA_BYTES_PER_PIXEL),
        Format::Bmp => (Box::new(BmpDecoder::new(input).map_err(to_error)?), 0),
        Format::Jpeg | Format::Avif | Format::Heic | Format::Jxl | Format::Tiff | Format::Jp2 => {
            return Err(unsupported(format.name(), "this decoder does not support the format"));
        }
    };
    let (width, height) = decoder.dimensions();
    limits.check(width, height)?;
    let pixels = u64::from(width) * u64::from(height);
    decoder.set_limits(allocation_limits(limits, pixels)).map_err(to_error)?;
    Ok(OpenDecoder { decoder, width, height, orientation, extra_bytes_per_pixel })
}

pub(super) fn probe(format: Format, bytes: &[u8], limits: &Limits) -> Result<ImageHeader, DecodeError> {
    let OpenDecoder { decoder, width, height, orientation, extra_bytes_per_pixel } =
        open(format, bytes, limits)?;
    let colours = decoder.color_type();
    let output = u32::from(colours.bytes_per_pixel());
    // 8-bit RGB is used without conversion.
    let conversion = if colours == ColorType::Rgb8 { output } else { output + BYTES_PER_PIXEL as u32 };
    let decoding_bytes_per_pixel =
        (output + extra_bytes_per_pixel).max(conversion).max(rotation_bytes_per_pixel(orientation));
    Ok(ImageHeader { format, width, height, decoding_bytes_per_pixel })
}

pub(super) fn decode(
    format: Format,
    bytes: &[u8],
    limits: &Limits,
) -> Result<(Frame, Orientation), DecodeError> {
    let OpenDecoder { decoder, width, height, orientation, .. } = open(format, bytes, limits)?;
    let image = DynamicImage::from_decoder(decoder).map_err(|error| decode_error(format, error))?;
    let frame = Frame::new(width, height, to_rgb_on_white(image));
    Ok((frame.ok_or_else(|| corrupt(format, "it has no pixels"))?, orientation))
}

fn decode_error(format: Format, error: ImageError) -> DecodeError {
    match error {
        ImageError::Unsupported(error) => unsupported(format.name(), error),
        _ => corrupt(format, error),
    }
}

/// Checks the size in a PNG header, because the decoder would report an image over the limits as
/// corrupt. The header chunk is the first one in every PNG; width and height start at byte 16.
fn check_png_header(bytes: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    match bytes.get(16..24) {
        Some(&[a, b, c, d, e, f, g, h]) => {
            limits.check(u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
        }
        _ => Ok(()),
    }
}

/// Returns the allocation limits of a decoder for an image of `pixels` pixels.
fn allocation_limits(limits: &Limits, pixels: u64) -> image::Limits {
    let mut allowed = image::Limits::no_limits();
    allowed.max_image_width = Some(limits.max_side);
    allowed.max_image_height = Some(limits.max_side);
    // The largest output is 16-bit RGBA; for a GIF or an animation, there is also a second canvas.
    allowed.max_alloc = Some(pixels.saturating_mul(16).saturating_add(WORKING_MEMORY_BYTES));
    allowed
}

/// Converts to 8-bit RGB, composed on white.
fn to_rgb_on_white(image: DynamicImage) -> Vec<u8> {
    match image {
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        DynamicImage::ImageLuma8(image) => grey_to_rgb(image.as_raw(), |v| v),
        DynamicImage::ImageLumaA8(image) => grey_alpha_to_rgb(image.as_raw(), |v| v),
        DynamicImage::ImageRgba8(image) => rgba_to_rgb(image.as_raw(), |v| v),
        DynamicImage::ImageLuma16(image) => grey_to_rgb(image.as_raw(), to_8_bits),
        DynamicImage::ImageLumaA16(image) => grey_alpha_to_rgb(image.as_raw(), to_8_bits),
        DynamicImage::ImageRgb16(image) => image.as_raw().iter().map(|v| to_8_bits(*v)).collect(),
        DynamicImage::ImageRgba16(image) => rgba_to_rgb(image.as_raw(), to_8_bits),
        other => other.into_rgb8().into_raw(),
    }
}

/// Rounds to the nearest value: 0xFFFF becomes 255 and 0x8080 becomes 128.
fn to_8_bits(value: u16) -> u8 {
    ((u32::from(value) + 128) / 257) as u8
}

pub(super) fn compose_on_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

fn grey_to_rgb<T: Copy>(samples: &[T], to_byte: impl Fn(T) -> u8) -> Vec<u8> {
    let mut out = vec![0; samples.len() * 3];
    for (pixel, sample) in out.as_chunks_mut::<3>().0.iter_mut().zip(samples) {
        *pixel = [to_byte(*sample); 3];
    }
    out
}

fn grey_alpha_to_rgb<T: Copy>(samples: &[T], to_byte: impl Fn(T) -> u8) -> Vec<u8> {
    let (samples, _) = samples.as_chunks::<2>();
    let mut out = vec![0; samples.len() * 3];
    for (pixel, [v, a]) in out.as_chunks_mut::<3>().0.iter_mut().zip(samples) {
        *pixel = [compose_on_white(to_byte(*v), to_byte(*a)); 3];
    }
    out
}

fn rgba_to_rgb<T: Copy>(samples: &[T], to_byte: impl Fn(T) -> u8) -> Vec<u8> {
    let (samples, _) = samples.as_chunks::<4>();
    let mut out = vec![0; samples.len() * 3];
    for (pixel, [r, g, b, a]) in out.as_chunks_mut::<3>().0.iter_mut().zip(samples) {
        // Most pixels are fully opaque or fully transparent and need no blending.
        *pixel = match to_byte(*a) {
            u8::MAX => [*r, *g, *b].map(&to_byte),
            0 => [u8::MAX; 3],
            alpha => [*r, *g, *b].map(|v| compose_on_white(to_byte(v), alpha)),
        };
    }
    out
}

const SIGNATURE_BYTES: usize = 8;

/// Maximum length of an `eXIf` chunk that is read. In a JPEG, Exif data has at most 64 KiB.
const MAX_EXIF_BYTES: usize = 1 << 20;

/// Returns the name, content and checksum of each chunk, up to the first incomplete chunk.
fn png_chunks(bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8], u32)> {
    let mut rest = bytes.get(SIGNATURE_BYTES..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let (name, tail) = tail.split_first_chunk::<4>()?;
        let (content, tail) = tail.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        let (checksum, tail) = tail.split_first_chunk::<4>()?;
        rest = tail;
        Some((*name, content, u32::from_be_bytes(*checksum)))
    })
}

/// Returns the orientation in the first `eXIf` chunk, which may be anywhere after the header (PNG,
/// third edition, section 11.3.3.6). Ignores the chunk if it is damaged or too long.
fn png_orientation(bytes: &[u8]) -> Orientation {
    let chunk = png_chunks(bytes)
        .take_while(|(name, ..)| name != b"IEND")
        .find(|(name, ..)| name == b"eXIf")
        .filter(|(_, exif, _)| exif.len() <= MAX_EXIF_BYTES)
        .filter(|(name, exif, checksum)| crc32([&name[..], exif]) == *checksum);
    exif_orientation(chunk.map(|(_, exif, _)| exif))
}

/// Returns the orientation in Exif data. Some programs write the prefix `Exif\0\0` of JPEG also in
/// other formats.
fn exif_orientation(exif: Option<&[u8]>) -> Orientation {
    exif.and_then(|exif| Orientation::from_exif_chunk(exif.strip_prefix(b"Exif\0\0").unwrap_or(exif)))
        .unwrap_or(Orientation::NoTransforms)
}

/// Returns the checksum of PNG (annex D). It is computed bit by bit without a table, because the
/// chunk is short.
fn crc32(parts: [&[u8]; 2]) -> u32 {
    !parts.into_iter().flatten().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 })
    })
}

/// Returns the name and content of each chunk of a RIFF body. The content of the last chunk may be
/// incomplete.
fn webp_chunks(body: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let (name, tail) = rest.split_first_chunk::<4>()?;
        let (size, tail) = tail.split_first_chunk::<4>()?;
        let size = u32::from_le_bytes(*size) as usize;
        let content = &tail[..size.min(tail.len())];
        // Chunks are padded to an even length.
        rest = size.checked_add(size & 1).and_then(|size| tail.get(size..)).unwrap_or_default();
        Some((*name, content))
    })
}

/// Returns the orientation in the `EXIF` chunk. The decoder is not used for this, because it would
/// allocate any length that the file states.
fn webp_orientation(bytes: &[u8]) -> Orientation {
    let mut chunks = webp_chunks(bytes.get(12..).unwrap_or_default());
    exif_orientation(chunks.find(|(name, _)| name == b"EXIF").map(|(_, exif)| exif))
}

/// Checks the size of every coded frame, because the decoder allocates memory for a frame before it
/// compares the size with that of the canvas.
fn check_frames(bytes: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    for (name, content) in webp_chunks(bytes.get(12..).unwrap_or_default()) {
        check_frame(name, content, limits)?;
        if &name == b"ANMF" {
            // Sixteen bytes with position, size and duration precede the frame's own chunks.
            for (name, content) in webp_chunks(content.get(16..).unwrap_or_default()) {
                check_frame(name, content, limits)?;
            }
        }
    }
    Ok(())
}

/// Checks the size of one frame: 14 bits for each side, as in RFC 6386 section 9.1 (lossy) and RFC
/// 9649 section 3.4 (lossless).
fn check_frame(name: [u8; 4], content: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    let (width, height) = match (&name, content) {
        (b"VP8 ", [_, _, _, _, _, _, w0, w1, h0, h1, ..]) => (
            u32::from(u16::from_le_bytes([*w0, *w1]) & 0x3FFF),
            u32::from(u16::from_le_bytes([*h0, *h1]) & 0x3FFF),
        ),
        (b"VP8L", [_, a, b, c, d, ..]) => {
            let bits = u32::from_le_bytes([*a, *b, *c, *d]);
            ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        }
        _ => return Ok(()),
    };
    limits.check(width, height)
}

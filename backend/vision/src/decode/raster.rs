//! PNG, WebP, GIF and BMP through the `image` crate, brought to 8-bit RGB.

use super::{DecodeError, Format, Limits, corrupt, webp};
use crate::Frame;
use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, png::PngDecoder, webp::WebPDecoder};
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError};
use std::io::Cursor;

/// Working memory a decoder may take besides its output, in bytes.
const WORKING_MEMORY: u64 = 64 << 20;

pub(super) fn decode(
    format: Format,
    bytes: &[u8],
    limits: &Limits,
) -> Result<(Frame, Orientation), DecodeError> {
    let allowed = allocation_limits(limits);
    let failed = |error: ImageError| corrupt(format, error);
    let input = Cursor::new(bytes);
    match format {
        Format::Png => {
            check_png_header(bytes, limits)?;
            let decoder = PngDecoder::with_limits(input, allowed.clone()).map_err(failed)?;
            read(decoder, format, limits, allowed)
        }
        Format::Webp => {
            webp::check_frames(bytes, limits)?;
            let decoder = WebPDecoder::new(input).map_err(failed)?;
            let (frame, _) = read(decoder, format, limits, allowed)?;
            Ok((frame, webp::orientation(bytes)))
        }
        Format::Gif => read(GifDecoder::new(input).map_err(failed)?, format, limits, allowed),
        Format::Bmp => read(BmpDecoder::new(input).map_err(failed)?, format, limits, allowed),
        Format::Jpeg | Format::Avif | Format::Heic => {
            Err(super::unsupported(format.name(), "another decoder reads them"))
        }
    }
}

/// The decoder takes its limits with the first byte and would call a picture over them corrupt. The header chunk comes
/// first in every PNG, its width and height at the sixteenth byte.
fn check_png_header(bytes: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    match bytes.get(16..24) {
        Some(&[a, b, c, d, e, f, g, h]) => {
            limits.check(u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]))
        }
        _ => Ok(()),
    }
}

fn allocation_limits(limits: &Limits) -> image::Limits {
    let mut allowed = image::Limits::no_limits();
    allowed.max_image_width = Some(limits.max_side);
    allowed.max_image_height = Some(limits.max_side);
    // The widest output is 16-bit RGBA; a GIF or an animation holds a second canvas.
    allowed.max_alloc = Some(limits.max_pixels.saturating_mul(16).saturating_add(WORKING_MEMORY));
    allowed
}

fn read<D: ImageDecoder>(
    mut decoder: D,
    format: Format,
    limits: &Limits,
    allowed: image::Limits,
) -> Result<(Frame, Orientation), DecodeError> {
    let failed = |error: ImageError| corrupt(format, error);
    let (width, height) = decoder.dimensions();
    limits.check(width, height)?;
    decoder.set_limits(allowed).map_err(failed)?;
    let orientation = match format {
        Format::Png => decoder.orientation().unwrap_or(Orientation::NoTransforms),
        _ => Orientation::NoTransforms,
    };
    let pixels = rgb_on_white(DynamicImage::from_decoder(decoder).map_err(failed)?);
    let frame = Frame::new(width, height, pixels).ok_or_else(|| corrupt(format, "it has no pixels"))?;
    Ok((frame, orientation))
}

/// 8-bit RGB with alpha composed on white.
fn rgb_on_white(image: DynamicImage) -> Vec<u8> {
    match image {
        DynamicImage::ImageRgb8(image) => image.into_raw(),
        DynamicImage::ImageLuma8(image) => grey(image.as_raw(), |v| v),
        DynamicImage::ImageLumaA8(image) => grey_alpha(image.as_raw(), |v| v),
        DynamicImage::ImageRgba8(image) => rgba(image.as_raw(), |v| v),
        DynamicImage::ImageLuma16(image) => grey(image.as_raw(), to_8_bits),
        DynamicImage::ImageLumaA16(image) => grey_alpha(image.as_raw(), to_8_bits),
        DynamicImage::ImageRgb16(image) => image.as_raw().iter().map(|v| to_8_bits(*v)).collect(),
        DynamicImage::ImageRgba16(image) => rgba(image.as_raw(), to_8_bits),
        other => other.into_rgb8().into_raw(),
    }
}

/// Rounds, so that 0xFFFF is 255 and 0x8080 is 128.
fn to_8_bits(value: u16) -> u8 {
    ((u32::from(value) + 128) / 257) as u8
}

pub(super) fn on_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

fn grey<T: Copy>(samples: &[T], narrow: impl Fn(T) -> u8) -> Vec<u8> {
    let mut out = vec![0; samples.len() * 3];
    for (pixel, sample) in out.as_chunks_mut::<3>().0.iter_mut().zip(samples) {
        *pixel = [narrow(*sample); 3];
    }
    out
}

fn grey_alpha<T: Copy>(samples: &[T], narrow: impl Fn(T) -> u8) -> Vec<u8> {
    let (samples, _) = samples.as_chunks::<2>();
    let mut out = vec![0; samples.len() * 3];
    for (pixel, [v, a]) in out.as_chunks_mut::<3>().0.iter_mut().zip(samples) {
        *pixel = [on_white(narrow(*v), narrow(*a)); 3];
    }
    out
}

fn rgba<T: Copy>(samples: &[T], narrow: impl Fn(T) -> u8) -> Vec<u8> {
    let (samples, _) = samples.as_chunks::<4>();
    let mut out = vec![0; samples.len() * 3];
    for (pixel, [r, g, b, a]) in out.as_chunks_mut::<3>().0.iter_mut().zip(samples) {
        let alpha = narrow(*a);
        *pixel = [*r, *g, *b].map(|v| on_white(narrow(v), alpha));
    }
    out
}

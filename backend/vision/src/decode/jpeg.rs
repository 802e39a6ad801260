//! Decodes JPEG: baseline and progressive, grey, YCbCr, RGB, CMYK and YCCK. Four-channel files are
//! treated as inverted, as Photoshop writes them and as browsers and OpenCV read them.

use super::{DecodeError, Format, ImageHeader, Limits, corrupt, rotation_bytes_per_pixel, unsupported};
use crate::Frame;
use image::metadata::Orientation;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;

/// Minimum share of the rows of a truncated file that must be decoded.
const MIN_USABLE_SHARE: f64 = 0.1;

/// Maximum number of components of a frame.
const MAX_COMPONENTS: u8 = 4;

type Decoder<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

/// Opens a decoder and reads the header. Returns it with the size and the orientation.
fn open<'a>(bytes: &'a [u8], limits: &Limits) -> Result<(Decoder<'a>, (u32, u32), Orientation), DecodeError> {
    // The decoder would report some of these codings as damage. It would return only a small
    // version of a hierarchical image.
    if let Some(name) = unsupported_coding(bytes) {
        return Err(unsupported(name, "this program has no decoder for this coding"));
    }
    // `Limits::check` replaces the decoder's own limits, because it reports excessive sizes.
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(usize::MAX)
        .set_max_height(usize::MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(decode_error)?;
    let (width, height) = decoder.dimensions().ok_or_else(|| corrupt(Format::Jpeg, "it has no size"))?;
    let (width, height) = (width as u32, height as u32);
    limits.check(width, height)?;
    let orientation = decoder.exif().and_then(|exif| Orientation::from_exif_chunk(exif));
    let orientation = orientation.unwrap_or(Orientation::NoTransforms);
    Ok((decoder, (width, height), orientation))
}

pub(super) fn probe(bytes: &[u8], limits: &Limits) -> Result<ImageHeader, DecodeError> {
    let (_, (width, height), orientation) = open(bytes, limits)?;
    let decoding_bytes_per_pixel =
        (3 + coefficient_bytes_per_pixel(bytes)).max(rotation_bytes_per_pixel(orientation));
    Ok(ImageHeader { format: Format::Jpeg, width, height, decoding_bytes_per_pixel })
}

pub(super) fn decode(bytes: &[u8], limits: &Limits) -> Result<(Frame, Orientation), DecodeError> {
    let (mut decoder, (width, height), orientation) = open(bytes, limits)?;
    let mut data = vec![0; width as usize * height as usize * 3];
    decoder.decode_into(&mut data).map_err(decode_error)?;
    if !has_end_marker(bytes)
        && usable_rows(&data, width as usize * 3) < (f64::from(height) * MIN_USABLE_SHARE).ceil() as usize
    {
        return Err(corrupt(Format::Jpeg, "the end is missing, and too little of the image can be decoded"));
    }
    let frame = Frame::new(width, height, data).ok_or_else(|| corrupt(Format::Jpeg, "it has no pixels"))?;
    Ok((frame, orientation))
}

fn decode_error(error: DecodeErrors) -> DecodeError {
    match error {
        DecodeErrors::Unsupported(_) => unsupported(Format::Jpeg.name(), error),
        _ => corrupt(Format::Jpeg, error),
    }
}

/// Returns the name of the coding if the decoder does not support it, according to the first frame
/// header (ITU-T T.81, table B.1; T.87, annex C).
fn unsupported_coding(bytes: &[u8]) -> Option<&'static str> {
    let is_frame = |code| matches!(code, 0xC0..=0xCF | 0xDE | 0xF7) && !matches!(code, 0xC4 | 0xC8 | 0xCC);
    let (code, at) = segments(bytes).find(|(code, _)| is_frame(*code))?;
    match code {
        0xC0..=0xC2 if bytes.get(at + 4) == Some(&12) => Some("12-bit jpeg"),
        0xC3 => Some("lossless jpeg"),
        0xC5..=0xC7 | 0xDE => Some("hierarchical jpeg"),
        0xC9..=0xCF => Some("arithmetic-coded jpeg"),
        0xF7 => Some("jpeg-ls"),
        _ => None,
    }
}

/// Returns the bytes per pixel of the coefficients that the decoder keeps until the last scan: at
/// most two for each component, and zero if the first scan contains all components.
fn coefficient_bytes_per_pixel(bytes: &[u8]) -> u32 {
    let (mut components, mut is_sequential) = (MAX_COMPONENTS, false);
    for (code, at) in segments(bytes) {
        match code {
            0xC0..=0xC2 => {
                is_sequential = code != 0xC2;
                components = bytes.get(at + 9).map_or(MAX_COMPONENTS, |count| *count.min(&MAX_COMPONENTS));
            }
            0xDA if is_sequential && bytes.get(at + 4) == Some(&components) => return 0,
            _ => {}
        }
    }
    2 * u32::from(components)
}

/// Returns whether an end-of-image marker follows the first scan. Other data may follow the marker.
/// Coded pixels never contain these two bytes, and an embedded thumbnail is before the scan.
fn has_end_marker(bytes: &[u8]) -> bool {
    let scan = segments(bytes).find(|(code, _)| *code == 0xDA).map_or(bytes.len(), |(_, at)| at);
    bytes[scan..].windows(2).rev().any(|pair| pair == [0xFF, 0xD9])
}

/// Iterates over the segments up to and including the first scan: marker code and position.
fn segments(bytes: &[u8]) -> impl Iterator<Item = (u8, usize)> {
    let mut next = Some(2);
    std::iter::from_fn(move || {
        let mut at = next?;
        // Fill bytes may precede any marker.
        while bytes.get(at..at + 2)? == [0xFF, 0xFF] {
            at += 1;
        }
        let [0xFF, code, high, low] = *bytes.get(at..at + 4)? else { return None };
        let length = usize::from(u16::from_be_bytes([high, low]));
        next = (code != 0xDA).then_some(at + 2 + length);
        Some((code, at))
    })
}

/// Returns the number of rows above the area of one colour at the bottom. A decoder produces such
/// an area if data is missing.
fn usable_rows(data: &[u8], row: usize) -> usize {
    let Some(fill) = data.last_chunk::<3>() else { return 0 };
    let empty =
        data.rchunks_exact(row).take_while(|row| row.as_chunks::<3>().0.iter().all(|pixel| pixel == fill));
    data.len() / row - empty.count()
}

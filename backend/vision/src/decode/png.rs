//! Reads the orientation of a PNG. The orientation must be known before decoding, because the
//! memory for a rotation is reserved first. The decoder reads later chunks only after the pixels.

use image::metadata::Orientation;

const SIGNATURE_BYTES: usize = 8;

/// Maximum length of an `eXIf` chunk that is read. It bounds the time for the checksum. Exif from a
/// JPEG has at most 64 KiB.
const MAX_EXIF_BYTES: usize = 1 << 20;

/// Iterates over the chunks: name, content and checksum. Ends where the file ends.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8], u32)> {
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

/// Returns the orientation in the first `eXIf` chunk, which may stand anywhere between the header
/// and the end (PNG, third edition, section 11.3.3.6). A damaged or an overlong chunk is ignored.
/// Some writers also put JPEG's `Exif\0\0` before the TIFF header.
pub(super) fn orientation(bytes: &[u8]) -> Orientation {
    chunks(bytes)
        .take_while(|(name, ..)| name != b"IEND")
        .find(|(name, ..)| name == b"eXIf")
        .filter(|(_, exif, _)| exif.len() <= MAX_EXIF_BYTES)
        .filter(|(name, exif, checksum)| crc32([&name[..], exif]) == *checksum)
        .and_then(|(_, exif, _)| Orientation::from_exif_chunk(exif.strip_prefix(b"Exif\0\0").unwrap_or(exif)))
        .unwrap_or(Orientation::NoTransforms)
}

/// Returns the checksum of PNG (annex D). It is computed bit by bit, because the chunk is short.
fn crc32(parts: [&[u8]; 2]) -> u32 {
    !parts.into_iter().flatten().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 })
    })
}

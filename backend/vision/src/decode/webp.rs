//! Reads the orientation of a WebP container and checks the sizes of its frames, because the
//! decoder does not limit its allocations for them.

use super::{DecodeError, Limits};
use image::metadata::Orientation;

/// Iterates over the chunks of a RIFF body: name and content, cut at the end of the file.
fn chunks(body: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
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

/// Returns the orientation in the `EXIF` chunk. It is read here because the decoder would allocate
/// any stated length. Some writers also put JPEG's `Exif\0\0` before the TIFF header.
pub(super) fn orientation(bytes: &[u8]) -> Orientation {
    chunks(bytes.get(12..).unwrap_or_default())
        .find(|(name, _)| name == b"EXIF")
        .and_then(|(_, exif)| Orientation::from_exif_chunk(exif.strip_prefix(b"Exif\0\0").unwrap_or(exif)))
        .unwrap_or(Orientation::NoTransforms)
}

/// Checks the size of every coded frame. The decoder allocates memory for a frame before it
/// compares its size with the canvas.
pub(super) fn check_frames(bytes: &[u8], limits: &Limits) -> Result<(), DecodeError> {
    for (name, content) in chunks(bytes.get(12..).unwrap_or_default()) {
        check_frame(name, content, limits)?;
        if &name == b"ANMF" {
            // Sixteen bytes with position, size and duration precede the frame's own chunks.
            for (name, content) in chunks(content.get(16..).unwrap_or_default()) {
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

//! Detects formats by their first bytes, and reads size and orientation from the headers of TIFF,
//! JPEG XL and JPEG 2000 files.
use super::coded::{CodedImage, CodedPictures, Coding, Grid, Source};
use super::{DecodeError, Format, ImageHeader, Limits, corrupt};
use image::metadata::Orientation;

/// Maximum number of bytes per pixel in the decoder, in the pipe and in the result. The decoder of
/// JPEG 2000 has two buffers with four bytes for each coefficient. The decoder of JPEG XL has
/// several buffers with four bytes for each sample.
const TIFF_BYTES_PER_PIXEL: u32 = 24;
const JXL_AND_JP2_BYTES_PER_PIXEL: u32 = 40;
/// Maximum number of entries of a TIFF directory that are read.
const MAX_ENTRIES: usize = 1_000;
/// Maximum number of boxes that are read at each level of a file.
const MAX_BOXES: usize = 100;
/// Number of bytes at the start of a JPEG XL codestream that contain size and orientation.
const JXL_HEADER_BYTES: usize = 16;
/// Tags of TIFF 6.0.
const TAG_WIDTH: u16 = 256;
const TAG_HEIGHT: u16 = 257;
const TAG_ORIENTATION: u16 = 274;
/// Types of TIFF values: 16 and 32 bits.
const TYPE_SHORT: u16 = 3;
const TYPE_LONG: u16 = 4;

/// The content of a header.
struct Header {
    /// The stored size.
    size: (u32, u32),
    /// The rotation that must be applied to the decoded pixels.
    orientation: Orientation,
    decoded_size: (u32, u32),
}

impl Header {
    fn unrotated(size: (u32, u32)) -> Self {
        Self { size, orientation: Orientation::NoTransforms, decoded_size: size }
    }
}

pub(super) fn read<'a>(
    format: Format,
    bytes: &'a [u8],
    limits: &Limits,
) -> Result<CodedImage<'a>, DecodeError> {
    let (coding, header) = match format {
        Format::Tiff => (Coding::Tiff, read_tiff_header(bytes)),
        Format::Jxl => (Coding::Jxl, read_jxl_header(bytes)),
        _ => (Coding::Jp2, read_jp2_header(bytes)),
    };
    let header = header.ok_or_else(|| corrupt(format, "its header cannot be read"))?;
    let (width, height) = header.size;
    if width == 0 || height == 0 {
        return Err(corrupt(format, "it has no pixels"));
    }
    limits.check(width, height)?;
    let decoding_bytes_per_pixel =
        if format == Format::Tiff { TIFF_BYTES_PER_PIXEL } else { JXL_AND_JP2_BYTES_PER_PIXEL };
    let output = header.decoded_size;
    let grid = Grid { columns: 1, rows: 1, tile: output, output, allow_padding: false };
    Ok(CodedImage {
        header: ImageHeader { format, width, height, decoding_bytes_per_pixel },
        colour: CodedPictures { coding, colours: None, source: Source::File(bytes), grid },
        alpha: None,
        is_premultiplied: false,
        transforms: Vec::new(),
        orientation: header.orientation,
    })
}

/// Reads the first directory of a TIFF file (TIFF 6.0, section 2).
fn read_tiff_header(bytes: &[u8]) -> Option<Header> {
    let is_big_endian = bytes.starts_with(b"MM");
    let number = |at: usize, length: usize| -> Option<u32> {
        let part = bytes.get(at..at.checked_add(length)?)?;
        let add = |sum: u32, byte: &u8| sum << 8 | u32::from(*byte);
        Some(if is_big_endian { part.iter().fold(0, add) } else { part.iter().rev().fold(0, add) })
    };
    let start = number(4, 4)? as usize;
    let count = number(start, 2)? as usize;
    let mut header = Header::unrotated((0, 0));
    for at in (0..count.min(MAX_ENTRIES)).map_while(|entry| start.checked_add(2 + entry * 12)) {
        let (Some(tag), Some(kind)) = (number(at, 2), number(at + 2, 2)) else { break };
        let value = match u16::try_from(kind).ok()? {
            TYPE_SHORT => number(at + 8, 2)?,
            TYPE_LONG => number(at + 8, 4)?,
            _ => continue,
        };
        match u16::try_from(tag).ok()? {
            TAG_WIDTH => header.size.0 = value,
            TAG_HEIGHT => header.size.1 = value,
            TAG_ORIENTATION => {
                let orientation = u8::try_from(value).ok().and_then(Orientation::from_exif);
                header.orientation = orientation.unwrap_or(Orientation::NoTransforms);
            }
            _ => {}
        }
    }
    Some(Header { decoded_size: header.size, ..header })
}

/// Reads the header of a JPEG XL codestream (ISO/IEC 18181-1, annex D), which can be in a container
/// (ISO/IEC 18181-2). The decoder applies the orientation.
fn read_jxl_header(bytes: &[u8]) -> Option<Header> {
    let mut codestream = Vec::new();
    if bytes.starts_with(&[0xFF, 0x0A]) {
        codestream.extend(bytes.iter().take(JXL_HEADER_BYTES));
    }
    for (kind, body) in boxes(bytes).take(MAX_BOXES) {
        let part = match &kind {
            b"jxlc" => body,
            // The part follows its number.
            b"jxlp" => body.get(4..).unwrap_or_default(),
            _ => continue,
        };
        codestream.extend(part.iter().take(JXL_HEADER_BYTES.saturating_sub(codestream.len())));
    }
    let mut bits = BitReader { bytes: codestream.strip_prefix(&[0xFF, 0x0A])?, position: 0 };
    let is_small = bits.read(1)? == 1;
    let height = read_jxl_side(&mut bits, is_small)?;
    let width = match bits.read(3)? {
        0 => read_jxl_side(&mut bits, is_small)?,
        ratio => {
            let (across, down) = [(1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1)]
                .get(ratio as usize - 1)
                .copied()?;
            u32::try_from(u64::from(height) * across / down).ok()?
        }
    };
    let is_default = bits.read(1)? == 1;
    let orientation = if !is_default && bits.read(1)? == 1 { bits.read(3)? + 1 } else { 1 };
    let decoded_size = if orientation > 4 { (height, width) } else { (width, height) };
    Some(Header { size: (width, height), orientation: Orientation::NoTransforms, decoded_size })
}

fn read_jxl_side(bits: &mut BitReader<'_>, is_small: bool) -> Option<u32> {
    if is_small {
        return Some((bits.read(5)? + 1) * 8);
    }
    let length = [9, 13, 18, 30].get(bits.read(2)? as usize).copied()?;
    Some(bits.read(length)? + 1)
}

/// A reader of the bits of a codestream, the lowest bit of each byte first.
struct BitReader<'a> {
    bytes: &'a [u8],
    position: usize,
}

impl BitReader<'_> {
    /// Reads `count` bits, at most 30.
    fn read(&mut self, count: usize) -> Option<u32> {
        let mut value = 0;
        for bit in 0..count {
            let byte = self.bytes.get(self.position / 8)?;
            value |= u32::from(byte >> (self.position % 8) & 1) << bit;
            self.position += 1;
        }
        Some(value)
    }
}

/// Reads the size of a JPEG 2000 file (ISO/IEC 15444-1, annex I: the box `ihdr`) or codestream
/// (annex A: the marker segment SIZ).
fn read_jp2_header(bytes: &[u8]) -> Option<Header> {
    let number = |part: &[u8], at: usize| {
        part.get(at..at + 4).and_then(|part| part.try_into().ok()).map(u32::from_be_bytes)
    };
    if bytes.starts_with(JP2_CODESTREAM) {
        let [right, bottom, left, top] = [8, 12, 16, 20].map(|at| number(bytes, at));
        return Some(Header::unrotated((right?.checked_sub(left?)?, bottom?.checked_sub(top?)?)));
    }
    let (_, header) = boxes(bytes).take(MAX_BOXES).find(|(kind, _)| kind == b"jp2h")?;
    let (_, size) = boxes(header).take(MAX_BOXES).find(|(kind, _)| kind == b"ihdr")?;
    Some(Header::unrotated((number(size, 4)?, number(size, 0)?)))
}

/// The first markers of a JPEG 2000 codestream: SOC and SIZ.
const JP2_CODESTREAM: &[u8] = &[0xFF, 0x4F, 0xFF, 0x51];

/// Returns the type and body of each box of an ISO base media file or of the body of a box. Stops
/// at the first box that is invalid or incomplete.
pub(super) fn boxes(mut rest: &[u8]) -> impl Iterator<Item = ([u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (size, after) = rest.split_first_chunk::<4>()?;
        let (kind, body) = after.split_first_chunk::<4>()?;
        let (length, header) = match u32::from_be_bytes(*size) {
            0 => (rest.len(), 8),
            1 => {
                let (long, _) = body.split_first_chunk::<8>()?;
                (usize::try_from(u64::from_be_bytes(*long)).ok()?, 16)
            }
            short => (short as usize, 8),
        };
        let body = rest.get(header..length)?;
        let kind = *kind;
        rest = rest.get(length..)?;
        Some((kind, body))
    })
}

/// Sizes of all Windows and OS/2 bitmap headers. Text files can also start with "BM".
const BMP_HEADER_SIZES: [u32; 8] = [12, 16, 40, 52, 56, 64, 108, 124];

/// Brands of HEVC images and sequences, and of generic HEIF (ISO/IEC 23008-12).
const HEIF_BRANDS: [&[u8; 4]; 10] =
    [b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"];

impl Format {
    pub const ALL: [Self; 10] = {
        use Format::{Avif, Bmp, Gif, Heic, Jp2, Jpeg, Jxl, Png, Tiff, Webp};
        [Jpeg, Png, Webp, Gif, Bmp, Avif, Heic, Jxl, Tiff, Jp2]
    };

    /// Returns whether the format is decoded by ffmpeg and not by [`super::decode`].
    pub fn needs_ffmpeg(self) -> bool {
        match self {
            Self::Avif | Self::Heic | Self::Jxl | Self::Tiff | Self::Jp2 => true,
            Self::Jpeg | Self::Png | Self::Webp | Self::Gif | Self::Bmp => false,
        }
    }

    /// Detects the format from the content. Returns `None` for an unknown format.
    pub fn sniff(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(&[0xFF, 0xD8, 0xFF]) {
            Some(Self::Jpeg)
        } else if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
            Some(Self::Png)
        } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
            Some(Self::Gif)
        } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
            Some(Self::Webp)
        } else if is_bmp(bytes) {
            Some(Self::Bmp)
        } else if brands(bytes).any(|brand| brand == b"avif" || brand == b"avis") {
            Some(Self::Avif)
        } else if brands(bytes).any(|brand| HEIF_BRANDS.iter().any(|heif_brand| *heif_brand == brand)) {
            Some(Self::Heic)
        } else if bytes.starts_with(&[0xFF, 0x0A]) || bytes.starts_with(b"\0\0\0\x0cJXL \r\n\x87\n") {
            Some(Self::Jxl)
        } else if bytes.starts_with(b"II*\0") || bytes.starts_with(b"MM\0*") {
            Some(Self::Tiff)
        } else if bytes.starts_with(b"\0\0\0\x0cjP  \r\n\x87\n") || bytes.starts_with(JP2_CODESTREAM) {
            Some(Self::Jp2)
        } else {
            None
        }
    }

    /// Returns the lower-case name used in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Png => "png",
            Self::Webp => "webp",
            Self::Gif => "gif",
            Self::Bmp => "bmp",
            Self::Avif => "avif",
            Self::Heic => "heic",
            Self::Jxl => "jxl",
            Self::Tiff => "tiff",
            Self::Jp2 => "jp2",
        }
    }
}

fn is_bmp(bytes: &[u8]) -> bool {
    let header_size = bytes.get(14..18).and_then(|size| size.try_into().ok()).map(u32::from_le_bytes);
    bytes.starts_with(b"BM") && header_size.is_some_and(|size| BMP_HEADER_SIZES.contains(&size))
}

/// Returns the major and compatible brands of an ISO base media file (the box `ftyp`, ISO/IEC
/// 14496-12). For other files, the result is empty.
fn brands(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let length = match bytes {
        [a, b, c, d, b'f', b't', b'y', b'p', ..] => u32::from_be_bytes([*a, *b, *c, *d]) as usize,
        _ => 0,
    };
    let body = bytes.get(8..length.min(bytes.len())).unwrap_or_default();
    // The second word is the minor version, not a brand.
    body.chunks_exact(4).enumerate().filter(|(index, _)| *index != 1).map(|(_, brand)| brand)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn size(bytes: &[u8], format: Format) -> (u32, u32) {
        let header = read(format, bytes, &Limits::default()).unwrap().header;
        (header.width, header.height)
    }

    #[test]
    fn reads_jpeg_xl_image_size() {
        assert_eq!(size(b"\xff\x0a\x31\x07\x0c\x24\x01\x84", Format::Jxl), (300, 200));
        // A small image with 8 rows and the ratio 1:1.
        assert_eq!(size(&[0xFF, 0x0A, 0b0100_0001, 0], Format::Jxl), (8, 8));
    }

    #[test]
    fn reads_tiff_headers_in_both_byte_orders() {
        let mut little_endian = b"II*\0\x08\0\0\0\x04\0".to_vec();
        let mut big_endian = b"MM\0*\0\0\0\x08\0\x04".to_vec();
        for (tag, kind, value) in [(256_u16, 4_u16, 640_u16), (257, 3, 360), (274, 3, 6), (258, 9, 1)] {
            little_endian.extend([tag, kind].map(u16::to_le_bytes).concat());
            little_endian.extend([1, value.into()].map(u32::to_le_bytes).concat());
            big_endian.extend([tag, kind, 0, 1].map(u16::to_be_bytes).concat());
            // A 16-bit value is in the first two bytes.
            big_endian.extend(if kind == 3 { [value, 0] } else { [0, value] }.map(u16::to_be_bytes).concat());
        }
        for file in [little_endian, big_endian] {
            let image = read(Format::Tiff, &file, &Limits::default()).unwrap();
            assert_eq!((image.header.width, image.header.height), (640, 360));
            assert_eq!(image.orientation, Orientation::Rotate90);
            for end in 0..file.len() {
                let _ = read(Format::Tiff, &file[..end], &Limits::default());
            }
        }
    }

    #[test]
    fn reads_jpeg_2000_image_size() {
        let codestream = b"\xff\x4f\xff\x51\0\x2f\0\0\0\0\x01\x2c\0\0\0\xd0\0\0\0\0\0\0\0\x08";
        assert_eq!(size(codestream, Format::Jp2), (300, 200));
        let ihdr = b"\0\0\0\x16ihdr\0\0\0\xc8\0\0\x01\x2c\0\x03\x08\x07\0\0";
        let file = [b"\0\0\0\x0cjP  \r\n\x87\n\0\0\0\x1ejp2h", ihdr.as_slice()].concat();
        assert_eq!(size(&file, Format::Jp2), (300, 200));
        let limits = Limits { max_pixels: 300 * 200 - 1, ..Limits::default() };
        assert!(matches!(read(Format::Jp2, &file, &limits), Err(DecodeError::TooLarge { .. })));
    }
}

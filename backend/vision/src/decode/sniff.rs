//! Detects formats by their first bytes.

use super::Format;
use super::headers::JP2_CODESTREAM;

/// Sizes of all Windows and OS/2 bitmap headers. Without this check, a text file that starts with
/// "BM" would be mistaken for a bitmap.
const BMP_HEADER_SIZES: [u32; 8] = [12, 16, 40, 52, 56, 64, 108, 124];

/// Brands of HEVC images and sequences, and of generic HEIF (ISO/IEC 23008-12).
const HEIF: [&[u8; 4]; 10] =
    [b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"];

impl Format {
    pub const ALL: [Self; 10] = [
        Self::Jpeg,
        Self::Png,
        Self::Webp,
        Self::Gif,
        Self::Bmp,
        Self::Avif,
        Self::Heic,
        Self::Jxl,
        Self::Tiff,
        Self::Jp2,
    ];

    /// Returns whether ffmpeg decodes the format, instead of [`super::decode`].
    pub fn needs_ffmpeg(self) -> bool {
        match self {
            Self::Avif | Self::Heic | Self::Jxl | Self::Tiff | Self::Jp2 => true,
            Self::Jpeg | Self::Png | Self::Webp | Self::Gif | Self::Bmp => false,
        }
    }

    /// Detects the format from the content alone. Returns `None` if it is another one.
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
        } else if brands(bytes).any(|brand| HEIF.iter().any(|known| *known == brand)) {
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

    /// Returns the media type, `image/…`.
    pub fn mime(self) -> &'static str {
        match self {
            Self::Jpeg => "image/jpeg",
            Self::Png => "image/png",
            Self::Webp => "image/webp",
            Self::Gif => "image/gif",
            Self::Bmp => "image/bmp",
            Self::Avif => "image/avif",
            Self::Heic => "image/heic",
            Self::Jxl => "image/jxl",
            Self::Tiff => "image/tiff",
            Self::Jp2 => "image/jp2",
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
    let header = bytes.get(14..18).and_then(|size| size.try_into().ok()).map(u32::from_le_bytes);
    bytes.starts_with(b"BM") && header.is_some_and(|size| BMP_HEADER_SIZES.contains(&size))
}

/// Returns major and compatible brands of an ISO base media file (`ftyp` box, ISO/IEC 14496-12);
/// empty for other files.
fn brands(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let length = match bytes {
        [a, b, c, d, b'f', b't', b'y', b'p', ..] => u32::from_be_bytes([*a, *b, *c, *d]) as usize,
        _ => 0,
    };
    let body = bytes.get(8..length.min(bytes.len())).unwrap_or_default();
    // The second word is the minor version, not a brand.
    body.chunks_exact(4).enumerate().filter(|(at, _)| *at != 1).map(|(_, brand)| brand)
}

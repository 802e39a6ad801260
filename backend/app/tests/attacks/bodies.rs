//! Bodies and pictures that cost much and say nothing.
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use std::sync::LazyLock;

/// A flat grey picture of 50 megapixels: thousands of equal candidates for a detector that accepts every score.
pub(crate) fn grey() -> Vec<u8> {
    static GREY: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let (width, height) = (10_000, 5_000);
        let mut jpeg = Vec::new();
        let pixels = vec![128; width * height];
        let encoder = JpegEncoder::new_with_quality(&mut jpeg, 30);
        encoder.write_image(&pixels, width as u32, height as u32, ExtendedColorType::L8).unwrap();
        jpeg
    });
    GREY.clone()
}

/// The head of a PNG of 900 megapixels.
pub(crate) fn vast() -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    png.extend([30_000_u32.to_be_bytes(), 30_000_u32.to_be_bytes()].concat());
    png.extend(b"\x08\x02\0\0\0\0\0\0\0");
    png
}

/// A picture whose second half is missing.
pub(crate) fn truncated() -> Vec<u8> {
    let picture = testing::picture("ada.jpg");
    picture[..picture.len() / 2].to_vec()
}

/// Millions of small values and a NUL at the end, which no text column takes.
pub(crate) fn many_values(bytes: usize) -> Vec<u8> {
    [&b"{\"images\":["[..], &b"0,".repeat(bytes / 2), b"0],\"x\":\"\\u0000\"}"].concat()
}

/// Arrays in arrays.
pub(crate) fn deep(depth: usize) -> Vec<u8> {
    [&b"{\"images\":"[..], &b"[".repeat(depth), &b"]".repeat(depth), b"}"].concat()
}

/// A form of many parts.
pub(crate) fn many_parts(count: usize) -> Vec<u8> {
    let part = b"--b\r\ncontent-disposition: form-data; name=\"image\"\r\n\r\n0\r\n".repeat(count);
    [&part[..], b"--b--\r\n"].concat()
}

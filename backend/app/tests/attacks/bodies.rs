//! Creates bodies and images that are expensive to process and contain nothing useful.
use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use std::sync::LazyLock;

/// Returns a flat grey image of 50 megapixels. A detector that accepts every score finds thousands
/// of equal candidates in it.
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

/// Returns an image without its second half.
pub(crate) fn truncated() -> Vec<u8> {
    let picture = testing::picture("ada.jpg");
    picture[..picture.len() / 2].to_vec()
}

/// Returns JSON with millions of small values and a NUL at the end, which no text column accepts.
pub(crate) fn many_values(bytes: usize) -> Vec<u8> {
    [&b"{\"images\":["[..], &b"0,".repeat(bytes / 2), b"0],\"x\":\"\\u0000\"}"].concat()
}

pub(crate) fn deep(depth: usize) -> Vec<u8> {
    [&b"{\"images\":"[..], &b"[".repeat(depth), &b"]".repeat(depth), b"}"].concat()
}

pub(crate) fn many_parts(count: usize) -> Vec<u8> {
    let part = b"--b\r\ncontent-disposition: form-data; name=\"image\"\r\n\r\n0\r\n".repeat(count);
    [&part[..], b"--b--\r\n"].concat()
}

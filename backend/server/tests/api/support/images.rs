//! Creates images without a face, and files with one defect each. `testing::gallery` draws people.
use image::{ImageFormat, Rgb, RgbImage};
use std::io::Cursor;
pub(crate) use testing::drawing;

/// Returns an image without a face, as PNG.
pub(crate) fn png(width: u32, height: u32) -> Vec<u8> {
    let image = RgbImage::from_fn(width, height, |x, y| Rgb([(x * 3) as u8, (y * 5) as u8, 90]));
    let mut file = Cursor::new(Vec::new());
    image.write_to(&mut file, ImageFormat::Png).unwrap();
    file.into_inner()
}

/// Returns an image of noise, as PNG. Its file is about as large as its pixels.
pub(crate) fn noise(width: u32, height: u32) -> Vec<u8> {
    // A linear congruential generator (Knuth's MMIX). Its output cannot be compressed.
    let mut state = 1_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let image = RgbImage::from_fn(width, height, |_, _| Rgb([byte(), byte(), byte()]));
    let mut file = Cursor::new(Vec::new());
    image.write_to(&mut file, ImageFormat::Png).unwrap();
    file.into_inner()
}

/// Returns a GIF that declares 60,000 x 60,000 pixels.
pub(crate) fn enormous_gif() -> Vec<u8> {
    let mut file = b"GIF89a".to_vec();
    file.extend_from_slice(&60_000_u16.to_le_bytes());
    file.extend_from_slice(&60_000_u16.to_le_bytes());
    file.extend_from_slice(&[0, 0, 0]);
    // One frame of that size, then the trailer.
    file.extend_from_slice(&[0x2c, 0, 0, 0, 0]);
    file.extend_from_slice(&60_000_u16.to_le_bytes());
    file.extend_from_slice(&60_000_u16.to_le_bytes());
    file.extend_from_slice(&[0, 2, 1, 0, 0, 0x3b]);
    file
}

/// Returns the first bytes of an AVIF file.
pub(crate) fn avif() -> Vec<u8> {
    let mut file = vec![0, 0, 0, 0x1c];
    file.extend_from_slice(b"ftypavif\0\0\0\0avifmif1miaf");
    file.resize(512, 0);
    file
}

/// Returns a whole TIFF file.
pub(crate) fn tiff() -> Vec<u8> {
    testing::still::tiff((64, 64), 1, &|x, y| [x as u8, y as u8, 0, 255])
}

/// Returns a JPEG with the frame header of arithmetic coding. The decoder rejects the file at this
/// header.
pub(crate) fn arithmetic_jpeg(jpeg: &[u8]) -> Vec<u8> {
    let mut file = jpeg.to_vec();
    let index = file.windows(2).position(|pair| matches!(pair, [0xff, 0xc0 | 0xc2])).unwrap();
    file[index + 1] = 0xc9;
    file
}

/// Returns the first tenth of a file. The header is complete, but most of the image is missing.
pub(crate) fn truncate_file(file: &[u8]) -> Vec<u8> {
    file[..file.len() / 10].to_vec()
}

//! Encodes frames: JPEG for viewing, PNG for exact pixels.

use crate::Frame;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::{ExtendedColorType, ImageEncoder};

/// Encodes a JPEG. `quality` is 1..=100; other values are clamped.
pub fn jpeg(frame: &Frame, quality: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(frame.data().len() / 8);
    JpegEncoder::new_with_quality(&mut out, quality.clamp(1, 100))
        .write_image(frame.data(), frame.width(), frame.height(), ExtendedColorType::Rgb8)
        .expect("writing to a vector cannot fail, and a decoded frame's sides are within JPEG's 65,535");
    out
}

/// Encodes a PNG, lossless.
pub fn png(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::with_capacity(frame.data().len() / 2);
    PngEncoder::new(&mut out)
        .write_image(frame.data(), frame.width(), frame.height(), ExtendedColorType::Rgb8)
        .expect("writing to a vector cannot fail, and the frame's length matches its size");
    out
}

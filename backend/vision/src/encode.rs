//! Encodes frames: JPEG for viewing, PNG for exact pixels.

use crate::Frame;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

/// Minimum quality at which chroma is not subsampled.
const FULL_CHROMA_QUALITY: u8 = 90;

/// Encodes a JPEG. `quality` is 1..=100; other values are clamped. Below 90, chroma is subsampled
/// (4:2:0), as in most encoders by default. From 90, it has the full resolution (4:4:4).
pub fn jpeg(frame: &Frame, quality: u8) -> Vec<u8> {
    let mut out = Vec::with_capacity(frame.data().len() / 8);
    let quality = quality.clamp(1, 100);
    let mut encoder = Encoder::new(&mut out, quality);
    let half = SamplingFactor::R_4_2_0;
    encoder.set_sampling_factor(if quality < FULL_CHROMA_QUALITY { half } else { SamplingFactor::R_4_4_4 });
    let side = |length: u32| length.try_into().expect("a decoded frame's sides are within JPEG's 65,535");
    encoder
        .encode(frame.data(), side(frame.width()), side(frame.height()), ColorType::Rgb)
        .expect("writing to a vector cannot fail, and the frame's length matches its size");
    out
}

pub fn png(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::with_capacity(frame.data().len() / 2);
    // An adaptive filter takes a quarter more time, and saves only 1 % of the bytes.
    PngEncoder::new_with_quality(&mut out, CompressionType::Fast, FilterType::Paeth)
        .write_image(frame.data(), frame.width(), frame.height(), ExtendedColorType::Rgb8)
        .expect("writing to a vector cannot fail, and the frame's length matches its size");
    out
}

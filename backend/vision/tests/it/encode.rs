//! Tests that encoded images can be decoded and are similar to the originals.

use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageFormat};
use vision::{Frame, Limits, encode};

/// Returns a frame with smooth colours and a diagonal edge.
fn smooth(width: u32, height: u32) -> Frame {
    let pixel = |x: u32, y: u32| {
        let light = if x > y { 70 } else { 0 };
        [light + x / 8, light + 130 - y / 2, light + 80].map(|v| v as u8)
    };
    Frame::new(width, height, (0..width * height).flat_map(|i| pixel(i % width, i / width)).collect())
        .unwrap()
}

/// Returns a frame of noise with full contrast.
fn noise(width: u32, height: u32) -> Frame {
    let mut state = 7u32;
    let values = (0..width * height * 3).map(|_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        if state >> 30 == 0 { (state >> 16) as u8 } else { ((state >> 29) as u8 & 1) * 255 }
    });
    Frame::new(width, height, values.collect()).unwrap()
}

/// Encodes with the encoder of the `image` crate, which does not subsample chroma.
fn reference_jpeg(frame: &Frame, quality: u8) -> Vec<u8> {
    let mut out = Vec::new();
    JpegEncoder::new_with_quality(&mut out, quality)
        .encode(frame.data(), frame.width(), frame.height(), ExtendedColorType::Rgb8)
        .unwrap();
    out
}

/// Decodes a JPEG, and asserts that the result equals that of the crate `image` except for
/// rounding.
fn decode_jpeg(bytes: &[u8]) -> Frame {
    let ours = vision::decode(bytes, &Limits::default()).unwrap().frame;
    let theirs = image::load_from_memory_with_format(bytes, ImageFormat::Jpeg).unwrap().into_rgb8();
    assert_eq!((ours.width(), ours.height()), theirs.dimensions());
    assert!(ours.data().iter().zip(theirs.as_raw()).all(|(a, b)| a.abs_diff(*b) <= 3));
    ours
}

/// Returns the peak signal-to-noise ratio in decibels.
fn psnr(a: &Frame, b: &Frame) -> f64 {
    let squares: u64 = a.data().iter().zip(b.data()).map(|(a, b)| u64::from(a.abs_diff(*b)).pow(2)).sum();
    10.0 * (255.0f64.powi(2) * a.data().len() as f64 / (squares as f64).max(1.0)).log10()
}

#[test]
fn jpeg_of_every_size_resembles_original() {
    for (width, height) in
        [(1, 1), (1, 40), (7, 9), (8, 8), (16, 16), (17, 33), (64, 31), (320, 213), (1030, 40)]
    {
        let frame = smooth(width, height);
        for quality in [30, 80, 89, 90, 100] {
            let actual = psnr(&frame, &decode_jpeg(&encode::jpeg(&frame, quality)));
            let reference = psnr(&frame, &decode_jpeg(&reference_jpeg(&frame, quality)));
            // Above 45 dB, most of the noise is caused by rounding.
            assert!(
                actual > reference.min(45.0) - 2.0,
                "{width}x{height} at quality {quality}: {actual}, {reference}"
            );
        }
    }
}

#[test]
fn jpeg_of_noise_can_be_decoded() {
    let frame = noise(211, 97);
    let decibels = psnr(&frame, &decode_jpeg(&encode::jpeg(&frame, 100)));
    assert!(decibels > 35.0, "{decibels}");
    decode_jpeg(&encode::jpeg(&frame, 1));
    for level in [0, 255] {
        let flat = Frame::filled(40, 24, [level; 3]);
        assert_eq!(decode_jpeg(&encode::jpeg(&flat, 100)), flat);
    }
}

#[test]
fn higher_jpeg_quality_increases_size_and_psnr() {
    let frame = smooth(300, 200);
    let (mut previous_bytes, mut previous_decibels) = (0, 0.0);
    for quality in [10, 40, 70, 85, 95] {
        let encoded = encode::jpeg(&frame, quality);
        let decibels = psnr(&frame, &decode_jpeg(&encoded));
        assert!(encoded.len() > previous_bytes && decibels > previous_decibels, "{quality}: {decibels}");
        (previous_bytes, previous_decibels) = (encoded.len(), decibels);
    }
    assert_eq!(encode::jpeg(&frame, 0), encode::jpeg(&frame, 1));
    assert_eq!(encode::jpeg(&frame, 200), encode::jpeg(&frame, 100));
}

#[test]
fn png_encoding_keeps_pixels() {
    for frame in [smooth(112, 112), noise(61, 40), Frame::filled(1, 1, [9, 8, 7])] {
        let bytes = encode::png(&frame);
        assert_eq!(vision::decode(&bytes, &Limits::default()).unwrap().frame, frame);
    }
}

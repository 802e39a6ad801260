//! Tests the predictions of `probe`, which reads only the header of a file.

use crate::{fixture, fixtures};
use image::{ColorType, ImageEncoder};
use vision::{DecodeError, Format, Frame, Limits, decode, encode, probe};

#[test]
fn probe_predicts_decoded_image() {
    let all = fixtures();
    assert!(all.len() > 25, "{}", all.len());
    for (name, bytes) in all {
        let header = probe(&bytes, &Limits::default()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let decoded = decode(&bytes, &Limits::default()).unwrap();
        assert_eq!(header.format, decoded.format, "{name}");
        assert_eq!((header.width, header.height), (decoded.frame.width(), decoded.frame.height()), "{name}");
        assert_eq!(header.decoded_bytes(), decoded.frame.data().len() as u64, "{name}");
        assert!(header.decoding_bytes() >= header.decoded_bytes(), "{name}");
    }
}

#[test]
fn decode_fails_with_same_error_as_probe() {
    let tight = [
        Limits { max_pixels: 48 * 32 - 1, ..Limits::default() },
        Limits { max_side: 47, ..Limits::default() },
        Limits { max_bytes: 10, ..Limits::default() },
    ];
    for (name, bytes) in fixtures() {
        for limits in &tight {
            let error = probe(&bytes, limits).unwrap_err();
            assert_eq!(error, decode(&bytes, limits).unwrap_err(), "{name}");
            let code = if limits.max_bytes == 10 { "too_many_bytes" } else { "image_too_large" };
            assert_eq!(error.reason().code(), code, "{name}");
        }
        for length in (0..bytes.len()).step_by(7) {
            let truncated = &bytes[..length];
            if let Err(error) = probe(truncated, &Limits::default()) {
                assert_eq!(error, decode(truncated, &Limits::default()).unwrap_err(), "{name} at {length}");
            }
        }
    }
    assert_eq!(probe(b"<html>", &Limits::default()), Err(DecodeError::NotAnImage));
}

/// Returns the number of bytes per pixel that decoding allocates.
fn bytes_per_pixel(bytes: &[u8]) -> u64 {
    let header = probe(bytes, &Limits::default()).unwrap();
    header.decoding_bytes() / (header.decoded_bytes() / 3)
}

fn png(color: ColorType) -> Vec<u8> {
    let mut file = Vec::new();
    let pixels = vec![90; 64 * 32 * usize::from(color.bytes_per_pixel())];
    let encoder = image::codecs::png::PngEncoder::new(&mut file);
    encoder.write_image(&pixels, 64, 32, color.into()).unwrap();
    file
}

#[test]
fn predicted_bytes_include_decoder_buffers() {
    // The output of the decoder is used without conversion.
    assert_eq!(bytes_per_pixel(&encode::jpeg(&Frame::filled(64, 32, [9; 3]), 90)), 3);
    assert_eq!(bytes_per_pixel(&png(ColorType::Rgb8)), 3);
    // The output of the decoder is converted to another image.
    assert_eq!(bytes_per_pixel(&png(ColorType::Rgba8)), 7);
    assert_eq!(bytes_per_pixel(&png(ColorType::Rgba16)), 11);
    assert_eq!(bytes_per_pixel(&png(ColorType::L8)), 4);
    // The decoder of a progressive file keeps the coefficients of three components.
    assert_eq!(bytes_per_pixel(&fixture("progressive.jpg")), 9);
    assert_eq!(bytes_per_pixel(&fixture("grey.jpg")), 3);
    let mut rotated = fixture("baseline_444.jpg");
    let exif = b"\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    rotated.splice(2..2, exif.iter().copied());
    assert_eq!(decode(&rotated, &Limits::default()).unwrap().frame.width(), 32, "the image is rotated");
    assert_eq!(bytes_per_pixel(&rotated), 6);
    assert!(bytes_per_pixel(&fixture("animated.webp")) > bytes_per_pixel(&fixture("lossless.webp")));
    assert_eq!(probe(&fixture("animated.gif"), &Limits::default()).unwrap().format, Format::Gif);
}

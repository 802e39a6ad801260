//! Tests that decoding allocates no more memory than `probe` predicts. The server's memory limit
//! depends on this prediction. `dhat` counts heap bytes. Only one `dhat` profiler can run in a
//! process, so this is a single test.
#![allow(clippy::unwrap_used)]

use image::ColorType::{L8, L16, La8, La16, Rgb8, Rgb16, Rgba8, Rgba16};
use image::ImageEncoder;
use image::codecs::{bmp::BmpEncoder, png::PngEncoder};
use std::path::Path;
use vision::{Frame, Limits, decode, encode, probe};

#[global_allocator]
static HEAP: dhat::Alloc = dhat::Alloc;

/// Width and height of all test images.
const SIZE: (u32, u32) = (1600, 1200);
/// Maximum number of bytes of a decoder that are not predicted, such as buffers of a few rows.
const FIXED_BYTES: u64 = 2 << 20;

fn test_files() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/large");
    let mut all: Vec<(String, Vec<u8>)> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap()))
        .collect();
    let (width, height) = SIZE;
    for colour in [L8, La8, Rgb8, Rgba8, L16, La16, Rgb16, Rgba16] {
        let pixels: Vec<u8> =
            (0..u32::from(colour.bytes_per_pixel()) * width * height).map(|n| (n / 7) as u8).collect();
        let mut file = Vec::new();
        PngEncoder::new(&mut file).write_image(&pixels, width, height, colour.into()).unwrap();
        all.push((format!("{colour:?}.png"), file));
        if matches!(colour, L8 | Rgb8 | Rgba8) {
            let mut file = Vec::new();
            BmpEncoder::new(&mut file).write_image(&pixels, width, height, colour.into()).unwrap();
            all.push((format!("{colour:?}.bmp"), file));
        }
    }
    all.push(("baseline.jpg".into(), encode::jpeg(&Frame::filled(width, height, [90, 120, 60]), 90)));
    all
}

#[test]
fn decoding_memory_stays_within_probe_estimate() {
    let all = test_files();
    assert!(all.len() >= 20, "{}", all.len());
    for (name, bytes) in all {
        let header = probe(&bytes, &Limits::default()).unwrap();
        assert_eq!((header.width, header.height), SIZE, "{name}");
        let profiler = dhat::Profiler::builder().testing().build();
        let decoded = decode(&bytes, &Limits::default()).unwrap();
        let heap = dhat::HeapStats::get();
        drop(profiler);
        let pixels = u64::from(SIZE.0) * u64::from(SIZE.1);
        let (peak, predicted) = (heap.max_bytes as u64, header.decoding_bytes());
        let per_pixel = peak as f64 / pixels as f64;
        println!("{name}: {per_pixel:.2} bytes per pixel, {} predicted", predicted / pixels);
        assert!(peak <= predicted + FIXED_BYTES, "{name}: {peak} bytes, but {predicted} predicted");
        assert_eq!(decoded.frame.data().len() as u64, header.decoded_bytes(), "{name}");
        let remaining = heap.curr_bytes as u64;
        assert!(remaining <= header.decoded_bytes() + 1024, "{name}: {remaining} bytes remain allocated");
    }
}

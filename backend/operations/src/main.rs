//! Runs one operation on images COUNT times, so that `scripts/check-instructions` can count its CPU
//! instructions: `facecrawl-operations NAME COUNT`. Without arguments, prints the names of the
//! operations.
//!
//! The inputs are generated, so they are the same in every run. Images have 640x480 pixels. This is
//! a separate crate with few dependencies, so that its release build is short.

use anyhow::Context;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder};
use std::hint::black_box;
use vision::{Detection, Frame, Letterbox, Limits, PerceptualHashes, Rect, crop, encode};

const SIZE: (u32, u32) = (640, 480);

type Operation = Box<dyn Fn()>;
/// A name, and a function that prepares the input and returns the operation.
type Benchmark = (&'static str, fn() -> Operation);

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let benchmarks = benchmarks();
    let Some(name) = arguments.next() else {
        benchmarks.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let count: usize = arguments.next().context("the number of runs is missing")?.parse()?;
    let (_, prepare) = benchmarks.iter().find(|(label, _)| *label == name).context("unknown operation")?;
    let operation = prepare();
    (0..count).for_each(|_| operation());
    Ok(())
}

fn benchmarks() -> [Benchmark; 10] {
    [
        ("decode_jpeg", || decode_operation(encode::jpeg(&frame(), 85))),
        ("decode_progressive_jpeg", || decode_operation(progressive_jpeg())),
        ("decode_png", || decode_operation(encode::png(&frame()))),
        ("decode_transparent_png", || decode_operation(transparent_image(false))),
        ("decode_webp", || decode_operation(transparent_image(true))),
        ("canvas", || {
            let frame = frame();
            operation(move || Letterbox::fit(SIZE, (256, 256)).draw(&frame))
        }),
        ("align", || {
            let (frame, landmarks) = (frame(), detections(1)[0].landmarks);
            operation(move || vision::norm_crop(&frame, &landmarks, 112))
        }),
        ("hash", || {
            let frame = frame();
            operation(move || PerceptualHashes::of(&frame))
        }),
        ("nms", || {
            let detections = detections(2000);
            operation(move || vision::nms(detections.clone(), 0.4))
        }),
        ("encode", || {
            let frame = frame();
            operation(move || encode::jpeg(&crop::thumbnail(&frame, 320), 80))
        }),
    ]
}

fn operation<T: 'static>(work: impl Fn() -> T + 'static) -> Operation {
    Box::new(move || {
        black_box(work());
    })
}

fn decode_operation(file: Vec<u8>) -> Operation {
    operation(move || vision::decode(&file, &Limits::default()).expect("it is an image"))
}

/// Returns RGB bytes: a gradient with a disc and squares, plus random grey noise from 0 to 6.
fn pixels() -> Vec<u8> {
    let mut random = Random(1);
    let mut pixels = Vec::new();
    for (y, x) in (0..SIZE.1).flat_map(|y| (0..SIZE.0).map(move |x| (y, x))) {
        let disc = (x.abs_diff(400).pow(2) + y.abs_diff(240).pow(2)) < 150_u32.pow(2);
        let square = x < 200 && (x / 20 + y / 20).is_multiple_of(2);
        let colour =
            if disc { [210, 160, 130] } else { [x / 4 + 20, y / 4 + 60, 90 + 80 * u32::from(square)] };
        let noise = random.below(7);
        pixels.extend(colour.map(|v| (v + noise) as u8));
    }
    pixels
}

fn frame() -> Frame {
    Frame::new(SIZE.0, SIZE.1, pixels()).expect("three bytes for each pixel")
}

fn progressive_jpeg() -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = jpeg_encoder::Encoder::new(&mut file, 85);
    encoder.set_progressive(true);
    encoder
        .encode(&pixels(), SIZE.0 as u16, SIZE.1 as u16, jpeg_encoder::ColorType::Rgb)
        .expect("memory can be written to");
    file
}

/// Returns an image whose left third is transparent and whose middle third is half transparent, as
/// PNG or lossless WebP.
fn transparent_image(is_webp: bool) -> Vec<u8> {
    let alpha = |index: usize| [0, 128, 255][index % SIZE.0 as usize * 3 / SIZE.0 as usize];
    let rgba: Vec<u8> = (pixels().as_chunks::<3>().0.iter().enumerate())
        .flat_map(|(index, [r, g, b])| [*r, *g, *b, alpha(index)])
        .collect();
    let mut file = Vec::new();
    let colours = ExtendedColorType::Rgba8;
    let result = if is_webp {
        WebPEncoder::new_lossless(&mut file).write_image(&rgba, SIZE.0, SIZE.1, colours)
    } else {
        image::codecs::png::PngEncoder::new(&mut file).write_image(&rgba, SIZE.0, SIZE.1, colours)
    };
    result.expect("memory can be written to");
    file
}

/// Returns overlapping boxes at random positions, with landmarks at the usual places of a face.
fn detections(count: usize) -> Vec<Detection> {
    let mut random = Random(2);
    (0..count)
        .map(|_| {
            let (x, y) = (random.below(400) as f32, random.below(300) as f32);
            let bbox = Rect { x, y, width: 120.0, height: 150.0 };
            let mut landmarks = vision::ARCFACE_TEMPLATE;
            for point in &mut landmarks {
                (point.x, point.y) = (x + point.x * 1.1, y + point.y * 1.2);
            }
            Detection { bbox, landmarks, det_score: random.below(1000) as f32 / 1000.0 }
        })
        .collect()
}

/// A linear congruential generator (constants of Numerical Recipes).
struct Random(u32);

impl Random {
    /// Returns a number from 0 to `limit` - 1. `limit` is at most 65,536.
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((self.0 >> 16) * limit) >> 16
    }
}

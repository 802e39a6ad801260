//! Measures how many altered copies of images are recognised by the near-duplicate rule, and how
//! many by the look-ups that find candidates.
//!
//! `cargo run --release -p facecrawl-vision --example near [FOLDER]`. Without a folder, the program
//! uses the synthetic images of the tests.
#![allow(clippy::unwrap_used)]
use vision::{Frame, Limits, PerceptualHashes, Rect, crop, decode, encode};

/// Maximum distance of the DCT hash at which its bands find every image.
const BY_P: u32 = 11;

type Edit = (&'static str, fn(&Frame) -> Frame);

fn stored(frame: &Frame, quality: u8) -> Frame {
    decode(&encode::jpeg(frame, quality), &Limits::default()).unwrap().frame
}

/// Draws a mark in the lower right corner. Its width is a number of hundredths of the image's
/// width; its height is half that share of the image's height.
fn marked(frame: &Frame, hundredths: u32, value: u8) -> Frame {
    let mut marked = frame.clone();
    let (width, height) = (frame.width() * hundredths / 100, frame.height() * hundredths / 200);
    let left = (frame.width() - width) as usize * 3;
    let lines = marked.data_mut().chunks_exact_mut(frame.width() as usize * 3).rev().take(height as usize);
    lines.for_each(|line| line[left..].fill(value));
    marked
}

/// Removes a share of each side: left, top, right, bottom.
fn cropped(frame: &Frame, [left, top, right, bottom]: [f32; 4]) -> Frame {
    let (width, height) = (frame.width() as f32, frame.height() as f32);
    let rest = Rect {
        x: left * width,
        y: top * height,
        width: (1.0 - left - right) * width,
        height: (1.0 - top - bottom) * height,
    };
    crop::face_crop(frame, &rest, 0.0)
}

const EDITS: [Edit; 17] = [
    ("JPEG quality 75", |f| stored(f, 75)),
    ("JPEG quality 30", |f| stored(f, 30)),
    ("JPEG quality 10", |f| stored(f, 10)),
    ("half the size", |f| crop::thumbnail(f, f.width().max(f.height()) / 2)),
    ("longer side 160", |f| crop::thumbnail(f, 160)),
    ("white mark, 15 % wide", |f| marked(f, 15, 255)),
    ("white mark, 25 % wide", |f| marked(f, 25, 255)),
    ("white mark, 35 % wide", |f| marked(f, 35, 255)),
    ("black mark, 15 % wide", |f| marked(f, 15, 0)),
    ("black mark, 25 % wide", |f| marked(f, 25, 0)),
    ("black mark, 35 % wide", |f| marked(f, 35, 0)),
    ("white mark, 25 % wide, JPEG quality 30", |f| stored(&marked(f, 25, 255), 30)),
    ("cropped 2 % evenly", |f| cropped(f, [0.01; 4])),
    ("cropped 5 % evenly", |f| cropped(f, [0.025; 4])),
    ("cropped 5 % at the right", |f| cropped(f, [0.0, 0.0, 0.05, 0.0])),
    ("cropped 5 % at the left and 5 % at the top", |f| cropped(f, [0.05, 0.05, 0.0, 0.0])),
    ("cropped 5 % evenly, white mark, JPEG quality 30", |f| {
        stored(&marked(&cropped(f, [0.025; 4]), 25, 255), 30)
    }),
];

fn files() -> Vec<Vec<u8>> {
    match std::env::args().nth(1) {
        Some(folder) => {
            let mut paths = testing::files_below(std::path::Path::new(&folder));
            paths.sort();
            paths.iter().map(|path| std::fs::read(path).unwrap()).collect()
        }
        None => testing::gallery::names().map(testing::picture).collect(),
    }
}

fn main() {
    // One image at a time, because the pixels of a folder of photographs do not fit into memory
    // together.
    let (mut pictures, mut table) = (0, [[0_u32; 3]; EDITS.len()]);
    let mut originals = Vec::new();
    for file in files() {
        let Ok(decoded) = decode(&file, &Limits::default()) else { continue };
        pictures += 1;
        let original = PerceptualHashes::of(&decoded.frame);
        originals.push(original);
        for ((_, edit), [near, before, now]) in EDITS.iter().zip(&mut table) {
            let copy = PerceptualHashes::of(&edit(&decoded.frame));
            let (p, d, _) = original.distance(&copy);
            let is_near = original.is_near(&copy);
            *near += u32::from(is_near);
            *before += u32::from(is_near && p <= BY_P);
            *now += u32::from(is_near && (p <= BY_P || (d <= 4 && p <= 24)));
        }
    }
    println!(
        "{pictures} pictures\n| copy | near by the rule | found by bands of p | found by bands of p and d |\n|---|---|---|---|"
    );
    for ((name, _), [near, before, now]) in EDITS.iter().zip(table) {
        println!("| {name} | {near} | {before} | {now} |");
    }
    let pairs =
        originals.iter().enumerate().flat_map(|(at, a)| originals[at + 1..].iter().map(move |b| (a, b)));
    let (all, taken) = pairs.fold((0, 0), |(all, taken), (a, b)| (all + 1, taken + u32::from(a.is_near(b))));
    println!("\n{taken} of {all} pairs of different files are near");
}

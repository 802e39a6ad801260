//! Provides drawn images with fixed contents, by name, and large images with small faces made of
//! them. Tests use them as photographs; [`crate::people`] draws them.
use crate::people::{Head, draw, jpeg};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use vision::{Frame, crop};

/// Person number, for [`Head::person`].
pub const ADA: u32 = 0;
pub const BEN: u32 = 1;
pub const CORA: u32 = 2;
pub const DAN: u32 = 3;
pub const EVE: u32 = 4;
pub const FINN: u32 = 5;

/// An image of one person: its name, the person, width and height in pixels, the centre of the head
/// as fractions of both, the height from chin to crown in pixels, and the turn of the head.
type Portrait = (&'static str, u32, (u32, u32), (f32, f32), f32, f32);

/// Images with one face each. No two are near-duplicates by perceptual hash.
const PORTRAITS: [Portrait; 17] = [
    ("ada.jpg", ADA, (720, 900), (0.5, 0.40), 380.0, 0.0),
    ("ada_2.jpg", ADA, (640, 640), (0.42, 0.45), 300.0, 0.3),
    ("ada_3.jpg", ADA, (900, 700), (0.6, 0.42), 330.0, -0.3),
    ("ada_4.jpg", ADA, (500, 700), (0.45, 0.38), 260.0, 0.15),
    ("ada_small.jpg", ADA, (320, 240), (0.48, 0.48), 160.0, -0.1),
    ("ada_wide.jpg", ADA, (427, 240), (0.55, 0.45), 88.0, 0.1),
    ("ben.jpg", BEN, (640, 960), (0.52, 0.36), 340.0, 0.0),
    ("ben_2.jpg", BEN, (800, 600), (0.38, 0.48), 300.0, 0.3),
    ("cora.jpg", CORA, (250, 250), (0.5, 0.48), 140.0, 0.0),
    ("cora_2.jpg", CORA, (250, 250), (0.42, 0.45), 150.0, -0.2),
    ("dan.jpg", DAN, (560, 720), (0.5, 0.42), 300.0, -0.2),
    ("dan_2.jpg", DAN, (640, 480), (0.6, 0.46), 240.0, 0.2),
    ("dan_3.jpg", DAN, (480, 480), (0.45, 0.44), 220.0, 0.0),
    ("eve.jpg", EVE, (400, 500), (0.5, 0.42), 220.0, 0.0),
    ("finn.jpg", FINN, (500, 500), (0.55, 0.45), 240.0, 0.1),
    // The functions below rotate this portrait.
    ("turned_0.jpg", DAN, (325, 402), (0.5, 0.45), 190.0, 0.0),
    ("blur.jpg", BEN, (500, 500), (0.5, 0.48), 320.0, 0.0),
];

/// Returns the file of a drawn image. The same name always returns the same bytes. Panics if no
/// image has this name.
pub fn drawing(name: &str) -> Vec<u8> {
    static FILES: Mutex<Option<HashMap<String, Vec<u8>>>> = Mutex::new(None);
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    files.get_or_insert_default().entry(name.to_owned()).or_insert_with(|| file(name)).clone()
}

pub fn names() -> impl Iterator<Item = &'static str> {
    PORTRAITS.iter().map(|portrait| portrait.0).chain(DRAWINGS.iter().map(|portrait| portrait.0))
}

/// Name of an image, and the function that draws its file.
type NamedDrawing = (&'static str, fn() -> Vec<u8>);

/// The images that are not portraits.
const DRAWINGS: [NamedDrawing; 11] = [
    ("two_people.jpg", || draw_people((1000, 600), 30, &pair((1000, 600), [EVE, FINN], 220.0))),
    ("ada_and_ben.jpg", || draw_people((1200, 800), 31, &pair((1200, 800), [ADA, BEN], 280.0))),
    ("small_pair.jpg", || draw_people((450, 344), 32, &pair((450, 344), [CORA, DAN], 110.0))),
    ("group.jpg", || draw_people(GROUP, 33, &group())),
    ("crowd.jpg", || draw_people(CROWD, 34, &crowd())),
    ("throng.jpg", || draw_people(CROWD, 35, &throng())),
    ("view.jpg", || landscape(1080, 641)),
    ("no_face.png", || png(140, 141)),
    ("turned_90.jpg", || turned(90)),
    ("turned_180.jpg", || turned(180)),
    ("turned_270.jpg", || turned(270)),
];

fn file(name: &str) -> Vec<u8> {
    if let Some((_, draw)) = DRAWINGS.iter().find(|(drawing_name, _)| *drawing_name == name) {
        return draw();
    }
    let (width, height, pixels) = pixels(name);
    let pixels = if name == "blur.jpg" { blurred(width, height, pixels) } else { pixels };
    jpeg(width, height, pixels)
}

/// Returns the approximate face box of a portrait: left, top, width and height in pixels. Panics if
/// no portrait has this name.
pub fn face(name: &str) -> [f32; 4] {
    head(portrait_index(name)).face()
}

fn portrait_index(name: &str) -> usize {
    PORTRAITS.iter().position(|p| p.0 == name).unwrap_or_else(|| panic!("the gallery has no {name}"))
}

fn head(index: usize) -> Head {
    let (_, person, (width, height), middle, tall, turn) = PORTRAITS[index];
    Head { person, x: middle.0 * width as f32, y: middle.1 * height as f32, height: tall, turn }
}

/// Returns width, height and RGB bytes of a portrait.
fn pixels(name: &str) -> (u32, u32, Vec<u8>) {
    let index = portrait_index(name);
    let (_, _, (width, height), ..) = PORTRAITS[index];
    (width, height, draw(width, height, crate::people::PATCHWORK + index as u32, &[head(index)]))
}

fn draw_people(size: (u32, u32), wall: u32, heads: &[Head]) -> Vec<u8> {
    jpeg(size.0, size.1, draw(size.0, size.1, crate::people::PATCHWORK + wall, heads))
}

/// Returns two people side by side, the first on the left and slightly larger.
fn pair(size: (u32, u32), people: [u32; 2], height: f32) -> Vec<Head> {
    let (width, tall) = (size.0 as f32, size.1 as f32);
    vec![
        Head { person: people[0], x: width * 0.28, y: tall * 0.42, height, turn: 0.1 },
        Head { person: people[1], x: width * 0.72, y: tall * 0.46, height: height * 0.95, turn: -0.1 },
    ]
}

/// Width and height of `group.jpg`.
pub const GROUP: (u32, u32) = (1260, 860);

/// Returns the ten people of `group.jpg`, in two rows.
pub fn group() -> Vec<Head> {
    let head = |index: u16| {
        let (row, column) = (f32::from(index / 5), f32::from(index % 5));
        let turn = (f32::from(index * 7 % 9) - 4.0) / 5.0;
        let (x, y) = (130.0 + 250.0 * column, 200.0 + 420.0 * row);
        Head { person: index.into(), x, y, height: 190.0, turn }
    };
    (0..10).map(head).collect()
}

/// Width and height of `crowd.jpg`.
pub const CROWD: (u32, u32) = (1600, 1200);

/// Returns the people of `crowd.jpg`, in rows with larger heads towards the front.
pub fn crowd() -> Vec<Head> {
    rows(9, 34.0, 5.0)
}

/// Returns the people of `throng.jpg`, which has the size of `crowd.jpg`. Most are too small to be
/// detected without tiling the image.
pub fn throng() -> Vec<Head> {
    rows(17, 20.0, 1.0)
}

/// Returns `rows` rows of heads. Heads in the first row have the height `first`; the height
/// increases by `increase` per row.
fn rows(rows: u32, first: f32, increase: f32) -> Vec<Head> {
    let mut heads = Vec::new();
    let mut y = 60.0;
    for row in 0..rows {
        let height = first + increase * row as f32;
        let across = (CROWD.0 as f32 / (height * 1.9)).floor();
        let step = CROWD.0 as f32 / across;
        for index in 0..across as u32 {
            let x = (index as f32 + if row % 2 == 0 { 0.5 } else { 0.35 }) * step;
            let person = row * 31 + index * 7;
            heads.push(Head { person, x, y, height, turn: (person % 5) as f32 * 0.2 - 0.4 });
        }
        y += height * 2.2;
    }
    heads
}

/// Returns `turned_0.jpg` rotated clockwise by `degrees`.
fn turned(degrees: u32) -> Vec<u8> {
    let (width, height, pixels) = pixels("turned_0.jpg");
    let upright = vision::Frame::new(width, height, pixels).expect("three bytes for each pixel");
    let frame = vision::crop::rotate(&upright, degrees);
    jpeg(frame.width(), frame.height(), frame.data().to_vec())
}

/// Applies a box filter three times in each direction, which approximates a Gaussian.
fn blurred(width: u32, height: u32, mut pixels: Vec<u8>) -> Vec<u8> {
    const REACH: i64 = 5;
    for (across, down) in [(1_i64, 0_i64), (0, 1)].into_iter().cycle().take(6) {
        let before = pixels.clone();
        let (width, height) = (i64::from(width), i64::from(height));
        for y in 0..height {
            for x in 0..width {
                for channel in 0..3 {
                    let sum: u32 = (-REACH..=REACH)
                        .map(|step| {
                            let x = (x + step * across).clamp(0, width - 1);
                            let y = (y + step * down).clamp(0, height - 1);
                            u32::from(before[((y * width + x) * 3 + channel) as usize])
                        })
                        .sum();
                    pixels[((y * width + x) * 3 + channel) as usize] = (sum / (2 * REACH as u32 + 1)) as u8;
                }
            }
        }
    }
    pixels
}

/// Returns an image of sky and hills without people.
fn landscape(width: u32, height: u32) -> Vec<u8> {
    let mut noise = 0x9e37_79b9_u32;
    let mut pixels = Vec::with_capacity(width as usize * height as usize * 3);
    for row in 0..height {
        for column in 0..width {
            let (x, y) = (column as f32 / width as f32, row as f32 / height as f32);
            let ridge = |base: f32, waves: f32, swing: f32| {
                base + swing * (x * waves).sin() + 0.02 * (x * 41.0).sin()
            };
            let colour = if y > ridge(0.75, 5.0, 0.06) {
                [74.0, 104.0, 58.0]
            } else if y > ridge(0.6, 9.0, 0.05) {
                [104.0, 128.0, 92.0]
            } else if y > ridge(0.5, 14.0, 0.04) {
                [136.0, 152.0, 160.0]
            } else {
                [150.0 + 60.0 * y, 180.0 + 40.0 * y, 224.0]
            };
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let grain = (noise >> 28) as f32 - 7.5;
            pixels.extend(colour.map(|v: f32| (v + grain).clamp(0.0, 255.0) as u8));
        }
    }
    jpeg(width, height, pixels)
}

/// Returns a background without people.
fn png(width: u32, height: u32) -> Vec<u8> {
    let pixels = draw(width, height, crate::people::PATCHWORK + 40, &[]);
    vision::encode::png(&vision::Frame::new(width, height, pixels).expect("three bytes for each pixel"))
}

/// An image that contains a smaller image.
#[derive(Clone, Debug)]
pub struct Scene {
    pub frame: Frame,
    /// Left edge of the smaller image, in pixels.
    pub left: u32,
    /// Top edge of the smaller image, in pixels.
    pub top: u32,
    /// Scale factor applied to the smaller image.
    pub scale: f32,
}

/// Composes an image of `size` (width, height). It tiles `background`, mirroring every other copy
/// so that the edges match. It then pastes `inset`, scaled by `scale` (at most 1), to the left of
/// and below the centre.
pub fn scene(background: &Frame, inset: &Frame, scale: f64, size: (u32, u32)) -> Scene {
    let copies = [background.clone(), crop::mirror(background)];
    let upside_down = copies.each_ref().map(|copy| crop::mirror(&crop::rotate(copy, 180)));
    let mut frame = Frame::filled(size.0, size.1, [0; 3]);
    for (row, top) in (0..size.1).step_by(background.height() as usize).enumerate() {
        let line = if row % 2 == 0 { &copies } else { &upside_down };
        for (column, left) in (0..size.0).step_by(background.width() as usize).enumerate() {
            paste(&mut frame, &line[column % 2], left, top);
        }
    }
    let longer = inset.width().max(inset.height());
    let small = crop::thumbnail(inset, (f64::from(longer) * scale).round() as u32);
    let (left, top) = ((size.0 - small.width()) * 3 / 8, (size.1 - small.height()) * 5 / 8);
    paste(&mut frame, &small, left, top);
    Scene { frame, left, top, scale: small.width() as f32 / inset.width() as f32 }
}

/// Pastes `from` into `onto`, cropped at the edges.
fn paste(onto: &mut Frame, from: &Frame, left: u32, top: u32) {
    let (width, height) = (onto.width(), onto.height());
    let bytes = from.width().min(width - left) as usize * 3;
    let rows = from.data().chunks_exact(from.width() as usize * 3);
    for (y, row) in (top..height).zip(rows) {
        let at = (y as usize * width as usize + left as usize) * 3;
        onto.data_mut()[at..at + bytes].copy_from_slice(&row[..bytes]);
    }
}

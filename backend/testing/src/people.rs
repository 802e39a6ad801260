//! Draws images of people who do not exist. Images with fixed contents are in [`crate::gallery`].
//!
//! Each person is recognisable in every image. Detectors find heads from a height of about 50
//! pixels.
//!
//! The films of [`crate::film`] consist of sprites: a person is drawn once, as a transparent image
//! that is scaled and placed into many frames. Placing one is about ten times faster than painting
//! the person again.
mod paint;
mod traits;
use image::{ImageFormat, RgbImage};
use std::io::Cursor;
use traits::{SHIRTS, Traits, WALLS};

/// Red, green and blue, 0 to 255.
type Colour = [f32; 3];

/// Number of people that embedding models can distinguish. Their numbers are `0..CAST`.
pub const CAST: u32 = traits::CAST.len() as u32;

/// Returns the number of a person who looks like `person`. The embeddings of the two are about as
/// similar as the default threshold for a match; those of one person are much more similar.
pub const fn lookalike_of(person: u32) -> u32 {
    person | traits::LOOKALIKE
}

/// First number of the walls with a unique pattern, whose perceptual hashes differ.
pub const PATCHWORK: u32 = 1000;

/// A head in an image: its person, position, size and pose.
#[derive(Clone, Copy, Debug, serde::Deserialize)]
pub struct Head {
    /// Number of the person, who looks the same in every image. Embedding models can distinguish
    /// the numbers below [`CAST`].
    pub person: u32,
    /// Centre of the face from the left edge, in pixels.
    pub x: f32,
    /// Centre of the face from the top edge, in pixels.
    pub y: f32,
    /// Height from chin to crown, in pixels.
    pub height: f32,
    /// Direction in which the head is turned, -1 to 1.
    pub turn: f32,
}

impl Head {
    /// Returns the approximate box in which a detector finds the face: left, top, width and height
    /// in pixels.
    pub fn face(&self) -> [f32; 4] {
        let width = 2.0 * Traits::new(self.person).wide + 0.06;
        let [left, top, width, tall] = [-width / 2.0, -0.385, width, 0.885].map(|share| share * self.height);
        [self.x + left, self.y + top, width, tall]
    }
}

/// Returns the RGB bytes of an image with these people in front of wall number `wall`.
pub fn draw(width: u32, height: u32, wall: u32, heads: &[Head]) -> Vec<u8> {
    let people: Vec<(&Head, Traits)> = heads.iter().map(|head| (head, Traits::new(head.person))).collect();
    let mut data = Vec::with_capacity(width as usize * height as usize * 3);
    let mut noise = 0x2545_f491_u32 ^ wall.wrapping_mul(0x9e37_79b9);
    for row in 0..height {
        for column in 0..width {
            let (x, y) = (column as f32 + 0.5, row as f32 + 0.5);
            let mut colour = wall_colour(wall, x / width as f32, y / height as f32);
            for (head, traits) in &people {
                let (x, y) = ((x - head.x) / head.height, (y - head.y) / head.height);
                paint::paint_person(&mut colour, head, traits, x, y);
            }
            let grain = next_grain(&mut noise);
            data.extend(colour.map(|v| (v + grain).clamp(0.0, 255.0) as u8));
        }
    }
    data
}

/// Paints these people over the RGB bytes of an image that is `width` pixels wide. Pixels that no
/// person covers keep their values; all others get the same grain as those of [`draw`]. Panics
/// if the bytes are not whole rows of `width` pixels.
pub fn paint_over(pixels: &mut [u8], width: u32, heads: &[Head]) {
    let row_bytes = width as usize * 3;
    assert!(
        row_bytes > 0 && pixels.len().is_multiple_of(row_bytes),
        "the number of bytes must be a multiple of the row length"
    );
    let people: Vec<(&Head, Traits)> = heads.iter().map(|head| (head, Traits::new(head.person))).collect();
    let mut noise = 0x2545_f491_u32;
    for (row, line) in pixels.chunks_exact_mut(row_bytes).enumerate() {
        for (column, pixel) in line.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let (x, y) = (column as f32 + 0.5, row as f32 + 0.5);
            let background = pixel.map(f32::from);
            let mut colour = background;
            for (head, traits) in &people {
                let (x, y) = ((x - head.x) / head.height, (y - head.y) / head.height);
                paint::paint_person(&mut colour, head, traits, x, y);
            }
            if colour != background {
                let grain = next_grain(&mut noise);
                *pixel = colour.map(|v| (v + grain).clamp(0.0, 255.0) as u8);
            }
        }
    }
}

/// Returns the next value of the grain, from -3.5 to 3.5.
fn next_grain(noise: &mut u32) -> f32 {
    *noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    (*noise >> 29) as f32 - 3.5
}

/// Returns the colour of a wall. `across` and `down` are fractions of the image's width and height.
fn wall_colour(wall: u32, across: f32, down: f32) -> Colour {
    let base = WALLS[wall as usize % WALLS.len()];
    let colour = base.map(|v| v * (1.06 - 0.24 * down - 0.16 * (across - 0.35).abs()));
    if wall >= PATCHWORK {
        let (column, row) = ((across * 4.0) as u32, (down * 4.0) as u32);
        let patch = traits::hash(wall, 4 * row + column) % 100;
        return colour.map(|v| v * (0.55 + 0.006 * patch as f32));
    }
    // Adds a framed image or a window on the wall.
    let left = 0.08 + 0.13 * (wall % 6) as f32;
    if (left..left + 0.2).contains(&across) && (0.06..0.2 + 0.05 * (wall % 4) as f32).contains(&down) {
        return SHIRTS[(wall as usize * 5 + 1) % SHIRTS.len()].map(|v| v * 0.8 + 45.0);
    }
    colour
}

/// Returns a portrait as a JPEG of 480x560 pixels. A higher `view`, from 0, enlarges and turns the
/// head and changes the wall.
pub fn portrait(person: u32, view: u32) -> Vec<u8> {
    let (step, turn) = (view as f32, view as f32 * 0.5 - 0.5);
    let (x, y) = (200.0 + 30.0 * step, 200.0 + 12.0 * step);
    let head = Head { person, x, y, height: 220.0 + 50.0 * step, turn };
    jpeg(480, 560, draw(480, 560, person * 3 + view, &[head]))
}

/// Size of a badge in pixels: width, height.
pub const BADGE: (u32, u32) = (1012, 638);
/// Size of a portrait on a badge in pixels, and its distance from the top.
const PORTRAIT: (u32, u32, u32) = (200, 262, 190);

/// Returns the RGB bytes of a badge, 1012x638 pixels: small portraits of up to two people on a
/// template that is the same for everybody. The perceptual hashes of all badges are near each
/// other.
pub fn badge(people: &[u32]) -> Vec<u8> {
    let (width, height, top) = PORTRAIT;
    let head = |person: &u32| Head { person: *person, x: 100.0, y: 140.0, height: 175.0, turn: 0.0 };
    let portrait = |index: usize| {
        let heads: Vec<Head> = people.get(index).map(head).into_iter().collect();
        draw(width, height, 2, &heads)
    };
    let portraits = [(80, portrait(0)), (740, portrait(1))];
    let pixel = |x: u32, y: u32| {
        for (left, pixels) in &portraits {
            if (*left..left + width).contains(&x) && (top..top + height).contains(&y) {
                let at = 3 * ((y - top) * width + x - left) as usize;
                return [pixels[at], pixels[at + 1], pixels[at + 2]];
            }
        }
        match (x, y) {
            (_, ..110) => [24, 60, 130],
            (_, 580..620) => [if (x / 14).is_multiple_of(3) { 0 } else { 255 }; 3],
            (_, 560..) => [200, 40, 40],
            (360..680, 170..530) if (y - 170) % 60 < 20 => [70, 70, 80],
            _ => [228, 236, 246],
        }
    };
    let points = (0..BADGE.1).flat_map(|y| (0..BADGE.0).map(move |x| (x, y)));
    points.flat_map(|(x, y)| pixel(x, y)).collect()
}

/// Returns [`badge`] as a JPEG.
pub fn badge_file(people: &[u32]) -> Vec<u8> {
    jpeg(BADGE.0, BADGE.1, badge(people))
}

/// Encodes RGB bytes as a JPEG. Panics if the number of bytes does not match the size.
pub fn jpeg(width: u32, height: u32, pixels: Vec<u8>) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let image = RgbImage::from_raw(width, height, pixels).expect("three bytes for each pixel");
    image.write_to(&mut file, ImageFormat::Jpeg).expect("memory can be written to");
    file.into_inner()
}

/// Left edge, top edge, width and height of a sprite, in heights of the head from the centre of the
/// face. No part of a person is outside.
pub const EXTENT: [f32; 4] = [-0.8, -0.72, 1.6, 2.78];

/// The expression of a person's face.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expression {
    /// The expression of the person in all other drawings.
    #[default]
    Neutral,
    /// A wider, curved mouth.
    Smiling,
    /// An open mouth.
    Talking,
    /// Eyes that are almost closed.
    Blinking,
}

impl Expression {
    fn apply(self, traits: &mut Traits) {
        match self {
            Self::Neutral => {}
            Self::Smiling => {
                traits.mouth.1 *= 1.15;
                traits.mouth.2 += 0.8;
            }
            Self::Talking => traits.mouth.3 *= 1.35,
            Self::Blinking => traits.eyes.2 *= 0.45,
        }
    }
}

/// A person with a transparent background.
#[derive(Clone, Debug)]
pub struct Sprite {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Rows of red, green, blue and opacity, 0 to 255. The colours are multiplied by the opacity.
    pub pixels: Vec<[u8; 4]>,
}

/// Draws a person whose head is `height` pixels high and turned by `turn`, -1 to 1. The sprite
/// covers [`EXTENT`].
pub fn draw_sprite(person: u32, turn: f32, expression: Expression, height: f32) -> Sprite {
    let (head, traits) = head_and_traits(person, turn, expression, height);
    let side = |share: f32| (share * height).ceil() as usize;
    let (width, tall) = (side(EXTENT[2]), side(EXTENT[3]));
    let mut pixels = Vec::with_capacity(width * tall);
    for row in 0..tall {
        let y = (row as f32 + 0.5) / height + EXTENT[1];
        for column in 0..width {
            let x = (column as f32 + 0.5) / height + EXTENT[0];
            let [red, green, blue, opacity] = pixel_with_opacity(&head, &traits, x, y);
            pixels.push([red, green, blue, opacity * 255.0].map(|v| (v + 0.5) as u8));
        }
    }
    Sprite { width, height: tall, pixels }
}

/// Returns whether a person covers a point. `x` and `y` are heights of the head from the centre of
/// the face.
pub fn covers(person: u32, turn: f32, x: f32, y: f32) -> bool {
    let (head, traits) = head_and_traits(person, turn, Expression::Neutral, 100.0);
    pixel_with_opacity(&head, &traits, x, y)[3] > 0.5
}

fn head_and_traits(person: u32, turn: f32, expression: Expression, height: f32) -> (Head, Traits) {
    let mut traits = Traits::new(person);
    expression.apply(&mut traits);
    (Head { person, x: 0.0, y: 0.0, height, turn }, traits)
}

/// Returns the colour of a point multiplied by its opacity, and its opacity from 0 to 1. All shapes
/// are blended linearly, so black and white backgrounds show how much of them is visible.
fn pixel_with_opacity(head: &Head, traits: &Traits, x: f32, y: f32) -> [f32; 4] {
    let mut on_black: Colour = [0.0; 3];
    let mut on_white: Colour = [255.0; 3];
    paint::paint_person(&mut on_black, head, traits, x, y);
    paint::paint_person(&mut on_white, head, traits, x, y);
    let [red, green, blue] = on_black;
    let opacity = 1.0 - (on_white[1] - green) / 255.0;
    [red, green, blue, opacity.clamp(0.0, 1.0)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paint_over_changes_only_pixels_of_people() {
        let head = Head { person: 0, x: 30.0, y: 50.0, height: 50.0, turn: 0.0 };
        let mut pixels = [10, 20, 30].repeat(200 * 100);
        paint_over(&mut pixels, 200, &[head]);
        let at = |x: usize, y: usize| &pixels[3 * (200 * y + x)..][..3];
        assert_ne!(at(30, 50), [10, 20, 30]);
        assert_eq!(at(150, 50), [10, 20, 30]);
    }
}

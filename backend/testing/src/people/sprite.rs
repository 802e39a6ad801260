//! Draws a person once, as a transparent picture that is scaled and placed into many images.
//!
//! The films of [`crate::film`] consist of sprites. Placing one is about ten times faster than
//! painting the person again.

use super::paint;
use super::traits::Traits;
use super::{Colour, Head};

/// Left edge, top edge, width and height of a sprite, in heights of the head from the centre of the
/// face. No part of a person is outside.
pub const EXTENT: [f32; 4] = [-0.8, -0.72, 1.6, 2.78];

/// What the face of a person shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Expression {
    /// The expression of the person in every other drawing.
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
pub fn sprite(person: u32, turn: f32, expression: Expression, height: f32) -> Sprite {
    let (head, traits) = painted(person, turn, expression, height);
    let side = |share: f32| (share * height).ceil() as usize;
    let (width, tall) = (side(EXTENT[2]), side(EXTENT[3]));
    let mut pixels = Vec::with_capacity(width * tall);
    for row in 0..tall {
        let y = (row as f32 + 0.5) / height + EXTENT[1];
        for column in 0..width {
            let x = (column as f32 + 0.5) / height + EXTENT[0];
            let [red, green, blue, opacity] = pixel(&head, &traits, x, y);
            pixels.push([red, green, blue, opacity * 255.0].map(|v| (v + 0.5) as u8));
        }
    }
    Sprite { width, height: tall, pixels }
}

/// Returns whether a person hides what is behind a point. `x` and `y` are heights of the head from
/// the centre of the face.
pub fn covers(person: u32, turn: f32, x: f32, y: f32) -> bool {
    let (head, traits) = painted(person, turn, Expression::Neutral, 100.0);
    pixel(&head, &traits, x, y)[3] > 0.5
}

fn painted(person: u32, turn: f32, expression: Expression, height: f32) -> (Head, Traits) {
    let mut traits = Traits::of(person);
    expression.apply(&mut traits);
    (Head { person, x: 0.0, y: 0.0, height, turn }, traits)
}

/// Returns the colour of a point multiplied by its opacity, and its opacity from 0 to 1. All shapes
/// are blended linearly, so black and white backgrounds show how much of them is visible.
fn pixel(head: &Head, traits: &Traits, x: f32, y: f32) -> [f32; 4] {
    let mut on_black: Colour = [0.0; 3];
    let mut on_white: Colour = [255.0; 3];
    paint::person(&mut on_black, head, traits, x, y);
    paint::person(&mut on_white, head, traits, x, y);
    let [red, green, blue] = on_black;
    let opacity = 1.0 - (on_white[1] - green) / 255.0;
    [red, green, blue, opacity.clamp(0.0, 1.0)]
}

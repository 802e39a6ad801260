//! Paints one pixel of a person: shapes with soft edges, drawn over each other from back to front.

use super::traits::{Beard, Glasses, MakeUp, Traits};
use super::{Colour, Head};

/// A pixel: its colour so far, and its position relative to the centre of the head, in heights of
/// the head.
struct Pixel<'a> {
    colour: &'a mut Colour,
    x: f32,
    y: f32,
    /// Width of an edge, about one pixel.
    soft: f32,
}

impl Pixel<'_> {
    fn blend(&mut self, amount: f32, with: Colour) {
        for (base, value) in self.colour.iter_mut().zip(with) {
            *base += (value - *base) * amount;
        }
    }

    /// Returns 1 inside an ellipse and 0 outside. `edge` is the width of the transition, for
    /// shading.
    fn soft_oval(&self, cx: f32, cy: f32, rx: f32, ry: f32, edge: f32) -> f32 {
        let distance = (((self.x - cx) / rx).powi(2) + ((self.y - cy) / ry).powi(2)).sqrt();
        ((1.0 - distance) * rx.min(ry) / edge.max(self.soft) + 0.5).clamp(0.0, 1.0)
    }

    /// Works like [`Self::soft_oval`] with a sharp edge.
    fn sharp_oval(&self, cx: f32, cy: f32, rx: f32, ry: f32) -> f32 {
        self.soft_oval(cx, cy, rx, ry, self.soft)
    }

    /// Returns 1 if `distance` to an edge is positive and 0 if it is negative, with a soft
    /// transition.
    fn soft_step(&self, distance: f32) -> f32 {
        (distance / self.soft).clamp(0.0, 1.0)
    }
}

fn scale(colour: Colour, by: f32) -> Colour {
    colour.map(|v| (v * by).min(255.0))
}

/// Paints the person over `colour`. `x` and `y` are relative to the centre of the head, in heights
/// of the head.
pub(super) fn paint_person(colour: &mut Colour, head: &Head, traits: &Traits, x: f32, y: f32) {
    if x.abs() > 1.2 || !(-0.8..3.0).contains(&y) {
        return;
    }
    let mut pixel = Pixel { colour, x, y, soft: 0.75 / head.height };
    // Horizontal offset of the features from the centre of the face.
    let turn = head.turn * 0.07;
    paint_body(&mut pixel, traits);
    // Only shoulders and chest reach below the chin.
    if y > 0.75 {
        return;
    }
    paint_face(&mut pixel, traits, turn);
    for side in [-1.0, 1.0] {
        paint_eye(&mut pixel, traits, turn, side);
    }
    paint_nose(&mut pixel, traits, turn);
    paint_mouth(&mut pixel, traits, turn);
    paint_glasses(&mut pixel, traits, turn);
    if let Some((brim, colour)) = traits.hat {
        let hat = pixel.soft_step(brim - y) * pixel.sharp_oval(0.0, -0.18, traits.wide + 0.10, 0.52);
        pixel.blend(hat, scale(colour, 1.0 - 0.4 * x.abs()));
    }
}

fn paint_body(pixel: &mut Pixel, traits: &Traits) {
    let (x, y, wide) = (pixel.x, pixel.y, traits.wide);
    if let Some(reach) = traits.long_hair {
        pixel.blend(pixel.sharp_oval(0.0, 0.08, wide + reach, 0.62), scale(traits.hair, 0.82));
    }
    pixel.blend(pixel.sharp_oval(0.0, 1.32, 0.78, 0.72), scale(traits.shirt, 1.08 - 0.4 * x.abs()));
    if y > 0.2 {
        let neck = pixel.soft_step(0.62 - y) * pixel.soft_step(0.165 - x.abs());
        pixel.blend(neck.max(pixel.sharp_oval(0.0, 0.62, 0.165, 0.12)), scale(traits.skin, 0.80));
    }
    for side in [-1.0, 1.0] {
        pixel.blend(pixel.sharp_oval(side * (wide + 0.005), 0.03, 0.045, 0.085), scale(traits.skin, 0.86));
    }
}

/// Returns the coverage of the face: forehead, cheeks and jaw.
fn face_coverage(pixel: &Pixel, traits: &Traits) -> f32 {
    let jaw = pixel.sharp_oval(0.0, 0.14, traits.wide * traits.jaw, 0.355);
    pixel.sharp_oval(0.0, -0.04, traits.wide, 0.43).max(jaw)
}

fn paint_face(pixel: &mut Pixel, traits: &Traits, turn: f32) {
    let (x, y, wide) = (pixel.x, pixel.y, traits.wide);
    let face = face_coverage(pixel, traits);
    let shade = 1.04 - 0.34 * (x + 0.12).max(0.0) - 0.10 * (y + 0.2).max(0.0);
    pixel.blend(face, scale(traits.skin, shade));
    for side in [-1.0, 1.0] {
        pixel.blend(
            0.16 * face * pixel.soft_oval(turn + side * 0.19, 0.16, 0.1, 0.075, 0.06),
            [224.0, 120.0, 104.0],
        );
    }
    let pair = |cx: f32, cy: f32, rx: f32, ry: f32| {
        pixel.sharp_oval(turn - cx, cy, rx, ry).max(pixel.sharp_oval(turn + cx, cy, rx, ry))
    };
    let (make_up, colour) = traits.make_up;
    let covered = match make_up {
        MakeUp::Band => pixel.soft_step(0.05 - (y - 0.09).abs()),
        MakeUp::Stripe => pixel.soft_step(0.045 - (x - turn).abs()),
        MakeUp::Half => pixel.soft_step(x - turn),
        MakeUp::Cheeks => pair(0.19, 0.13, 0.10, 0.10),
        MakeUp::Forehead => pixel.soft_step(-0.10 - y),
        MakeUp::Chin => pixel.soft_step(y - 0.19),
        MakeUp::Eyes => pair(0.16, -0.04, 0.13, 0.12),
        MakeUp::None => 0.0,
    };
    pixel.blend(0.85 * face * covered, scale(colour, shade));
    if !traits.bald {
        let wave = 0.035 * ((x - turn) * 6.0 + traits.parting).sin();
        let line = traits.hairline + wave + 0.25 * x * x;
        let cap = pixel.sharp_oval(0.0, -0.12, wide + 0.05, 0.43) * pixel.soft_step(line - y);
        pixel.blend(cap, scale(traits.hair, 1.05 - 0.5 * (x + 0.1).abs()));
    }
}

fn paint_eye(pixel: &mut Pixel, traits: &Traits, turn: f32, side: f32) {
    let (x, y) = (pixel.x, pixel.y);
    let ((apart, level, size), (above, slope, thick)) = (traits.eyes, traits.brows);
    let cx = turn * 1.25 + side * apart;
    pixel.blend(0.5 * pixel.soft_oval(cx, level - 0.005, 0.095, 0.06, 0.04), scale(traits.skin, 0.72));
    let brow = level - above + side * (x - cx) * slope + (x - cx).powi(2) * 3.0;
    let brow = pixel.soft_step(thick - (y - brow).abs()) * pixel.soft_step(0.092 - (x - cx).abs());
    pixel.blend(brow, scale(traits.hair, 0.7));
    let open = pixel.sharp_oval(cx, level, 0.066 * size.max(0.9), 0.031 * size);
    pixel.blend(open, [238.0, 236.0, 232.0]);
    let gaze = cx + turn * 0.15;
    pixel.blend(open * pixel.sharp_oval(gaze, level, 0.029 * size, 0.029 * size), traits.iris);
    pixel.blend(open * pixel.sharp_oval(gaze, level, 0.014 * size, 0.014 * size), [16.0, 14.0, 14.0]);
    pixel.blend(pixel.sharp_oval(gaze - 0.009, level - 0.010, 0.0065, 0.0065), [250.0, 250.0, 250.0]);
    let lid = level - 0.031 * size * (1.0 - ((x - cx) / 0.07).powi(2)).max(0.0).sqrt();
    let lid = pixel.soft_step(0.0075 - (y - lid).abs()) * pixel.soft_step(0.07 - (x - cx).abs());
    pixel.blend(lid, scale(traits.hair, 0.45));
}

/// Paints the lit bridge of the nose, its shaded side, the tip and the nostrils.
fn paint_nose(pixel: &mut Pixel, traits: &Traits, turn: f32) {
    let ((tip, broad), skin, cx) = (traits.nose, traits.skin, turn * 1.9);
    pixel.blend(0.35 * pixel.soft_oval(cx * 0.9 - 0.012, tip - 0.105, 0.026, 0.12, 0.03), scale(skin, 1.14));
    pixel.blend(0.38 * pixel.soft_oval(cx * 0.9 + 0.040, tip - 0.095, 0.022, 0.11, 0.04), scale(skin, 0.66));
    pixel.blend(0.5 * pixel.soft_oval(cx, tip, 0.066 * broad, 0.038, 0.03), scale(skin, 0.86));
    pixel
        .blend(0.6 * pixel.soft_oval(cx - 0.008, tip - 0.017, 0.032 * broad, 0.024, 0.03), scale(skin, 1.12));
    if traits.red_nose {
        pixel.blend(pixel.sharp_oval(cx, tip, 0.06 * broad, 0.055), [200.0, 50.0, 46.0]);
    }
    for side in [-1.0, 1.0] {
        let nostril = pixel.sharp_oval(cx + side * 0.036 * broad, tip + 0.012, 0.015, 0.0095);
        pixel.blend(0.85 * nostril, scale(skin, 0.40));
    }
}

fn paint_mouth(pixel: &mut Pixel, traits: &Traits, turn: f32) {
    let (x, y, tip) = (pixel.x, pixel.y, traits.nose.0);
    let (below, half, smile, full) = traits.mouth;
    let (cx, mouth) = (turn * 1.4, tip + below);
    let hair = traits.hair;
    match traits.beard {
        Beard::Full => {
            let beard = ((y - 0.17 - 0.105 * (0.3 - x.abs()).max(0.0)) / 0.05).clamp(0.0, 1.0);
            let free = 1.0 - 0.8 * pixel.soft_oval(turn, tip - 0.02, 0.2, 0.1, 0.06);
            pixel.blend(0.85 * face_coverage(pixel, traits) * beard * free, scale(hair, 0.9));
        }
        Beard::Moustache => {
            pixel.blend(0.9 * pixel.sharp_oval(cx, mouth - 0.038, half * 1.15, 0.022), scale(hair, 0.8));
        }
        Beard::Goatee => pixel.blend(0.9 * pixel.sharp_oval(turn * 1.2, 0.39, 0.10, 0.09), scale(hair, 0.85)),
        Beard::None => {}
    }
    pixel.blend(0.9 * pixel.sharp_oval(cx, mouth + 0.006, half, full), traits.lips);
    if traits.teeth {
        pixel.blend(pixel.sharp_oval(cx, mouth + 0.006, half * 0.8, full * 0.55), [244.0, 240.0, 234.0]);
    } else {
        let line = mouth - smile * (x - cx).powi(2) + 0.003;
        let line = pixel.soft_step(0.006 - (y - line).abs()) * pixel.soft_step(half - (x - cx).abs());
        pixel.blend(line, [92.0, 40.0, 42.0]);
    }
    pixel.blend(0.3 * pixel.soft_oval(turn, 0.365, 0.09, 0.018, 0.03), scale(traits.skin, 0.7));
}

fn paint_glasses(pixel: &mut Pixel, traits: &Traits, turn: f32) {
    let (apart, level, _) = traits.eyes;
    let (rim, dark) = match traits.glasses {
        Glasses::Thin => (0.012, false),
        Glasses::Thick => (0.028, false),
        Glasses::Dark => (0.028, true),
        Glasses::None => return,
    };
    for side in [-1.0, 1.0] {
        let cx = turn * 1.25 + side * apart;
        let outer = pixel.sharp_oval(cx, level + 0.008, 0.112, 0.088);
        let inner = pixel.sharp_oval(cx, level + 0.008, 0.112 - rim, 0.088 - rim);
        if dark {
            pixel.blend(0.92 * outer, [28.0, 28.0, 34.0]);
        } else {
            pixel.blend((outer - inner).max(0.0) * 0.95, [34.0, 30.0, 32.0]);
        }
    }
    let (x, y) = (pixel.x, pixel.y);
    let bridge = pixel.soft_step(0.4 * rim + 0.002 - (y - level + 0.005).abs());
    let bridge = bridge * pixel.soft_step(apart - 0.1 - (x - turn * 1.25).abs());
    pixel.blend(bridge, [44.0, 40.0, 42.0]);
}

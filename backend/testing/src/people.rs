//! Pictures of people who do not exist, each recognisable in every picture of theirs: what screenshots and tests of the page show, since no
//! photograph of a person belongs into the repository. Detectors find them from some 50 pixels of head height on.

use image::{ImageFormat, RgbImage};
use std::io::Cursor;

/// Red, green, blue, 0 to 255.
type Colour = [f32; 3];

const SKINS: [Colour; 5] = [
    [238.0, 200.0, 172.0],
    [222.0, 172.0, 136.0],
    [186.0, 130.0, 96.0],
    [146.0, 98.0, 70.0],
    [246.0, 212.0, 190.0],
];
const HAIRS: [Colour; 5] = [
    [44.0, 34.0, 30.0],
    [112.0, 74.0, 44.0],
    [196.0, 158.0, 96.0],
    [70.0, 52.0, 48.0],
    [150.0, 146.0, 144.0],
];
const SHIRTS: [Colour; 6] = [
    [60.0, 92.0, 132.0],
    [150.0, 70.0, 66.0],
    [74.0, 116.0, 92.0],
    [88.0, 84.0, 112.0],
    [196.0, 164.0, 98.0],
    [52.0, 58.0, 68.0],
];
const WALLS: [Colour; 5] = [
    [196.0, 204.0, 208.0],
    [176.0, 190.0, 178.0],
    [208.0, 196.0, 184.0],
    [168.0, 180.0, 196.0],
    [202.0, 190.0, 204.0],
];

/// Where a head is, in pixels: the middle of the face and its height from chin to crown.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Who: the same number looks alike everywhere.
    pub person: u32,
    /// Middle, from the left.
    pub x: f32,
    /// Middle, from the top.
    pub y: f32,
    /// Chin to crown.
    pub height: f32,
    /// -1 to 1: to where the head is turned.
    pub turn: f32,
}

/// RGB bytes of a picture with these people in front of a wall; `wall` chooses it.
pub fn picture(width: u32, height: u32, wall: u32, heads: &[Head]) -> Vec<u8> {
    let mut data = Vec::with_capacity(width as usize * height as usize * 3);
    let mut noise = 0x2545_f491_u32 ^ wall.wrapping_mul(0x9e37_79b9);
    for row in 0..height {
        for column in 0..width {
            let (x, y) = (column as f32 + 0.5, row as f32 + 0.5);
            let (across, down) = (x / width as f32, y / height as f32);
            let base = WALLS[wall as usize % WALLS.len()];
            let mut colour = base.map(|v| v * (1.06 - 0.24 * down - 0.16 * (across - 0.35).abs()));
            // A picture frame or a window on the wall, so that pictures differ to perceptual hashes.
            let left = 0.08 + 0.13 * (wall % 6) as f32;
            if (left..left + 0.2).contains(&across) && (0.06..0.2 + 0.05 * (wall % 4) as f32).contains(&down)
            {
                colour = SHIRTS[(wall as usize * 5 + 1) % SHIRTS.len()].map(|v| v * 0.8 + 45.0);
            }
            for head in heads {
                paint(&mut colour, head, (x - head.x) / head.height, (y - head.y) / head.height);
            }
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let grain = (noise >> 29) as f32 - 3.5;
            data.extend(colour.map(|v| (v + grain).clamp(0.0, 255.0) as u8));
        }
    }
    data
}

/// A portrait as a JPEG of 480x560 pixels; `view`, from 0, brings the head nearer, turns it and changes the wall.
pub fn portrait(person: u32, view: u32) -> Vec<u8> {
    let (nearer, turn) = (view as f32, view as f32 * 0.5 - 0.5);
    let (x, y) = (200.0 + 30.0 * nearer, 200.0 + 12.0 * nearer);
    let head = Head { person, x, y, height: 220.0 + 50.0 * nearer, turn };
    jpeg(480, 560, picture(480, 560, person * 3 + view, &[head]))
}

/// RGB bytes as a JPEG.
///
/// # Panics
/// When the bytes are not those of so many pixels.
pub fn jpeg(width: u32, height: u32, pixels: Vec<u8>) -> Vec<u8> {
    let mut file = Cursor::new(Vec::new());
    let picture = RgbImage::from_raw(width, height, pixels).expect("three bytes for each pixel");
    picture.write_to(&mut file, ImageFormat::Jpeg).expect("memory can be written to");
    file.into_inner()
}

/// One person over what lies behind; x and y in heights of the head from its middle.
fn paint(colour: &mut Colour, head: &Head, x: f32, y: f32) {
    if x.abs() > 1.2 || !(-0.75..3.0).contains(&y) {
        return;
    }
    let who = head.person as usize;
    // Traits that have nothing to do with each other: a multiplicative hash of who and which.
    let trait_of = |which: usize, most: usize| {
        let mixed = (who as u32 * 31 + which as u32 + 5).wrapping_mul(0x9e37_79b1);
        (mixed >> 16) as usize % most
    };
    let part = |shift: usize| trait_of(shift, 5) as f32 / 4.0;
    let (skin, hair) = (SKINS[who % SKINS.len()], HAIRS[trait_of(16, HAIRS.len())]);
    let soft = 0.75 / head.height;
    let mut over = |amount: f32, with: Colour| {
        for (below, above) in colour.iter_mut().zip(with) {
            *below += (above - *below) * amount;
        }
    };
    // 1 inside an ellipse, 0 outside, with an edge of about a pixel (or wider, for shading).
    let oval = |cx: f32, cy: f32, rx: f32, ry: f32, edge: f32| {
        let far = (((x - cx) / rx).powi(2) + ((y - cy) / ry).powi(2)).sqrt();
        ((1.0 - far) * rx.min(ry) / edge.max(soft) + 0.5).clamp(0.0, 1.0)
    };
    let wide = 0.345 + 0.035 * part(1);
    let long_hair = trait_of(2, 2) == 0;
    let shade = 1.04 - 0.34 * (x + 0.12).max(0.0) - 0.10 * (y + 0.2).max(0.0);
    let lit = |c: Colour, by: f32| c.map(|v| (v * by).min(255.0));

    if long_hair {
        over(oval(0.0, 0.08, wide + 0.11, 0.62, soft), lit(hair, 0.82));
    }
    over(oval(0.0, 1.32, 0.78, 0.72, soft), lit(SHIRTS[trait_of(3, SHIRTS.len())], 1.08 - 0.4 * x.abs()));
    if y > 0.2 {
        let neck = ((0.62 - y) / soft).clamp(0.0, 1.0) * ((0.165 - x.abs()) / soft).clamp(0.0, 1.0);
        over(neck.max(oval(0.0, 0.62, 0.165, 0.12, soft)), lit(skin, 0.80));
    }
    for side in [-1.0, 1.0] {
        over(oval(side * (wide + 0.005), 0.03, 0.045, 0.085, soft), lit(skin, 0.86));
    }
    // Forehead and cheeks, then the jaw.
    let face = oval(0.0, -0.04, wide, 0.43, soft).max(oval(0.0, 0.14, wide * 0.86, 0.355, soft));
    over(face, lit(skin, shade));
    let turn = head.turn * 0.07;
    for side in [-1.0, 1.0] {
        over(0.16 * face * oval(turn + side * 0.19, 0.16, 0.1, 0.075, 0.06), [224.0, 120.0, 104.0]);
    }
    // Hair: a cap with a parting; none on some heads.
    if trait_of(4, 7) != 6 {
        let line = -0.235 + 0.07 * ((x - turn) * 6.0 + part(5) * 3.0).sin() * 0.5 + 0.25 * x * x;
        let cap = oval(0.0, -0.12, wide + 0.05, 0.43, soft) * (((line - y) / soft).clamp(0.0, 1.0));
        over(cap, lit(hair, 1.05 - 0.5 * (x + 0.1).abs()));
    }
    let apart = 0.148 + 0.022 * part(6);
    let level = -0.045 + 0.02 * (part(7) - 0.5);
    for side in [-1.0, 1.0] {
        let cx = turn * 1.25 + side * apart;
        over(0.5 * oval(cx, level - 0.005, 0.095, 0.06, 0.04), lit(skin, 0.72));
        let brow = level - 0.098 + side * (x - cx) * (0.16 - 0.2 * part(8)) + (x - cx).powi(2) * 3.0;
        let thick = 0.011 + 0.010 * part(9);
        over(
            ((thick - (y - brow).abs()) / soft).clamp(0.0, 1.0)
                * ((0.092 - (x - cx).abs()) / soft).clamp(0.0, 1.0),
            lit(hair, 0.7),
        );
        let open = oval(cx, level, 0.066, 0.031, soft);
        over(open, [238.0, 236.0, 232.0]);
        let iris = [[84.0, 60.0, 40.0], [70.0, 104.0, 120.0], [86.0, 104.0, 70.0]][trait_of(10, 3)];
        let gaze = cx + turn * 0.15;
        over(open * oval(gaze, level, 0.029, 0.029, soft), iris);
        over(open * oval(gaze, level, 0.014, 0.014, soft), [16.0, 14.0, 14.0]);
        over(oval(gaze - 0.009, level - 0.010, 0.0065, 0.0065, soft), [250.0, 250.0, 250.0]);
        let lid = level - 0.031 * (1.0 - ((x - cx) / 0.07).powi(2)).max(0.0).sqrt();
        over(
            ((0.0075 - (y - lid).abs()) / soft).clamp(0.0, 1.0)
                * (((0.07 - (x - cx).abs()) / soft).clamp(0.0, 1.0)),
            lit(hair, 0.45),
        );
    }
    // Nose: a lit bridge, a shaded side, the tip and the nostrils.
    let nose = turn * 1.9;
    over(0.35 * oval(nose * 0.9 - 0.012, 0.05, 0.026, 0.12, 0.03), lit(skin, 1.14));
    over(0.38 * oval(nose * 0.9 + 0.040, 0.06, 0.022, 0.11, 0.04), lit(skin, 0.66));
    over(0.5 * oval(nose, 0.155, 0.066 + 0.014 * part(11), 0.038, 0.03), lit(skin, 0.86));
    over(0.6 * oval(nose - 0.008, 0.138, 0.032, 0.024, 0.03), lit(skin, 1.12));
    for side in [-1.0, 1.0] {
        over(0.85 * oval(nose + side * 0.036, 0.167, 0.015, 0.0095, soft), lit(skin, 0.40));
    }
    let mouth = 0.272 + 0.02 * part(12);
    let half = 0.105 + 0.03 * part(13);
    let curve = mouth - 0.22 * (x - turn * 1.4).powi(2) + 0.003;
    if !long_hair && trait_of(14, 3) == 1 {
        let beard = face * (((y - 0.17 - 0.35 * (0.3 - x.abs()).max(0.0) * 0.3) / 0.05).clamp(0.0, 1.0));
        over(0.62 * beard * (1.0 - 0.8 * oval(turn, 0.13, 0.2, 0.1, 0.06)), lit(hair, 0.9));
    }
    over(0.9 * oval(turn * 1.4, mouth + 0.006, half, 0.036, soft), [178.0, 92.0, 88.0]);
    over(0.4 * oval(turn * 1.4, mouth + 0.024, half * 0.5, 0.012, 0.014), [222.0, 150.0, 142.0]);
    over(
        ((0.006 - (y - curve).abs()) / soft).clamp(0.0, 1.0)
            * ((half - (x - turn * 1.4).abs()) / soft).clamp(0.0, 1.0),
        [92.0, 40.0, 42.0],
    );
    over(0.3 * oval(turn, 0.365, 0.09, 0.018, 0.03), lit(skin, 0.7));
    if trait_of(15, 5) == 2 {
        for side in [-1.0, 1.0] {
            let (outer, inner) = (
                oval(turn * 1.25 + side * apart, level + 0.008, 0.108, 0.082, soft),
                oval(turn * 1.25 + side * apart, level + 0.008, 0.096, 0.07, soft),
            );
            over((outer - inner).max(0.0) * 0.9, [44.0, 40.0, 42.0]);
        }
        over(
            ((0.006 - (y - level + 0.005).abs()) / soft).clamp(0.0, 1.0)
                * ((apart - 0.1 - (x - turn * 1.25).abs()) / soft).clamp(0.0, 1.0),
            [44.0, 40.0, 42.0],
        );
    }
}

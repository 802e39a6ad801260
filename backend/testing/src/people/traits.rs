//! Derives the appearance of a drawn person from a number. This module does not draw.

use super::Colour;

pub(super) const SHIRTS: [Colour; 6] = [
    [60.0, 92.0, 132.0],
    [150.0, 70.0, 66.0],
    [74.0, 116.0, 92.0],
    [88.0, 84.0, 112.0],
    [196.0, 164.0, 98.0],
    [52.0, 58.0, 68.0],
];
pub(super) const WALLS: [Colour; 5] = [
    [196.0, 204.0, 208.0],
    [176.0, 190.0, 178.0],
    [208.0, 196.0, 184.0],
    [168.0, 180.0, 196.0],
    [202.0, 190.0, 204.0],
];
const SKINS: [Colour; 8] = [
    [238.0, 200.0, 172.0],
    [222.0, 172.0, 136.0],
    [186.0, 130.0, 96.0],
    [146.0, 98.0, 70.0],
    [246.0, 212.0, 190.0],
    [104.0, 70.0, 52.0],
    [78.0, 52.0, 40.0],
    [252.0, 228.0, 214.0],
];
const HAIRS: [Colour; 8] = [
    [44.0, 34.0, 30.0],
    [112.0, 74.0, 44.0],
    [206.0, 168.0, 96.0],
    [70.0, 52.0, 48.0],
    [176.0, 172.0, 170.0],
    [170.0, 74.0, 34.0],
    [20.0, 18.0, 20.0],
    [236.0, 232.0, 226.0],
];
const MAKE_UPS: [Colour; 6] = [
    [240.0, 240.0, 236.0],
    [30.0, 34.0, 44.0],
    [190.0, 40.0, 40.0],
    [40.0, 80.0, 170.0],
    [230.0, 190.0, 50.0],
    [40.0, 130.0, 80.0],
];
const IRISES: [Colour; 3] = [[84.0, 60.0, 40.0], [70.0, 104.0, 120.0], [86.0, 104.0, 70.0]];
const LIPS: [Colour; 3] = [[178.0, 92.0, 88.0], [150.0, 60.0, 60.0], [196.0, 40.0, 56.0]];

/// Seeds of people whose embeddings are far apart. To models trained on photographs, drawn faces
/// look alike, so these seeds were selected from several thousand. `tests/it/default_pack.rs` of
/// inference checks them.
pub(super) const CAST: [u32; 10] = [967, 702, 1349, 265, 170, 1405, 920, 196, 1054, 583];

/// Marks the number of a person who looks like the person with the rest of the number.
pub(super) const LOOKALIKE: u32 = 1 << 31;

/// The parts of the face that make-up covers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MakeUp {
    Band,
    Stripe,
    Half,
    Cheeks,
    Forehead,
    Chin,
    Eyes,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Beard {
    Full,
    Moustache,
    Goatee,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Glasses {
    Thin,
    Thick,
    Dark,
    None,
}

/// Colours and measures of one person. Lengths are fractions of the head's height.
#[derive(Clone, Debug)]
pub(super) struct Traits {
    pub(super) skin: Colour,
    pub(super) hair: Colour,
    pub(super) shirt: Colour,
    pub(super) iris: Colour,
    pub(super) lips: Colour,
    /// Half the width of the face.
    pub(super) wide: f32,
    /// Width of the jaw as a fraction of the face's width.
    pub(super) jaw: f32,
    /// Distance by which long hair extends beyond the sides of the face; `None` for short hair.
    pub(super) long_hair: Option<f32>,
    pub(super) bald: bool,
    /// Position of the hairline, and the phase of its wave.
    pub(super) hairline: f32,
    pub(super) parting: f32,
    pub(super) hat: Option<(f32, Colour)>,
    pub(super) make_up: (MakeUp, Colour),
    /// Half the distance between the eyes, their vertical position in the face, and their size.
    pub(super) eyes: (f32, f32, f32),
    /// Distance above the eyes, slope, and thickness.
    pub(super) brows: (f32, f32, f32),
    /// Vertical position of the tip of the nose, and its breadth.
    pub(super) nose: (f32, f32),
    pub(super) red_nose: bool,
    /// Distance below the nose, half its width, curvature, and half the height of the lips.
    pub(super) mouth: (f32, f32, f32, f32),
    pub(super) teeth: bool,
    pub(super) beard: Beard,
    pub(super) glasses: Glasses,
}

impl Traits {
    pub(super) fn new(person: u32) -> Self {
        match person & LOOKALIKE {
            0 => Self::unique(person),
            _ => Self::unique(person & !LOOKALIKE).into_lookalike(),
        }
    }

    /// Returns similar traits: only the positions of the eyes differ. They affect the embeddings of
    /// face models more than any other measure.
    fn into_lookalike(mut self) -> Self {
        self.eyes.0 += 0.046;
        self.eyes.1 -= 0.03;
        self
    }

    fn unique(person: u32) -> Self {
        let seed = CAST.get(person as usize).copied().unwrap_or(person);
        let pick = |which: u32, count: usize| hash(seed, which) as usize % count;
        // A number from 0 to 1.
        let fraction = |which: u32| (hash(seed, which) % 1000) as f32 / 999.0;
        let make_up = match pick(32, 9) {
            0 => MakeUp::Band,
            1 => MakeUp::Stripe,
            2 => MakeUp::Half,
            3 => MakeUp::Cheeks,
            4 => MakeUp::Forehead,
            5 => MakeUp::Chin,
            6 => MakeUp::Eyes,
            _ => MakeUp::None,
        };
        let beard = match pick(14, 5) {
            1 => Beard::Full,
            2 => Beard::Moustache,
            3 => Beard::Goatee,
            _ => Beard::None,
        };
        let glasses = match pick(15, 6) {
            3 => Glasses::Thin,
            4 => Glasses::Thick,
            5 => Glasses::Dark,
            _ => Glasses::None,
        };
        Self {
            skin: SKINS[pick(0, SKINS.len())],
            hair: HAIRS[pick(16, HAIRS.len())],
            shirt: SHIRTS[pick(3, SHIRTS.len())],
            iris: IRISES[pick(10, IRISES.len())],
            lips: LIPS[pick(41, LIPS.len())],
            wide: 0.30 + 0.09 * fraction(1),
            jaw: 0.72 + 0.26 * fraction(31),
            long_hair: (pick(2, 2) == 0).then(|| 0.11 + 0.06 * fraction(30)),
            bald: pick(4, 7) == 6,
            hairline: -0.27 + 0.10 * fraction(35),
            parting: fraction(5) * 3.0,
            hat: (pick(34, 5) == 0).then(|| (-0.20 + 0.03 * fraction(44), SHIRTS[pick(45, SHIRTS.len())])),
            make_up: (make_up, MAKE_UPS[pick(33, MAKE_UPS.len())]),
            eyes: (0.135 + 0.05 * fraction(6), -0.07 + 0.06 * fraction(7), 0.75 + 0.55 * fraction(36)),
            brows: (0.095 + 0.035 * fraction(37), 0.3 - 0.6 * fraction(8), 0.006 + 0.024 * fraction(9)),
            nose: (0.12 + 0.07 * fraction(38), 0.75 + 0.8 * fraction(11)),
            red_nose: pick(39, 8) == 3,
            mouth: (
                0.09 + 0.04 * fraction(12),
                0.075 + 0.075 * fraction(13),
                1.8 * fraction(40) - 0.9,
                0.024 + 0.026 * fraction(42),
            ),
            teeth: pick(43, 3) == 0,
            beard,
            glasses,
        }
    }
}

/// Returns a hash of the seed and the number of the trait, which makes traits independent of each
/// other.
pub(super) fn hash(seed: u32, which: u32) -> u32 {
    let mut hash = seed.wrapping_mul(0x9e37_79b1) ^ which.wrapping_add(1).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 15)).wrapping_mul(0x2c1b_3c6d);
    hash = (hash ^ (hash >> 12)).wrapping_mul(0x297a_2d39);
    hash ^ (hash >> 15)
}

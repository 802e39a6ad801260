//! The description of a film. All lengths are heights of the frame, so a script fits every size.

use crate::people::sprite::Expression;

/// A film: shots with hard cuts between them.
#[derive(Clone, Debug)]
pub struct Film {
    /// Width of the upright frame in pixels, even.
    pub width: u32,
    /// Height of the upright frame in pixels, even.
    pub height: u32,
    /// When the frames are shown.
    pub timing: Timing,
    pub shots: Vec<Shot>,
}

/// When the frames of a film are shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Timing {
    /// Frames per second, as a fraction.
    Constant(u32, u32),
    /// How long each frame is shown, in milliseconds. The list starts over after its last entry.
    Variable(Vec<u32>),
}

/// What the camera records without a cut.
#[derive(Clone, Debug)]
pub struct Shot {
    /// Number of frames, at least 1.
    pub frames: u32,
    /// Number of the wall in the background.
    pub wall: u32,
    /// What the camera shows in the first and in the last frame. It moves evenly.
    pub camera: [View; 2],
    /// Number of discs that move in front of the wall and behind the people.
    pub discs: u32,
    /// The people, from back to front.
    pub actors: Vec<Actor>,
}

/// What the camera shows. The scene is as wide and as high as the frame and starts at (0, 0).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct View {
    /// Centre of the view from the left edge of the scene.
    pub x: f32,
    /// Centre of the view from the top edge of the scene.
    pub y: f32,
    /// Enlargement; at 1, the view is as high as the scene.
    pub zoom: f32,
}

/// A person in a shot.
#[derive(Clone, Debug)]
pub struct Actor {
    /// Number of the person; see [`crate::people::Head::person`].
    pub person: u32,
    /// Positions in order of their time. The person moves evenly between them.
    pub path: Vec<Key>,
}

/// Where a person is, and how they look, at one time of a shot.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Time as a share of the shot, 0 to 1.
    pub at: f32,
    /// Centre of the face from the left edge of the scene.
    pub x: f32,
    /// Centre of the face from the top edge of the scene.
    pub y: f32,
    /// Height of the head.
    pub height: f32,
    /// Direction in which the head is turned, -1 to 1.
    pub turn: f32,
    /// Brightness, 1 as in other drawings.
    pub light: f32,
    /// The expression until the next key.
    pub expression: Expression,
}

impl Key {
    /// Returns a neutral, evenly lit face that looks straight ahead.
    pub fn new(at: f32, x: f32, y: f32, height: f32) -> Self {
        Self { at, x, y, height, turn: 0.0, light: 1.0, expression: Expression::Neutral }
    }

    #[must_use]
    pub fn turned(self, turn: f32) -> Self {
        Self { turn, ..self }
    }

    #[must_use]
    pub fn lit(self, light: f32) -> Self {
        Self { light, ..self }
    }

    #[must_use]
    pub fn with(self, expression: Expression) -> Self {
        Self { expression, ..self }
    }
}

impl Timing {
    /// Returns the time at which frame `index` is shown, in `unit`s per second after the first
    /// frame, rounded to the nearest.
    pub fn at(&self, index: u32, unit: u32) -> i64 {
        let (index, unit) = (i64::from(index), i64::from(unit));
        let (numerator, denominator) = match self {
            Self::Constant(rate, per) => (index * i64::from(*per) * unit, i64::from(*rate)),
            Self::Variable(pattern) => {
                let length = pattern.len() as i64;
                let milliseconds =
                    |until: i64| pattern.iter().take(until as usize).map(|&ms| i64::from(ms)).sum::<i64>();
                let whole = index / length * milliseconds(length);
                ((whole + milliseconds(index % length)) * unit, 1000)
            }
        };
        (2 * numerator + denominator) / (2 * denominator)
    }
}

impl Film {
    /// Returns the number of frames.
    pub fn length(&self) -> u32 {
        self.shots.iter().map(|shot| shot.frames).sum()
    }

    /// Returns the shot of frame `index`, the number of its first frame, and the time in the shot
    /// as a share, 0 to 1. Panics if the film has no such frame.
    pub fn shot_at(&self, index: u32) -> (&Shot, u32, f32) {
        let mut first = 0;
        for shot in &self.shots {
            if index < first + shot.frames {
                let share = (index - first) as f32 / (shot.frames - 1).max(1) as f32;
                return (shot, first, share);
            }
            first += shot.frames;
        }
        panic!("the film has {} frames, and none with the number {index}", self.length());
    }

    /// Returns the numbers of the frames that begin a shot after a cut.
    pub fn cuts(&self) -> Vec<u32> {
        let lengths = self.shots.iter().map(|shot| shot.frames);
        let mut cuts: Vec<u32> = lengths
            .scan(0, |end, length| {
                *end += length;
                Some(*end)
            })
            .collect();
        // The film ends after the last shot.
        cuts.pop();
        cuts
    }
}

//! The description of a film, the scripts of the films that tests share, and the position of each
//! person in a frame. All lengths of a script are heights of the frame, so it fits every size.
use crate::gallery::{ADA, BEN, CORA, DAN, EVE, FINN};
use crate::people::Expression::{Blinking, Smiling, Talking};
use crate::people::{self, Expression, Head, covers, lookalike_of};
use vision::Rect;

/// A film: shots with hard cuts between them.
#[derive(Clone, Debug)]
pub struct Film {
    /// Width of the upright frame in pixels, even.
    pub width: u32,
    /// Height of the upright frame in pixels, even.
    pub height: u32,
    /// Times at which the frames are shown.
    pub timing: Timing,
    pub shots: Vec<Shot>,
}

/// The times at which the frames of a film are shown.
#[derive(Clone, Debug, PartialEq)]
pub enum Timing {
    /// Frames per second, as a fraction.
    Constant(u32, u32),
    /// Time for which each frame is shown, in milliseconds. The list is repeated after its last
    /// entry.
    Variable(Vec<u32>),
}

/// A part of a film without a cut.
#[derive(Clone, Debug)]
pub struct Shot {
    /// Number of frames, at least 1.
    pub frames: u32,
    /// Number of the wall in the background.
    pub wall: u32,
    /// The view in the first and in the last frame. The camera moves evenly between them.
    pub camera: [View; 2],
    /// Number of discs that move in front of the wall and behind the people.
    pub discs: u32,
    /// The people, from back to front.
    pub actors: Vec<Actor>,
}

/// The part of the scene that the camera shows. The scene is as wide and as high as the frame and
/// starts at (0, 0).
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
    pub path: Vec<PathPoint>,
}

/// Position and appearance of a person at one time of a shot.
#[derive(Clone, Copy, Debug)]
pub struct PathPoint {
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

impl PathPoint {
    /// Returns a neutral, evenly lit face that looks straight ahead.
    pub fn new(at: f32, x: f32, y: f32, height: f32) -> Self {
        Self { at, x, y, height, turn: 0.0, light: 1.0, expression: Expression::Neutral }
    }

    #[must_use]
    pub fn with_turn(self, turn: f32) -> Self {
        Self { turn, ..self }
    }

    #[must_use]
    pub fn with_light(self, light: f32) -> Self {
        Self { light, ..self }
    }

    #[must_use]
    pub fn with_expression(self, expression: Expression) -> Self {
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
                let repetitions = index / length * milliseconds(length);
                ((repetitions + milliseconds(index % length)) * unit, 1000)
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

const WIDE: View = View { x: 0.89, y: 0.5, zoom: 1.0 };

fn actor(person: u32, path: &[PathPoint]) -> Actor {
    Actor { person, path: path.to_vec() }
}

fn still_actor(person: u32, x: f32, y: f32, height: f32) -> Actor {
    actor(
        person,
        &[
            PathPoint::new(0.0, x, y, height).with_turn(-0.2),
            PathPoint::new(1.0, x, y, height).with_turn(0.2),
        ],
    )
}

fn shot(frames: u32, wall: u32, actors: Vec<Actor>) -> Shot {
    Shot { frames, wall, camera: [WIDE; 2], discs: 0, actors }
}

impl Film {
    /// Returns the film for tests of analysis: 25 s of 640x360 pixels at 25 frames per second.
    ///
    /// | seconds | contents |
    /// |---|---|
    /// | 0 to 4 | the camera pans across Ada, Ben and Cora |
    /// | 4 to 7 | it zooms in on Dan, from a head of 58 pixels to one of 173 |
    /// | 7 to 11 | Eve and Finn cross; Finn passes in front |
    /// | 11 to 14 | Dan beside a person who looks like him |
    /// | 14 to 20 | Ben leaves for 3 s and returns; Cora stays; things move behind them |
    /// | 20 to 22 | nobody, only moving things |
    /// | 22 to 25 | Ada, Cora, Eve and Finn with changing expressions and light |
    pub fn standard() -> Self {
        let shots = vec![pan(), zoom(), crossing(), two_alike(), leaving(), empty(), group()];
        Self { width: 640, height: 360, timing: Timing::Constant(25, 1), shots }
    }

    /// Returns a film for tests of files: 50 frames of 256x160 pixels at 25 frames per second, with
    /// a cut after 20 frames.
    pub fn short() -> Self {
        let first = Shot { discs: 2, ..shot(20, 3, vec![still_actor(ADA, 0.8, 0.52, 0.42)]) };
        let walk = [PathPoint::new(0.0, 0.2, 0.55, 0.4), PathPoint::new(1.0, 1.4, 0.55, 0.4)];
        let second = shot(30, 11, vec![actor(BEN, &walk)]);
        Self { width: 256, height: 160, timing: Timing::Constant(25, 1), shots: vec![first, second] }
    }

    /// Returns the same film in another size. The sides must be even, and the number in the corner
    /// needs at least 192x16 pixels.
    #[must_use]
    pub fn with_size(self, width: u32, height: u32) -> Self {
        Self { width, height, ..self }
    }

    /// Returns the same frames with other times.
    #[must_use]
    pub fn with_timing(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }
}

fn pan() -> Shot {
    let people = vec![
        still_actor(ADA, 0.55, 0.5, 0.30),
        still_actor(BEN, 1.35, 0.46, 0.27),
        still_actor(CORA, 2.15, 0.5, 0.31),
    ];
    let camera = [View { x: 0.75, ..WIDE }, View { x: 1.95, ..WIDE }];
    Shot { camera, ..shot(100, 2, people) }
}

fn zoom() -> Shot {
    let camera = [WIDE, View { x: 0.95, y: 0.45, zoom: 3.0 }];
    Shot { camera, ..shot(75, 9, vec![still_actor(DAN, 0.95, 0.42, 0.16)]) }
}

fn crossing() -> Shot {
    let walk = |from: f32, to: f32, y: f32, height: f32, turn: f32| {
        [
            PathPoint::new(0.0, from, y, height).with_turn(turn),
            PathPoint::new(1.0, to, y, height).with_turn(turn),
        ]
    };
    let people =
        vec![actor(EVE, &walk(1.45, 0.3, 0.44, 0.26, -0.4)), actor(FINN, &walk(0.35, 1.5, 0.5, 0.29, 0.4))];
    shot(100, 17, people)
}

fn two_alike() -> Shot {
    shot(75, 23, vec![still_actor(DAN, 0.55, 0.45, 0.30), still_actor(lookalike_of(DAN), 1.2, 0.47, 0.30)])
}

fn leaving() -> Shot {
    let key = |at: f32, x: f32, turn: f32| PathPoint::new(at, x, 0.47, 0.3).with_turn(turn);
    let ben = [
        key(0.0, 1.2, 0.0),
        key(0.12, 1.2, 0.5),
        key(0.32, 2.1, 0.5),
        key(0.66, 2.1, -0.5),
        key(0.85, 1.25, -0.5),
        key(1.0, 1.25, 0.0),
    ];
    let people = vec![still_actor(CORA, 0.5, 0.48, 0.28), actor(BEN, &ben)];
    Shot { discs: 5, ..shot(150, 28, people) }
}

fn empty() -> Shot {
    Shot { discs: 6, ..shot(50, 36, Vec::new()) }
}

fn group() -> Shot {
    let animated = |person: u32, x: f32, y: f32, expression| {
        let key = |at: f32| PathPoint::new(at, x, y, 0.24);
        let path = [
            key(0.0),
            key(0.25).with_expression(expression).with_turn(0.25),
            key(0.5).with_expression(Blinking).with_light(0.75),
            key(0.56).with_expression(expression).with_light(0.75),
            key(0.8).with_light(1.1).with_turn(-0.25),
            key(1.0),
        ];
        actor(person, &path)
    };
    let people = vec![
        animated(ADA, 0.35, 0.42, Smiling),
        animated(CORA, 0.75, 0.46, Talking),
        animated(EVE, 1.15, 0.42, Smiling),
        animated(FINN, 1.5, 0.46, Talking),
    ];
    Shot { camera: [WIDE, View { zoom: 1.1, ..WIDE }], ..shot(75, 44, people) }
}

/// Number of directions between a head that looks straight ahead and one that is fully turned.
/// Frames between two directions show the nearer one, so that each is drawn only once.
const DIRECTIONS: f32 = 8.0;

/// Points per side of a face at which its visibility is tested.
const POINTS_PER_SIDE: u32 = 12;

/// A person in a frame.
#[derive(Clone, Copy, Debug)]
pub struct PlacedPerson {
    /// The person and the position and size of the head, in pixels of the upright frame.
    pub head: Head,
    /// Brightness, 1 as in other drawings.
    pub light: f32,
    pub expression: Expression,
}

impl PlacedPerson {
    /// Returns the box of the face in pixels. It may extend outside the frame.
    pub fn face(&self) -> Rect {
        let [x, y, width, height] = self.head.face();
        // Detectors follow the features, which move to the side when the head turns.
        Rect {
            x: x + 0.04 * self.head.turn * self.head.height,
            y: y + 0.02 * self.head.height,
            width,
            height,
        }
    }

    /// Returns the area of the drawn person in pixels.
    pub(super) fn extent(&self) -> Rect {
        let [x, y, width, height] = people::EXTENT.map(|share| share * self.head.height);
        Rect { x: self.head.x + x, y: self.head.y + y, width, height }
    }

    /// Returns whether this person covers a point of the frame.
    fn covers_point(&self, x: f32, y: f32) -> bool {
        let head = self.head;
        let (x, y) = ((x - head.x) / head.height, (y - head.y) / head.height);
        covers(head.person, head.turn, x, y)
    }
}

impl View {
    pub(super) fn between([from, to]: [Self; 2], share: f32) -> Self {
        let mix = |a: f32, b: f32| a + (b - a) * share;
        Self { x: mix(from.x, to.x), y: mix(from.y, to.y), zoom: mix(from.zoom, to.zoom) }
    }
}

impl Film {
    /// Returns the people in frame `index` from back to front, including those outside the frame.
    /// Panics if the film has no such frame.
    pub fn people_in_frame(&self, index: u32) -> Vec<PlacedPerson> {
        let (shot, _, share) = self.shot_at(index);
        let view = View::between(shot.camera, share);
        shot.actors.iter().filter_map(|actor| self.place(actor, &view, share)).collect()
    }

    fn place(&self, actor: &Actor, view: &View, share: f32) -> Option<PlacedPerson> {
        let next = actor.path.iter().position(|key| key.at >= share).unwrap_or(actor.path.len() - 1);
        let (from, to) = (actor.path[next.saturating_sub(1)], actor.path[next]);
        // A person without a position at this time is not in the shot.
        if share < actor.path[0].at || share > to.at {
            return None;
        }
        let part = if to.at > from.at { (share - from.at) / (to.at - from.at) } else { 1.0 };
        let mix = |a: f32, b: f32| a + (b - a) * part;
        let scale = view.zoom * self.height as f32;
        let head = Head {
            person: actor.person,
            x: (mix(from.x, to.x) - view.x) * scale + self.width as f32 / 2.0,
            y: (mix(from.y, to.y) - view.y) * scale + self.height as f32 / 2.0,
            height: mix(from.height, to.height) * scale,
            turn: (mix(from.turn, to.turn) * DIRECTIONS).round() / DIRECTIONS,
        };
        let expression = if part < 1.0 { from.expression } else { to.expression };
        Some(PlacedPerson { head, light: mix(from.light, to.light), expression })
    }

    /// Returns the visible share of a face, 0 to 1: the part that is inside the frame and that
    /// nobody in `front` covers.
    pub(super) fn visible_share(&self, face: &Rect, front: &[PlacedPerson]) -> f32 {
        let front: Vec<&PlacedPerson> =
            front.iter().filter(|placed| placed.extent().intersection(face).area() > 0.0).collect();
        let inside =
            |x: f32, y: f32| (0.0..self.width as f32).contains(&x) && (0.0..self.height as f32).contains(&y);
        let mut visible = 0;
        for point in 0..POINTS_PER_SIDE * POINTS_PER_SIDE {
            let share = |step: u32| (step as f32 + 0.5) / POINTS_PER_SIDE as f32;
            let x = face.x + share(point % POINTS_PER_SIDE) * face.width;
            let y = face.y + share(point / POINTS_PER_SIDE) * face.height;
            visible += u32::from(inside(x, y) && !front.iter().any(|placed| placed.covers_point(x, y)));
        }
        visible as f32 / (POINTS_PER_SIDE * POINTS_PER_SIDE) as f32
    }
}

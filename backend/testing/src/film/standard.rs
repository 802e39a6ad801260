//! The scripts of the films that tests share.

use super::script::{Actor, Film, Key, Shot, Timing, View};
use crate::gallery::{ADA, BEN, CORA, DAN, EVE, FINN};
use crate::people::alike;
use crate::people::sprite::Expression::{Blinking, Smiling, Talking};

const WIDE: View = View { x: 0.89, y: 0.5, zoom: 1.0 };

fn actor(person: u32, path: &[Key]) -> Actor {
    Actor { person, path: path.to_vec() }
}

fn still(person: u32, x: f32, y: f32, height: f32) -> Actor {
    actor(person, &[Key::new(0.0, x, y, height).turned(-0.2), Key::new(1.0, x, y, height).turned(0.2)])
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
        let first = Shot { discs: 2, ..shot(20, 3, vec![still(ADA, 0.8, 0.52, 0.42)]) };
        let walk = [Key::new(0.0, 0.2, 0.55, 0.4), Key::new(1.0, 1.4, 0.55, 0.4)];
        let second = shot(30, 11, vec![actor(BEN, &walk)]);
        Self { width: 256, height: 160, timing: Timing::Constant(25, 1), shots: vec![first, second] }
    }

    /// Returns the same film in another size. The sides must be even, and the number in the corner
    /// needs at least 192x16 pixels.
    #[must_use]
    pub fn sized(self, width: u32, height: u32) -> Self {
        Self { width, height, ..self }
    }

    /// Returns the same frames with other times.
    #[must_use]
    pub fn timed(self, timing: Timing) -> Self {
        Self { timing, ..self }
    }
}

fn pan() -> Shot {
    let people =
        vec![still(ADA, 0.55, 0.5, 0.30), still(BEN, 1.35, 0.46, 0.27), still(CORA, 2.15, 0.5, 0.31)];
    let camera = [View { x: 0.75, ..WIDE }, View { x: 1.95, ..WIDE }];
    Shot { camera, ..shot(100, 2, people) }
}

fn zoom() -> Shot {
    let camera = [WIDE, View { x: 0.95, y: 0.45, zoom: 3.0 }];
    Shot { camera, ..shot(75, 9, vec![still(DAN, 0.95, 0.42, 0.16)]) }
}

fn crossing() -> Shot {
    let walk = |from: f32, to: f32, y: f32, height: f32, turn: f32| {
        [Key::new(0.0, from, y, height).turned(turn), Key::new(1.0, to, y, height).turned(turn)]
    };
    let people =
        vec![actor(EVE, &walk(1.45, 0.3, 0.44, 0.26, -0.4)), actor(FINN, &walk(0.35, 1.5, 0.5, 0.29, 0.4))];
    shot(100, 17, people)
}

fn two_alike() -> Shot {
    shot(75, 23, vec![still(DAN, 0.55, 0.45, 0.30), still(alike(DAN), 1.2, 0.47, 0.30)])
}

fn leaving() -> Shot {
    let key = |at: f32, x: f32, turn: f32| Key::new(at, x, 0.47, 0.3).turned(turn);
    let ben = [
        key(0.0, 1.2, 0.0),
        key(0.12, 1.2, 0.5),
        key(0.32, 2.1, 0.5),
        key(0.66, 2.1, -0.5),
        key(0.85, 1.25, -0.5),
        key(1.0, 1.25, 0.0),
    ];
    let people = vec![still(CORA, 0.5, 0.48, 0.28), actor(BEN, &ben)];
    Shot { discs: 5, ..shot(150, 28, people) }
}

fn empty() -> Shot {
    Shot { discs: 6, ..shot(50, 36, Vec::new()) }
}

fn group() -> Shot {
    let lively = |person: u32, x: f32, y: f32, expression| {
        let key = |at: f32| Key::new(at, x, y, 0.24);
        let path = [
            key(0.0),
            key(0.25).with(expression).turned(0.25),
            key(0.5).with(Blinking).lit(0.75),
            key(0.56).with(expression).lit(0.75),
            key(0.8).lit(1.1).turned(-0.25),
            key(1.0),
        ];
        actor(person, &path)
    };
    let people = vec![
        lively(ADA, 0.35, 0.42, Smiling),
        lively(CORA, 0.75, 0.46, Talking),
        lively(EVE, 1.15, 0.42, Smiling),
        lively(FINN, 1.5, 0.46, Talking),
    ];
    Shot { camera: [WIDE, View { zoom: 1.1, ..WIDE }], ..shot(75, 44, people) }
}

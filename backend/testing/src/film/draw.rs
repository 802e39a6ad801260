//! Draws the frames of a film.

use super::number::write_number;
use super::placement::Placed;
use super::scaled::{Pyramid, view};
use super::script::{Film, Shot, View};
use crate::people::sprite::{Expression, sprite};
use crate::people::{PATCHWORK, picture};
use std::collections::HashMap;
use vision::{Frame, Rect};

/// Height in pixels above which heads are enlarged instead of drawn.
const LARGEST: f32 = 400.0;

/// Draws frames of a film. It keeps the drawn people and the wall of the last shot.
pub struct Frames<'a> {
    film: &'a Film,
    /// Largest height of each person's head in the film, in pixels.
    heights: HashMap<u32, f32>,
    people: HashMap<(u32, i32, Expression), Pyramid>,
    /// Number of the first frame of the shot, its wall, and the part of the scene that it covers.
    wall: Option<(u32, Frame, Rect)>,
    next: u32,
}

impl Film {
    /// Returns all frames in order, upright.
    pub fn frames(&self) -> Frames<'_> {
        let mut heights: HashMap<u32, f32> = HashMap::new();
        for placed in (0..self.length()).flat_map(|index| self.placed(index)) {
            let height = heights.entry(placed.head.person).or_default();
            *height = height.max(placed.head.height.ceil().min(LARGEST));
        }
        Frames { film: self, heights, people: HashMap::new(), wall: None, next: 0 }
    }

    /// Returns the part of the scene in a view, in heights of the frame.
    fn part(&self, view: &View) -> Rect {
        let (width, height) = (self.width as f32 / self.height as f32 / view.zoom, 1.0 / view.zoom);
        Rect { x: view.x - width / 2.0, y: view.y - height / 2.0, width, height }
    }
}

impl Frames<'_> {
    /// Draws frame `index`. Panics if the film has no such frame.
    pub fn draw(&mut self, index: u32) -> Frame {
        let film = self.film;
        let (shot, first, share) = film.shot_at(index);
        let seen = film.part(&View::between(shot.camera, share));
        let mut frame = self.background(shot, first, &seen);
        discs(&mut frame, shot, share, &seen);
        for placed in film.placed(index) {
            self.person(&mut frame, &placed);
        }
        write_number(&mut frame, index);
        frame
    }

    fn background(&mut self, shot: &Shot, first: u32, seen: &Rect) -> Frame {
        if self.wall.as_ref().is_none_or(|(of, ..)| *of != first) {
            self.wall = Some(wall(self.film, shot, first));
        }
        let (_, picture, covered) = self.wall.as_ref().expect("the wall was just drawn");
        let scale = picture.height() as f32 / covered.height;
        let part = Rect {
            x: (seen.x - covered.x) * scale,
            y: (seen.y - covered.y) * scale,
            width: seen.width * scale,
            height: seen.height * scale,
        };
        view(picture, &part, self.film.width, self.film.height)
    }

    fn person(&mut self, frame: &mut Frame, placed: &Placed) {
        let head = placed.head;
        let key = (head.person, (head.turn * 1000.0) as i32, placed.expression);
        let height = self.heights[&head.person];
        let person = self
            .people
            .entry(key)
            .or_insert_with(|| Pyramid::new(sprite(head.person, head.turn, placed.expression, height)));
        person.blend(frame, &placed.extent(), placed.light);
    }
}

impl Iterator for Frames<'_> {
    type Item = Frame;

    fn next(&mut self) -> Option<Frame> {
        let index = self.next;
        (index < self.film.length()).then(|| {
            self.next += 1;
            self.draw(index)
        })
    }
}

/// Draws the wall of a shot that begins with frame `first`, as far as the camera shows it.
fn wall(film: &Film, shot: &Shot, first: u32) -> (u32, Frame, Rect) {
    let [from, to] = shot.camera.map(|view| film.part(&view));
    let (x, y) = (from.x.min(to.x), from.y.min(to.y));
    let width = (from.x + from.width).max(to.x + to.width) - x;
    let height = (from.y + from.height).max(to.y + to.height) - y;
    // Enlarging the wall hardly shows, because it is smooth.
    let scale = film.height as f32 * shot.camera[0].zoom.min(shot.camera[1].zoom);
    let side = |length: f32| (length * scale).round().max(1.0) as u32;
    let (across, down) = (side(width), side(height));
    let pixels = picture(across, down, PATCHWORK + shot.wall, &[]);
    let frame = Frame::new(across, down, pixels).expect("three bytes for each pixel");
    (first, frame, Rect { x, y, width: across as f32 / scale, height: down as f32 / scale })
}

fn discs(frame: &mut Frame, shot: &Shot, share: f32, seen: &Rect) {
    let scale = frame.height() as f32 / seen.height;
    for disc in 0..shot.discs {
        let phase = disc as f32 * 2.4 + shot.wall as f32;
        let x = (0.9 + 0.8 * (phase + 5.0 * share).sin() - seen.x) * scale;
        let y = (0.5 + 0.35 * (1.7 * phase + 7.0 * share).cos() - seen.y) * scale;
        let radius = (0.05 + 0.02 * (disc % 3) as f32) * scale;
        let colour = [90, 60, 160].map(|base: u32| ((base + 67 * disc) % 200 + 30) as u8);
        let range = |centre: f32, side: u32| {
            let limit = |at: f32| at.clamp(0.0, side as f32) as u32;
            limit(centre - radius)..limit(centre + radius + 1.0)
        };
        let width = frame.width() as usize;
        for row in range(y, frame.height()) {
            for column in range(x, frame.width()) {
                let (dx, dy) = (column as f32 + 0.5 - x, row as f32 + 0.5 - y);
                if dx * dx + dy * dy < radius * radius {
                    let at = 3 * (row as usize * width + column as usize);
                    frame.data_mut()[at..at + 3].copy_from_slice(&colour);
                }
            }
        }
    }
}

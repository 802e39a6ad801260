//! Computes where each person is in a frame, in pixels. Drawing and truth use the same numbers.

use super::script::{Actor, Film, View};
use crate::people::Head;
use crate::people::sprite::{self, Expression, covers};
use vision::Rect;

/// Number of directions between a head that looks straight ahead and one that is fully turned.
/// Frames between two directions show the nearer one, so that each is drawn only once.
const DIRECTIONS: f32 = 8.0;

/// Points per side of a face at which its visibility is tested.
const POINTS: u32 = 12;

/// A person in a frame.
#[derive(Clone, Copy, Debug)]
pub struct Placed {
    /// The person and the position and size of the head, in pixels of the upright frame.
    pub head: Head,
    /// Brightness, 1 as in other drawings.
    pub light: f32,
    pub expression: Expression,
}

impl Placed {
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
        let [x, y, width, height] = sprite::EXTENT.map(|share| share * self.head.height);
        Rect { x: self.head.x + x, y: self.head.y + y, width, height }
    }

    /// Returns whether this person hides what is behind a point of the frame.
    fn hides(&self, x: f32, y: f32) -> bool {
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
    /// Returns the people in frame `index`, from back to front, also those outside the frame.
    /// Panics if the film has no such frame.
    pub fn placed(&self, index: u32) -> Vec<Placed> {
        let (shot, _, share) = self.shot_at(index);
        let view = View::between(shot.camera, share);
        shot.actors.iter().filter_map(|actor| self.place(actor, &view, share)).collect()
    }

    fn place(&self, actor: &Actor, view: &View, share: f32) -> Option<Placed> {
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
        Some(Placed { head, light: mix(from.light, to.light), expression })
    }

    /// Returns the visible share of a face, 0 to 1: the part that is inside the frame and that
    /// nobody in `front` hides.
    pub(super) fn visible(&self, face: &Rect, front: &[Placed]) -> f32 {
        let front: Vec<&Placed> =
            front.iter().filter(|placed| placed.extent().intersection(face).area() > 0.0).collect();
        let inside =
            |x: f32, y: f32| (0.0..self.width as f32).contains(&x) && (0.0..self.height as f32).contains(&y);
        let mut seen = 0;
        for point in 0..POINTS * POINTS {
            let share = |step: u32| (step as f32 + 0.5) / POINTS as f32;
            let x = face.x + share(point % POINTS) * face.width;
            let y = face.y + share(point / POINTS) * face.height;
            seen += u32::from(inside(x, y) && !front.iter().any(|placed| placed.hides(x, y)));
        }
        seen as f32 / (POINTS * POINTS) as f32
    }
}

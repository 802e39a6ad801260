//! What goes into the tracker and what comes out: observations, tracks and best shots.

use std::sync::Arc;
use vision::Rect;

/// Maximum distance of a coordinate from the origin in pixels. Faces beyond it are dropped.
pub const MAX_COORDINATE: f32 = 1_048_576.0;

/// One detected face of one frame. `P` is what the caller keeps with a best shot, for example the
/// aligned face.
#[derive(Clone, Debug)]
pub struct Observation<P> {
    pub bbox: Rect,
    /// The detector's confidence, 0..1.
    pub score: f32,
    /// Quality, 0..1. A face without quality never becomes a best shot.
    pub quality: Option<f32>,
    /// The embedding, of length 1.
    pub embedding: Option<Arc<[f32]>>,
    pub payload: P,
}

impl<P> Observation<P> {
    /// Removes what cannot be used: a quality that is not finite, and an embedding that is empty or
    /// not finite. Returns `None` if the box or the score cannot be used.
    pub(crate) fn cleaned(mut self) -> Option<Self> {
        let b = &self.bbox;
        let numbers = [b.x, b.y, b.width, b.height];
        let inside = numbers.iter().all(|v| v.is_finite() && v.abs() <= MAX_COORDINATE);
        if !inside || b.width <= 0.0 || b.height <= 0.0 || !self.score.is_finite() {
            return None;
        }
        self.quality = self.quality.filter(|quality| quality.is_finite()).map(|q| q.clamp(0.0, 1.0));
        self.embedding = self.embedding.filter(|e| !e.is_empty() && e.iter().all(|v| v.is_finite()));
        Some(self)
    }
}

/// Where a face was at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TimedBox {
    pub at_us: i64,
    pub bbox: Rect,
}

/// The face of one person in successive frames.
#[derive(Clone, Debug)]
pub struct Track<P> {
    /// The number of the track, in the order of first appearance.
    pub id: u64,
    /// Time of the first observation in microseconds.
    pub started_us: i64,
    /// Time of the last observation in microseconds.
    pub ended_us: i64,
    /// Number of observations.
    pub samples: u32,
    /// The boxes of the observations in order of time. Of a long track, some are left out; see
    /// [`crate::Config::max_boxes`]. The first and the last box are always present.
    pub boxes: Vec<TimedBox>,
    /// The best shots: the best quality first.
    pub best: Vec<Shot<P>>,
}

impl<P> Track<P> {
    /// Returns where the face was at `at_us`, by linear interpolation between the two nearest
    /// boxes; `None` before the start and after the end.
    pub fn box_at(&self, at_us: i64) -> Option<Rect> {
        box_at(&self.boxes, at_us)
    }
}

/// Returns where the face of these boxes, which are ordered by time, was at `at_us`; see
/// [`Track::box_at`].
pub fn box_at(boxes: &[TimedBox], at_us: i64) -> Option<Rect> {
    let next = boxes.partition_point(|known| known.at_us < at_us);
    let after = boxes.get(next)?;
    if after.at_us == at_us {
        return Some(after.bbox);
    }
    let before = boxes.get(next.checked_sub(1)?)?;
    Some(interpolate(before, after, at_us))
}

/// One observation of a track that was selected for its quality.
#[derive(Clone, Debug)]
pub struct Shot<P> {
    pub at_us: i64,
    pub bbox: Rect,
    /// The detector's confidence, 0..1.
    pub score: f32,
    /// Quality, 0..1.
    pub quality: f32,
    /// The embedding, of length 1. The caller may fill it in before it calls [`crate::split`].
    pub embedding: Option<Arc<[f32]>>,
    pub payload: P,
}

/// Returns the box at `at_us` on the line from `before` to `after`. Requires different times.
pub(crate) fn interpolate(before: &TimedBox, after: &TimedBox, at_us: i64) -> Rect {
    let share =
        (at_us.saturating_sub(before.at_us)) as f64 / (after.at_us.saturating_sub(before.at_us)) as f64;
    between(&before.bbox, &after.bbox, share as f32)
}

/// Returns the box at `share` of the way from `from` (0) to `to` (1).
pub(crate) fn between(from: &Rect, to: &Rect, share: f32) -> Rect {
    let mix = |from: f32, to: f32| from + (to - from) * share;
    Rect {
        x: mix(from.x, to.x),
        y: mix(from.y, to.y),
        width: mix(from.width, to.width),
        height: mix(from.height, to.height),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn at(at_us: i64, x: f32) -> TimedBox {
        TimedBox { at_us, bbox: Rect { x, y: 0.0, width: 10.0, height: 20.0 } }
    }

    #[test]
    fn a_box_between_two_samples_is_interpolated() {
        let boxes = vec![at(0, 0.0), at(100, 10.0), at(300, 50.0)];
        let track: Track<()> =
            Track { id: 0, started_us: 0, ended_us: 300, samples: 3, boxes, best: Vec::new() };
        assert_eq!(track.box_at(100).unwrap().x, 10.0);
        assert_eq!(track.box_at(200).unwrap().x, 30.0);
        assert_eq!(track.box_at(0).unwrap().x, 0.0);
        assert_eq!((track.box_at(-1), track.box_at(301)), (None, None));
    }

    #[test]
    fn unusable_parts_of_an_observation_are_removed() {
        let good = Observation {
            bbox: at(0, 0.0).bbox,
            score: 0.9,
            quality: Some(f32::NAN),
            embedding: Some(Arc::from([f32::INFINITY])),
            payload: (),
        };
        let cleaned = good.clone().cleaned().unwrap();
        assert!(cleaned.quality.is_none() && cleaned.embedding.is_none());
        for (width, height) in [(0.0, 1.0), (1.0, -1.0), (f32::NAN, 1.0), (1.0, f32::INFINITY)] {
            let bbox = Rect { x: 0.0, y: 0.0, width, height };
            assert!(Observation { bbox, ..good.clone() }.cleaned().is_none());
        }
        assert!(Observation { score: f32::NAN, ..good }.cleaned().is_none());
    }
}

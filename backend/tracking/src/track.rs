//! Inputs and outputs of the tracker: its configuration, observations, tracks and best shots.
use std::sync::Arc;
use std::time::Duration;
use vision::Rect;

/// Maximum distance of a coordinate from the origin in pixels. Faces beyond it are ignored.
pub const MAX_COORDINATE: f32 = 1_048_576.0;

/// One detected face of one frame. `P` is the type of data that the caller keeps for a best shot,
/// for example the aligned face.
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
    /// Removes unusable values: a quality that is not finite, and an embedding that is empty or
    /// not finite. Returns `None` if the box or the score cannot be used.
    pub(crate) fn clean(mut self) -> Option<Self> {
        let b = &self.bbox;
        let coordinates = [b.x, b.y, b.width, b.height];
        let is_in_range = coordinates.iter().all(|v| v.is_finite() && v.abs() <= MAX_COORDINATE);
        if !is_in_range || b.width <= 0.0 || b.height <= 0.0 || !self.score.is_finite() {
            return None;
        }
        self.quality = self.quality.filter(|quality| quality.is_finite()).map(|q| q.clamp(0.0, 1.0));
        self.embedding = self.embedding.filter(|e| !e.is_empty() && e.iter().all(|v| v.is_finite()));
        Some(self)
    }
}

/// The position of a face at one time.
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
    /// The boxes of the observations in order of time. Some boxes of a long track are omitted; see
    /// [`crate::Config::max_boxes`]. The first and the last box are always present.
    pub boxes: Vec<TimedBox>,
    /// The best shots: the best quality first.
    pub best_shots: Vec<Shot<P>>,
}

/// An open track.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackInfo {
    /// As [`Track::id`].
    pub id: u64,
    /// Time of the first observation in microseconds.
    pub started_us: i64,
}

/// Returns the box at `at_us` by linear interpolation between the two nearest of `boxes`, which
/// must be in order of time; `None` before the first and after the last one.
pub fn box_at(boxes: &[TimedBox], at_us: i64) -> Option<Rect> {
    let next = boxes.partition_point(|timed_box| timed_box.at_us < at_us);
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

/// Interpolates the box at `at_us` linearly. The times of `before` and `after` must differ.
pub(crate) fn interpolate(before: &TimedBox, after: &TimedBox, at_us: i64) -> Rect {
    let share =
        (at_us.saturating_sub(before.at_us)) as f64 / (after.at_us.saturating_sub(before.at_us)) as f64;
    interpolate_rect(&before.bbox, &after.bbox, share as f32)
}

/// Returns the box between `from` (at `share` 0) and `to` (at `share` 1).
pub(crate) fn interpolate_rect(from: &Rect, to: &Rect, share: f32) -> Rect {
    let mix = |from: f32, to: f32| from + (to - from) * share;
    let (x, y) = (mix(from.x, to.x), mix(from.y, to.y));
    Rect { x, y, width: mix(from.width, to.width), height: mix(from.height, to.height) }
}

/// Settings of [`crate::Tracker`]. The defaults are for faces in videos and camera streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Minimum score of a face that may start a track, 0..1.
    pub high_score: f32,
    /// Minimum score of a face that may continue a track, 0..1. Other faces are ignored.
    pub low_score: f32,
    /// Maximum time from the first frame without the face after which a track can continue. Two
    /// frames without the face never end a track, even after a longer time.
    pub max_lost_time: Duration,
    /// Maximum time between two frames for which positions are predicted. After a longer gap, faces
    /// are associated by similarity, and by overlap if there is no embedding.
    pub max_gap_for_motion: Duration,
    /// Maximum time between two frames. A longer gap ends all tracks.
    pub max_frame_gap: Duration,
    /// Maximum number of best shots of a track.
    pub max_best_shots: usize,
    /// Minimum time between two best shots of a track.
    pub min_shot_gap: Duration,
    /// Minimum similarity of two faces of one person, -1..1; it depends on the embedding model.
    pub match_threshold: f32,
    /// Similarity below which two faces are never linked, even at the same position, -1..1. It is
    /// lower than `match_threshold`, because the position also indicates the identity.
    pub veto_threshold: f32,
    /// Maximum number of boxes of a track. Other boxes are removed.
    pub max_boxes: usize,
    /// Maximum number of faces of one frame. The best scores are used.
    pub max_observations: usize,
    /// Maximum number of open tracks. If there are more, those that were lost first end.
    pub max_tracks: usize,
    /// Maximum number of faces or tracks in a group of conflicting links that is solved exactly.
    /// Larger groups are solved greedily; with 0, all groups are. In the scenes of
    /// `tests/it/tracks.rs`, the mean IDF1 is 0.970 with both methods, and 0.0002 higher with the
    /// exact one. The groups are so small that the exact method takes no measurable time.
    pub max_exact_group: usize,
}

impl Config {
    /// Returns the defaults for a model with this `match_threshold`, and half of it as the veto.
    pub fn for_threshold(match_threshold: f32) -> Self {
        Self { match_threshold, veto_threshold: match_threshold / 2.0, ..Self::default() }
    }
}

impl Default for Config {
    /// Returns ByteTrack's high score (Zhang et al., ECCV 2022) and OpenCV's match threshold for
    /// SFace. ByteTrack's low score is 0.1, but face detectors report many false faces below 0.3.
    fn default() -> Self {
        Self {
            high_score: 0.6,
            low_score: 0.3,
            max_lost_time: Duration::from_secs(2),
            max_gap_for_motion: Duration::from_millis(500),
            max_frame_gap: Duration::from_secs(30),
            max_best_shots: 3,
            min_shot_gap: Duration::from_millis(500),
            match_threshold: 0.363,
            veto_threshold: 0.18,
            max_boxes: 2048,
            max_observations: 500,
            max_tracks: 2000,
            max_exact_group: 64,
        }
    }
}

/// Returns a duration in microseconds, or the maximum value of the type.
pub(crate) fn to_micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn timed_box(at_us: i64, x: f32) -> TimedBox {
        TimedBox { at_us, bbox: Rect { x, y: 0.0, width: 10.0, height: 20.0 } }
    }

    #[test]
    fn box_between_two_boxes_is_interpolated() {
        let boxes = vec![timed_box(0, 0.0), timed_box(100, 10.0), timed_box(300, 50.0)];
        assert_eq!(box_at(&boxes, 100).unwrap().x, 10.0);
        assert_eq!(box_at(&boxes, 200).unwrap().x, 30.0);
        assert_eq!(box_at(&boxes, 0).unwrap().x, 0.0);
        assert_eq!((box_at(&boxes, -1), box_at(&boxes, 301)), (None, None));
    }

    #[test]
    fn removes_unusable_values_of_observation() {
        let valid = Observation {
            bbox: timed_box(0, 0.0).bbox,
            score: 0.9,
            quality: Some(f32::NAN),
            embedding: Some(Arc::from([f32::INFINITY])),
            payload: (),
        };
        let usable = valid.clone().clean().unwrap();
        assert!(usable.quality.is_none() && usable.embedding.is_none());
        for (width, height) in [(0.0, 1.0), (1.0, -1.0), (f32::NAN, 1.0), (1.0, f32::INFINITY)] {
            let bbox = Rect { x: 0.0, y: 0.0, width, height };
            assert!(Observation { bbox, ..valid.clone() }.clean().is_none());
        }
        assert!(Observation { score: f32::NAN, ..valid }.clean().is_none());
    }
}

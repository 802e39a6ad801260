use std::time::Duration;

/// Settings of [`crate::Tracker`]. The defaults are for faces in films and camera streams.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Minimum score of a face that may start a track, 0..1.
    pub high_score: f32,
    /// Minimum score of a face that may continue a track, 0..1. Other faces are dropped.
    pub low_score: f32,
    /// Maximum time for which a track may be lost. The time starts at the first frame without the
    /// face. Two frames without the face never end a track, however sparse the frames are.
    pub lost_after: Duration,
    /// Maximum time between two frames for which positions are predicted. After a longer gap, faces
    /// are associated by similarity, and by overlap if there is no embedding.
    pub max_gap_for_motion: Duration,
    /// Maximum time between two frames. A longer gap ends all tracks.
    pub max_frame_gap: Duration,
    /// Maximum number of best shots of a track.
    pub best_shots: usize,
    /// Minimum time between two best shots of a track.
    pub shot_gap: Duration,
    /// Minimum similarity of two faces of one person, -1..1; it depends on the embedding model.
    pub match_threshold: f32,
    /// Similarity below which two faces are never linked, wherever they are, -1..1. It is lower
    /// than `match_threshold`, because position is evidence too.
    pub veto_threshold: f32,
    /// Maximum number of boxes that a track keeps. A longer track is thinned out.
    pub max_boxes: usize,
    /// Maximum number of faces of one frame. The best scores are used.
    pub max_observations: usize,
    /// Maximum number of open tracks. If there are more, those that were lost first end.
    pub max_open: usize,
    /// Maximum number of faces, and of tracks, in a group of rival links that is solved exactly.
    /// Larger groups are solved greedily. 0: always greedily. In the scenes of
    /// `tests/it/dense.rs`, the mean IDF1 is 0.970 with both methods, and 0.0002 higher with the
    /// exact one. Groups are small there, so the exact method takes no measurable time.
    pub exact_group: usize,
}

impl Config {
    /// Returns the defaults for a model with this `match_threshold`. The veto is at half of it.
    pub fn for_threshold(match_threshold: f32) -> Self {
        Self { match_threshold, veto_threshold: match_threshold / 2.0, ..Self::default() }
    }
}

impl Default for Config {
    /// Returns ByteTrack's thresholds for scores (Zhang et al., ECCV 2022: high 0.6; their low
    /// threshold is 0.1, but face detectors report many false faces below 0.3), and OpenCV's
    /// threshold for SFace.
    fn default() -> Self {
        Self {
            high_score: 0.6,
            low_score: 0.3,
            lost_after: Duration::from_secs(2),
            max_gap_for_motion: Duration::from_millis(500),
            max_frame_gap: Duration::from_secs(30),
            best_shots: 3,
            shot_gap: Duration::from_millis(500),
            match_threshold: 0.363,
            veto_threshold: 0.18,
            max_boxes: 2048,
            max_observations: 500,
            max_open: 2000,
            exact_group: 64,
        }
    }
}

/// Returns a duration in microseconds, limited to the range of the type.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

//! The results of an analysis of a video. Times are microseconds from its first frame.

use crate::analyze::AnalyzedFace;
use std::time::Duration;
use tracking::TimedBox;
use video::{Damage, Index};

/// The faces of one frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameFaces<'a> {
    /// Time of the frame.
    pub at_us: i64,
    /// The faces, best score first. Those with a low score can only continue a track.
    pub faces: &'a [AnalyzedFace],
}

/// The analysis of one video.
#[derive(Clone, Debug)]
pub struct VideoAnalysis {
    /// What the file reports about itself.
    pub index: Index,
    /// Number of frames that were analysed.
    pub frames: u64,
    /// The tracks in order of their start.
    pub tracks: Vec<VideoTrack>,
    /// Number of people, without tracks of unknown people.
    pub people: u32,
    /// Why the video ended early or lacks frames.
    pub damage: Option<Damage>,
    /// Time until the keyframes were known.
    pub indexing: Duration,
    /// Time of the whole analysis.
    pub total: Duration,
}

/// A face in successive frames of one shot.
#[derive(Clone, Debug)]
pub struct VideoTrack {
    /// Number of the track, from 1, in order of the start.
    pub number: u32,
    /// Number of the person, from 1, in order of the first appearance. `None` if no face of the
    /// track meets the quality profile, so that the person is unknown.
    pub person: Option<u32>,
    /// Time of the first frame.
    pub started_us: i64,
    /// Time of the last frame.
    pub ended_us: i64,
    /// Number of frames with the face.
    pub samples: u32,
    /// The boxes in pixels of the frame as a player shows it, in order of time. Of a long track,
    /// boxes that follow from their neighbours are left out.
    pub boxes: Vec<TimedBox>,
    /// The best shots, best quality first.
    pub faces: Vec<TrackFace>,
}

/// A best shot of a track.
#[derive(Clone, Debug)]
pub struct TrackFace {
    /// Time of the frame.
    pub at_us: i64,
    /// The face, in pixels of the frame as a player shows it. It has a quality report, and an
    /// embedding if it meets the quality profile.
    pub face: AnalyzedFace,
}

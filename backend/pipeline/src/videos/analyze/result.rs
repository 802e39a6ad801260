//! The results of an analysis of a video. Times are microseconds from its first frame.

use super::pictures::Cut;
use crate::images::analyze::AnalyzedFace;
use std::sync::Arc;
use std::time::Duration;
use tracking::TimedBox;
use tracking::people::Appearance;
use video::{Damage, Index};
use vision::Frame;

#[derive(Clone, Copy, Debug)]
pub struct FrameFaces<'a> {
    pub at_us: i64,
    /// Width and height of the frame as a player shows it, in pixels.
    pub size: (u32, u32),
    /// The faces, best score first. Those with a low score can only continue a track.
    pub faces: &'a [FrameFace],
}

#[derive(Debug)]
pub struct FrameFace {
    /// The face, in pixels of the frame as a player shows it.
    pub face: AnalyzedFace,
    /// What may be stored of it.
    pub(super) cut: Option<Cut>,
}

#[derive(Clone, Debug)]
pub struct VideoAnalysis {
    pub index: Index,
    /// Number of frames that were analysed.
    pub frames: u64,
    /// Time of the last frame that was analysed; `None` if there was none.
    pub last_us: Option<i64>,
    /// Longest time, in microseconds, by which a face is visible before the start of its track or
    /// after its end. `None` if the distance between analysed frames has no limit.
    pub tolerance_us: Option<i64>,
    /// The tracks in order of their start.
    pub tracks: Vec<VideoTrack>,
    /// Number of people, without tracks of unknown people.
    pub people: u32,
    /// Why the video ended early or lacks frames.
    pub damage: Option<Damage>,
    /// Time until the keyframes were known.
    pub indexing: Duration,
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

impl VideoTrack {
    /// Returns what decides which person the track shows.
    pub(super) fn appearance(&self) -> Appearance {
        let embeddings = self.faces.iter().filter_map(|shot| shot.face.embedding.as_ref());
        Appearance {
            started_us: self.started_us,
            ended_us: self.ended_us,
            embeddings: embeddings.map(|embedding| Arc::from(embedding.as_slice())).collect(),
        }
    }
}

/// A best shot of a track.
#[derive(Clone, Debug)]
pub struct TrackFace {
    pub at_us: i64,
    /// The face, in pixels of the frame as a player shows it. It has a quality report, and an
    /// embedding if it meets the quality profile.
    pub face: AnalyzedFace,
    /// What is stored of the face, if it was requested.
    pub pictures: Option<ShotPictures>,
}

/// The pictures of a best shot. Other faces in them are covered, so that the erasure of one person
/// does not concern the pictures of another.
#[derive(Clone, Debug)]
pub struct ShotPictures {
    /// The aligned face, 112x112 pixels.
    pub chip: Arc<Frame>,
    /// The face with a margin. The longer side has at most 256 pixels.
    pub crop: Arc<Frame>,
}

/// How an analysis in parts ended.
#[derive(Clone, Debug)]
pub struct VideoEnd {
    pub index: Index,
    /// Number of frames that were analysed, those before a resumption included.
    pub frames: u64,
    /// Time of the last frame that was analysed; `None` if there was none.
    pub last_us: Option<i64>,
    /// Why the video ended early or lacks frames.
    pub damage: Option<Damage>,
    /// Time until the keyframes were known.
    pub indexing: Duration,
    pub total: Duration,
}

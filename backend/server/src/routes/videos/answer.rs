//! The result of the analysis of a video.
use crate::routes::dto::{milliseconds, to_ms};
use crate::routes::faces::{DetectedFace, ModelNames};
use inference::Engine;
use pipeline::{VideoAnalysis, VideoTrack};
use serde::Serialize;
use serde_json::{Value, json};
use vision::Rect;

#[derive(Clone, Debug, Serialize)]
pub(crate) struct VideoInfo {
    /// The container, such as `matroska,webm`.
    container: String,
    /// The codec, such as `h264`.
    codec: String,
    /// Width in pixels, before rotation.
    width: u32,
    /// Height in pixels, before rotation.
    height: u32,
    /// Duration in milliseconds, if the file reports it.
    duration_ms: Option<i64>,
    keyframes: usize,
    /// Number of frames that were analysed.
    frames: u64,
    /// Longest time, in milliseconds, by which a face is visible before the start or after the end
    /// of its track; null if the distance between analysed frames has no limit.
    tolerance_ms: Option<i64>,
    /// Why the video ends early or lacks frames.
    damage: Option<VideoDamage>,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct VideoDamage {
    /// Whether the end of the file is missing.
    truncated: bool,
    /// The first message of the decoder.
    message: String,
}

/// A face in successive frames of one shot.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TrackAnswer {
    /// Number of the track, from 1, in order of the start.
    track: u32,
    /// Number of the person, from 1. `null` if no face of the track meets the quality profile.
    person: Option<u32>,
    /// Time of the first frame in milliseconds.
    start_ms: i64,
    /// Time of the last frame in milliseconds.
    end_ms: i64,
    /// Whether the face is visible in the last analysed frame of the video.
    to_end: bool,
    /// Number of analysed frames with the face.
    samples: u32,
    /// The best shots, best quality first.
    faces: Vec<TrackFaceAnswer>,
    /// Boxes over time: time in milliseconds, x, y, width and height in pixels. Long tracks omit
    /// boxes that linear interpolation predicts well.
    boxes: Vec<(i64, f32, f32, f32, f32)>,
}

/// A best shot of a track.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct TrackFaceAnswer {
    /// Time of the frame in milliseconds.
    at_ms: i64,
    #[serde(flatten)]
    face: DetectedFace,
}

/// Durations in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct VideoTimings {
    /// Until the keyframes were known.
    index: f64,
    total: f64,
}

/// The people of a video, and when they show.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct VideoAnswer {
    video: VideoInfo,
    people: u32,
    tracks: Vec<TrackAnswer>,
    models: ModelNames,
    timings_ms: VideoTimings,
}

impl VideoAnswer {
    pub(crate) fn of(analysis: &VideoAnalysis, engine: &Engine, with_embeddings: bool) -> Self {
        let index = &analysis.index;
        let track = |track| TrackAnswer::of(track, analysis.last_us, with_embeddings);
        let tracks = analysis.tracks.iter().map(track);
        Self {
            video: VideoInfo {
                container: index.container.clone(),
                codec: index.codec.clone(),
                width: index.width,
                height: index.height,
                duration_ms: index.duration_us.map(to_ms),
                keyframes: index.keyframes_us.len(),
                frames: analysis.frames,
                tolerance_ms: analysis.tolerance_us.map(to_ms),
                damage: analysis.damage.as_ref().map(|damage| VideoDamage {
                    truncated: damage.truncated,
                    message: damage.message.clone(),
                }),
            },
            people: analysis.people,
            tracks: tracks.collect(),
            models: ModelNames::of(engine),
            timings_ms: VideoTimings {
                index: milliseconds(analysis.indexing),
                total: milliseconds(analysis.total),
            },
        }
    }
}

impl VideoAnswer {
    /// Returns an example with one track, without faces.
    pub(super) fn example() -> Value {
        json!({
            "video": {
                "container": "mov,mp4,m4a,3gp,3g2,mj2", "codec": "h264", "width": 1920, "height": 1080,
                "duration_ms": 8_000, "keyframes": 8, "frames": 40, "tolerance_ms": 200,
                "damage": null
            },
            "people": 1,
            "tracks": [{
                "track": 1, "person": 1, "start_ms": 200, "end_ms": 4_200, "to_end": false, "samples": 21,
                "faces": [], "boxes": [[200, 136.5, 108.5, 185.75, 244.25]]
            }],
            "models": {"detector": "yunet", "embedder": "sface"},
            "timings_ms": {"index": 41.5, "total": 912.25}
        })
    }
}

impl TrackAnswer {
    fn of(track: &VideoTrack, last_us: Option<i64>, with_embeddings: bool) -> Self {
        let face = |face: &pipeline::TrackFace| TrackFaceAnswer {
            at_ms: to_ms(face.at_us),
            face: DetectedFace::of(&face.face, with_embeddings),
        };
        let boxed = |at_us, Rect { x, y, width, height }| (to_ms(at_us), x, y, width, height);
        Self {
            track: track.number,
            person: track.person,
            start_ms: to_ms(track.started_us),
            end_ms: to_ms(track.ended_us),
            to_end: last_us == Some(track.ended_us),
            samples: track.samples,
            faces: track.faces.iter().map(face).collect(),
            boxes: track.boxes.iter().map(|timed| boxed(timed.at_us, timed.bbox)).collect(),
        }
    }
}

//! Writes one JSON object for a video, and one for each of its tracks. A video can have 20,000
//! tracks, so they are not part of its object.
use super::lines::{FaceLine, Kind, json};
use crate::ApiError;
use crate::routes::dto::{TrackBox, boxes, to_ms};
use domain::{Reason, VideoState};
use serde::Serialize;
use store::images::sources::{ExportedTrack, ExportedVideo, VideoSource};
use time::OffsetDateTime;
use uuid::Uuid;

/// Number of tracks per read. A track has boxes for up to a minute.
pub(crate) const TRACKS: i64 = 50;

#[derive(Serialize)]
struct VideoLine<'a> {
    kind: Kind,
    video_id: Uuid,
    state: VideoState,
    sha256: Option<String>,
    bytes: Option<i64>,
    codec: Option<&'a str>,
    width: Option<i32>,
    height: Option<i32>,
    duration_ms: Option<i64>,
    read_ms: Option<i64>,
    frames: i64,
    people: Option<i32>,
    unidentified_tracks: i64,
    reason: Option<&'a Reason>,
    original_id: Option<Uuid>,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    #[serde(with = "time::serde::rfc3339::option")]
    finished_at: Option<OffsetDateTime>,
    sources: Vec<SourceLine<'a>>,
    /// Number of sources. Counting stops at 1,000.
    sources_total: i64,
    sources_cut: bool,
}

#[derive(Serialize)]
struct SourceLine<'a> {
    page_url: Option<&'a str>,
    video_url: Option<&'a str>,
    #[serde(with = "time::serde::rfc3339")]
    found_at: OffsetDateTime,
}

#[derive(Serialize)]
struct TrackLine<'a> {
    kind: Kind,
    track_id: Uuid,
    video_id: Uuid,
    person: Option<i32>,
    start_ms: i64,
    end_ms: i64,
    samples: i32,
    faces: Vec<TrackFaceLine<'a>>,
    boxes: Vec<TrackBox>,
}

#[derive(Serialize)]
struct TrackFaceLine<'a> {
    at_ms: i64,
    image_id: Uuid,
    #[serde(flatten)]
    face: FaceLine<'a>,
}

pub(crate) fn video_line(exported: &ExportedVideo) -> String {
    let ExportedVideo { video, sources, total } = exported;
    json(&VideoLine {
        kind: Kind::Video,
        video_id: video.id,
        state: video.state,
        sha256: video.sha256.as_ref().map(hex::encode),
        bytes: video.bytes,
        codec: video.codec.as_deref(),
        width: video.width,
        height: video.height,
        duration_ms: video.duration_us.map(to_ms),
        read_ms: video.checkpoint_us.map(to_ms),
        frames: video.frames,
        people: video.people,
        unidentified_tracks: video.unidentified,
        reason: video.reason.as_ref(),
        original_id: video.original_id,
        created_at: video.created_at,
        finished_at: video.finished_at,
        sources: sources.iter().map(source).collect(),
        sources_total: *total,
        sources_cut: (sources.len() as i64) < *total,
    })
}

fn source(source: &VideoSource) -> SourceLine<'_> {
    SourceLine {
        page_url: source.page_url.as_deref(),
        video_url: source.video_url.as_deref(),
        found_at: source.found_at,
    }
}

/// Returns the line of a track.
///
/// # Errors
/// Fails if the stored boxes cannot be decoded.
pub(crate) fn track_line(video: Uuid, exported: &ExportedTrack) -> Result<String, ApiError> {
    let ExportedTrack { track, faces } = exported;
    let faces = faces.iter().map(|(at_us, face)| TrackFaceLine {
        at_ms: to_ms(*at_us),
        image_id: face.0.image_id,
        face: face.into(),
    });
    Ok(json(&TrackLine {
        kind: Kind::Track,
        track_id: track.id,
        video_id: video,
        person: track.person,
        start_ms: to_ms(track.started_us),
        end_ms: to_ms(track.ended_us),
        samples: track.samples,
        faces: faces.collect(),
        boxes: boxes(&track.boxes)?,
    }))
}

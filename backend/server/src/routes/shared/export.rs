//! Streams the exports of crawls and videos, and formats the lines that both contain.
//!
//! A piece is read only when the connection is ready for it. The memory for an export therefore
//! depends neither on its length nor on the speed of the client. Pieces count like other responses:
//! the memory of all callers and of one caller is limited, and while a piece is read, it uses one
//! of the caller's database connections.
use crate::auth::Caller;
use crate::request::CallerId;
use crate::routes::shared::values::{
    BoundingBox, Quality, TrackBox, decode_track_boxes, points, stored_quality, to_ms,
};
use crate::{ApiError, AppState, Result};
use axum::body::Body;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use domain::{Reason, VideoState};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use store::blobs::parts::FaceParts;
use store::faces::Face;
use store::images::sources::ExportedFace;
use store::videos::Video;
use store::videos::export::{ExportedTrack, ExportedVideo, VideoSource};
use store::videos::tracks::Track;
use time::OffsetDateTime;
use time::macros::datetime;
use utoipa::{PartialSchema, ToSchema};
use uuid::{Uuid, uuid};
use vision::QualityReport;

/// The format of the lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Format {
    #[default]
    Jsonl,
    Csv,
}

/// Maximum time for which a piece waits for memory. After this time, the connection is aborted.
const MAX_PIECE_WAIT: Duration = Duration::from_secs(60);

/// A piece of an export. `next` is the cursor of the next piece; `None` after the last one.
pub(crate) struct Piece<C> {
    pub(crate) text: String,
    pub(crate) next: Option<C>,
}

pub(crate) struct Export {
    pub(crate) format: Format,
    /// Name of the file without its extension.
    pub(crate) name: String,
    /// The first line of CSV.
    pub(crate) head: String,
}

impl Export {
    /// Returns the response. `read` returns the piece at a cursor, and `start` is the first cursor.
    ///
    /// # Errors
    /// Fails if the first piece cannot be read. A later failure aborts the connection, so that a
    /// partial export cannot be mistaken for a complete one.
    pub(crate) async fn respond<C, R, F>(
        self,
        state: AppState,
        caller: Caller,
        start: C,
        read: R,
    ) -> Result<Response>
    where
        C: Send + 'static,
        R: Fn(Caller, C) -> F + Clone + Send + 'static,
        F: Future<Output = Result<Piece<C>>> + Send,
    {
        let Self { format, name, head } = self;
        let (content_type, extension, head) = match format {
            Format::Jsonl => ("application/x-ndjson", "jsonl", String::new()),
            Format::Csv => ("text/csv; charset=utf-8; header=present", "csv", head),
        };
        // The layers for requests count the connection of the first piece.
        let first = read(caller.clone(), start).await?;
        let first_piece = head + &first.text;
        let memory = state.response_memory.try_acquire(first_piece.len() as u64)?;
        let first_piece = Arc::new(memory).hold_piece(first_piece.into());
        // The body is read outside of the request.
        let caller_id = CallerId::current();
        let later_pieces = stream::try_unfold(first.next, move |next| {
            let (state, caller, read) = (state.clone(), caller.clone(), read.clone());
            caller_id.scope(async move {
                let Some(cursor) = next else { return Ok::<_, ApiError>(None) };
                let mut connection = state.connection_shares.open();
                connection.acquire(1).await;
                caller.recheck_key(&state.keyring, &state.services.store).await?;
                let Piece { text, next } = read(caller, cursor).await?;
                drop(connection);
                let memory = state.response_memory.acquire(text.len() as u64);
                let memory = tokio::time::timeout(MAX_PIECE_WAIT, memory).await;
                let memory = memory.map_err(|_| state.response_memory.exhausted())??;
                Ok(Some((Arc::new(memory).hold_piece(text.into()), next)))
            })
        });
        let body = stream::once(async move { Ok(first_piece) }).chain(later_pieces);
        let headers = [
            (header::CONTENT_TYPE, content_type.to_owned()),
            (header::CONTENT_DISPOSITION, format!("attachment; filename=\"{name}.{extension}\"")),
        ];
        Ok((headers, Body::from_stream(body)).into_response())
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LineKind {
    Image,
    Video,
    Track,
}

#[derive(Serialize)]
pub(crate) struct FaceLine<'a> {
    face_id: Uuid,
    bbox: BoundingBox,
    det_score: f32,
    landmarks: Vec<[f32; 2]>,
    quality: Option<QualityReport>,
    embedding_model: &'a str,
    /// Present only if the request includes embeddings.
    #[serde(skip_serializing_if = "Option::is_none")]
    embedding: Option<&'a [f32]>,
}

impl<'a> From<&'a ExportedFace> for FaceLine<'a> {
    fn from((face, embedding): &'a ExportedFace) -> Self {
        Self {
            face_id: face.id,
            bbox: BoundingBox::from_slice(&face.bbox),
            det_score: face.det_score,
            landmarks: points(&face.landmarks),
            quality: stored_quality(face.quality.clone()),
            embedding_model: &face.embedding_model,
            embedding: embedding.as_deref(),
        }
    }
}

pub(crate) fn json_line(line: &impl Serialize) -> String {
    let mut text = serde_json::to_string(line).expect("a line is plain data");
    text.push('\n');
    text
}

/// Columns that describe a face.
pub(crate) const FACE_COLUMNS: &str =
    "face_id,x,y,face_width,face_height,det_score,quality,quality_passed,embedding_model";

/// Returns a header row. The column of the embeddings is the last one.
pub(crate) fn csv_header(columns: &str, embeddings: bool) -> String {
    format!("{columns}{}\r\n", if embeddings { ",embedding" } else { "" })
}

/// Returns the fields of [`FACE_COLUMNS`], which are empty without a face.
pub(crate) fn face_fields(face: Option<&ExportedFace>) -> Vec<String> {
    let Some((face, _)) = face else { return empty_columns(FACE_COLUMNS).collect() };
    let quality_field = |key: &str| {
        let value = face.quality.as_ref().and_then(|quality| quality.get(key));
        value.map(ToString::to_string).unwrap_or_default()
    };
    let (quality, passed) = (quality_field("overall"), quality_field("passed"));
    let numbers: Vec<String> = face.bbox.iter().chain([&face.det_score]).map(ToString::to_string).collect();
    let model = face.embedding_model.clone();
    std::iter::once(face.id.to_string()).chain(numbers).chain([quality, passed, model]).collect()
}

pub(crate) fn empty_columns(columns: &str) -> impl Iterator<Item = String> + use<> {
    std::iter::repeat_n(String::new(), columns.split(',').count())
}

/// Returns the field of an embedding, in which spaces separate the components. It is empty if the
/// row has no face.
pub(crate) fn embedding_field(face: Option<&ExportedFace>) -> String {
    let components = face.and_then(|(_, embedding)| embedding.as_deref()).unwrap_or_default();
    components.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

pub(crate) fn field(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

pub(crate) fn csv_row(fields: impl Iterator<Item = String>) -> String {
    let fields: Vec<String> = fields.map(quote_field).collect();
    format!("{}\r\n", fields.join(","))
}

/// Quotes a field if necessary. A field that a spreadsheet would read as a formula is prefixed with
/// an apostrophe, because URLs are untrusted input.
fn quote_field(field: String) -> String {
    let field = if field.starts_with(['=', '+', '@', '\t', '\r']) { format!("'{field}") } else { field };
    if field.contains(['"', ',', '\r', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field }
}

/// Number of tracks per read. A track has boxes for up to a minute.
pub(crate) const TRACKS_PER_READ: i64 = 50;

#[derive(Serialize)]
struct VideoLine<'a> {
    kind: LineKind,
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
    sources: Vec<VideoSourceLine<'a>>,
    /// Number of sources. Counting stops at 1,000.
    sources_total: i64,
    sources_cut: bool,
}

#[derive(Serialize)]
struct VideoSourceLine<'a> {
    page_url: Option<&'a str>,
    video_url: Option<&'a str>,
    #[serde(with = "time::serde::rfc3339")]
    found_at: OffsetDateTime,
}

#[derive(Serialize)]
struct TrackLine<'a> {
    kind: LineKind,
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
    json_line(&VideoLine {
        kind: LineKind::Video,
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
        sources: sources.iter().map(source_line).collect(),
        sources_total: *total,
        sources_cut: (sources.len() as i64) < *total,
    })
}

fn source_line(source: &VideoSource) -> VideoSourceLine<'_> {
    VideoSourceLine {
        page_url: source.page_url.as_deref(),
        video_url: source.video_url.as_deref(),
        found_at: source.found_at,
    }
}

/// Returns the line of a track.
///
/// # Errors
/// Fails if the stored boxes cannot be decoded.
pub(crate) fn track_line(video: Uuid, exported: &ExportedTrack) -> Result<String> {
    let ExportedTrack { track, faces } = exported;
    let faces = faces.iter().map(|(at_us, face)| TrackFaceLine {
        at_ms: to_ms(*at_us),
        image_id: face.0.image_id,
        face: face.into(),
    });
    Ok(json_line(&TrackLine {
        kind: LineKind::Track,
        track_id: track.id,
        video_id: video,
        person: track.person,
        start_ms: to_ms(track.started_us),
        end_ms: to_ms(track.ended_us),
        samples: track.samples,
        faces: faces.collect(),
        boxes: decode_track_boxes(&track.boxes)?,
    }))
}

pub(crate) const CREATED_AT: OffsetDateTime = datetime!(2026-01-31 12:00 UTC);
const VIDEO: Uuid = uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b07");
/// One box, as `tracking::boxes` encodes it: 61,200 ms, and (136.5, 108.5, 185.75, 244.25) pixels.
const BOXES: [u8; 13] = [1, 1, 160, 188, 7, 196, 8, 228, 6, 206, 11, 162, 15];

pub(crate) fn example_face(image_id: Uuid) -> ExportedFace {
    let face = Face {
        id: uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b03"),
        collection_id: Uuid::nil(),
        collection: "default".into(),
        image_id,
        bbox: vec![136.6, 108.5, 185.7, 244.3],
        det_score: 0.93,
        landmarks: vec![188.1, 202.1, 270.7, 198.8, 233.4, 248.9, 200.3, 290.9, 267.4, 286.9],
        quality: Some(json!(Quality::schema())["example"].take()),
        embedding_model: "sface".into(),
        parts: FaceParts::default(),
        created_at: CREATED_AT,
    };
    (face, None)
}

pub(crate) fn example_video() -> ExportedVideo {
    let video_url = Some("https://example.org/film.mp4".to_owned());
    let video = Video {
        id: VIDEO,
        collection_id: Uuid::nil(),
        collection: "default".into(),
        state: VideoState::Completed,
        sha256: Some((0..32).collect()),
        bytes: Some(12_345_678),
        source_url: video_url.clone(),
        crawl_id: None,
        scan_id: None,
        page_url: None,
        original_id: None,
        source_key: None,
        options: json!({}),
        codec: Some("h264".into()),
        width: Some(1920),
        height: Some(1080),
        duration_us: Some(125_000_000),
        checkpoint_us: Some(125_000_000),
        frames: 63,
        last_track: 1,
        unidentified: 0,
        people: Some(1),
        reason: None,
        detail: None,
        stream: None,
        started_at: None,
        created_at: CREATED_AT,
        finished_at: Some(CREATED_AT),
    };
    let page_url = Some("https://example.org/team".to_owned());
    let source = VideoSource { page_url, video_url, found_at: CREATED_AT };
    ExportedVideo { video, sources: vec![source], total: 1 }
}

pub(crate) fn example_track() -> ExportedTrack {
    let track = Track {
        id: uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b08"),
        number: 1,
        person: Some(1),
        started_us: 61_200_000,
        ended_us: 65_000_000,
        samples: 20,
        boxes: BOXES.into(),
        faces: Vec::new(),
    };
    let face = example_face(uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b02"));
    ExportedTrack { track, faces: vec![(63_400_000, face)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn csv_fields_are_quoted_and_formulas_escaped() {
        let fields = ["plain", "a,b", "say \"x\"", "two\nlines", "=1+1", "-0.5"];
        let row = csv_row(fields.into_iter().map(str::to_owned));
        assert_eq!(row, "plain,\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",'=1+1,-0.5\r\n");
    }
}

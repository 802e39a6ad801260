//! Exports a video with its tracks. The stream and the JSON lines are in `shared::export`.
use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::shared::export::{
    Export, FACE_COLUMNS, Format, Piece, TRACKS_PER_READ, csv_header, csv_row, embedding_field,
    example_track, example_video, face_fields, field, track_line, video_line,
};
use crate::routes::shared::values::to_ms;
use crate::{AppState, Result, Scope, Spec};
use axum::response::Response;
use serde::Deserialize;
use store::videos::export::ExportedTrack;
use utoipa::IntoParams;
use uuid::Uuid;

/// Options of an export.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportParams {
    /// `jsonl` (the default) writes one JSON object for the video, with the places where it was
    /// found, and then one per track, with faces and boxes. `csv` writes one row per track, with
    /// its best face.
    #[param(inline)]
    format: Option<Format>,
    /// Include the embeddings of the faces.
    #[param(default = false)]
    embeddings: Option<bool>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Export a video with its tracks as a stream of lines.
///
/// The tracks are in the order of their start. The sources include those of duplicates of the
/// video; at most the first 100 are listed. The field `kind` of a line is `video` or `track`. The
/// stream is read from the database while it is sent. If the stream fails, or if the video is
/// deleted meanwhile, the connection is aborted, so that a partial export cannot be mistaken for a
/// complete one.
#[utoipa::path(
    get, path = "/videos/{id}/export", operation_id = "export_video", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video"), ExportParams),
    responses((status = 200, description = "The video, and one line per track", content(
        (String = "application/x-ndjson", example = json!(jsonl_example())),
        (String = "text/csv", example = json!(csv_example())),
    ), headers(("content-disposition")))),
)]
pub(super) async fn export_video(
    state: AppState,
    caller: Caller,
    Id(video): Id,
    Query(params): Query<ExportParams>,
) -> Result<Response> {
    let (format, embeddings) = (params.format.unwrap_or_default(), params.embeddings.unwrap_or(false));
    let export = Export { format, name: format!("video-{video}"), head: csv_head(embeddings) };
    let reader = Reader { video, format, embeddings };
    export.respond(state, caller, None, move |caller, after| reader.read(caller, after)).await
}

#[derive(Clone, Copy)]
struct Reader {
    video: Uuid,
    format: Format,
    embeddings: bool,
}

/// The start and the id of a track.
type Cursor = (i64, Uuid);

impl Reader {
    /// Reads the tracks after a track. The first piece begins with the video.
    async fn read(self, caller: Caller, after: Option<Cursor>) -> Result<Piece<Option<Cursor>>> {
        let Self { video, format, embeddings } = self;
        let mut text = String::new();
        if after.is_none() {
            let exported = caller.store().crawled_videos().export(video).await?;
            if format == Format::Jsonl {
                text = video_line(&exported);
            }
        }
        let page =
            caller.store().crawled_videos().export_tracks(video, after, TRACKS_PER_READ, embeddings).await?;
        // A deleted video has no tracks, and the export would end as if it were complete.
        caller.store().videos().get(video).await?;
        for track in &page.tracks {
            text += &match format {
                Format::Jsonl => track_line(video, track)?,
                Format::Csv => csv_line(video, track, embeddings),
            };
        }
        Ok(Piece { text, next: page.next.map(Some) })
    }
}

const TRACK_COLUMNS: &str = "video_id,track_id,person,start_ms,end_ms,samples,faces,image_id,at_ms";

fn csv_head(embeddings: bool) -> String {
    csv_header(&format!("{TRACK_COLUMNS},{FACE_COLUMNS}"), embeddings)
}

/// Returns the row of a track. `faces` is the number of its stored faces. `image_id` and `at_ms`
/// describe the frame of the best face.
fn csv_line(video: Uuid, exported: &ExportedTrack, embeddings: bool) -> String {
    let (track, best) = (&exported.track, exported.faces.first());
    let about_track = [
        video.to_string(),
        track.id.to_string(),
        field(track.person),
        to_ms(track.started_us).to_string(),
        to_ms(track.ended_us).to_string(),
        track.samples.to_string(),
        exported.faces.len().to_string(),
        field(best.map(|(_, face)| face.0.image_id)),
        field(best.map(|(at_us, _)| to_ms(*at_us))),
    ];
    let best = best.map(|(_, face)| face);
    let embedding = embeddings.then(|| embedding_field(best));
    csv_row(about_track.into_iter().chain(face_fields(best)).chain(embedding))
}

fn jsonl_example() -> String {
    let video = example_video();
    let track = track_line(video.video.id, &example_track()).expect("the boxes of the example are valid");
    video_line(&video) + &track
}

fn csv_example() -> String {
    csv_head(false) + &csv_line(example_video().video.id, &example_track(), false)
}

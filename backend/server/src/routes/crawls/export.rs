mod csv;
mod example;
mod image;

use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::export::video::{TRACKS, track_line, video_line};
use crate::routes::export::{Export, Format, Piece};
use crate::{ApiError, AppState, Scope, Spec};
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use std::collections::VecDeque;
use utoipa::IntoParams;
use uuid::Uuid;

/// Number of images per read.
const IMAGES: i64 = 100;
/// Number of ids of videos per read. Videos are read one by one.
const VIDEOS: i64 = 1_000;

/// Options of an export.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ExportParams {
    /// `jsonl` (the default) writes one JSON object per image, with its sources and faces, then one
    /// per video, with its sources, and after it one per track of the video, with faces and boxes.
    /// `csv` writes one row per face, and one row per image or video without faces.
    #[param(inline)]
    format: Option<Format>,
    /// Include the embeddings of the faces.
    #[param(default = false)]
    embeddings: Option<bool>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// Export everything that a crawl found as a stream of lines.
///
/// Each image is listed once, oldest first, with its faces and the places where this crawl found
/// it. At most the first 100 places are listed. `sources_total` counts up to 1,000 places, and
/// `sources_cut` is true if some are not listed. The videos of the crawl or scan follow. Each file
/// is listed once, and its tracks follow it in the order of their start. The field `kind` of a line
/// is `image`, `video` or `track`. The stream is read from the database while it is sent, so a
/// running crawl may find more images afterwards. A video that is deleted meanwhile is omitted from
/// then on. If the stream fails, the connection is aborted, so that a partial export cannot be
/// mistaken for a complete one.
#[utoipa::path(
    get, path = "/crawls/{id}/export", operation_id = "export_crawl", tag = "crawls",
    params(("id" = Uuid, Path, description = "Id of the crawl"), ExportParams),
    responses((status = 200, description = "One line per image, video and track (`jsonl`) or per face (`csv`)", content(
        (String = "application/x-ndjson", example = json!(example::jsonl())),
        (String = "text/csv", example = json!(example::csv())),
    ), headers(("content-disposition")))),
)]
pub(super) async fn export_crawl(
    State(state): State<AppState>,
    caller: Caller,
    Id(crawl): Id,
    Query(params): Query<ExportParams>,
) -> Result<Response, ApiError> {
    caller.store().crawl(crawl).await?;
    let (format, embeddings) = (params.format.unwrap_or_default(), params.embeddings.unwrap_or(false));
    let export = Export { format, name: format!("crawl-{crawl}"), head: csv::head(embeddings) };
    let reader = Reader { crawl, format, embeddings };
    export.respond(state, caller, Cursor::Images(None), move |caller, at| reader.read(caller, at)).await
}

/// Where the next piece of an export begins.
enum Cursor {
    /// After this image.
    Images(Option<Uuid>),
    /// With the first of `ids`. If `ids` is empty, the next videos after `after` are read.
    Videos { after: Uuid, ids: VecDeque<Uuid> },
    /// After the track `after` of `video`. The videos in `ids` follow.
    Tracks { video: Uuid, after: Option<(i64, Uuid)>, ids: VecDeque<Uuid> },
}

#[derive(Clone, Copy)]
struct Reader {
    crawl: Uuid,
    format: Format,
    embeddings: bool,
}

impl Reader {
    async fn read(self, caller: Caller, at: Cursor) -> Result<Piece<Cursor>, ApiError> {
        match at {
            Cursor::Images(after) => self.images(&caller, after).await,
            Cursor::Videos { after, ids } => self.video(&caller, after, ids).await,
            Cursor::Tracks { video, after, ids } => self.tracks(&caller, video, after, ids).await,
        }
    }

    async fn images(self, caller: &Caller, after: Option<Uuid>) -> Result<Piece<Cursor>, ApiError> {
        let Self { crawl, format, embeddings } = self;
        let page = caller.store().export_images(crawl, after, IMAGES, embeddings).await?;
        let line = |image| match format {
            Format::Jsonl => image::line(image),
            Format::Csv => csv::of_image(image, embeddings),
        };
        let next = match page.next {
            None => Cursor::Videos { after: Uuid::nil(), ids: VecDeque::new() },
            after => Cursor::Images(after),
        };
        Ok(Piece { text: page.images.iter().map(line).collect(), next: Some(next) })
    }

    /// Reads the next video, without its tracks.
    async fn video(
        self,
        caller: &Caller,
        after: Uuid,
        mut ids: VecDeque<Uuid>,
    ) -> Result<Piece<Cursor>, ApiError> {
        let store = caller.store();
        if ids.is_empty() {
            ids = store.export_videos(self.crawl, after, VIDEOS).await?.into();
        }
        let Some(id) = ids.pop_front() else { return Ok(Piece { text: String::new(), next: None }) };
        // A video that was deleted after its id was read is omitted.
        let Some(video) = store.export_video_of_crawl(self.crawl, id).await? else {
            return Ok(Piece { text: String::new(), next: Some(Cursor::Videos { after: id, ids }) });
        };
        let text = if self.format == Format::Jsonl { video_line(&video) } else { String::new() };
        Ok(Piece { text, next: Some(Cursor::Tracks { video: id, after: None, ids }) })
    }

    async fn tracks(
        self,
        caller: &Caller,
        id: Uuid,
        after: Option<(i64, Uuid)>,
        ids: VecDeque<Uuid>,
    ) -> Result<Piece<Cursor>, ApiError> {
        let page = caller.store().export_tracks(id, after, TRACKS, self.embeddings).await?;
        // The video or its addresses may have been erased since the last piece.
        let Some(video) = caller.store().export_video_of_crawl(self.crawl, id).await? else {
            return Ok(Piece { text: String::new(), next: Some(Cursor::Videos { after: id, ids }) });
        };
        let is_first = after.is_none();
        let text = match self.format {
            Format::Jsonl => {
                page.tracks.iter().map(|track| track_line(id, track)).collect::<Result<_, _>>()?
            }
            Format::Csv if is_first && page.tracks.is_empty() => csv::of_video(&video, self.embeddings),
            Format::Csv => {
                page.tracks.iter().map(|track| csv::of_track(&video, track, self.embeddings)).collect()
            }
        };
        let next = match page.next {
            None => Cursor::Videos { after: id, ids },
            after => Cursor::Tracks { video: id, after, ids },
        };
        Ok(Piece { text, next: Some(next) })
    }
}

//! Exports everything that a crawl found. The stream and lines of videos are in `shared::export`.
use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::routes::shared::export::{
    CREATED_AT, Export, FACE_COLUMNS, FaceLine, Format, LineKind, Piece, TRACKS_PER_READ, csv_header,
    csv_row, embedding_field, empty_columns, example_face, example_track, example_video, face_fields, field,
    json_line, track_line, video_line,
};
use crate::routes::shared::values::{hash_hex, to_ms};
use crate::{AppState, Result, Scope, Spec};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use store::blobs::parts::ImageParts;
use store::images::sources::{ExportedFace, ExportedImage, SourceList};
use store::images::{Image, Source};
use store::videos::export::{ExportedTrack, ExportedVideo};
use store::videos::tracks::FRAME_FORMAT;
use time::OffsetDateTime;
use utoipa::IntoParams;
use uuid::{Uuid, uuid};

/// Number of images per read.
const IMAGES_PER_READ: i64 = 100;
/// Number of ids of videos per read. Videos are read one by one.
const VIDEO_IDS_PER_READ: i64 = 1_000;

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
        (String = "application/x-ndjson", example = json!(jsonl_example())),
        (String = "text/csv", example = json!(csv_example())),
    ), headers(("content-disposition")))),
)]
pub(super) async fn export_crawl(
    state: AppState,
    caller: Caller,
    Id(crawl): Id,
    Query(params): Query<ExportParams>,
) -> Result<Response> {
    caller.store().crawls().get(crawl).await?;
    let (format, embeddings) = (params.format.unwrap_or_default(), params.embeddings.unwrap_or(false));
    let export = Export { format, name: format!("crawl-{crawl}"), head: csv_head(embeddings) };
    let reader = Reader { crawl, format, embeddings };
    export.respond(state, caller, Cursor::Images(None), move |caller, at| reader.read(caller, at)).await
}

/// The position at which the next piece of an export begins.
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
    async fn read(self, caller: Caller, cursor: Cursor) -> Result<Piece<Cursor>> {
        match cursor {
            Cursor::Images(after) => self.images(&caller, after).await,
            Cursor::Videos { after, ids } => self.video(&caller, after, ids).await,
            Cursor::Tracks { video, after, ids } => self.tracks(&caller, video, after, ids).await,
        }
    }

    async fn images(self, caller: &Caller, after: Option<Uuid>) -> Result<Piece<Cursor>> {
        let Self { crawl, format, embeddings } = self;
        let page = caller.store().images().export(crawl, after, IMAGES_PER_READ, embeddings).await?;
        let line = |image| match format {
            Format::Jsonl => image_line(image),
            Format::Csv => csv_of_image(image, embeddings),
        };
        let next = match page.next {
            None => Cursor::Videos { after: Uuid::nil(), ids: VecDeque::new() },
            after => Cursor::Images(after),
        };
        Ok(Piece { text: page.images.iter().map(line).collect(), next: Some(next) })
    }

    /// Reads the next video, without its tracks.
    async fn video(self, caller: &Caller, after: Uuid, mut ids: VecDeque<Uuid>) -> Result<Piece<Cursor>> {
        let store = caller.store();
        if ids.is_empty() {
            ids = store.crawled_videos().list_for_export(self.crawl, after, VIDEO_IDS_PER_READ).await?.into();
        }
        let Some(id) = ids.pop_front() else { return Ok(Piece { text: String::new(), next: None }) };
        // A video that was deleted after its id was read is omitted.
        let Some(video) = store.crawled_videos().export_of_crawl(self.crawl, id).await? else {
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
    ) -> Result<Piece<Cursor>> {
        let page = caller
            .store()
            .crawled_videos()
            .export_tracks(id, after, TRACKS_PER_READ, self.embeddings)
            .await?;
        // The video or its addresses may have been erased since the last piece.
        let Some(video) = caller.store().crawled_videos().export_of_crawl(self.crawl, id).await? else {
            return Ok(Piece { text: String::new(), next: Some(Cursor::Videos { after: id, ids }) });
        };
        let is_first = after.is_none();
        let text = match self.format {
            Format::Jsonl => {
                page.tracks.iter().map(|track| track_line(id, track)).collect::<Result<_, _>>()?
            }
            Format::Csv if is_first && page.tracks.is_empty() => csv_of_video(&video, self.embeddings),
            Format::Csv => {
                page.tracks.iter().map(|track| csv_of_track(&video, track, self.embeddings)).collect()
            }
        };
        let next = match page.next {
            None => Cursor::Videos { after: id, ids },
            after => Cursor::Tracks { video: id, after, ids },
        };
        Ok(Piece { text, next: Some(next) })
    }
}

#[derive(Serialize)]
struct ImageLine<'a> {
    kind: LineKind,
    image_id: Uuid,
    sha256: String,
    phash: Option<String>,
    width: i32,
    height: i32,
    format: &'a str,
    bytes: i64,
    rotation: i32,
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    sources: Vec<SourceLine<'a>>,
    /// Number of sources. Counting stops at 1,000.
    sources_total: i64,
    sources_cut: bool,
    faces: Vec<FaceLine<'a>>,
}

#[derive(Serialize)]
struct SourceLine<'a> {
    page_url: Option<&'a str>,
    image_url: &'a str,
    alt: Option<&'a str>,
    #[serde(with = "time::serde::rfc3339")]
    found_at: OffsetDateTime,
}

fn image_line(exported: &ExportedImage) -> String {
    let (image, sources) = (&exported.image, &exported.sources);
    json_line(&ImageLine {
        kind: LineKind::Image,
        image_id: image.id,
        sha256: hex::encode(&image.sha256),
        phash: image.phash.map(|hash| hash_hex(hash.cast_unsigned())),
        width: image.width,
        height: image.height,
        format: &image.format,
        bytes: image.bytes,
        rotation: image.rotation,
        created_at: image.created_at,
        sources: sources.sources.iter().map(source_line).collect(),
        sources_total: sources.total,
        sources_cut: (sources.sources.len() as i64) < sources.total,
        faces: exported.faces.iter().map(FaceLine::from).collect(),
    })
}

fn source_line(source: &Source) -> SourceLine<'_> {
    SourceLine {
        page_url: source.page_url.as_deref(),
        image_url: &source.image_url,
        alt: source.alt.as_deref(),
        found_at: source.found_at,
    }
}

/// Columns that describe the image or video of a face.
const FILE_COLUMNS: &str = "image_id,sha256,width,height,format,bytes,image_url,page_url,sources";
/// Columns with the times at which the face is visible in a video.
const VIDEO_COLUMNS: &str = "video_id,track_id,person,start_ms,end_ms,at_ms";

fn csv_head(embeddings: bool) -> String {
    csv_header(&format!("{FILE_COLUMNS},{FACE_COLUMNS},{VIDEO_COLUMNS}"), embeddings)
}

/// Returns the rows of an image. `image_url` and `page_url` are the first place where the crawl
/// found the image. `sources` is the number of places; counting stops at 1,000. An embedding is one
/// field, in which spaces separate the components.
fn csv_of_image(exported: &ExportedImage, embeddings: bool) -> String {
    let image = &exported.image;
    let first = exported.sources.sources.first();
    let file = [
        image.id.to_string(),
        hex::encode(&image.sha256),
        image.width.to_string(),
        image.height.to_string(),
        image.format.clone(),
        image.bytes.to_string(),
        first.map(|source| source.image_url.clone()).unwrap_or_default(),
        first.and_then(|source| source.page_url.clone()).unwrap_or_default(),
        exported.sources.total.to_string(),
    ];
    if exported.faces.is_empty() {
        return csv_line(&file, None, empty_columns(VIDEO_COLUMNS), embeddings);
    }
    let line = |face| csv_line(&file, Some(face), empty_columns(VIDEO_COLUMNS), embeddings);
    exported.faces.iter().map(line).collect()
}

/// Returns the rows of a track, one for each of its faces. `image_id` is the frame with the face.
/// `sha256` and `bytes` are those of the file of the video.
fn csv_of_track(video: &ExportedVideo, exported: &ExportedTrack, embeddings: bool) -> String {
    let track = &exported.track;
    let times = |at_us: i64| {
        [
            video.video.id.to_string(),
            track.id.to_string(),
            field(track.person),
            to_ms(track.started_us).to_string(),
            to_ms(track.ended_us).to_string(),
            to_ms(at_us).to_string(),
        ]
    };
    let row = |(at_us, face): &(i64, ExportedFace)| {
        let file = csv_file(video, face.0.image_id.to_string(), FRAME_FORMAT);
        csv_line(&file, Some(face), times(*at_us).into_iter(), embeddings)
    };
    exported.faces.iter().map(row).collect()
}

fn csv_of_video(video: &ExportedVideo, embeddings: bool) -> String {
    let count = VIDEO_COLUMNS.split(',').count() - 1;
    let times = std::iter::once(video.video.id.to_string()).chain(std::iter::repeat_n(String::new(), count));
    csv_line(&csv_file(video, String::new(), "video"), None, times, embeddings)
}

fn csv_file(exported: &ExportedVideo, image: String, format: &str) -> [String; 9] {
    let (video, first) = (&exported.video, exported.sources.first());
    [
        image,
        video.sha256.as_ref().map(hex::encode).unwrap_or_default(),
        field(video.width),
        field(video.height),
        format.to_owned(),
        field(video.bytes),
        first.and_then(|source| source.video_url.clone()).unwrap_or_default(),
        first.and_then(|source| source.page_url.clone()).unwrap_or_default(),
        exported.total.to_string(),
    ]
}

fn csv_line(
    file: &[String],
    face: Option<&ExportedFace>,
    times: impl Iterator<Item = String>,
    embeddings: bool,
) -> String {
    let embedding = embeddings.then(|| embedding_field(face));
    csv_row(file.iter().cloned().chain(face_fields(face)).chain(times).chain(embedding))
}

fn jsonl_example() -> String {
    let video = example_video();
    let track = track_line(video.video.id, &example_track()).expect("the boxes of the example are valid");
    image_line(&example_image()) + &video_line(&video) + &track
}

fn csv_example() -> String {
    csv_head(false)
        + &csv_of_image(&example_image(), false)
        + &csv_of_track(&example_video(), &example_track(), false)
}

fn example_image() -> ExportedImage {
    let image_id = uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b02");
    let image = Image {
        id: image_id,
        collection_id: Uuid::nil(),
        collection: "default".into(),
        sha256: (0..32).collect(),
        phash: Some(0x6cc1_43f0_8e9f_929c),
        dhash: Some(0),
        ahash: Some(0),
        width: 480,
        height: 560,
        format: "jpeg".into(),
        bytes: 23_886,
        rotation: 0,
        face_count: 1,
        parts: ImageParts::default(),
        created_at: CREATED_AT,
    };
    let source = Source {
        page_url: Some("https://example.org/team".into()),
        image_url: "https://example.org/img/portrait.jpg".into(),
        crawl_id: None,
        alt: Some("Ada Lovelace, portrait".into()),
        kind: "crawl".into(),
        found_at: CREATED_AT,
    };
    let sources = SourceList { sources: vec![source], total: 1 };
    ExportedImage { image, sources, faces: vec![example_face(image_id)] }
}

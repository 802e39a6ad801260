//! Writes one row per face, and one row per image or video without faces.
use crate::routes::dto::to_ms;
use crate::routes::export::csv::{FACE_COLUMNS, about_face, embedding, empty, number, row};
use store::images::sources::{ExportedFace, ExportedImage, ExportedTrack, ExportedVideo};
use store::videos::tracks::FRAME_FORMAT;

/// Columns that describe the image or video of a face.
const FILE_COLUMNS: &str = "image_id,sha256,width,height,format,bytes,image_url,page_url,sources";
/// Columns that say when the face is in a video.
const VIDEO_COLUMNS: &str = "video_id,track_id,person,start_ms,end_ms,at_ms";

pub(super) fn head(embeddings: bool) -> String {
    crate::routes::export::csv::head(&format!("{FILE_COLUMNS},{FACE_COLUMNS},{VIDEO_COLUMNS}"), embeddings)
}

/// Returns the rows of an image. `image_url` and `page_url` are the first place where the crawl
/// found the image. `sources` is the number of places; counting stops at 1,000. An embedding is one
/// field, in which spaces separate the components.
pub(super) fn of_image(exported: &ExportedImage, embeddings: bool) -> String {
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
        return line(&file, None, empty(VIDEO_COLUMNS), embeddings);
    }
    let line = |face| line(&file, Some(face), empty(VIDEO_COLUMNS), embeddings);
    exported.faces.iter().map(line).collect()
}

/// Returns the rows of a track, one for each of its faces. `image_id` is the frame with the face.
/// `sha256` and `bytes` are those of the file of the video.
pub(super) fn of_track(video: &ExportedVideo, exported: &ExportedTrack, embeddings: bool) -> String {
    let track = &exported.track;
    let times = |at_us: i64| {
        [
            video.video.id.to_string(),
            track.id.to_string(),
            number(track.person),
            to_ms(track.started_us).to_string(),
            to_ms(track.ended_us).to_string(),
            to_ms(at_us).to_string(),
        ]
    };
    let row = |(at_us, face): &(i64, ExportedFace)| {
        let file = of_file(video, face.0.image_id.to_string(), FRAME_FORMAT);
        line(&file, Some(face), times(*at_us).into_iter(), embeddings)
    };
    exported.faces.iter().map(row).collect()
}

/// Returns the row of a video without tracks.
pub(super) fn of_video(video: &ExportedVideo, embeddings: bool) -> String {
    let rest = VIDEO_COLUMNS.split(',').count() - 1;
    let times = std::iter::once(video.video.id.to_string()).chain(std::iter::repeat_n(String::new(), rest));
    line(&of_file(video, String::new(), "video"), None, times, embeddings)
}

fn of_file(exported: &ExportedVideo, image: String, format: &str) -> [String; 9] {
    let (video, first) = (&exported.video, exported.sources.first());
    [
        image,
        video.sha256.as_ref().map(hex::encode).unwrap_or_default(),
        number(video.width),
        number(video.height),
        format.to_owned(),
        number(video.bytes),
        first.and_then(|source| source.video_url.clone()).unwrap_or_default(),
        first.and_then(|source| source.page_url.clone()).unwrap_or_default(),
        exported.total.to_string(),
    ]
}

fn line(
    file: &[String],
    face: Option<&ExportedFace>,
    times: impl Iterator<Item = String>,
    embeddings: bool,
) -> String {
    let about: Vec<String> = match face {
        Some(face) => about_face(face).collect(),
        None => empty(FACE_COLUMNS).collect(),
    };
    let embedding = embeddings.then(|| embedding(face));
    row(file.iter().cloned().chain(about).chain(times).chain(embedding))
}

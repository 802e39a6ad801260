//! Writes one row per track, with its best face.
use crate::routes::dto::to_ms;
use crate::routes::export::csv::{FACE_COLUMNS, about_face, embedding, empty, number, row};
use store::images::sources::ExportedTrack;
use uuid::Uuid;

const TRACK_COLUMNS: &str = "video_id,track_id,person,start_ms,end_ms,samples,faces,image_id,at_ms";

pub(super) fn head(embeddings: bool) -> String {
    crate::routes::export::csv::head(&format!("{TRACK_COLUMNS},{FACE_COLUMNS}"), embeddings)
}

/// Returns the row of a track. `faces` is the number of its stored faces. `image_id` and `at_ms`
/// are the frame of the best one.
pub(super) fn line(video: Uuid, exported: &ExportedTrack, embeddings: bool) -> String {
    let (track, best) = (&exported.track, exported.faces.first());
    let about_track = [
        video.to_string(),
        track.id.to_string(),
        number(track.person),
        to_ms(track.started_us).to_string(),
        to_ms(track.ended_us).to_string(),
        track.samples.to_string(),
        exported.faces.len().to_string(),
        number(best.map(|(_, face)| face.0.image_id)),
        number(best.map(|(at_us, _)| to_ms(*at_us))),
    ];
    let about_best: Vec<String> = match best {
        Some((_, face)) => about_face(face).collect(),
        None => empty(FACE_COLUMNS).collect(),
    };
    let embedding = embeddings.then(|| embedding(best.map(|(_, face)| face)));
    row(about_track.into_iter().chain(about_best).chain(embedding))
}

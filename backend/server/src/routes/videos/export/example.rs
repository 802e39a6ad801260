//! Generates examples of exports for the OpenAPI document, with the code that writes real exports.
use super::csv;
use crate::routes::export::example::{track, video};
use crate::routes::export::video::{track_line, video_line};

/// Returns the line of a video and that of one track.
pub(super) fn jsonl() -> String {
    let video = video();
    let track = track_line(video.video.id, &track()).expect("the boxes of the example are valid");
    video_line(&video) + &track
}

/// Returns the header row and the row of one track.
pub(super) fn csv() -> String {
    csv::head(false) + &csv::line(video().video.id, &track(), false)
}

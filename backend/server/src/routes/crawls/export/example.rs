//! Generates examples of exports for the OpenAPI document, with the code that writes real exports.
use super::{csv, image};
use crate::routes::export::example::{CREATED_AT, face, track, video};
use crate::routes::export::video::{track_line, video_line};
use store::images::sources::ExportedImage;
use store::images::sources::SourceList;
use store::images::{Image, Source};
use uuid::{Uuid, uuid};

/// Returns the line of one image with one face, and the lines of a video with one track.
pub(super) fn jsonl() -> String {
    let video = video();
    let track = track_line(video.video.id, &track()).expect("the boxes of the example are valid");
    image::line(&exported()) + &video_line(&video) + &track
}

/// Returns the header row, the row of one image with one face, and that of a face of a video.
pub(super) fn csv() -> String {
    csv::head(false) + &csv::of_image(&exported(), false) + &csv::of_track(&video(), &track(), false)
}

fn exported() -> ExportedImage {
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
        thumbnail_key: None,
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
    ExportedImage { image, sources, faces: vec![face(image_id)] }
}

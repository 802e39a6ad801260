//! Generates examples of exports for the OpenAPI document, with the code that writes real exports.
use super::{csv, jsonl};
use crate::routes::dto::Quality;
use serde_json::json;
use store::export::ExportedImage;
use store::faces::Face;
use store::images::{Image, Source};
use store::sources::SourceList;
use time::macros::datetime;
use utoipa::PartialSchema;
use uuid::{Uuid, uuid};

/// Returns the line of one image with one face.
pub(super) fn jsonl() -> String {
    jsonl::line(&exported())
}

/// Returns the header row and the row of one image with one face.
pub(super) fn csv() -> String {
    csv::head(false) + &csv::lines(&exported(), false)
}

fn exported() -> ExportedImage {
    let (collection_id, collection) = (Uuid::nil(), "default".to_owned());
    let image_id = uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b02");
    let created_at = datetime!(2026-01-31 12:00 UTC);
    let image = Image {
        id: image_id,
        collection_id,
        collection: collection.clone(),
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
        created_at,
    };
    let source = Source {
        page_url: Some("https://example.org/team".into()),
        image_url: "https://example.org/img/portrait.jpg".into(),
        crawl_id: None,
        alt: Some("Ada Lovelace, portrait".into()),
        kind: "crawl".into(),
        found_at: created_at,
    };
    let face = Face {
        id: uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b03"),
        collection_id,
        collection,
        image_id,
        bbox: vec![136.6, 108.5, 185.7, 244.3],
        det_score: 0.93,
        landmarks: vec![188.1, 202.1, 270.7, 198.8, 233.4, 248.9, 200.3, 290.9, 267.4, 286.9],
        quality: Some(json!(Quality::schema())["example"].take()),
        embedding_model: "sface".into(),
        chip_key: None,
        crop_key: None,
        created_at,
    };
    let sources = SourceList { sources: vec![source], total: 1 };
    ExportedImage { image, sources, faces: vec![(face, None)] }
}

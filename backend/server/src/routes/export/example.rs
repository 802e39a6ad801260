//! Rows for the examples of exports. The code that writes real exports formats them.
use crate::routes::dto::Quality;
use domain::VideoState;
use serde_json::json;
use store::faces::Face;
use store::images::sources::{ExportedFace, ExportedTrack, ExportedVideo, VideoSource};
use store::videos::Video;
use store::videos::tracks::Track;
use time::OffsetDateTime;
use time::macros::datetime;
use utoipa::PartialSchema;
use uuid::{Uuid, uuid};

pub(crate) const CREATED_AT: OffsetDateTime = datetime!(2026-01-31 12:00 UTC);
const VIDEO: Uuid = uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b07");
/// One box, as `tracking::boxes` encodes it: 61,200 ms, and (136.5, 108.5, 185.75, 244.25) pixels.
const BOXES: [u8; 13] = [1, 1, 160, 188, 7, 196, 8, 228, 6, 206, 11, 162, 15];

pub(crate) fn face(image_id: Uuid) -> ExportedFace {
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
        chip_key: None,
        crop_key: None,
        created_at: CREATED_AT,
    };
    (face, None)
}

pub(crate) fn video() -> ExportedVideo {
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
        created_at: CREATED_AT,
        finished_at: Some(CREATED_AT),
    };
    let page_url = Some("https://example.org/team".to_owned());
    let source = VideoSource { page_url, video_url, found_at: CREATED_AT };
    ExportedVideo { video, sources: vec![source], total: 1 }
}

pub(crate) fn track() -> ExportedTrack {
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
    let face = face(uuid!("0198f1c2-7d10-7000-8000-4a6f1f6e2b02"));
    ExportedTrack { track, faces: vec![(63_400_000, face)] }
}

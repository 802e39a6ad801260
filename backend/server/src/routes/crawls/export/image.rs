//! Writes one JSON object per image.
use crate::routes::dto::hash_hex;
use crate::routes::export::lines::{FaceLine, Kind, json};
use serde::Serialize;
use store::images::Source;
use store::images::sources::ExportedImage;
use time::OffsetDateTime;
use uuid::Uuid;

#[derive(Serialize)]
struct Line<'a> {
    kind: Kind,
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

pub(super) fn line(exported: &ExportedImage) -> String {
    let (image, sources) = (&exported.image, &exported.sources);
    json(&Line {
        kind: Kind::Image,
        image_id: image.id,
        sha256: hex::encode(&image.sha256),
        phash: image.phash.map(|hash| hash_hex(hash.cast_unsigned())),
        width: image.width,
        height: image.height,
        format: &image.format,
        bytes: image.bytes,
        rotation: image.rotation,
        created_at: image.created_at,
        sources: sources.sources.iter().map(source).collect(),
        sources_total: sources.total,
        sources_cut: (sources.sources.len() as i64) < sources.total,
        faces: exported.faces.iter().map(FaceLine::from).collect(),
    })
}

fn source(source: &Source) -> SourceLine<'_> {
    SourceLine {
        page_url: source.page_url.as_deref(),
        image_url: &source.image_url,
        alt: source.alt.as_deref(),
        found_at: source.found_at,
    }
}

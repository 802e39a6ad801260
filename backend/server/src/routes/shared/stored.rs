//! Describes stored faces, the places where images were found, and stored files in responses.
use crate::routes::shared::values::{BoundingBox, Quality, points, stored_quality, to_ms};
use crate::{ApiError, AppState, Result};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Serialize, Serializer};
use std::collections::HashMap;
use std::sync::Arc;
use store::blobs::parts::BlobPart;
use store::faces::Face;
use store::images::sources::{MAX_SOURCES_BYTES, SourceList};
use store::videos::tracks::StoredAppearance;
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;
use vision::QualityReport;

/// Where an image was found.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Source {
    /// The page that contains the image; null if the image was a seed or a local file.
    #[schema(example = "https://example.org/team")]
    pub(crate) page_url: Option<String>,
    /// URL of the image file.
    #[schema(example = "https://example.org/img/portrait.jpg")]
    pub(crate) image_url: String,
    /// The crawl that found it; null if the crawl was deleted.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b01")]
    pub(crate) crawl_id: Option<Uuid>,
    /// Its alternative text on the page, cut at 500 characters.
    #[schema(example = "Ada Lovelace, portrait")]
    pub(crate) alt: Option<String>,
    /// `crawl` for an image that a crawl or a scan found, `enrolment` for an image that was sent to
    /// enrol a person.
    #[schema(example = "crawl")]
    pub(crate) kind: String,
    /// Time at which the image was found there.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) found_at: OffsetDateTime,
}

impl From<store::images::Source> for Source {
    fn from(source: store::images::Source) -> Self {
        Self {
            page_url: source.page_url,
            image_url: source.image_url,
            crawl_id: source.crawl_id,
            alt: source.alt,
            kind: source.kind,
            found_at: source.found_at,
        }
    }
}

/// The places where an image was found. All faces of the image in one response share them, because
/// an image can have a thousand faces.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImageSources {
    list: Arc<[Source]>,
    total: i64,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct FirstSources {
    list: Arc<[Source]>,
    count: usize,
    /// Number of places. Counting stops at 1,000.
    pub(crate) total: i64,
}

/// Approximate number of bytes of a source in a response, without its strings.
const SOURCE_OVERHEAD: usize = 200;

impl ImageSources {
    /// Returns the first places, at least one. A response with `lists` lists of places divides its
    /// size limit for places equally among the lists.
    pub(crate) fn first(&self, lists: usize) -> FirstSources {
        let share = MAX_SOURCES_BYTES / lists.max(1);
        let mut bytes = 0;
        let fits = |source: &&Source| {
            bytes += SOURCE_OVERHEAD + source.image_url.len();
            bytes +=
                source.page_url.as_ref().map_or(0, String::len) + source.alt.as_ref().map_or(0, String::len);
            bytes <= share
        };
        let count = self.list.iter().take_while(fits).count().max(1).min(self.list.len());
        FirstSources { list: self.list.clone(), count, total: self.total }
    }
}

impl FirstSources {
    pub(crate) fn is_truncated(&self) -> bool {
        i64::try_from(self.count).is_ok_and(|count| count < self.total)
    }
}

impl Serialize for FirstSources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(&self.list[..self.count])
    }
}

/// A stored face.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct StoredFace {
    /// Its id.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b03")]
    pub(crate) id: Uuid,
    /// The collection of the face.
    #[schema(example = "default")]
    pub(crate) collection: String,
    /// The image it was found in.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b02")]
    pub(crate) image_id: Uuid,
    /// The box around the face.
    pub(crate) bbox: BoundingBox,
    /// The detector's confidence, 0 to 1.
    #[schema(example = 0.93)]
    pub(crate) det_score: f32,
    /// x and y of the right eye, left eye, nose tip, and right and left mouth corner. Left and
    /// right are those of the subject.
    #[schema(example = json!([[188.1, 202.1], [270.7, 198.8], [233.4, 248.9], [200.3, 290.9], [267.4, 286.9]]))]
    pub(crate) landmarks: Vec<[f32; 2]>,
    /// Quality of the face; null if it was not assessed.
    #[schema(value_type = Option<Quality>)]
    pub(crate) quality: Option<QualityReport>,
    /// The model of its embedding.
    #[schema(example = "sface")]
    pub(crate) embedding_model: String,
    /// The first places where its image was found.
    #[schema(value_type = Vec<Source>)]
    pub(crate) sources: FirstSources,
    /// Number of places where it was found. Counting stops at 1,000.
    #[schema(example = 1)]
    pub(crate) sources_total: i64,
    /// Whether `sources` is incomplete; `GET /images/{id}/sources` lists all places.
    #[schema(example = false)]
    pub(crate) sources_cut: bool,
    /// Time at which it was stored.
    #[serde(with = "time::serde::rfc3339")]
    pub(crate) created_at: OffsetDateTime,
}

impl StoredFace {
    pub(crate) fn new(face: Face, sources: FirstSources) -> Self {
        Self {
            id: face.id,
            collection: face.collection,
            image_id: face.image_id,
            bbox: BoundingBox::from_slice(&face.bbox),
            det_score: face.det_score,
            landmarks: points(&face.landmarks),
            quality: stored_quality(face.quality),
            embedding_model: face.embedding_model,
            sources_total: sources.total,
            sources_cut: sources.is_truncated(),
            sources,
            created_at: face.created_at,
        }
    }
}

/// Adds the sources of all images in one query.
pub(crate) async fn with_sources(state: &AppState, faces: Vec<Face>) -> Result<Vec<StoredFace>> {
    let images: Vec<Uuid> = faces.iter().map(|face| face.image_id).collect();
    let sources = sources_by_image(state, images).await?;
    let lists = faces.len();
    let first_sources =
        |face: &Face| sources.get(&face.image_id).map(|sources| sources.first(lists)).unwrap_or_default();
    Ok(faces
        .into_iter()
        .map(|face| {
            let first_sources = first_sources(&face);
            StoredFace::new(face, first_sources)
        })
        .collect())
}

/// Returns the places where several images were found, by image.
pub(crate) async fn sources_by_image(
    state: &AppState,
    mut images: Vec<Uuid>,
) -> Result<HashMap<Uuid, ImageSources>> {
    images.sort_unstable();
    images.dedup();
    let lists = state.services.store.images().source_lists(&images, None).await?;
    let sources = |list: SourceList| ImageSources {
        list: list.sources.into_iter().map(Source::from).collect(),
        total: list.total,
    };
    Ok(lists.into_iter().map(|(image, list)| (image, sources(list))).collect())
}

/// When a face was visible in a video.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Appearance {
    /// The video.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b07")]
    video_id: Uuid,
    /// The track of the face.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b08")]
    track_id: Uuid,
    /// Number of the person in this video, from 1; null until the whole video was read.
    #[schema(example = 2)]
    person: Option<i32>,
    /// Time of the first frame of the track, in milliseconds.
    #[schema(example = 61_200)]
    start_ms: i64,
    /// Time of the last frame of the track, in milliseconds.
    #[schema(example = 65_000)]
    end_ms: i64,
    /// Time of the frame with this face, in milliseconds.
    #[schema(example = 63_400)]
    at_ms: i64,
}

impl From<StoredAppearance> for Appearance {
    fn from(stored: StoredAppearance) -> Self {
        Self {
            video_id: stored.video_id,
            track_id: stored.track_id,
            person: stored.person,
            start_ms: to_ms(stored.started_us),
            end_ms: to_ms(stored.ended_us),
            at_ms: to_ms(stored.at_us),
        }
    }
}

/// Returns a file as a response, or `None` if it does not exist. `read_place` reads the row that
/// refers to the file. Keys are derived from the content, so the entity tag consists of the key and
/// the range. Browsers revalidate each time (`no-cache`), so that an erased image is not shown from
/// a cache.
pub(crate) async fn blob_response<F>(
    state: &AppState,
    request: &HeaderMap,
    read_place: impl Fn() -> F,
) -> Result<Option<Response>>
where
    F: Future<Output = Result<Option<BlobPart>>>,
{
    let Some(mut part) = read_place().await? else { return Ok(None) };
    let mut bytes = state.services.blobs.get_part(&part).await?;
    // The file may have been written to a new blob after the row was read, because another file of
    // the old blob was deleted.
    if bytes.is_none()
        && let Some(moved) = read_place().await?
    {
        bytes = state.services.blobs.get_part(&moved).await?;
        part = moved;
    }
    let Some(bytes) = bytes else { return Ok(None) };
    let name = part.key.rsplit('/').next().unwrap_or(&part.key);
    let tag = match &part.range {
        Some(range) => format!("\"{name}-{}-{}\"", range.start, range.end),
        None => format!("\"{name}\""),
    };
    let tag = HeaderValue::from_str(&tag).map_err(ApiError::internal)?;
    let is_current = request
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .any(|candidate| candidate.trim().trim_start_matches("W/").as_bytes() == tag.as_bytes());
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(part.media_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, no-cache")),
        (header::ETAG, tag),
    ];
    Ok(Some(if is_current {
        (StatusCode::NOT_MODIFIED, headers).into_response()
    } else {
        (headers, bytes).into_response()
    }))
}

//! Lists the tracks of a video.
use crate::auth::Caller;
use crate::extract::{Bounded, Id, List, Query};
use crate::routes::shared::values::{decode_track_boxes, to_ms};
use crate::{Result, Scope, Spec};
use axum::Json;
use domain::VideoState;
use serde::{Deserialize, Serialize};
use store::videos::tracks::{Track, TrackFilter};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// Selects the tracks to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct TrackParams {
    /// Only tracks that end at this time or later, in milliseconds.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 86400000)]
    from_ms: Option<Bounded<0, 86_400_000>>,
    /// Only tracks that start before this time, in milliseconds.
    #[param(value_type = Option<u64>, minimum = 0, maximum = 86400000)]
    to_ms: Option<Bounded<0, 86_400_000>>,
    /// Only tracks of the person with this number.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 20000)]
    person: Option<Bounded<1, 20_000>>,
    /// Maximum number of tracks in the response. A response with many boxes has fewer.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 100)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A face in successive frames of one shot.
#[derive(Serialize, ToSchema)]
struct TrackView {
    /// Its id.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b08")]
    id: Uuid,
    /// Number of the person in this video, from 1; null until the whole video was read.
    #[schema(example = 2)]
    person: Option<i32>,
    /// Time of the first frame in milliseconds.
    #[schema(example = 61_200)]
    start_ms: i64,
    /// Time of the last frame in milliseconds.
    #[schema(example = 65_000)]
    end_ms: i64,
    /// Whether the face is visible in the last analysed frame of the video; false until the whole
    /// video was read.
    #[schema(example = false)]
    to_end: bool,
    /// Number of analysed frames with the face.
    #[schema(example = 20)]
    samples: i32,
    /// The best shots, best quality first.
    faces: Vec<TrackFaceView>,
    /// Boxes over time: time in milliseconds, x, y, width and height in pixels. Long tracks omit
    /// boxes that linear interpolation predicts well.
    #[schema(value_type = Vec<Vec<f64>>, example = json!([[61200, 136.5, 108.5, 185.75, 244.25]]))]
    boxes: Vec<(i64, f32, f32, f32, f32)>,
}

/// A best shot of a track.
#[derive(Serialize, ToSchema)]
struct TrackFaceView {
    /// The stored face.
    #[schema(example = "0198f1c2-7d10-7000-8000-4a6f1f6e2b03")]
    face_id: Uuid,
    /// Time of its frame in milliseconds.
    #[schema(example = 63_400)]
    at_ms: i64,
    /// Overall quality, 0 to 1.
    #[schema(example = 0.82)]
    quality: Option<f32>,
}

/// A page of tracks in the order of their start.
#[derive(Serialize, ToSchema)]
pub(super) struct TrackList {
    tracks: Vec<TrackView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AAAAAAOl4EABmPHCfRBwAIAASm8fbisI")]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::Read);

/// List the tracks of a video: who was visible, when and where.
///
/// A track ends at a cut, and after at most a minute. Tracks of the same person have the same
/// `person`.
#[utoipa::path(
    get, path = "/videos/{id}/tracks", operation_id = "list_tracks", tag = "videos",
    params(("id" = Uuid, Path, description = "Id of the video"), TrackParams),
    responses((status = 200, description = "A page of tracks in the order of their start", body = TrackList)),
)]
pub(super) async fn list_tracks(
    caller: Caller,
    Id(id): Id,
    Query(params): Query<TrackParams>,
) -> Result<Json<TrackList>> {
    let us = |ms: Bounded<0, 86_400_000>| ms.get().saturating_mul(1000);
    let filter = TrackFilter {
        from_us: params.from_ms.map(us),
        to_us: params.to_ms.map(us),
        person: params.person.and_then(|person| i32::try_from(person.get()).ok()),
    };
    let list = List::new("tracks", (id, &filter));
    let after = list.decode_cursor(params.cursor.as_deref())?;
    let limit = params.limit.map_or(100, Bounded::get);
    let video = caller.store().videos().get(id).await?;
    let last_us = video.checkpoint_us.filter(|_| video.state == VideoState::Completed);
    let page = caller.store().tracks().list(id, &filter, after, limit).await?;
    let next_cursor = page.next.map(|key| list.encode_cursor(&key));
    let tracks =
        page.tracks.into_iter().map(|track| TrackView::new(track, last_us)).collect::<Result<_, _>>()?;
    Ok(Json(TrackList { tracks, next_cursor }))
}

impl TrackView {
    fn new(track: Track, last_us: Option<i64>) -> Result<Self> {
        let faces = track.faces.iter().map(|shot| TrackFaceView {
            face_id: shot.face_id,
            at_ms: to_ms(shot.at_us),
            quality: shot.quality,
        });
        Ok(Self {
            id: track.id,
            person: track.person,
            start_ms: to_ms(track.started_us),
            end_ms: to_ms(track.ended_us),
            to_end: last_us == Some(track.ended_us),
            samples: track.samples,
            faces: faces.collect(),
            boxes: decode_track_boxes(&track.boxes)?,
        })
    }
}

//! Gets and lists cameras.
use crate::auth::Caller;
use crate::extract::{Id, Query};
use crate::{Result, Scope, Spec};
use axum::Json;
use domain::{StreamKind, StreamState, StreamStore};
use serde::{Deserialize, Serialize};
use store::streams::Stream;
use time::OffsetDateTime;
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

pub(super) const READ: Spec = Spec::needs(Scope::Watch);

/// A camera. Its address and its password are only in the configuration.
#[derive(Serialize, ToSchema)]
pub(super) struct StreamView {
    /// Its id.
    id: Uuid,
    /// Its name in the configuration.
    #[schema(example = "front-door")]
    name: String,
    /// The collection whose watchlists apply.
    #[schema(example = "default")]
    collection: String,
    /// How it sends its frames.
    #[schema(example = "rtsp")]
    kind: StreamKind,
    /// Why it is watched.
    #[schema(example = "Tell the family who is at the door")]
    purpose: String,
    /// The faces that are stored.
    #[schema(example = "matches")]
    store: StreamStore,
    /// Hours after which stored faces are deleted.
    #[schema(example = 72)]
    retention_hours: i32,
    /// Number of frames that are analysed per second.
    #[schema(example = 2.0)]
    fps: f32,
    /// Whether it should be watched.
    #[schema(example = true)]
    wanted: bool,
    /// Its state.
    #[schema(example = "running")]
    state: StreamState,
    /// Why it is not running; null if there is nothing to report.
    #[schema(example = json!(null))]
    detail: Option<String>,
    /// The worker that watches it, or watched it last.
    #[schema(example = "server1-4711")]
    holder: Option<String>,
    /// Width of a frame in pixels; null until a frame was analysed.
    #[schema(example = 1280)]
    width: Option<i32>,
    /// Height of a frame in pixels; null until a frame was analysed.
    #[schema(example = 720)]
    height: Option<i32>,
    /// Number of frames that arrived since the worker took it over.
    #[schema(example = 15_000)]
    received: i64,
    /// Number of these that were analysed.
    #[schema(example = 1_200)]
    analysed: i64,
    /// Number of frames that were lost, or not analysed because newer ones had arrived.
    #[schema(example = 3)]
    dropped: i64,
    /// Number of connections since the worker took it over.
    #[schema(example = 1)]
    connections: i64,
    /// Milliseconds from the arrival of the last analysed frame to the end of its analysis.
    #[schema(example = 85)]
    lag_ms: Option<i32>,
    /// Time at which the last analysed frame arrived.
    #[serde(with = "time::serde::rfc3339::option")]
    last_frame_at: Option<OffsetDateTime>,
    /// Time of the last alert about a face of the camera that is still stored.
    #[serde(with = "time::serde::rfc3339::option")]
    last_alert_at: Option<OffsetDateTime>,
    /// Time of the last report of a worker.
    #[serde(with = "time::serde::rfc3339")]
    updated_at: OffsetDateTime,
}

impl From<Stream> for StreamView {
    fn from(stream: Stream) -> Self {
        Self {
            id: stream.id,
            name: stream.name,
            collection: stream.collection,
            kind: stream.kind,
            purpose: stream.purpose,
            store: stream.store,
            retention_hours: stream.retention_hours,
            fps: stream.fps,
            wanted: stream.wanted,
            state: stream.state,
            detail: stream.detail,
            holder: stream.holder,
            width: stream.width,
            height: stream.height,
            received: stream.received,
            analysed: stream.analysed,
            dropped: stream.dropped,
            connections: stream.connections,
            lag_ms: stream.lag_ms,
            last_frame_at: stream.last_frame_at,
            last_alert_at: stream.last_alert_at,
            updated_at: stream.updated_at,
        }
    }
}

/// Selects the cameras to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// The collection; the default is the collection of the key, else `default`.
    collection: Option<String>,
}

/// The cameras of a collection, by name.
#[derive(Serialize, ToSchema)]
pub(super) struct StreamList {
    streams: Vec<StreamView>,
}

/// List the cameras of a collection.
#[utoipa::path(
    get, path = "/streams", operation_id = "list_streams", tag = "streams",
    params(ListParams),
    responses((status = 200, description = "The cameras by name", body = StreamList)),
)]
pub(super) async fn list_streams(
    caller: Caller,
    Query(params): Query<ListParams>,
) -> Result<Json<StreamList>> {
    let collection = caller.collection(params.collection.as_deref()).await?.id;
    let streams = caller.store().streams().list(collection).await?;
    Ok(Json(StreamList { streams: streams.into_iter().map(Into::into).collect() }))
}

/// Get a camera and its state.
#[utoipa::path(
    get, path = "/streams/{id}", operation_id = "get_stream", tag = "streams",
    params(("id" = Uuid, Path, description = "Id of the camera")),
    responses((status = 200, description = "The camera", body = StreamView)),
)]
pub(super) async fn get_stream(caller: Caller, Id(id): Id) -> Result<Json<StreamView>> {
    Ok(Json(caller.store().streams().get(id).await?.into()))
}

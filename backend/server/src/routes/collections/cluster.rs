//! Clusters the faces of a collection by person. The clustering itself is in the crate `pipeline`.
use super::view::find;
use crate::auth::Caller;
use crate::extract::{Cosine, Json as JsonBody, NameOrId};
use crate::{ApiError, AppState, Result, Scope, Spec};
use axum::Json;
use axum::http::StatusCode;
use domain::ClusteringState;
use pipeline::{Clusters, default_merge_threshold};
use serde::{Deserialize, Serialize};
use store::collections::Collection;
use store::people::clusters::{ClusterScope, Clustering};
use time::OffsetDateTime;
use utoipa::ToSchema;
use uuid::Uuid;

/// Options of a clustering.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClusterBody {
    /// Minimum mean similarity of the faces of two clusters at which the clusters are merged. The
    /// default is the match threshold of the collection, else `MATCH_THRESHOLD`, else that of the
    /// embedding model, plus the margin of the model. Higher values split one person into several
    /// clusters; lower values merge different people.
    #[schema(value_type = Option<f32>, minimum = -1, maximum = 1, example = 0.48)]
    threshold: Option<Cosine>,
    /// Also cluster faces that failed their quality profile. Such faces are often assigned to the
    /// wrong person.
    #[schema(example = false)]
    any_quality: Option<bool>,
}

/// A clustering run.
#[derive(Serialize, ToSchema)]
pub(super) struct ClusteringView {
    /// Its id.
    id: Uuid,
    /// The collection.
    #[schema(example = "default")]
    collection: String,
    /// Its state.
    state: ClusteringState,
    /// Minimum mean similarity of the faces of two clusters that are merged.
    #[schema(example = 0.48)]
    threshold: f32,
    /// Whether faces that failed their quality profile are clustered.
    #[schema(example = false)]
    any_quality: bool,
    /// Number of new faces when the run began.
    #[schema(example = 1200)]
    faces: i64,
    /// Number of these faces that have been processed.
    #[schema(example = 640)]
    looked: i64,
    /// Number of faces that were assigned to a subject.
    #[schema(example = 611)]
    assigned: i64,
    /// Number of clusters created.
    #[schema(example = 58)]
    made: i64,
    /// Number of clusters that were merged into another subject.
    #[schema(example = 3)]
    joined: i64,
    /// Reason for the failure; null if the run did not fail.
    #[schema(example = json!(null))]
    error: Option<String>,
    /// Time of the request.
    #[serde(with = "time::serde::rfc3339")]
    created_at: OffsetDateTime,
    /// When it ended.
    #[serde(with = "time::serde::rfc3339::option")]
    #[schema(example = json!(null))]
    finished_at: Option<OffsetDateTime>,
}

impl ClusteringView {
    fn new(run: Clustering, collection: &Collection) -> Self {
        Self {
            id: run.id,
            collection: collection.name.clone(),
            state: run.state,
            threshold: run.threshold,
            any_quality: run.any_quality,
            faces: run.faces,
            looked: run.looked,
            assigned: run.assigned,
            made: run.made,
            joined: run.joined,
            error: run.error,
            created_at: run.created_at,
            finished_at: run.finished_at,
        }
    }
}

pub(super) const START: Spec = Spec::needs(Scope::Write);

/// Cluster the faces of a collection by person.
///
/// The run is processed in the background; `GET /collections/{id}/cluster` reports its progress. It
/// processes only faces that no earlier run has processed. They are assigned to existing subjects
/// or to new subjects with the origin `cluster`, which `GET /subjects?origin=cluster` lists. A run
/// never changes manual decisions: it does not merge enrolled subjects and does not remove faces
/// from them. If a run is already in progress, the response contains that run.
#[utoipa::path(
    post, path = "/collections/{id}/cluster", operation_id = "cluster_collection", tag = "collections",
    params(("id" = String, Path, description = "Name or id of the collection", example = "default")),
    request_body = ClusterBody,
    responses((status = 202, description = "The new run, or the run that is already in progress", body = ClusteringView)),
)]
pub(super) async fn cluster_collection(
    state: AppState,
    caller: Caller,
    which: NameOrId,
    JsonBody(body): JsonBody<ClusterBody>,
) -> Result<(StatusCode, Json<ClusteringView>)> {
    let collection = find(&caller, which).await?;
    let collection_default = || {
        let margin = state.services.analyzer.engine().embedder().cluster_margin;
        default_merge_threshold(state.match_threshold(None, collection.match_threshold).value, margin)
    };
    let threshold = body.threshold.map_or_else(collection_default, Cosine::get);
    let scope = ClusterScope {
        collection_id: collection.id,
        model_id: state.services.face_store.model_id(),
        any_quality: body.any_quality.unwrap_or(false),
    };
    let clusters = Clusters::new(caller.store().clone(), state.services.queue.clone());
    let (run, _) = clusters.begin(&scope, threshold).await?;
    Ok((StatusCode::ACCEPTED, Json(ClusteringView::new(run, &collection))))
}

pub(super) const LATEST: Spec = Spec::needs(Scope::Read);

/// Return the latest clustering of a collection and its progress.
#[utoipa::path(
    get, path = "/collections/{id}/cluster", operation_id = "get_clustering", tag = "collections",
    params(("id" = String, Path, description = "Name or id of the collection", example = "default")),
    responses(
        (status = 200, description = "The latest run", body = ClusteringView),
        (status = 404, description = "The collection does not exist or was never clustered"),
    ),
)]
pub(super) async fn get_clustering(caller: Caller, which: NameOrId) -> Result<Json<ClusteringView>> {
    let collection = find(&caller, which).await?;
    let run = caller.store().clusters().latest(collection.id).await?;
    let run = run.ok_or_else(|| ApiError::not_found("clustering of the collection", &collection.name))?;
    Ok(Json(ClusteringView::new(run, &collection)))
}

use super::view::JobView;
use crate::extract::Id;
use crate::{ApiError, AppState, Scope, Spec};
use axum::Json;
use axum::extract::State;

pub(super) const SPEC: Spec = Spec::needs(Scope::System);

/// Return a job in any state.
#[utoipa::path(
    get, path = "/jobs/{id}", operation_id = "get_job", tag = "jobs",
    params(("id" = Uuid, Path, description = "Id of the job")),
    responses(
        (status = 200, description = "The job", body = JobView),
        (status = 404, description = "The job does not exist. Ended jobs are kept for a day, discarded jobs until they are retried"),
    ),
)]
pub(super) async fn get_job(State(state): State<AppState>, Id(id): Id) -> Result<Json<JobView>, ApiError> {
    Ok(Json(state.services.queue.get(id).await?.into()))
}

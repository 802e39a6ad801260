use super::view::JobView;
use crate::extract::Id;
use crate::{ApiError, AppState, Code, Scope, Spec};
use axum::Json;
use axum::extract::State;

pub(super) const SPEC: Spec = Spec::needs(Scope::System).problems(&[&[Code::Conflict]]);

/// Retry a discarded or cancelled job. Its number of attempts is reset to 0.
#[utoipa::path(
    post, path = "/jobs/{id}/retry", operation_id = "retry_job", tag = "jobs",
    params(("id" = Uuid, Path, description = "Id of the job")),
    responses(
        (status = 200, description = "The job, waiting to run", body = JobView),
        (status = 404, description = "The job does not exist, or its state does not allow a retry"),
        (status = 409, description = "The crawl of the job has ended, so the job would have no effect"),
    ),
)]
pub(super) async fn retry_job(State(state): State<AppState>, Id(id): Id) -> Result<Json<JobView>, ApiError> {
    Ok(Json(state.services.crawls.retry(id).await?.into()))
}

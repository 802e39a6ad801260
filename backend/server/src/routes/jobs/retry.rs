//! `POST /jobs/{id}/retry`
use super::view::JobView;
use crate::extract::Id;
use crate::{ApiError, AppState, Code, Problem};
use axum::Json;
use axum::extract::State;
use store::StoreError;
use uuid::Uuid;

/// Give a discarded or cancelled job a new life with fresh attempts.
#[utoipa::path(
    post, path = "/jobs/{id}/retry", operation_id = "retry_job", tag = "jobs",
    params(("id" = Uuid, Path, description = "The job")),
    responses(
        (status = 200, description = "The job, waiting to run", body = JobView),
        (status = 404, description = "No such job, or not in a state that allows this", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "Its crawl has ended, so it would do nothing", body = Problem, content_type = "application/problem+json"),
    ),
)]
pub(super) async fn retry_job(State(state): State<AppState>, Id(id): Id) -> Result<Json<JobView>, ApiError> {
    let queue = &state.services.queue;
    if let Some(crawl) = queue.get(id).await?.group_id {
        refuse_if_over(&state, crawl).await?;
    }
    Ok(Json(queue.retry(id).await?.into()))
}

/// A job looks at its crawl first, and leaves an ended one as it is.
async fn refuse_if_over(state: &AppState, crawl: Uuid) -> Result<(), ApiError> {
    match state.services.store.crawl(crawl).await {
        Ok(crawl) if matches!(crawl.state.as_str(), "running" | "paused") => Ok(()),
        Ok(crawl) => {
            let sentence =
                format!("the job's crawl is {}; start a new crawl with its URL instead", crawl.state);
            Err(ApiError::new(Code::Conflict, sentence))
        }
        Err(StoreError::NotFound { .. }) => {
            Err(ApiError::new(Code::Conflict, "the job's crawl has been deleted"))
        }
        Err(error) => Err(error.into()),
    }
}

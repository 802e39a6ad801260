use super::view::JobView;
use crate::extract::Query;
use crate::extract::cursor::List;
use crate::extract::values::{Bounded, uuid};
use crate::{ApiError, AppState, Scope, Spec};
use axum::Json;
use axum::extract::State;
use queue::JobState;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

/// State of a job, or all states.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum StateFilter {
    Available,
    Running,
    Retryable,
    Completed,
    Discarded,
    Cancelled,
    Any,
}

impl StateFilter {
    fn state(self) -> Option<JobState> {
        match self {
            Self::Available => Some(JobState::Available),
            Self::Running => Some(JobState::Running),
            Self::Retryable => Some(JobState::Retryable),
            Self::Completed => Some(JobState::Completed),
            Self::Discarded => Some(JobState::Discarded),
            Self::Cancelled => Some(JobState::Cancelled),
            Self::Any => None,
        }
    }
}

/// Selects the jobs to list.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Only jobs in this state; `any` selects all states. The default is `discarded`.
    #[param(inline)]
    state: Option<StateFilter>,
    /// Only jobs of this kind.
    #[param(example = "scan_image")]
    kind: Option<String>,
    /// Only jobs of this crawl.
    #[serde(deserialize_with = "uuid")]
    crawl_id: Option<Uuid>,
    /// Maximum number of jobs in the response.
    #[param(value_type = Option<u32>, minimum = 1, maximum = 1000, default = 50)]
    limit: Option<Bounded<1, 1000>>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// A page of jobs, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct JobList {
    jobs: Vec<JobView>,
    /// Send it as `cursor` to get the next page; null on the last page.
    #[schema(example = "AZjxwn0QcACAAEpvH24rAg")]
    next_cursor: Option<String>,
}

pub(super) const SPEC: Spec = Spec::needs(Scope::System);

/// List jobs, by default those that were discarded.
#[utoipa::path(
    get, path = "/jobs", operation_id = "list_jobs", tag = "jobs",
    params(ListParams),
    responses((status = 200, description = "A page of jobs, newest first", body = JobList)),
)]
pub(super) async fn list_jobs(
    State(state): State<AppState>,
    Query(params): Query<ListParams>,
) -> Result<Json<JobList>, ApiError> {
    let limit = params.limit.map_or(50, Bounded::get);
    let wanted = params.state.unwrap_or(StateFilter::Discarded).state();
    let list = List::of("jobs", (wanted, &params.kind, params.crawl_id));
    let before = list.after(params.cursor.as_deref())?;
    let mut rows =
        state.services.queue.list(wanted, params.kind.as_deref(), params.crawl_id, before, limit + 1).await?;
    let next_cursor = list.paginate(&mut rows, limit, |job| job.id);
    Ok(Json(JobList { jobs: rows.into_iter().map(Into::into).collect(), next_cursor }))
}

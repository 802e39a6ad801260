//! Operations on jobs of the queue, for operators.
mod get;
mod list;
mod retry;
mod stats;
mod view;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(list::SPEC, routes!(list::list_jobs))
        .add(stats::SPEC, routes!(stats::get_job_stats))
        .add(get::SPEC, routes!(get::get_job))
        .add(retry::SPEC, routes!(retry::retry_job))
}

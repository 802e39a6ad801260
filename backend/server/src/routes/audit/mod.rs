//! Operations on the audit log.
mod list;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default().add(list::SPEC, routes!(list::list_audit))
}

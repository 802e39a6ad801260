//! Operations on the cameras that the configuration lists. They cannot be added here, because only
//! the configuration contains addresses and passwords.
mod control;
mod view;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(view::READ, routes!(view::list_streams))
        .add(view::READ, routes!(view::get_stream))
        .add(control::CONTROL, routes!(control::start_stream))
        .add(control::CONTROL, routes!(control::stop_stream))
        .add(control::STILL, routes!(control::get_stream_still))
}

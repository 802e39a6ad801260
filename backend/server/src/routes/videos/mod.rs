//! Operations for videos: who appears when.
mod control;
mod create;
mod detect;
mod export;
mod tracks;
mod upload;
mod view;

pub(crate) use detect::VideoResult;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(create::SPEC, routes!(create::create_video))
        .add(detect::SPEC, routes!(detect::detect_video))
        .add(view::READ, routes!(view::list_videos))
        .add(view::READ, routes!(view::get_video))
        .add(control::DELETE, routes!(control::delete_video))
        .add(control::EVENTS, routes!(control::follow_video))
        .add(tracks::SPEC, routes!(tracks::list_tracks))
        .add(export::SPEC, routes!(export::export_video))
        .add(control::CONTROL, routes!(control::pause_video))
        .add(control::CONTROL, routes!(control::resume_video))
        .add(control::RETRY, routes!(control::retry_video))
        .add(control::CONTROL, routes!(control::cancel_video))
}

//! Operations for videos: who appears when.
mod answer;
mod clip;
mod control;
mod create;
mod delete;
mod detect;
mod events;
mod export;
mod get;
mod list;
mod options;
mod tracks;
mod upload;
mod view;

pub(crate) use answer::VideoAnswer;
pub(crate) use view::Appearance;

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(create::SPEC, routes!(create::create_video))
        .add(detect::SPEC, routes!(detect::detect_video))
        .add(list::SPEC, routes!(list::list_videos))
        .add(get::SPEC, routes!(get::get_video))
        .add(delete::SPEC, routes!(delete::delete_video))
        .add(events::SPEC, routes!(events::follow_video))
        .add(tracks::SPEC, routes!(tracks::list_tracks))
        .add(export::SPEC, routes!(export::export_video))
        .add(control::SPEC, routes!(control::pause_video))
        .add(control::SPEC, routes!(control::resume_video))
        .add(control::RETRY, routes!(control::retry_video))
        .add(control::SPEC, routes!(control::cancel_video))
}

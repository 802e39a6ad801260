//! Collections: the unit of isolation.
mod cluster;
mod create;
mod delete;
mod get;
mod list;
mod update;
mod view;
mod webhook_secret;

#[cfg(feature = "fuzzing")]
pub(crate) use self::{cluster::ClusterBody, create::CreateCollection, update::UpdateCollection};
pub(crate) use view::check_name;

use crate::AppState;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The routes of this resource.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(create::create_collection, list::list_collections))
        .routes(routes!(get::get_collection, update::update_collection, delete::delete_collection))
        .routes(routes!(webhook_secret::rotate_webhook_secret))
        .routes(routes!(cluster::cluster_collection, cluster::get_clustering))
}

//! Operations on collections, which are isolated from each other.
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

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(create::SPEC, routes!(create::create_collection))
        .add(list::SPEC, routes!(list::list_collections))
        .add(get::SPEC, routes!(get::get_collection))
        .add(update::SPEC, routes!(update::update_collection))
        .add(delete::SPEC, routes!(delete::delete_collection))
        .add(webhook_secret::SPEC, routes!(webhook_secret::rotate_webhook_secret))
        .add(cluster::START, routes!(cluster::cluster_collection))
        .add(cluster::LATEST, routes!(cluster::get_clustering))
}

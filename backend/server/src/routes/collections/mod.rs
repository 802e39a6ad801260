//! Operations on collections, which are isolated from each other.
mod change;
mod cluster;
mod view;

#[cfg(feature = "fuzzing")]
pub(crate) use self::{
    change::{CreateCollection, UpdateCollection},
    cluster::ClusterBody,
};

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(change::CREATE, routes!(change::create_collection))
        .add(view::LIST, routes!(view::list_collections))
        .add(view::GET, routes!(view::get_collection))
        .add(change::UPDATE, routes!(change::update_collection))
        .add(change::DELETE, routes!(change::delete_collection))
        .add(change::ROTATE_WEBHOOK_SECRET, routes!(change::rotate_webhook_secret))
        .add(cluster::START, routes!(cluster::cluster_collection))
        .add(cluster::LATEST, routes!(cluster::get_clustering))
}

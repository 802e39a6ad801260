//! Operations on watchlists and on their alerts.
mod alerts;
mod events;
mod export;
mod watchlists;

#[cfg(feature = "fuzzing")]
pub(crate) use self::{
    alerts::UpdateAlert,
    watchlists::{CreateWatchlist, UpdateWatchlist},
};

use crate::operation::Routes;
use utoipa_axum::routes;

pub(crate) fn router() -> Routes {
    Routes::default()
        .add(watchlists::CREATE, routes!(watchlists::create_watchlist))
        .add(watchlists::READ, routes!(watchlists::list_watchlists))
        .add(watchlists::READ, routes!(watchlists::get_watchlist))
        .add(watchlists::UPDATE, routes!(watchlists::update_watchlist))
        .add(watchlists::DELETE, routes!(watchlists::delete_watchlist))
        .add(alerts::READ, routes!(alerts::list_alerts))
        .add(events::SPEC, routes!(events::follow_alerts))
        .add(export::SPEC, routes!(export::export_alerts))
        .add(alerts::READ, routes!(alerts::get_alert))
        .add(alerts::UPDATE, routes!(alerts::update_alert))
        .add(alerts::REDELIVER, routes!(alerts::redeliver_alert))
}

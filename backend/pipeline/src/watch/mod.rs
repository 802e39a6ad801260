//! Creates watchlists, compares new faces with those of their collection, and delivers the alerts.
pub(crate) mod compare;
pub mod delivery;
pub mod lists;
pub mod matcher;

//! Compares new faces with the watchlists of their collection, and delivers the alerts.
pub(crate) mod compare;
pub mod delivery;
pub mod matcher;

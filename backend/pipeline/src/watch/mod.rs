//! Compares new faces with the watchlists of their collection, and delivers the alerts.
pub(crate) mod compare;
pub(crate) mod delivery;
pub mod matcher;

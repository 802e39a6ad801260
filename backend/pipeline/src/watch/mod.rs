//! Creates watchlists, compares new faces with those of their collection, delivers the alerts to
//! webhooks, and publishes them by MQTT.
pub(crate) mod compare;
pub mod delivery;
pub mod lists;
pub mod matcher;
pub mod mqtt;

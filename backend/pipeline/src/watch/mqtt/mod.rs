//! Publishes alerts, and the state of watched people and cameras, to an MQTT broker, from which
//! home automation systems read them. It is off unless a broker is configured.
mod broker;
pub mod config;
mod discovery;
mod messages;
pub mod publisher;

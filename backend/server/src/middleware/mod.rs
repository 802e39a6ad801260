//! Contains the layers around every handler. They run in this order: request id, logs and metrics,
//! CORS, headers, panics, timeout, hosts and origins.
//!
//! The layers for retries of reads, memory for bodies and database connections run after
//! authentication (`access`).
pub(crate) mod access;
pub(crate) mod again;
pub(crate) mod bodies;
pub(crate) mod headers;
pub(crate) mod hosts;
pub(crate) mod observe;
pub(crate) mod panic;
pub(crate) mod places;
pub(crate) mod request_id;
pub(crate) mod timeout;

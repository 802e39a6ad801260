//! Contains the layers around every handler. From the outside in: request id, logs and metrics,
//! CORS, headers, panics, timeout, hosts and origins.
//!
//! After the authentication follow retries of reads, memory for bodies, and database connections.
//! The authentication itself is in `auth`.
pub(crate) mod again;
pub(crate) mod bodies;
pub(crate) mod headers;
pub(crate) mod hosts;
pub(crate) mod observe;
pub(crate) mod panic;
pub(crate) mod places;
pub(crate) mod request_id;
pub(crate) mod timeout;

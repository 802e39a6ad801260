//! Contains the layers around every handler, in this order: request id, logs and metrics, CORS,
//! headers, panics, timeout, hosts and origins. The layers for memory of responses, retries of
//! reads, memory for bodies and database connections run after authentication (`access`).
pub(crate) mod access;
pub(crate) mod answers;
pub(crate) mod bodies;
pub(crate) mod connection_shares;
pub(crate) mod headers;
pub(crate) mod hosts;
pub(crate) mod observe;
pub(crate) mod panic;
pub(crate) mod request_id;
pub(crate) mod retry;
pub(crate) mod timeout;

use crate::AppState;
use crate::operation::Operations;
use std::sync::Arc;

/// Bodies and responses with at most this number of bytes are not counted. Small control requests
/// therefore succeed while images wait for memory. What is not counted needs little memory, because
/// the number of connections is limited.
const UNCOUNTED: u64 = 64 << 10;

/// The state of the handlers, and the operations of the router that the layers belong to.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) state: AppState,
    pub(crate) operations: Arc<Operations>,
}

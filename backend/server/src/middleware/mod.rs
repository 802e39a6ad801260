//! Contains the layers around every handler, in this order: request id, logs and metrics, CORS,
//! headers, panics, timeout, hosts and origins. The layers for memory of responses, retries of
//! reads, memory for bodies and database connections run after authentication (`access`).
pub(crate) mod access;
pub(crate) mod limits;
pub(crate) mod responses;

use crate::AppState;
use crate::operation::Operations;
use std::sync::Arc;

/// The state of the handlers, and the operations of the router that the layers belong to.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) state: AppState,
    pub(crate) operations: Arc<Operations>,
}

//! What happens around every handler, outermost first: request id, log and metrics, headers, panic, timeout.
pub(crate) mod headers;
pub(crate) mod observe;
pub(crate) mod panic;
pub(crate) mod request_id;
pub(crate) mod timeout;

//! What happens around every handler, outermost first: request id, log and metrics, headers, panic,
//! timeout, hosts and origins; after the caller is known, reads that are done again, and room for
//! bodies.
pub(crate) mod again;
pub(crate) mod bodies;
pub(crate) mod headers;
pub(crate) mod hosts;
pub(crate) mod observe;
pub(crate) mod panic;
pub(crate) mod places;
pub(crate) mod request_id;
pub(crate) mod timeout;

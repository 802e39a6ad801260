//! Decides when a request to a host may be sent.
pub(crate) mod host_throttle;
pub(crate) mod robots;

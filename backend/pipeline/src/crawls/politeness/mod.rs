//! Decides when a request to a host may be sent, and whether it may be sent at all.

pub(crate) mod fetch_policy;
pub(crate) mod host_concurrency;
pub(crate) mod host_throttle;
pub(crate) mod robots;

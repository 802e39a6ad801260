//! Applies erasures, suppressions and retention outside the statements of the store.

pub mod reapply;
pub(crate) mod sketch;
pub(crate) mod suppression;
pub mod sweeps;

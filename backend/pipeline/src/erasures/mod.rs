//! Applies erasures, suppressions and retention outside the statements of the store.

pub mod reapply;
pub mod sweeps;

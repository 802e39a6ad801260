//! Types and functions that the operations of several nouns use.
pub(crate) mod analysis;
pub(crate) mod deletion;
pub(crate) mod events;
pub(crate) mod export;
pub(crate) mod spool;
pub(crate) mod stored;
pub(crate) mod values;

//! Limits what is held or done at the same time: bytes, places and turns.

pub mod budget;
pub(crate) mod places;

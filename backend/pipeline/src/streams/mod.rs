//! Cameras: receives their frames, finds faces, and stores those that are wanted. Their alerts are
//! those of `watch`.
mod analysis;
mod appearances;
mod backlog;
pub mod check;
pub mod config;
pub mod control;
pub(crate) mod job;
mod receiver;
pub mod schedule;
pub mod still;
mod storing;
mod watched;

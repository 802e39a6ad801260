//! Joins the faces of successive frames into tracks, and the tracks of one video into people.
//!
//! Every result is a function of the input alone: no files, no network, no clock, no randomness.
//! Times are microseconds of the video or, for a live stream, since the epoch. Boxes are in pixels
//! of the frame. An embedding is a vector of length 1; the similarity of two embeddings is their
//! dot product, -1..1.

mod assignment;
pub mod boxes;
pub mod evaluate;
mod motion;
mod open_track;
pub mod people;
mod similarity;
pub mod split;
pub mod track;
mod tracker;

pub use similarity::write_dot_products;
pub use split::split;
pub use track::{Config, Observation, Shot, TimedBox, Track, TrackInfo, box_at};
pub use tracker::Tracker;

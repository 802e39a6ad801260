//! Films with drawn people, for tests of video: a script, its frames, its files and its truth.
//!
//! A [`Film`] describes shots with a moving camera and moving people. [`Film::frames`] draws it,
//! [`Film::encode`] writes it as a video file with ffmpeg, and [`Film::truth`] returns what a
//! perfect analysis of this file reports. Each frame contains its number as a pattern that
//! [`read_number`] reads, so that a test can prove that pixels and timestamps belong together.
//!
//! Nothing here uses a model. `tests/it/default_pack.rs` of inference compares the truth with the
//! default models.

mod damaged;
mod draw;
mod encoding;
mod ffmpeg;
mod number;
mod placement;
mod scaled;
mod script;
mod standard;
mod truth;

pub use damaged::DamagedFilms;
pub use draw::Frames;
pub use encoding::{Codec, Container, Encoding, MovieIndex};
pub use ffmpeg::{DecodedFrame, decode, repeat};
pub use number::{number_area, read_number, read_number_and_rotation};
pub use placement::Placed;
pub use script::{Actor, Film, Key, Shot, Timing, View};
pub use truth::{Appearance, Track, Truth, TruthFrame};

//! Films with drawn people, for tests of video: a script, its frames, its files and its truth.
//!
//! A [`Film`] describes shots with a moving camera and moving people. [`Film::frames`] draws it,
//! [`Film::encode`] writes it as a video file with ffmpeg, and [`Film::truth`] returns the result
//! of a perfect analysis of this file. Each frame contains its number as a pattern that
//! [`read_number`] reads, so that a test can check that each frame has the right timestamp.
//!
//! Nothing here uses a model. `tests/it/default_pack.rs` of inference compares the truth with the
//! default models.

mod draw;
mod ffmpeg;
mod script;
mod truth;

pub use draw::{Frames, number_area, read_number, read_number_and_rotation};
pub(crate) use ffmpeg::convert;
pub use ffmpeg::{
    Codec, Container, DecodedFrame, Encoding, FakeGpu, MovieIndex, decode, decode_stream, ffmpeg_with_gpu,
    repeat,
};
pub use script::{Actor, Film, PathPoint, PlacedPerson, Shot, Timing, View};
pub use truth::{Appearance, Track, Truth, TruthFrame};

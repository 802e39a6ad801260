//! Reads video files: which frames a file has, which of them are analysed, and their pixels. Also
//! decodes the images for which only ffmpeg has a decoder.
//!
//! ffmpeg decodes, in a process of its own that can read one file and write pipes, and nothing else
//! ([`sandbox`]). All calls block, so callers use a thread of their own. The crate contains no
//! models and no database.
//!
//! Times are microseconds from the first frame of the file, in the order in which a player shows
//! the frames. They come from the timestamps in the file, so they are exact for files with a
//! variable frame rate.

mod arguments;
mod child;
mod cpu;
mod error;
mod frames;
mod gpu;
mod image;
mod index;
mod listing;
mod messages;
mod program;
pub mod refine;
pub mod sampling;
pub mod sandbox;
pub mod shots;

pub use child::{CancelOnDrop, Launcher};
pub use error::{Damage, VideoError};
pub use frames::FrameReader;
pub use gpu::Gpus;
pub use image::{ImageDecoder, ImageError};
pub use index::Index;
pub use program::{Config, Decoder, GpuError, Limits, Sandboxed, find, is_video};
pub use sampling::{Looks, Sampling, Segment, TimedFrame};

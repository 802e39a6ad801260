//! Reads video files: lists their frames, selects frames for analysis, and decodes the pixels. Also
//! decodes the images for which only ffmpeg has a decoder.
//!
//! ffmpeg decodes in a separate process, which can only read one file and write to pipes
//! ([`sandbox`]). All calls block, so callers need a separate thread. The crate contains no models
//! and no database.
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
mod live;
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
pub use live::{LiveContainer, LiveFrames, LiveGpu, LiveInput, LiveStream};
pub use program::{Config, Decoder, GpuError, Limits, SandboxInfo, find_ffmpeg, is_video};
pub use sampling::{FrameSet, Sampling, Segment, TimedFrame};

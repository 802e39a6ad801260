//! Videos: their rows, states and progress. Tracks and the faces of their best shots are in the
//! module `tracks`.

pub mod crawled;
mod delete;
pub(crate) mod export;
mod insert;
mod progress;
mod read;
pub mod scanned;
mod state;
pub mod tracks;

pub(crate) use delete::{delete_video_rows, delete_videos, frames_of};
pub(crate) use insert::found_again;
pub use insert::{NewVideo, WaitingVideos};
pub use progress::{Checkpoint, VideoFacts};
pub use read::{Video, VideoFilter};
pub use state::VideoEnd;
pub(crate) use state::drop_files_of_ended;

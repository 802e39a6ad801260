//! The engine: loads the models of a pack once and serves all callers.
//!
//! A start has three steps. `resolve` selects the providers to try for each operation. `prove`
//! (models) and `images` (image operations) load a candidate on a device, and `compare` compares
//! its results with the CPU's. `load` starts the queues of the usable candidates. After the start,
//! `run` serves requests. The module `batcher` forms batches.
mod compare;
mod images;
mod load;
mod prove;
mod resolve;
mod run;
mod selftest;

pub use load::{BuiltEngine, build_engines};
pub use resolve::{
    DeviceFailure, VIDEO_DECODING, VideoPlacement, missing_ffmpeg_report, place_video_decoding,
};
pub use run::{Detector, DetectorInfo, EmbedderInfo, Engine, ScorerInfo};
pub use selftest::{DeviceTest, SelfTest, TestResult, self_test};

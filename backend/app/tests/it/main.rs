//! Tests of the program, in one test program, so that they are linked once. The tests in a browser
//! and the attacks under load are separate.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;

mod architecture;
mod backup;
mod bench;
mod chaos;
mod cli;
mod codes;
mod config;
mod crash;
mod damaged_videos;
mod deployment;
mod gpu_check;
mod gpu_runtime;
mod hostile;
mod image_formats;
mod jobs;
mod keys;
mod kills;
mod models;
mod monitoring;
mod packs;
mod politeness;
mod remains;
mod restart;
mod s3;
mod scan;
mod scan_video;
mod search_index;
mod service;
mod statements;
mod telemetry;
mod video;
mod video_kill;

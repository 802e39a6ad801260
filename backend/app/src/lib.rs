//! Contains the parts of the `facecrawl` binary: configuration, model store, command line,
//! telemetry and shutdown.

pub mod cli;
pub mod config;
mod decoder;
mod image_files;
pub mod models;
pub mod output;
pub mod profile;
pub mod service;
pub mod telemetry;

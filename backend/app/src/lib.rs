//! Contains the parts of the `facecrawl` binary: configuration, model store, command line,
//! telemetry and shutdown.

pub mod cli;
pub mod config;
mod decoder;
mod image_files;
pub mod models;
pub mod otlp;
mod output;
mod private;
pub mod profile;
pub mod progress;
pub mod service;
pub mod telemetry;

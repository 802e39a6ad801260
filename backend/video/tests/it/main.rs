//! Tests of the decoder through its public interface, with a real ffmpeg.
#![allow(clippy::unwrap_used)]

mod frames;
mod gpu;
mod images;
mod sandbox;

use std::path::Path;
use video::{Config, Decoder, Launcher, Limits};

/// Starts `program` in the sandbox, as the service does.
fn launcher() -> Launcher {
    Launcher::Sandbox { program: env!("CARGO_BIN_EXE_decode-child").into(), arguments: Vec::new() }
}

fn config(program: &Path) -> Config {
    Config { ffmpeg: program.to_owned(), launcher: launcher(), threads: 2, limits: Limits::default() }
}

fn decoder() -> Decoder {
    Decoder::open(config(&testing::ffmpeg())).unwrap()
}

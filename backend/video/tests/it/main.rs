//! Tests of the decoder through its public interface, with a real ffmpeg.
#![allow(clippy::unwrap_used)]

mod frames;
mod gpu;
mod images;
mod live;
mod sandbox;

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use video::{Config, Decoder, Launcher, Limits, VideoError};

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

/// Returns a decoder without a sandbox whose program is a shell script in `folder`: it prints a
/// version, or else runs `script`.
fn decoder_with_script(folder: &Path, script: &str, limits: Limits) -> Decoder {
    let program = folder.join("ffmpeg");
    let version = "[ \"$1\" != -version ] || { echo ffmpeg version 7; echo libavutil 60.; exit; }";
    std::fs::write(&program, format!("#!/bin/sh\n{version}\n{script}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).unwrap();
    loop {
        match Decoder::open(Config { launcher: Launcher::Direct, limits, ..config(&program) }) {
            // Another test may have started a process while the script was open for writing. The
            // script cannot start until that process closes the file.
            Err(VideoError::Unavailable(text)) if text.contains("Text file busy") => {}
            opened => return opened.unwrap(),
        }
    }
}

/// Returns a file without a name that contains these bytes.
fn file_with(bytes: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file
}
